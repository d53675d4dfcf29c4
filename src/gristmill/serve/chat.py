"""The text room's chat, made into what the routes call: checked input to a ``Prompt``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from gristmill.errors import RequestError
from gristmill.options import Options
from gristmill.serve.protocol import AnswerParser, ChatInput, Prompt
from gristmill.serve.requests import refuse_hopeless
from gristmill.text import reasoning
from gristmill.text.chat import Chat
from gristmill.text.tokenizer import Tokenizer
from gristmill.types import Thinking

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
    return Renderer(chat, tokenizer, _parser_name(options, chat))


def _parser_name(options: Options, chat: Chat) -> str | None:
    asked = options.reasoning_parser
    if asked == "none":
        return None
    if asked is None or asked == "auto":
        return reasoning.detect(chat.source)
    # vLLM has a parser a model; those of them that read <think> tags are the same one here.
    name = "think" if asked in _THINKERS else asked
    reasoning.parser(name)
    return name


_THINKERS = frozenset({"deepseek_r1", "deepseek-r1", "qwen3", "glm45", "ernie45", "holo2"})


class Renderer:
    """Renders one model's chats. Safe to call from several threads."""

    def __init__(self, chat: Chat, tokenizer: Tokenizer, parser: str | None) -> None:
        self._chat = chat
        self._tokenizer = tokenizer
        self._parser = parser

    @property
    def source(self) -> str:
        """The template."""
        return self._chat.source

    def __call__(self, chat: ChatInput) -> Prompt:
        """Raises RequestError for what the template or the text room refuses."""
        variables: dict[str, Any] = {k: v for k, v in chat.variables.items() if k not in _OURS}
        messages = cast("Sequence[Mapping[str, Any]]", chat.messages)
        tools = cast("Sequence[Mapping[str, Any]]", chat.tools)
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
        parser = self._reasoning(text, chat.split_reasoning)
        return Prompt(tuple(ids), parser, text, self._thinking(text))

    def _thinking(self, text: str) -> Thinking | None:
        """How the answer to this prompt may think; None where the prompt has ended a thought."""
        if self._parser is None:
            return None
        form = reasoning.find(self._parser)
        tail = text[-_TAIL:]
        if not form.close or tail.rstrip().endswith(form.close.rstrip()):
            return None
        return Thinking(form.open, form.close, form.opened(tail))

    def _reasoning(self, text: str, split: bool) -> Callable[[], AnswerParser] | None:
        name = self._parser
        if name is None or not split:
            return None
        tail = text[-_TAIL:]
        return lambda: reasoning.parser(name, tail)
