"""What the prefix cache saves, and what it costs where nothing is shared.

    PYTHONPATH=src python benchmarks/prefix.py MODEL.gguf [--rounds 3]

Three figures, of engines in this process, with the cache and without, in turns:

- first token: a prompt of 2,000 tokens and 20 of its own, alone, the first time and the second;
- users: 32 at once with one system prompt of 1,000 tokens, 20 tokens of their own each, 32 of
  answer: tokens of answers a second with the cache over without;
- nothing shared: 8 prompts of 256 tokens that begin differently, 32 of answer each: processor
  time with the cache over without.
"""

from __future__ import annotations

import argparse
import itertools
import queue
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from gristmill.engine.loader import Loaded, load
from gristmill.files import open_model
from gristmill.options import Options
from gristmill.types import Delta, Request, SamplingParams

NUMBER = itertools.count()


def run(loaded: Loaded, prompts: Sequence[tuple[int, ...]], tokens: int) -> tuple[float, float]:
    """Seconds until all are answered, and processor seconds."""
    deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    began, used = time.perf_counter(), time.process_time()
    for prompt in prompts:
        loaded.engine.submit(Request(str(next(NUMBER)), prompt, params), deltas.put)
    left = len(prompts)
    while left:
        left -= deltas.get(timeout=1800).finish is not None
    return time.perf_counter() - began, time.process_time() - used


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    draw = random.Random(time.time_ns())
    engines = {
        cache: load(
            open_model(given.model),
            Options(context=4096, max_running=32, prefix_cache=cache, kv_bytes=3 << 30),
        )
        for cache in (True, False)
    }
    vocab = engines[True].model.config.vocab

    def text(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(1000, vocab - 1000) for _ in range(count))

    for loaded in engines.values():
        run(loaded, [text(64)], 8)
    firsts: list[float] = []
    users: list[float] = []
    costs: list[float] = []
    for _ in range(given.rounds):
        shared = text(2000)
        first = run(engines[True], [shared + text(20)], 1)[0]
        second = run(engines[True], [shared + text(20)], 1)[0]
        firsts.append(first / second)
        system = text(1000)
        crowd = [system + text(20) for _ in range(32)]
        times = {cache: run(loaded, crowd, 32)[0] for cache, loaded in engines.items()}
        users.append(times[False] / times[True])
        print(
            f"first token {first:.3f} s, then {second:.4f} s: {firsts[-1]:.1f} times; "
            f"32 users {1024 / times[True]:.0f} and {1024 / times[False]:.0f} tokens/s: "
            f"{users[-1]:.2f} times",
            flush=True,
        )
    for _ in range(4 * given.rounds):
        apart = [text(256) for _ in range(8)]
        used = {cache: run(loaded, apart, 32)[1] for cache, loaded in engines.items()}
        costs.append(used[True] / used[False] - 1)
    print(
        f"medians: first token {statistics.median(firsts):.1f} times sooner, 32 users "
        f"{statistics.median(users):.2f} times the tokens, nothing shared "
        f"{100 * statistics.median(costs):+.2f} % processor time"
    )
    for loaded in engines.values():
        loaded.close()


if __name__ == "__main__":
    main()
