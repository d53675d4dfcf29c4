"""Stored responses, in memory, bounded in bytes and number: the one used least lately goes."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Protocol, cast

from gristmill.errors import NotFoundError, RequestError
from gristmill.serve.errors import dumps

MAX_RECORDS = 10_000
_OVERHEAD = 1024
"""Bytes that a record takes besides its texts."""


class Live(Protocol):
    """A response that is still being made."""

    def snapshot(self) -> dict[str, object]:
        """The response so far."""
        ...


@dataclass
class Record:
    """One response, kept as JSON so that its size is known."""

    id: str
    previous: str | None
    input: bytes
    response: bytes = b"{}"
    events: Sequence[bytes] = ()
    """The stream's events, if it was made in the background and may be followed."""
    live: Live | None = None
    deleted: bool = False
    counted: int = 0
    """Bytes that the store holds it for."""

    @property
    def size(self) -> int:
        """Bytes it is counted for."""
        events = sum(map(len, self.events)) + 64 * len(self.events)
        return _OVERHEAD + len(self.input) + len(self.response) + events

    def items(self) -> list[dict[str, object]]:
        """Its own input."""
        return cast("list[dict[str, object]]", json.loads(self.input))

    def body(self) -> dict[str, object]:
        """The response object as it is now."""
        if self.live is not None:
            return self.live.snapshot()
        return cast("dict[str, object]", json.loads(self.response))

    def output(self) -> list[dict[str, object]]:
        """The output's items."""
        return cast("list[dict[str, object]]", self.body()["output"])


class Store:
    """What ``previous_response_id`` and the routes by id find. Safe to use from any thread."""

    def __init__(self, most_bytes: int, most: int = MAX_RECORDS) -> None:
        self.most_bytes = most_bytes
        self.most = most
        self.bytes = 0
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._records)

    def put(self, record: Record) -> None:
        """Keeps a record (again), and lets go of old ones."""
        with self._lock:
            self._put(record)

    def _put(self, record: Record) -> None:
        self.drop(record.id)
        self._records[record.id] = record
        record.counted = record.size
        self.bytes += record.counted
        # One that is being made is not let go of: it could not be cancelled any more.
        idle = (each for each in list(self._records.values()) if each.live is None)
        while self.bytes > self.most_bytes or len(self._records) > self.most:
            oldest = next(idle, None)
            if oldest is None:
                return
            self.drop(oldest.id)

    def drop(self, id_: str) -> bool:
        """Forgets a record; False if there is none."""
        with self._lock:
            record = self._records.pop(id_, None)
            if record is None:
                return False
            self.bytes -= record.counted
            return True

    def get(self, id_: str) -> Record:
        """The record, used just now. Raises NotFoundError (404)."""
        with self._lock:
            record = self._records.get(id_)
            if record is None:
                raise NotFoundError(f"Response with id '{id_[:200]}' not found.", "response_id")
            self._records.move_to_end(id_)
            return record

    def conversation(self, previous: str) -> list[dict[str, object]]:
        """All items up to and with the response ``previous``. Raises RequestError."""
        items: list[dict[str, object]] = []
        for record in self._chain(previous):
            items += record.items()
            items += record.output()
        return items

    def _chain(self, previous: str) -> list[Record]:
        """The records of a conversation, the first one first; all of them used just now."""
        with self._lock:
            return self._links(previous)

    def _links(self, previous: str) -> list[Record]:
        chain: list[Record] = []
        at: str | None = previous
        while at is not None:
            record = self._records.get(at)
            if record is None:
                raise _unknown(previous, at)
            if record.live is not None:
                raise RequestError(
                    f"The previous response '{at}' is still in progress.", "previous_response_id"
                )
            chain.append(record)
            at = record.previous
        chain.reverse()
        for record in chain:
            self._records.move_to_end(record.id)
        return chain

    def items(self, ids: Iterable[str]) -> dict[str, Mapping[str, object]]:
        """The items that ``item_reference``s name, by id; each response is read once. Raises
        RequestError."""
        found: dict[str, Mapping[str, object]] = {}
        seen: set[str] = set()
        for id_ in ids:
            marks = id_.split("_")
            owner = f"resp_{marks[1]}" if len(marks) > 2 else ""
            if owner not in seen:
                seen.add(owner)
                with self._lock:
                    record = self._records.get(owner)
                if record is not None:
                    own = [*record.output(), *record.items()]
                    found |= {str(item.get("id")): item for item in own}
            if id_ not in found:
                raise RequestError(f"Item with id '{id_[:200]}' not found.", "input")
        return found


def _unknown(previous: str, at: str) -> RequestError:
    if at == previous:
        return RequestError(
            f"Previous response with id '{previous[:200]}' not found.", "previous_response_id"
        )
    return RequestError(
        f"The conversation before '{previous}' is not stored any more ('{at}' is gone).",
        "previous_response_id",
    )


def stored(id_: str, previous: str | None, items: Sequence[Mapping[str, object]]) -> Record:
    """A record of a response that begins."""
    return Record(id_, previous, dumps(list(items)))
