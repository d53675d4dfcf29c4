"""What constraints cost: the offline engine's tokens a second, free and held, in turns.

    PYTHONPATH=src python benchmarks/constrained.py MODEL.gguf [--streams 8] [--tokens 128]
        [--rounds 7] [--inline]

Each round runs the streams three times: free, under a JSON schema, under a regular expression.
All take the same number of tokens (none of these answers can end before), with seeds of their
own. `--inline` computes the masks on the engine's thread, before the step, instead of beside it.
Then the time of one mask and one accepted token, and of the vocabulary's first preparation.
Everything in one process, so that the machine's moods touch all alike; medians of rounds.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from gristmill.engine.grammar import Guide, Masks
from gristmill.engine.loader import Loaded, load
from gristmill.files import open_model
from gristmill.options import Options
from gristmill.types import Constraint, Delta, Request, SamplingParams

PROMPT = "Write a long list of animals as JSON, each with a name, an age and a color.\n"
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 200},
        "color": {"enum": ["black", "white", "brown", "gray", "red"]},
        "wild": {"type": "boolean"},
    },
    "required": ["name", "age", "color", "wild"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "minItems": 200, "items": ITEM}
KINDS: dict[str, Constraint | None] = {
    "free": None,
    "schema": Constraint("json_schema", json.dumps(SCHEMA)),
    "lines": Constraint("regex", r"([A-Za-z0-9 ,.]{1,80}\n){300}"),
}


class Runs:
    """Streams of one loaded model."""

    def __init__(self, loaded: Loaded, streams: int, tokens: int) -> None:
        self.loaded = loaded
        self.streams = streams
        self.tokens = tokens
        self.count = 0
        encode = loaded.tokenizer.encode
        self.prompt = tuple(encode(PROMPT, add_special=True, parse_special=True))

    def speed(self, constraint: Constraint | None) -> float:
        """Tokens a second of all streams together."""
        deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        began = perf_counter()
        for _ in range(self.streams):
            self.count += 1
            params = SamplingParams(
                seed=self.count, max_tokens=self.tokens,
                ignore_eos=True, constraint=constraint,
            )  # fmt: skip
            self.loaded.engine.submit(Request(f"b{self.count}", self.prompt, params), deltas.put)
        ended = generated = 0
        while ended < self.streams:
            delta = deltas.get(timeout=600)
            generated += len(delta.tokens)
            ended += delta.finish is not None
        return generated / (perf_counter() - began)


def timed(name: str, into: list[float]) -> Callable[..., Any]:
    """A method of ``Guide`` that writes down how long it takes."""
    real = getattr(Guide, name)

    def method(*args: Any) -> Any:
        began = perf_counter()
        result = real(*args)
        into.append(perf_counter() - began)
        return result

    return method


def inline(self: Masks, asked: Sequence[Guide | None]) -> None:
    """``Masks.begin`` without its thread."""
    for guide in asked:
        if guide is not None:
            guide.prepare()


def microseconds(name: str, times: list[float]) -> str:
    """Mean, median and tail."""
    ordered = sorted(times)
    p99 = ordered[int(0.99 * len(ordered))]
    return (
        f"{name}: mean {1e6 * statistics.fmean(ordered):.1f} µs, "
        f"median {1e6 * statistics.median(ordered):.1f}, p99 {1e6 * p99:.1f}, "
        f"most {1e6 * ordered[-1]:.1f}, of {len(ordered)}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--inline", action="store_true")
    given = parser.parse_args()
    if given.inline:
        Masks.begin = inline
    options = Options(
        model=str(given.model), context=2048, max_running=max(16, given.streams),
        threads=given.threads,
    )  # fmt: skip
    loaded = load(open_model(given.model), options)
    runs = Runs(loaded, given.streams, given.tokens)
    began = perf_counter()
    loaded.grammars.compile(Constraint("regex", "a")).result()
    print(f"vocabulary of {loaded.model.config.vocab}: {perf_counter() - began:.2f} s")
    for constraint in KINDS.values():
        runs.speed(constraint)
    speeds: dict[str, list[float]] = {name: [] for name in KINDS}
    for _ in range(given.rounds):
        for name, constraint in KINDS.items():
            speeds[name].append(runs.speed(constraint))
    free = speeds["free"]
    for name, each in speeds.items():
        costs = [1 - held / base for held, base in zip(each, free, strict=True)]
        print(
            f"{name:7} {statistics.median(each):8.1f} tokens/s "
            f"({min(each):.1f} … {max(each):.1f}), cost {statistics.median(costs):+.1%}"
        )
    masks: list[float] = []
    accepts: list[float] = []
    Guide.prepare = timed("prepare", masks)
    Guide.accept = timed("accept", accepts)
    runs.speed(KINDS["schema"])
    print(microseconds("mask", masks))
    print(microseconds("accept", accepts))
    loaded.close()


if __name__ == "__main__":
    main()
