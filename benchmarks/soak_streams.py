"""What a stream of each dialect must look like, from its first line to its last.

Each check takes the lines of a stream that was read to its end (empty ones and comments left
out) and raises ``Fault`` with what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


class Fault(Exception):
    """Something that must not happen."""


def need(true: object, what: str, shown: object = "") -> None:
    """Raises ``Fault`` unless ``true``."""
    if not true:
        raise Fault(f"{what}: {str(shown)[:300]}")


def _data(lines: list[str]) -> list[Any]:
    """The JSON objects of ``data:`` lines, of which all lines but ``[DONE]`` must be."""
    found: list[Any] = []
    for line in lines:
        need(line.startswith("data: {"), "no event", line)
        found.append(json.loads(line[6:]))
        need("error" not in found[-1], "an error in the stream", line)
    return found


def openai(lines: list[str]) -> None:
    """Chunks with one id; each choice ends once, with a reason, and says nothing afterwards."""
    need(lines and lines[-1] == "data: [DONE]", "the stream has no end", lines[-1:])
    events = _data(lines[:-1])
    need(len({event["id"] for event in events}) == 1, "several ids in one stream")
    ended: dict[int, bool] = {}
    for event in events:
        for choice in event["choices"]:
            need(not ended.get(choice["index"]), "a choice goes on after its end", event)
            ended[choice["index"]] = choice["finish_reason"] is not None
    need(ended and all(ended.values()), "a choice without a reason", ended)


def _named(lines: list[str]) -> list[Any]:
    """Events with names, which their objects' ``type`` must repeat."""
    names, data = lines[::2], _data(lines[1::2])
    need(len(names) == len(data), "a name without its data", lines[-1:])
    for name, event in zip(names, data, strict=True):
        need(name == f"event: {event['type']}", "another name than its type", name)
    return data


def responses(lines: list[str]) -> None:
    """Numbered without a gap, from ``created`` to ``completed`` or ``incomplete``."""
    events = _named(lines)
    numbers = [event["sequence_number"] for event in events]
    need(numbers == list(range(len(events))), "numbers with gaps", numbers)
    need(events[0]["type"] == "response.created", "a wrong beginning", events[0])
    last = events[-1]["type"]
    need(last in ("response.completed", "response.incomplete"), "a wrong end", events[-1])
    said = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    parts = [part for item in events[-1]["response"]["output"] for part in item.get("content", ())]
    whole = "".join(part.get("text", "") for part in parts if part["type"] == "output_text")
    need(said == whole, "the deltas are not the answer", (said, whole))


def anthropic(lines: list[str]) -> None:
    """A message around blocks, each begun, grown and ended before the next begins."""
    events = [event for event in _named(lines) if event["type"] != "ping"]
    need(events[0]["type"] == "message_start", "a wrong beginning", events[0])
    need([e["type"] for e in events[-2:]] == ["message_delta", "message_stop"], "a wrong end")
    index, begun = 0, False
    for event in events[1:-2]:
        kind = event["type"]
        need(event["index"] == index, "a wrong block", event)
        need((kind == "content_block_start") != begun, "a block within a block", event)
        begun = kind != "content_block_stop"
        index += not begun
    need(not begun, "a block without its end")
    need(events[-2]["delta"]["stop_reason"], "no reason", events[-2])


def llama(lines: list[str]) -> None:
    """The last event, and no other, says ``stop``."""
    stops = [event["stop"] for event in _data(lines)]
    need(stops and stops[-1] and not any(stops[:-1]), "a wrong end", stops)


def ollama(lines: list[str]) -> None:
    """The last line, and no other, says ``done``."""
    events = [json.loads(line) for line in lines]
    need(not any("error" in event for event in events), "an error in the stream", lines[-1:])
    done = [event["done"] for event in events]
    need(done and done[-1] and not any(done[:-1]), "a wrong end", done)
    need(events[-1]["done_reason"], "no reason", events[-1])


Check = Callable[[list[str]], None]
