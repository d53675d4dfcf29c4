"""A message of content blocks, whole or as events: both read from the answer's segments."""

from __future__ import annotations

import hashlib

from gristmill.serve.answers import Answer, Group, Part, Write
from gristmill.serve.anthropic.request import Asked
from gristmill.serve.anthropic.tools import call_input
from gristmill.serve.run import Job
from gristmill.serve.segments import Cursor, Segment

_DELTAS = {
    "reasoning": ("thinking_delta", "thinking"),
    "content": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}


def signature(thinking: str) -> str:
    """What a thinking block is signed with. It proves nothing (the text may be passed back by
    whoever likes); clients drop a block without one."""
    return "gristmill-" + hashlib.sha256(thinking.encode()).hexdigest()


class MessageShape:
    """Makes the body or the events of one message."""

    def __init__(self, job: Job, asked: Asked) -> None:
        self.job = job
        self.asked = asked

    def whole(self, group: Group) -> dict[str, object]:
        """The message."""
        answer = group.answers[0]
        return self._message(
            answer,
            [self._block(segment, False) for segment in answer.segments.all],
            *self._stop(answer),
        )

    def _message(
        self, answer: Answer, content: list[object], reason: str | None, sequence: str | None
    ) -> dict[str, object]:
        return {
            "id": self.job.id,
            "type": "message",
            "role": "assistant",
            "model": self.job.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": {**self._usage(answer), "service_tier": "standard"},
        }

    def _usage(self, answer: Answer) -> dict[str, object]:
        cached = answer.cached
        return {
            "input_tokens": answer.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": answer.generated,
            "output_tokens_details": {"thinking_tokens": answer.segments.reasoning_tokens},
        }

    def _stop(self, answer: Answer) -> tuple[str, str | None]:
        by = answer.stopped_by
        if answer.finish == "length":
            return "max_tokens", None
        if isinstance(by, str) and by in self.asked.chat.stop:
            return "stop_sequence", by
        return ("tool_use" if answer.calls else "end_turn"), None

    def _block(self, segment: Segment, empty: bool) -> dict[str, object]:
        """A content block; ``empty`` as it is when it begins."""
        text = "" if empty else segment.text
        if segment.kind == "content":
            return {"type": "text", "text": text}
        if segment.kind == "reasoning":
            signed = "" if empty else signature(segment.text)
            shown = text if self.asked.show_thinking else ""
            return {"type": "thinking", "thinking": shown, "signature": signed}
        return {
            "type": "tool_use",
            "id": segment.id,
            "name": segment.name,
            "input": {} if empty else call_input(text),
        }

    def writer(self, group: Group) -> Write:
        """``message_start``, then each block as it grows."""
        del group
        cursor = Cursor()
        begun = False

        def write(answer: Answer, part: Part, ended: bool) -> list[object]:
            nonlocal begun
            made: list[object] = []
            if not begun:
                begun = True
                message = self._message(answer, [], None, None)
                made.append({"type": "message_start", "message": message})
            made.extend(self._blocks(answer, cursor, ended))
            return made

        return write

    def _blocks(self, answer: Answer, cursor: Cursor, ended: bool) -> list[object]:
        """What the stream has not told of the answer's blocks."""
        made: list[object] = []
        segments = answer.segments.all
        while cursor.segment < len(segments):
            segment = segments[cursor.segment]
            head = {"index": cursor.segment}
            if not cursor.opened:
                cursor.opened = True
                block = self._block(segment, True)
                made.append({"type": "content_block_start", **head, "content_block": block})
            text = "".join(segment.texts[cursor.texts :])
            cursor.texts = len(segment.texts)
            hidden = segment.kind == "reasoning" and not self.asked.show_thinking
            if text and not hidden:
                kind, name = _DELTAS[segment.kind]
                delta = {"type": kind, name: text}
                made.append({"type": "content_block_delta", **head, "delta": delta})
            if not ended and cursor.segment + 1 == len(segments):
                break
            if segment.kind == "reasoning":
                delta = {"type": "signature_delta", "signature": signature(segment.text)}
                made.append({"type": "content_block_delta", **head, "delta": delta})
            made.append({"type": "content_block_stop", **head})
            cursor.segment, cursor.texts, cursor.opened = cursor.segment + 1, 0, False
        return made

    def ending(self, group: Group) -> list[object]:
        """Why it ended and what it cost, then the end."""
        answer = group.answers[0]
        reason, sequence = self._stop(answer)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return [
            {"type": "message_delta", "delta": delta, "usage": self._usage(answer)},
            {"type": "message_stop"},
        ]
