"""The other side: llama.cpp through the `xllamacpp` package, same commands as
worker_gristmill.py. Runs in the peers' environment."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import xllamacpp


class Bench:
    """llama.cpp's server, in process."""

    def __init__(self, path: str, threads: int) -> None:
        started = time.perf_counter()
        params = xllamacpp.CommonParams()
        params.model.path = path
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        params.n_parallel = 16
        params.n_ctx = 16 * 3072
        params.n_batch = 2048
        params.n_ubatch = 512
        params.warmup = True
        params.cache_ram_mib = 0
        params.verbosity = -1
        params.port = 0
        self.server = xllamacpp.Server(params)
        self.load_s = time.perf_counter() - started
        self.pool = ThreadPoolExecutor(16)

    def complete(self, prompt: list[int], tokens: int) -> dict[str, float]:
        """One completion; llama.cpp's own timings."""
        answer = self.server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )
        if isinstance(answer, str | bytes):
            answer = json.loads(answer)
        return answer["timings"]

    def prompt(self, length: int) -> list[int]:
        """Random ids."""
        return [random.randrange(1000, 40_000) for _ in range(length)]

    def decode(self, streams: int, tokens: int) -> float:
        """Tokens per second of all streams together: streams over the time between tokens."""
        jobs = [self.pool.submit(self.complete, self.prompt(16), tokens) for _ in range(streams)]
        timings = [job.result() for job in jobs]
        return sum(t["predicted_n"] / t["predicted_ms"] * 1000 for t in timings)

    def prefill(self, length: int) -> float:
        """Prompt tokens per second."""
        return self.complete(self.prompt(length), 1)["prompt_per_second"]


def main() -> None:
    """Load, then answer commands."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # llama.cpp prints to standard output
    bench = Bench(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"load_s": bench.load_s, "name": "llama.cpp"}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "decode":
            value = bench.decode(command["streams"], command["tokens"])
        else:
            value = bench.prefill(command["tokens"])
        print(json.dumps({"tokens_per_s": value}), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
