"""A response of output items, whole or as events: both read from the answer's segments."""

from __future__ import annotations

import time
from collections.abc import Callable

from gristmill.errors import GristmillError
from gristmill.serve.answers import Answer, Group, Part, Write
from gristmill.serve.errors import error_body
from gristmill.serve.openai.logprobs import chat_form
from gristmill.serve.responses.items import seal
from gristmill.serve.responses.request import Asked
from gristmill.serve.run import Job
from gristmill.serve.segments import Cursor, Segment
from gristmill.serve.stream import typed_event
from gristmill.types import TokenLogprob

Event = dict[str, object]


class ResponseShape:
    """Makes the body or the events of one response. ``done`` is told of the finished body."""

    def __init__(self, job: Job, asked: Asked, done: Callable[[Event], None]) -> None:
        self.job = job
        self.asked = asked
        self.mark = job.id.removeprefix("resp_")
        self.group: Group | None = None
        self._done = done
        self._told = 0

    # ------------------------------------------------------------- bodies

    def whole(self, group: Group) -> Event:
        """The finished response."""
        answer = group.answers[0]
        cut = answer.finish == "length"
        body = self._body("incomplete" if cut else "completed", answer)
        if cut:
            body["incomplete_details"] = {"reason": "max_output_tokens"}
        self._done(body)
        return body

    def unfinished(self, status: str) -> Event:
        """The response so far, in the state ``status``."""
        return self._body(status, self.group.answers[0] if self.group else None)

    def cancelled(self) -> None:
        """Somebody has ended it before its time."""
        self._done(self.unfinished("cancelled"))

    def failed(self, error: BaseException) -> Event:
        """The response that an error ended."""
        inner = error_body(error)["error"]
        assert isinstance(inner, dict)
        body = self.unfinished("failed")
        code = "invalid_prompt" if _is_clients(error) else "server_error"
        body["error"] = {"code": code, "message": inner["message"]}
        self._done(body)
        return body

    def _body(self, status: str, answer: Answer | None) -> Event:
        fields, chosen = self.asked.fields, self.job.sampling
        ended = status in ("completed", "incomplete", "failed", "cancelled")
        return {
            "id": self.job.id,
            "object": "response",
            "created_at": self.job.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": fields.background,
            "error": None,
            "incomplete_details": None,
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "max_tool_calls": fields.max_tool_calls,
            "metadata": dict(self.asked.metadata),
            "model": self.job.model,
            "output": [] if answer is None else self._output(answer, ended, status == "completed"),
            "parallel_tool_calls": fields.parallel_tool_calls,
            "previous_response_id": fields.previous_response_id,
            "prompt_cache_key": fields.prompt_cache_key,
            "reasoning": {
                "effort": self.asked.chat.reasoning_effort,
                "summary": self.asked.summary,
            },
            "safety_identifier": fields.safety_identifier or None,
            "service_tier": "default",
            "store": self.asked.stored,
            "temperature": chosen.temperature,
            "text": {"verbosity": "medium", "format": {"type": "text"}, **(fields.text or {})},
            "tool_choice": "auto" if fields.tool_choice is None else fields.tool_choice,
            "tools": fields.tools or [],
            "top_logprobs": fields.top_logprobs or 0,
            "top_p": chosen.top_p,
            "truncation": fields.truncation or "disabled",
            "usage": _usage(answer) if answer is not None and ended else None,
            "user": fields.user or None,
        }

    def _output(self, answer: Answer, ended: bool, complete: bool) -> list[Event]:
        last = len(answer.segments.all) - 1
        broken = "incomplete" if ended else "in_progress"
        return [
            self._item(i, segment, "completed" if i < last or complete else broken)
            for i, segment in enumerate(answer.segments.all)
        ]

    def _item(self, index: int, segment: Segment, status: str, empty: bool = False) -> Event:
        """An output item; ``empty`` as it is when it begins."""
        head: Event = {"id": self._id(index, segment), "type": "message", "status": status}
        if segment.kind == "content":
            content = [] if empty else [self._part(segment)]
            return {**head, "role": "assistant", "content": content}
        if segment.kind == "call":
            return {
                **head,
                "type": "function_call",
                "call_id": segment.id,
                "name": segment.name,
                "arguments": "" if empty else segment.text or "{}",
            }
        parts = [] if empty else [self._part(segment)]
        item = {**head, "type": "reasoning", "summary": parts if self.asked.summary else []}
        if not self.asked.summary:
            item["content"] = parts
        if self.asked.sealed:
            item["encrypted_content"] = "" if empty else seal(segment.text)
        return item

    def _id(self, index: int, segment: Segment) -> str:
        prefix = {"content": "msg", "call": "fc", "reasoning": "rs"}[segment.kind]
        return f"{prefix}_{self.mark}_{index}"

    def _part(self, segment: Segment, empty: bool = False) -> Event:
        text = "" if empty else segment.text
        if segment.kind == "reasoning":
            return {
                "type": "summary_text" if self.asked.summary else "reasoning_text",
                "text": text,
            }
        scores = self._scores([] if empty else segment.logprobs)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": scores}

    def _scores(self, entries: list[TokenLogprob]) -> object:
        if not self.asked.logprobs:
            return []
        return chat_form(entries, self.job.served.tokenizer)["content"]

    # ------------------------------------------------------------- events

    def told(self, kind: str, **more: object) -> Event:
        """An event, numbered."""
        made: Event = {"type": kind, "sequence_number": self._told, **more}
        self._told += 1
        return made

    def opening(self, status: str = "in_progress") -> list[Event]:
        """The events before the first item."""
        first = self._body(status, None)
        return [
            self.told("response.created", response=first),
            self.told("response.in_progress", response={**first, "status": "in_progress"}),
        ]

    def writer(self, group: Group) -> Write:
        """The opening, then each item as it grows."""
        self.group = group
        cursor = Cursor()
        begun = False

        def write(answer: Answer, part: Part, ended: bool) -> list[object]:
            nonlocal begun
            made: list[object] = []
            if not begun:
                begun = True
                made.extend(self.opening())
            made.extend(self._items(answer, cursor, ended))
            return made

        return write

    def _items(self, answer: Answer, cursor: Cursor, ended: bool) -> list[Event]:
        """What the stream has not told of the answer's items."""
        made: list[Event] = []
        segments = answer.segments.all
        while cursor.segment < len(segments):
            index, segment = cursor.segment, segments[cursor.segment]
            if not cursor.opened:
                cursor.opened = True
                made.extend(self._begin(index, segment))
            text = "".join(segment.texts[cursor.texts :])
            scores = segment.logprobs[cursor.logprobs :] if self.asked.logprobs else []
            cursor.texts, cursor.logprobs = len(segment.texts), len(segment.logprobs)
            last = index + 1 == len(segments)
            over = ended or not last
            if over and segment.kind == "call" and not segment.text:
                text = "{}"
            if text or scores:
                made.append(self._delta(index, segment, text, scores))
            if not over:
                break
            cut = last and answer.finish == "length"
            made.extend(self._finish(index, segment, "incomplete" if cut else "completed"))
            cursor.segment, cursor.texts, cursor.logprobs = index + 1, 0, 0
            cursor.opened = False
        return made

    def _place(self, index: int, segment: Segment) -> Event:
        """Where an event of a part belongs."""
        place: Event = {"item_id": self._id(index, segment), "output_index": index}
        if segment.kind == "reasoning" and self.asked.summary:
            return {**place, "summary_index": 0}
        return place if segment.kind == "call" else {**place, "content_index": 0}

    def _name(self, segment: Segment) -> str:
        """What the events of a segment's text begin with."""
        if segment.kind == "content":
            return "response.output_text"
        if segment.kind == "call":
            return "response.function_call_arguments"
        inner = "reasoning_summary_text" if self.asked.summary else "reasoning_text"
        return f"response.{inner}"

    def _part_name(self, segment: Segment) -> str:
        summed = segment.kind == "reasoning" and self.asked.summary
        return f"response.{'reasoning_summary_part' if summed else 'content_part'}"

    def _begin(self, index: int, segment: Segment) -> list[Event]:
        item = self._item(index, segment, "in_progress", empty=True)
        made = [self.told("response.output_item.added", output_index=index, item=item)]
        if segment.kind != "call":
            name, place = f"{self._part_name(segment)}.added", self._place(index, segment)
            made.append(self.told(name, **place, part=self._part(segment, empty=True)))
        return made

    def _delta(self, index: int, segment: Segment, text: str, scores: list[TokenLogprob]) -> Event:
        more: Event = {"delta": text}
        if segment.kind == "content":
            more["logprobs"] = self._scores(scores)
        return self.told(f"{self._name(segment)}.delta", **self._place(index, segment), **more)

    def _finish(self, index: int, segment: Segment, status: str) -> list[Event]:
        place = self._place(index, segment)
        item = self._item(index, segment, status)
        if segment.kind == "call":
            more: Event = {"name": segment.name, "arguments": item["arguments"]}
            made = [self.told(f"{self._name(segment)}.done", **place, **more)]
        else:
            part = self._part(segment)
            more = {"text": segment.text}
            if segment.kind == "content":
                more["logprobs"] = part["logprobs"]
            made = [
                self.told(f"{self._name(segment)}.done", **place, **more),
                self.told(f"{self._part_name(segment)}.done", **place, part=part),
            ]
        return [*made, self.told("response.output_item.done", output_index=index, item=item)]

    def ending(self, group: Group) -> list[object]:
        """``response.completed`` or ``response.incomplete``."""
        body = self.whole(group)
        return [self.told(f"response.{body['status']}", response=body)]


class EarlyEvents:
    """A stream whose response has not begun: its model is still being loaded."""

    media_type = "text/event-stream"

    def chunk(self, value: object) -> bytes:
        """``event: NAME`` and ``data: {"type": NAME, ...}``."""
        return typed_event(value)

    def alive(self) -> bytes:
        """A comment."""
        return b": keep-alive\n\n"

    def failure(self, error: BaseException) -> bytes:
        """OpenAI's ``error`` event."""
        told = error_body(error)["error"]
        assert isinstance(told, dict)
        fields = {name: told.get(name) for name in ("message", "param")}  # pyright: ignore
        return self.chunk(
            {"type": "error", "code": told.get("type"), **fields, "sequence_number": 0}  # pyright: ignore
        )

    def end(self) -> bytes:
        """Nothing."""
        return b""


class ResponseEvents(EarlyEvents):
    """Events named by their ``type``; an error is a failed response."""

    def __init__(self, shape: ResponseShape) -> None:
        self.shape = shape

    def failure(self, error: BaseException) -> bytes:
        """``response.failed``."""
        body = self.shape.failed(error)
        return self.chunk(self.shape.told("response.failed", response=body))


def _is_clients(error: BaseException) -> bool:
    return isinstance(error, GristmillError) and error.status < 500


def _usage(answer: Answer) -> Event:
    cached = answer.cached
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": answer.generated,
        "output_tokens_details": {"reasoning_tokens": answer.segments.reasoning_tokens},
        "total_tokens": answer.prompt_tokens + answer.generated,
    }
