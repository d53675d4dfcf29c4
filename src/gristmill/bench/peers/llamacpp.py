"""llama.cpp through the ``xllamacpp`` package, in the peers' own environment.

Speaks as ``gristmill.bench.worker`` does: see there. Run by path, imports nothing of ours.
"""

# pyright: basic
from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import xllamacpp  # pyright: ignore[reportMissingImports]


class Worker:
    """llama.cpp's server, in process, without HTTP."""

    def __init__(self, config: dict[str, Any]) -> None:
        started = time.perf_counter()
        params = xllamacpp.CommonParams()
        params.model.path = config["model"]
        params.cpuparams.n_threads = config["threads"]
        params.cpuparams_batch.n_threads = config["threads"]
        params.n_parallel = config["slots"]
        params.n_ctx = config["slots"] * config["context"]
        params.n_batch = 2048
        params.n_ubatch = 512
        params.kv_unified = False  # each slot attends to its own cache only: faster
        params.warmup = False  # the first token is measured cold; rounds have a warm-up
        params.cache_ram_mib = 0
        params.verbosity = -1
        params.port = 0
        self.server = xllamacpp.Server(params)
        self.load_s = time.perf_counter() - started
        self.pool = ThreadPoolExecutor(config["slots"])

    def complete(self, prompt: list[int], tokens: int, started: float) -> list[float]:
        """Seconds from ``started`` to the first and the last token.

        The last is when the answer returned; the first, llama.cpp's own time of the tokens
        after the first earlier. Nothing is streamed: that would cost the peer time.
        """
        answer = self.server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )
        last = time.perf_counter() - started
        if isinstance(answer, str | bytes):
            answer = json.loads(answer)
        timings = answer["timings"]
        if timings["predicted_n"] != tokens:
            raise ValueError(f"{timings['predicted_n']} tokens instead of {tokens}")
        return [last - timings["predicted_ms"] / 1000, last]

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        """All prompts together."""
        started = time.perf_counter()
        jobs = [
            self.pool.submit(self.complete, prompt, command["tokens"], started)
            for prompt in command["prompts"]
        ]
        return {"spans": [job.result() for job in jobs]}


def main() -> None:
    """Load, say hello, then answer commands until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # llama.cpp prints to standard output
    worker = Worker(json.loads(sys.argv[1]))
    hello = {"name": f"llama.cpp (xllamacpp {version('xllamacpp')})", "load_s": worker.load_s}
    print(json.dumps(hello), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(worker.run(json.loads(line))), file=answers, flush=True)
    answers.close()
    os._exit(0)  # its threads would be waited for


if __name__ == "__main__":
    main()
