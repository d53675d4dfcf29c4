"""The text room's chat, made into what the routes call: checked input to a ``Prompt``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from gristmill.errors import RequestError
from gristmill.options import Options
from gristmill.serve.protocol import AnswerParser, ChatInput, Prompt
from gristmill.serve.requests import refuse_hopeless
from gristmill.text import reasoning
from gristmill.text import tools as tool_formats
from gristmill.text.chat import Chat
from gristmill.text.messages import normalize
from gristmill.text.reasoning import switch
from gristmill.text.tokenizer import Tokenizer
from gristmill.text.tools.adapt import Abilities, abilities, adapt
from gristmill.text.tools.base import Format, Tool, Wanted
from gristmill.text.tools.compose import Both, FirstCall
from gristmill.types import Constraint, Thinking

_TAIL = 256
"""Characters of a prompt's end that tell whether it has begun a thought."""
_OURS = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final", "markup", "self"}
)
"""Names that ``chat_template_kwargs`` may not set: they are fields of their own."""


def chat_renderer(
    metadata: Mapping[str, object], tokenizer: Tokenizer, options: Options
) -> Callable[[ChatInput], Prompt]:
    """What ``Served.chat`` is for a model from a GGUF file.

    Raises: RequestError for a template that is none, UsageError for an unknown parser.
    """
    if options.chat_template is not None:
        chat = Chat(tokenizer, options.chat_template)
    else:
        chat = Chat.from_gguf(metadata, tokenizer)
    form = _tool_format(options.tool_call_parser, chat)
    return Renderer(
        chat,
        tokenizer,
        _parser_name(options, chat),
        form,
        reasoning_format=options.reasoning_format,
        variables=json.loads(options.template_variables),
    )


def _tool_format(asked: str | None, chat: Chat) -> Format | None:
    if asked == "none":
        return None
    if asked is None or asked == "auto":
        asked = tool_formats.detect(chat.tool_source) or "json"
    return tool_formats.find(asked)


def _parser_name(options: Options, chat: Chat) -> str | None:
    asked = options.reasoning_parser
    if asked == "none":
        return None
    if asked is None or asked == "auto":
        return reasoning.detect(chat.source)
    return reasoning.find(asked).name


class Renderer:
    """Renders one model's chats. Safe to call from several threads."""

    def __init__(
        self,
        chat: Chat,
        tokenizer: Tokenizer,
        parser: str | None,
        form: Format | None = None,
        *,
        reasoning_format: str = "auto",
        variables: Mapping[str, object] | None = None,
    ) -> None:
        """``parser`` names the format of the reasoning, ``form`` is that of tool calls; None
        leaves it in the content. ``reasoning_format`` (llama-server's names) and ``variables``
        of the template are for requests that do not say themselves."""
        self._chat = chat
        self._tokenizer = tokenizer
        self._parser = parser
        self._form = form
        self._split = reasoning_format != "none"
        self._inline = reasoning_format == "deepseek-legacy"
        self._variables = variables or {}

    @property
    def source(self) -> str:
        """The template."""
        return self._chat.source

    @cached_property
    def _able(self) -> Abilities:
        return abilities(self._chat.text, self._chat.tool_source)

    def __call__(self, chat: ChatInput) -> Prompt:
        """Raises RequestError for what the template or the text room refuses."""
        messages, tools = self._adapted(chat)
        variables = self._seen(chat.variables, bool(tools))
        segments = self._chat.segments(
            messages,
            tools or None,
            chat.add_generation_prompt and not chat.continue_final_message,
            continue_final=chat.continue_final_message,
            **variables,
        )
        text = "".join(part for part, _ in segments)
        refuse_hopeless(text, self._tokenizer, chat.most)
        ids = self._chat.ids(segments)
        if not ids:
            raise RequestError("The chat template made an empty prompt.", "messages")
        known = _known(chat.tools)
        thinking = self._thinking(text, bool(known))
        return Prompt(
            tuple(ids),
            self._answer_parser(text[-_TAIL:], chat, known),
            text,
            thinking,
            self._constraint(chat, known, thinking is not None),
            self._shown(bool(known)),
        )

    def _seen(self, given: Mapping[str, object], tools: bool) -> dict[str, Any]:
        """The template's variables, what they ask of the reasoning in its own words."""
        asked = {k: v for k, v in given.items() if k not in _OURS}
        source = self._chat.tool_source if tools else self._chat.source
        return switch.variables(source, switch.merged(self._variables, asked))

    def _adapted(
        self, chat: ChatInput
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
        """Messages and tools as this template can write them."""
        messages = cast("Sequence[Mapping[str, Any]]", chat.messages)
        tools = cast("Sequence[Mapping[str, Any]]", chat.tools)
        if not tools and not any(_about_tools(message) for message in chat.messages):
            return messages, ()
        return adapt(normalize(messages), tools, self._able, self._form or _ANY)

    def _thinking(self, text: str, tools: bool) -> Thinking | None:
        """How the answer to this prompt may think; None where the prompt has ended a thought."""
        if self._parser is None:
            return None
        form = reasoning.find(self._parser)
        tail = text[-_TAIL:]
        if not form.close or tail.rstrip().endswith(form.close.rstrip()):
            return None
        close = form.close_before_calls if tools and form.close_before_calls else form.close
        return Thinking(form.open, close, form.opened(tail))

    def _answer_parser(
        self, tail: str, chat: ChatInput, known: Sequence[Tool]
    ) -> Callable[[], AnswerParser] | None:
        """Makes what splits an answer: the reasoning first, then the calls."""
        split = self._split if chat.split_reasoning is None else chat.split_reasoning
        name = self._parser if split else None
        form = self._form
        inline = self._inline if chat.inline_reasoning is None else chat.inline_reasoning
        # A parser that reads calls within the reasoning cannot leave the reasoning unsplit.
        inline = inline or (not split and form is not None and form.reasons)

        def shown(parser: AnswerParser) -> AnswerParser:
            return reasoning.Inline(parser, apart=split) if inline else parser

        if form is None or not known:
            return None if name is None else lambda: shown(reasoning.parser(name, tail))

        def made() -> AnswerParser:
            parser = form.parser(known, tail)
            if name is not None and not form.reasons:
                parser = Both(reasoning.parser(name, tail), parser)
            return shown(parser if chat.parallel else FirstCall(parser))

        return made

    def _constraint(
        self, chat: ChatInput, known: Sequence[Tool], thinks: bool
    ) -> Constraint | None:
        """The grammar of the calls that must come. Raises RequestError."""
        if not chat.must_call:
            return None
        if self._form is None:
            raise RequestError(
                "A tool call cannot be forced: the server was started with "
                "--tool-call-parser none.",
                "tool_choice",
            )
        wanted = Wanted(
            [tool for tool in known if tool.name in chat.must_call],
            chat.parallel and self._able.several,
            self._mark,
        )
        # Models put line ends between a thought and what comes after it.
        start = r"start: /\n{0,2}/ calls" if thinks and not self._form.reasons else "start: calls"
        return Constraint("lark", f"{start}\n{self._form.grammar(wanted)}")

    def _mark(self, text: str) -> str:
        """Lark's text for a mark: no string matches a special token, only its id does."""
        token = self._tokenizer.token_id(text)
        if token is None or not self._tokenizer.hidden(token):
            return json.dumps(text)
        return f"<[{token}]>"

    def _shown(self, tools: bool) -> tuple[int, ...]:
        """The ids of marks that are special tokens."""
        marks = () if self._parser is None else reasoning.find(self._parser).marks
        if tools and self._form is not None:
            marks = (*marks, *self._form.marks)
        found = (self._tokenizer.token_id(mark) for mark in dict.fromkeys(marks))
        return tuple(t for t in found if t is not None and self._tokenizer.hidden(t))


_ANY = tool_formats.find("json")


def _known(tools: Sequence[object]) -> tuple[Tool, ...]:
    """The text room's tools out of OpenAI's, which have been checked."""
    known: list[Tool] = []
    for tool in cast("Sequence[Mapping[str, Any]]", tools):
        function = tool["function"]
        known.append(
            Tool(
                function["name"],
                function.get("description") or "",
                function["parameters"],
                bool(function.get("strict")),
            )
        )
    return tuple(known)


def _about_tools(message: object) -> bool:
    if not isinstance(message, dict):
        return False
    fields = cast("Mapping[str, object]", message)
    return bool(fields.get("tool_calls")) or fields.get("role") == "tool"
