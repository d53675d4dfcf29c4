"""Chat templates: messages to the prompt text a model was trained on.

Whatever goes wrong in a template is one sentence with the template's line; what the template
says itself (``raise_exception``) is passed on to the client as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import jinja2

from gristmill.errors import RequestError
from gristmill.text.masking import Markup, Mask
from gristmill.text.messages import normalize
from gristmill.text.sandbox import Budget, Environment, LimitError, TemplateRaised
from gristmill.text.tokenizer import Segment

MAX_SOURCE = 1 << 20
"""Characters of a template; the longest known have about twenty thousand."""
_OUTPUT_FACTOR = 4
_OUTPUT_BASE = 1 << 20

_environment: Environment | None = None


class ChatTemplate:
    """A compiled template. Immutable; safe to render from several threads."""

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        """``bos`` and ``eos`` are the texts of those tokens, which templates write themselves.

        Raises RequestError if the source is no template.
        """
        if len(source) > MAX_SOURCE:
            raise RequestError(
                f"The chat template has {len(source)} characters; at most {MAX_SOURCE} are read.",
                "chat_template",
            )
        self.source = source
        self._bos = bos
        self._eos = eos
        try:
            self._template = _shared_environment().compiled(source)
        except jinja2.TemplateSyntaxError as error:
            raise RequestError(
                f"The chat template is wrong at line {error.lineno}: {error.message}",
                "chat_template",
            ) from None
        except (
            RecursionError,
            MemoryError,
            ValueError,
            OverflowError,
            SyntaxError,
        ) as error:
            raise RequestError(
                f"The chat template cannot be read: {type(error).__name__}.",
                "chat_template",
            ) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt. ``kwargs`` are further variables of the template (``enable_thinking``).

        Raises RequestError: malformed messages, the template's own refusal, or its failure.
        """
        values = self._values(normalize(messages), tools, add_generation_prompt, kwargs)
        return self._run(values)

    def render_segments(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        markup: Markup,
        continue_final: bool = False,
        **kwargs: Any,
    ) -> list[Segment]:
        """The prompt in segments: the text of ``render``, with ``markup`` that came from the
        messages, the tools or ``kwargs`` marked as untrusted (see ``masking``).

        ``continue_final`` leaves the last message open, to be continued by the model.
        """
        known = normalize(messages)
        mask = Mask(markup, [known, tools, kwargs, self.source])
        masked = mask.messages(known)
        values = self._values(
            masked, mask.value(tools), add_generation_prompt and not continue_final,
            mask.value(kwargs),
        )  # fmt: skip
        text = self._run(values)
        return mask.segments(_cut_after_final(text, masked) if continue_final else text)

    def _values(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
    ) -> dict[str, Any]:
        for message in messages:
            if message["role"] == "developer" and "developer" not in self.source:
                message["role"] = "system"
        own = {
            "messages": messages,
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._bos,
            "eos_token": self._eos,
        }
        return own | {k: v for k, v in kwargs.items() if k == "documents" or k not in own}

    def _run(self, values: dict[str, Any]) -> str:
        budget = Budget(_OUTPUT_BASE + _OUTPUT_FACTOR * _size(values))
        try:
            return _shared_environment().run(self._template, values, budget)
        except TemplateRaised as error:
            raise RequestError(str(error), "messages") from None
        except LimitError as error:
            problem = str(error)
        except RecursionError:
            problem = "calls itself without end"
        except (MemoryError, OverflowError):
            problem = "makes something too large"
        except RequestError:
            raise
        except Exception as error:
            problem = f"fails: {_first_line(error)}"
            raise RequestError(
                f"The chat template {problem} ({self._place(error.__traceback__)})",
                "messages",
            ) from None
        raise RequestError(f"The chat template {problem}.", "messages")

    def _place(self, trace: TracebackType | None) -> str:
        """The template's line in which an error arose."""
        line = 0
        while trace is not None:
            if trace.tb_frame.f_globals.get("__jinja_template__") is not None or (
                trace.tb_frame.f_code.co_filename == "<template>"
            ):
                line = self._template.get_corresponding_lineno(trace.tb_lineno)
            trace = trace.tb_next
        return f"line {line}" if line else "line unknown"


def _cut_after_final(text: str, messages: list[dict[str, Any]]) -> str:
    """The prompt up to the end of its last message's content."""
    final = str(messages[-1]["content"]) if messages else ""
    if not final.strip():
        raise RequestError("There is no final message with text to be continued.", "messages")
    for shown in (final, final.rstrip(), final.strip()):  # templates may trim
        at = text.rfind(shown)
        if at >= 0:
            return text[: at + len(shown)]
    raise RequestError(
        "The final message cannot be continued: the chat template changes its text.",
        "messages",
    )


def _shared_environment() -> Environment:
    global _environment
    if _environment is None:
        _environment = Environment()
    return _environment


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _size(value: object, depth: int = 0) -> int:
    """Characters in all texts of a value (not deeper than requests may nest)."""
    if isinstance(value, str):
        return len(value)
    if depth > 200:
        raise RequestError("The request nests values too deep.")
    if isinstance(value, Mapping):
        return sum(_size(k, depth + 1) + _size(v, depth + 1) for k, v in value.items())  # pyright: ignore
    if isinstance(value, (list, tuple)):
        return sum(_size(part, depth + 1) for part in value)  # pyright: ignore
    return 8
