"""One side of a comparison: measures gristmill's engine on commands from standard input.

Commands are JSON lines: {"op": "decode", "streams": 8, "tokens": 64} or {"op": "prompt",
"tokens": 512}; answers are JSON lines with tokens per second. See compare.py.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time

from gristmill.engine.loader import load
from gristmill.files import open_model
from gristmill.options import Options
from gristmill.types import Delta, Request, SamplingParams


class Bench:
    """A loaded engine and its clock."""

    def __init__(self, path: str, threads: int) -> None:
        started = time.perf_counter()
        options = Options(threads=threads, context=8192, prefix_cache=False, max_running=32)
        self.loaded = load(open_model(path), options)
        self.load_s = time.perf_counter() - started
        self.vocab = self.loaded.model.config.vocab
        self.count = 0

    def generate(self, prompts: list[list[int]], tokens: int) -> list[tuple[float, float]]:
        """Run all prompts together; (first token, last token) clock times of each."""
        times = [[0.0, 0.0] for _ in prompts]
        done = threading.Semaphore(0)

        def sink(i: int):
            def take(delta: Delta) -> None:
                now = time.perf_counter()
                times[i][0] = times[i][0] or now
                times[i][1] = now
                if delta.finish:
                    done.release()

            return take

        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        for i, prompt in enumerate(prompts):
            self.count += 1
            self.loaded.engine.submit(Request(f"r{self.count}", tuple(prompt), params), sink(i))
        for _ in prompts:
            done.acquire()
        return [(a, b) for a, b in times]

    def prompt(self, length: int) -> list[int]:
        """Random ids: no prefix is shared."""
        return [random.randrange(1000, min(self.vocab, 40_000)) for _ in range(length)]

    def decode(self, streams: int, tokens: int) -> float:
        """Tokens per second of all streams together, from when the last one has begun."""
        times = self.generate([self.prompt(16) for _ in range(streams)], tokens)
        begin, end = max(a for a, _ in times), max(b for _, b in times)
        return streams * (tokens - 1) / (end - begin)

    def prefill(self, length: int) -> float:
        """Prompt tokens per second, from submission to the first token."""
        prompt = self.prompt(length)
        started = time.perf_counter()
        return length / (self.generate([prompt], 1)[0][0] - started)


def main() -> None:
    """Load, then answer commands."""
    bench = Bench(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"load_s": bench.load_s, "name": bench.loaded.backend.name}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "decode":
            value = bench.decode(command["streams"], command["tokens"])
        else:
            value = bench.prefill(command["tokens"])
        print(json.dumps({"tokens_per_s": value}), flush=True)
    bench.loaded.close()


if __name__ == "__main__":
    main()
