"""``gristmill bench offline``: the engine without HTTP, and peers on the same file beside it.

Every side is a process of its own with the same threads and cores; all stay loaded, one works
at a time. Each figure is measured on one, then on the next, and every other round the other
way round. Prompts are the same random ids for all; no side has a prefix cache.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gristmill.bench.card import Card
from gristmill.bench.report import Better, Measure, Report
from gristmill.bench.side import OURS, Side, Spec
from gristmill.errors import GristmillError

Told = Callable[[str, int, int], None]
"""Told what is being measured, the steps done and the steps in all."""

_IDS = (1000, 40_000)
"""Ids of prompts: ordinary tokens in every vocabulary that is large enough."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for. ``depth``: tokens in the context before decoding is measured.

    ``starts``: fresh processes a side, for the start and its memory.
    """

    model: Path
    threads: int
    streams: tuple[int, ...] = (1, 4, 8, 16)
    prompts: tuple[int, ...] = (512, 2034)
    tokens: int = 64
    depth: int = 16
    rounds: int = 5
    starts: int = 3
    profile: bool = False
    seed: int = 0
    backend: str = "cpu"
    peers: tuple[Spec, ...] = ()
    run: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def context(self) -> int:
        """Of each slot: enough for every request of the run, in steps of 256."""
        longest = max((self.depth + self.tokens, *(each + 1 for each in self.prompts)))
        return -(-longest // 256) * 256

    def config(self, slots: int) -> dict[str, Any]:
        """What a worker is told."""
        return {
            "model": str(self.model),
            "threads": self.threads,
            "slots": slots,
            "context": self.context,
            "backend": self.backend,
        }


class Bench:
    """A run: its sides, its report, how far it is."""

    def __init__(self, settings: Settings, card: Card, told: Told) -> None:
        self.settings = settings
        self.specs = [OURS, *settings.peers]
        title = f"gristmill bench offline: {settings.model.name}"
        self.report = Report("offline", title, (OURS.name,), card, _asked(settings))
        self._told = told
        self._done = 0
        self._steps = len(self.specs) * (
            settings.starts
            + (settings.rounds + 1) * (len(settings.streams) + len(settings.prompts))
        )
        self.hello: dict[str, dict[str, Any]] = {}

    def run(self) -> Report:
        """Measure everything."""
        settings = self.settings
        self._starts()
        self.report.sides = tuple(spec.name for spec in self.specs)
        self.report.title += f", {' and '.join(self.report.sides)}"
        sides: list[Side] = []
        try:
            config = settings.config(max(settings.streams, default=1))
            for spec in self.specs:
                sides.append(Side(spec, config))
            for streams in settings.streams:
                self._decode(sides, streams)
            for length in settings.prompts:
                self._prompt(sides, length)
            self._memory(sides)
            if settings.profile:
                self._profile(sides[0])
        finally:
            for side in sides:
                side.close()
        self._told("done", self._steps, self._steps)
        return self.report

    # ---------------------------------------------------------- one after another

    def _turns(self, sides: list[Side], what: str) -> Iterator[tuple[int, Side]]:
        """(round, side) in the order of measuring; round -1 is the warm-up."""
        for turn in range(-1, self.settings.rounds):
            for side in sides if turn % 2 == 0 else sides[::-1]:
                self._step(
                    f"{what}: {f'round {turn + 1}' if turn >= 0 else 'warm-up'}, {side.name}"
                )
                yield turn, side

    def _step(self, what: str) -> None:
        self._told(what, self._done, self._steps)
        self._done += 1

    def _ids(self, length: int, *name: object) -> list[int]:
        """A prompt of random ids, the same for all sides."""
        vocab = int(self.hello[OURS.name]["vocab"])
        low = min(_IDS[0], vocab // 4)
        key = (self.settings.seed, self.settings.run, length, *name)
        chooser = random.Random("/".join(map(str, key)))
        return [chooser.randrange(low, min(vocab, _IDS[1])) for _ in range(length)]

    def _add(
        self,
        scenario: str,
        key: str,
        metric: str,
        unit: str,
        values: dict[str, list[float]],
        better: Better = "higher",
        **place: int,
    ) -> None:
        for side, rounds in values.items():
            if rounds and not all(math.isnan(value) for value in rounds):
                self.report.measures.append(
                    Measure(scenario, key, metric, unit, side, tuple(rounds), better, **place)
                )

    # ------------------------------------------------------------------ the start

    def _starts(self) -> None:
        """Fresh processes with one slot: load, first token, memory. Drops peers that fail."""
        settings = self.settings
        keys = ("load", "cold", "pss", "peak_rss")
        found: dict[str, dict[str, list[float]]] = {key: {} for key in keys}
        for turn in range(settings.starts):
            for spec in list(self.specs):
                self._step(f"start {turn + 1}: {spec.name}")
                try:
                    figures = self._start(spec)
                except GristmillError as error:
                    if spec is OURS:
                        raise
                    self.specs.remove(spec)
                    self.report.note(f"{spec.name} is not measured: {error}")
                    continue
                for key, value in zip(keys, figures, strict=True):
                    found[key].setdefault(spec.name, []).append(value)
        name = f"start, one slot of {settings.context} tokens"
        longest = max(settings.prompts, default=settings.depth)
        self._add(name, "load", "load", "s", found["load"], "lower")
        self._add(name, "cold", "process to first token", "s", found["cold"], "lower")
        after = f"after a prompt of {longest}"
        self._add(name, "pss", f"memory, PSS {after}", "MB", found["pss"], "lower")
        self._add(name, "peak_rss", "memory, peak RSS", "MB", found["peak_rss"], "lower")

    def _start(self, spec: Spec) -> tuple[float, float, float, float]:
        """Seconds to load, seconds from the process's birth to a token, MB, MB."""
        settings = self.settings
        with Side(spec, settings.config(1)) as side:
            self.hello[spec.name] = side.hello
            born = side.age()
            ((first, _),) = side.spans([self._ids(settings.depth, "start")], 1)
            if settings.prompts:
                side.spans([self._ids(max(settings.prompts), "start")], 1)
            memory = side.memory()
            sizes = (math.nan, math.nan) if memory is None else (memory.pss, memory.peak_rss)
            return side.hello["load_s"], born + first, sizes[0] / 1e6, sizes[1] / 1e6

    # ------------------------------------------------------------- decode, prompts

    def _decode(self, sides: list[Side], streams: int) -> None:
        settings = self.settings
        name = _decode_name(streams)
        speed: dict[str, list[float]] = {side.name: [] for side in sides}
        outside: list[float] = []
        for turn, side in self._turns(sides, name):
            prompts = [self._ids(settings.depth, turn, i) for i in range(streams)]
            answer = side.ask({"op": "run", "prompts": prompts, "tokens": settings.tokens})
            if turn < 0:
                continue  # the warm-up
            spans: list[list[float]] = answer["spans"]
            # Each stream by its own clock: who waited for others' prompts is not flattered.
            speed[side.name].append(sum((settings.tokens - 1) / (b - a) for a, b in spans))
            if "model_s" in answer:
                whole = max(b for _, b in spans)
                outside.append(100 * max(0.0, 1 - answer["model_s"] / whole))
        self._add(name, "output_tps", "output tokens", "tokens/s", speed, streams=streams)
        users = {side: [v / streams for v in values] for side, values in speed.items()}
        self._add(name, "user_tps", "speed of one user", "tokens/s", users, streams=streams)
        self._add_roofline(name, streams, speed)
        python = {OURS.name: outside}
        self._add(name, "outside", "time outside the model", "% of it", python, "lower")

    def _add_roofline(self, name: str, streams: int, speed: dict[str, list[float]]) -> None:
        """Bytes read a second, and how much of what the memory gives that is."""
        settings, ours = self.settings, self.hello[OURS.name]
        context = settings.depth + settings.tokens / 2
        cache = sum(size * min(context, window or context) for size, window in ours["kv"])
        read: dict[str, list[float]] = {}
        for side, values in speed.items():
            weights = ours["weights_step" if side == OURS.name else "file_step"]
            step = weights + streams * cache
            read[side] = [value / streams * step / 1e9 for value in values]
        self._add(name, "bandwidth", "weights and cache read", "GB/s", read, "neither")
        roof = self.report.card.get("read bandwidth GB/s")
        if isinstance(roof, float) and roof > 0:
            share = {
                side: [100 * value / roof for value in values] for side, values in read.items()
            }
            self._add(name, "roofline", "of the memory's bandwidth", "%", share, "neither")

    def _prompt(self, sides: list[Side], length: int) -> None:
        name = f"prompt of {length}"
        first: dict[str, list[float]] = {side.name: [] for side in sides}
        for turn, side in self._turns(sides, name):
            ((seconds, _),) = side.spans([self._ids(length, turn)], 1)
            if turn >= 0:
                first[side.name].append(seconds)
        speed = {side: [length / value for value in values] for side, values in first.items()}
        self._add(name, "prompt_tps", "prompt tokens", "tokens/s", speed, prompt=length)
        ms = {side: [1000 * value for value in values] for side, values in first.items()}
        self._add(name, "ttft", "time to first token", "ms", ms, "lower", prompt=length)

    # -------------------------------------------------------------- memory, profile

    def _memory(self, sides: list[Side]) -> None:
        slots = max(self.settings.streams, default=1)
        name = f"after all, {slots} slots of {self.settings.context} tokens"
        known = {side.name: memory for side in sides if (memory := side.memory()) is not None}
        pss = {side: [memory.pss / 1e6] for side, memory in known.items()}
        peak = {side: [memory.peak_rss / 1e6] for side, memory in known.items()}
        self._add(name, "pss_all", "memory, PSS", "MB", pss, "lower")
        self._add(name, "peak_rss_all", "memory, peak RSS", "MB", peak, "lower")

    def _profile(self, side: Side) -> None:
        """Where a step's time goes, in runs of their own: the profile adds barriers."""
        if not side.hello["profiles"]:
            self.report.note(f"The {self.settings.backend} back end has no profile.")
            return
        settings = self.settings
        for streams in settings.streams:
            prompts = [self._ids(settings.depth, "profile", i) for i in range(streams)]
            self._profile_of(side, _decode_name(streams), prompts, settings.tokens)
        for length in settings.prompts:
            self._profile_of(side, f"prompt of {length}", [self._ids(length, "profile")], 1)

    def _profile_of(self, side: Side, what: str, prompts: list[list[int]], tokens: int) -> None:
        self._told(f"profile: {what}", self._done, self._steps)
        side.ask({"op": "profile", "on": True})
        side.spans(prompts, tokens)
        kinds: dict[str, float] = side.ask({"op": "times"})["kinds"]
        side.ask({"op": "profile", "on": False})
        whole = sum(kinds.values()) or 1.0
        scenario = f"time by kind of node: {what}"
        for kind, seconds in sorted(kinds.items(), key=lambda item: -item[1]):
            share = {side.name: [100 * seconds / whole]}
            self._add(scenario, f"share_{kind}", kind, "%", share, "neither")
        self._add(scenario, "nodes", "all nodes", "ms", {side.name: [1000 * whole]}, "neither")


def _decode_name(streams: int) -> str:
    return "decode, 1 stream" if streams == 1 else f"decode, {streams} streams"


def _asked(settings: Settings) -> dict[str, object]:
    return {
        "model": settings.model.name,
        "model bytes": settings.model.stat().st_size,
        "threads": settings.threads,
        "streams": ", ".join(map(str, settings.streams)),
        "prompts": ", ".join(map(str, settings.prompts)),
        "tokens out": settings.tokens,
        "context before decoding": settings.depth,
        "context of a slot": settings.context,
        "rounds": settings.rounds,
        "starts": settings.starts,
        "back end": settings.backend,
        "seed": settings.seed,
        "run": settings.run,
    }


def run(settings: Settings, card: Card, told: Told) -> Report:
    """Measure, and say of every side what it is."""
    bench = Bench(settings, card, told)
    report = bench.run()
    for side in report.sides:
        hello = bench.hello[side]
        report.card[f"side {side}"] = str(hello["name"])
        for note in hello.get("notes", ()):
            report.note(f"{side}: {note}")
    return report
