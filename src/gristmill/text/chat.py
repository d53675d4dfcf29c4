"""Chats to token ids: a tokenizer and its chat template as one.

Markup in message content never becomes control tokens (see ``masking``); every control token
of a chat's prompt is the template's own.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gristmill.text.masking import Markup
from gristmill.text.template import ChatTemplate
from gristmill.text.tokenizer import Segment, Tokenizer

log = logging.getLogger(__name__)

_FUNCTIONS = re.compile(r"\+ functions -?%\}")

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""What is used, as llama-server does, when a model brings no template."""

_GEMMA = (
    "{{ bos_token }}{% set first = namespace(text='') %}"
    "{% for message in messages %}"
    "{% if message.role == 'system' %}"
    "{% set first.text = first.text + message.content + '\\n\\n' %}"
    "{% else %}"
    "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}"
    "{{ first.text + message.content | trim + '<end_of_turn>\\n' }}{% set first.text = '' %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}"
    "{{ message.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

# A vocabulary with this token speaks this format, whether or not its file brings a template.
_BY_TOKEN = (
    ("<|im_start|>", "ChatML", CHATML),
    ("<start_of_turn>", "Gemma", _GEMMA),
    ("<|start_header_id|>", "Llama 3", _LLAMA3),
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered chat: its text, and its ids."""

    text: str
    ids: list[int]


class Chat:
    """Renders and encodes chats. Immutable; safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, source: str, tool_source: str | None = None) -> None:
        """``tool_source``: another template, for requests with tools.

        Raises RequestError if a source is no template.
        """
        self._tokenizer = tokenizer
        bos, eos = (
            "" if token is None else tokenizer.token_text(token)
            for token in (tokenizer.bos, tokenizer.eos)
        )
        self.template = ChatTemplate(source, bos, eos)
        self._tool_template = ChatTemplate(tool_source, bos, eos) if tool_source else self.template
        self._markup = Markup(tokenizer.markup(source + (tool_source or "")))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], tokenizer: Tokenizer) -> Chat:
        """The file's own templates; without one, what fits its vocabulary, with a warning."""
        source = metadata.get("tokenizer.chat_template")
        tools = metadata.get("tokenizer.chat_template.tool_use")
        if isinstance(source, str) and source.strip():
            return cls(tokenizer, source, tools if isinstance(tools, str) else None)
        for token, name, template in _BY_TOKEN:
            if tokenizer.token_id(token) is not None:
                log.warning("The model has no chat template; its vocabulary speaks %s.", name)
                return cls(tokenizer, template)
        log.warning(
            "The model has no chat template: chats are written as ChatML, which it may not know."
        )
        return cls(tokenizer, CHATML)

    @property
    def source(self) -> str:
        """The template's text."""
        return self.template.source

    @property
    def tool_source(self) -> str:
        """The text of the template for requests with tools."""
        return self._tool_template.source

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt's text alone. Raises RequestError as ``encode`` does."""
        template = self._tool_template if tools else self.template
        return template.render(messages, tools, **_older(template, tools, kwargs))

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        continue_final: bool = False,
        **kwargs: Any,
    ) -> Prompt:
        """Render and tokenise. A model that wants a begin token gets exactly one.

        ``continue_final`` leaves the last message open, for the model to go on with.
        ``kwargs`` are further variables of the template (``enable_thinking``, ``documents``).

        Raises RequestError: malformed messages, the template's own refusal, or its failure.
        """
        segments = self.segments(
            messages, tools, add_generation_prompt, continue_final=continue_final, **kwargs
        )
        return Prompt("".join(text for text, _ in segments), self.ids(segments))

    def segments(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        continue_final: bool = False,
        **kwargs: Any,
    ) -> list[Segment]:
        """The first half of ``encode``: the prompt's text, not yet tokenised."""
        template = self._tool_template if tools else self.template
        return template.render_segments(
            messages,
            tools,
            add_generation_prompt,
            markup=self._markup,
            continue_final=continue_final,
            **_older(template, tools, kwargs),
        )

    def ids(self, segments: Sequence[Segment]) -> list[int]:
        """The second half of ``encode``."""
        ids = self._tokenizer.encode_segments(segments, add_special=False)
        bos = self._tokenizer.bos
        if self._tokenizer.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids


def _older(
    template: ChatTemplate, tools: Sequence[Mapping[str, Any]] | None, given: Mapping[str, Any]
) -> Mapping[str, Any]:
    """With the variables of FireFunction's template, which are others' under older names."""
    if not _FUNCTIONS.search(template.source):
        return given
    functions = json.dumps(list(tools or ()), ensure_ascii=False, indent=4)
    now = datetime.now().strftime("%B %d %Y %H:%M:%S")
    return {"functions": functions, "datetime": now, **given}
