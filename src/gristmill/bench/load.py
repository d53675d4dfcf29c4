"""Putting load on an endpoint: a fixed number of streams, or a rate of arrivals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from gristmill.bench.client import Answer, Ask, Client, Raw, read


async def closed(client: Client, asks: Sequence[Ask], streams: int) -> list[Answer]:
    """All ``asks`` in order, ``streams`` at a time: who has its answer sends the next.

    Answer i belongs to ask i.
    """
    waiting = iter(enumerate(asks))
    raws: dict[int, Raw] = {}

    async def stream() -> None:
        for index, ask in waiting:
            raws[index] = await client.send(ask)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(streams, len(asks))):
            group.create_task(stream())
    return [read(raws[index]) for index in range(len(asks))]


async def opened(client: Client, asks: Sequence[Ask], offsets: Sequence[float]) -> list[Answer]:
    """Ask i is sent ``offsets[i]`` seconds after the start, whatever became of the others.

    Times count from when a request was due, so that a late sender hides no waiting.
    """
    begin = time.perf_counter() + 0.01

    async def one(ask: Ask, offset: float) -> Raw:
        due = begin + offset
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        return await client.send(replace(ask, due=due))

    raws = await asyncio.gather(*(one(a, o) for a, o in zip(asks, offsets, strict=True)))
    return [read(raw) for raw in raws]
