"""Answers as Ollama writes them: pieces, and a last object that says what it cost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from gristmill.serve.answers import Answer, Call, Group, Part, Write
from gristmill.serve.ollama.lines import nanoseconds, stamp
from gristmill.serve.openai.logprobs import chat_form
from gristmill.serve.run import Job
from gristmill.types import TokenLogprob

Body = Callable[[str, str, Sequence[object]], dict[str, object]]
"""Puts content, thinking and tool calls where a route has them."""


@dataclass
class Shape:
    """The objects of one answer. ``began`` and ``loaded`` are ``time.monotonic`` seconds: when
    the request came, and when its model was there."""

    job: Job
    body: Body
    began: float
    loaded: float
    scored: bool = False
    context: bool = False
    """Whether the last object carries the ids of prompt and answer."""
    _told: dict[int, int] = field(default_factory=dict[int, int])

    def whole(self, group: Group) -> dict[str, object]:
        """The answer as one object."""
        answer = group.answers[0]
        calls = [made for call in answer.calls if (made := _call(call)) is not None]
        made = self._object("".join(answer.content), "".join(answer.reasoning), calls)
        return {**made, **self._scores(answer.logprobs), **self._last(answer)}

    def writer(self, group: Group) -> Write:
        """Text as it comes, a call when it is complete, then the last object."""
        del group
        told = 0

        def write(answer: Answer, part: Part, ended: bool) -> Sequence[object]:
            nonlocal told
            made: list[object] = []
            complete = len(answer.calls) - (0 if ended else 1)
            calls = [_call(call) for call in answer.calls[told : max(told, complete)]]
            told = max(told, complete)
            known = [call for call in calls if call is not None]
            scores = self._scores(part.logprobs)
            if part.reasoning:
                made.append({**self._object("", part.reasoning, ()), **scores, "done": False})
                scores = {}
            if part.content or known or scores.get("logprobs"):
                made.append({**self._object(part.content, "", known), **scores, "done": False})
            if ended:
                made.append({**self._object("", "", ()), **self._last(answer)})
            return made

        return write

    def ending(self, group: Group) -> list[object]:
        """Nothing: the last object is the answer's own."""
        del group
        return []

    def _object(self, content: str, thinking: str, calls: Sequence[object]) -> dict[str, object]:
        return {
            "model": self.job.model,
            "created_at": stamp(time.time()),
            **self.body(content, thinking, calls),
        }

    def _scores(self, entries: Sequence[TokenLogprob]) -> dict[str, object]:
        if not self.scored:
            return {}
        return {"logprobs": chat_form(entries, self.job.served.tokenizer)["content"]}

    def _last(self, answer: Answer) -> dict[str, object]:
        took = answer.timings
        last: dict[str, object] = {
            "done": True,
            "done_reason": answer.finish,
            **durations(self.began, self.loaded),
            "prompt_eval_count": answer.prompt_tokens,
            "prompt_eval_duration": nanoseconds(took.prefill_s if took else 0.0),
            "eval_count": answer.generated,
            "eval_duration": nanoseconds(took.decode_s if took else 0.0),
        }
        if self.context:
            last["context"] = [*self.job.prompts[0].ids, *answer.tokens]
        return last


def durations(began: float, loaded: float) -> dict[str, object]:
    """How long everything took until now, and how long the model was waited for."""
    return {
        "total_duration": nanoseconds(time.monotonic() - began),
        "load_duration": nanoseconds(loaded - began),
    }


def chat_body(content: str, thinking: str, calls: Sequence[object]) -> dict[str, object]:
    """``/api/chat``."""
    message: dict[str, object] = {"role": "assistant", "content": content}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = list(calls)
    return {"message": message}


def generate_body(content: str, thinking: str, calls: Sequence[object]) -> dict[str, object]:
    """``/api/generate``: there are no tools."""
    del calls
    body: dict[str, object] = {"response": content}
    if thinking:
        body["thinking"] = thinking
    return body


def _call(call: Call) -> dict[str, object] | None:
    """A call, its arguments an object. None for one that the answer's end has cut in two: half
    an object is no object."""
    try:
        arguments: Any = json.loads(call.arguments or "{}")
    except ValueError:
        return None
    if not isinstance(arguments, dict):
        return None
    function = {"name": call.name, "arguments": cast("dict[str, object]", arguments)}
    return {"id": call.id, "function": function}
