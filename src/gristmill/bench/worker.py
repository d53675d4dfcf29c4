"""gristmill's engine in a process of its own, without HTTP: one side of the offline bench.

    python -m gristmill.bench.worker '{"model": …, "threads": 2, "slots": 8, "context": 4096}'

Lines of JSON. It says hello with ``name``, ``load_s`` and what only it knows of the model; then
answers commands in turn: ``{"op": "run", "prompts": [[ids]], "tokens": n}`` with ``spans``, for
each prompt the seconds from submission to its first and last token; ``{"op": "profile", "on":
true}``; ``{"op": "times"}`` with ``kinds``, the seconds of each kind of node since then. A peer
of its own kind answers ``run`` alone.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import gristmill
from gristmill.backends.ops import BLOCK_TOKENS
from gristmill.engine.loader import Loaded, load
from gristmill.errors import GristmillError
from gristmill.files import open_model
from gristmill.options import Options
from gristmill.types import Delta, Request, SamplingParams, Sink, Slot, Window


class Worker:
    """A loaded engine and its clock."""

    def __init__(self, config: dict[str, Any]) -> None:
        started = time.perf_counter()
        options = Options(
            threads=config["threads"],
            context=config["context"],
            max_running=config["slots"],
            prefix_cache=False,
            draft_tokens=0,  # random prompts are followed by loops, which guesses would flatter
        )
        self.loaded: Loaded = load(
            open_model(Path(config["model"])), options, backend=config.get("backend", "cpu")
        )
        self.load_s = time.perf_counter() - started
        # Of the back ends only the CPU's has a native program that can be profiled.
        self.native: Any = getattr(self.loaded.program, "native", None)
        self.count = 0

    def hello(self) -> dict[str, Any]:
        """What the bench must know."""
        loaded, facts = self.loaded, self.loaded.plan.facts
        tensors = loaded.checkpoint.tensors
        # Of an embedding table that is not the output matrix a step reads a few rows only.
        untied = any(want.name == "output.weight" for want in loaded.model.wanted())
        spare = tensors["token_embd.weight"].data.nbytes if untied else 0
        kv = [
            [block / BLOCK_TOKENS, spec.window if isinstance(spec, Window) else None]
            for spec, block in zip(facts.states, facts.block_bytes, strict=True)
            if not isinstance(spec, Slot)
        ]
        return {
            "name": f"gristmill {gristmill.__version__}, {loaded.backend.name}",
            "load_s": self.load_s,
            "vocab": loaded.model.config.vocab,
            "context": loaded.plan.context,
            "weights_step": facts.weights_bytes - spare,
            "file_step": sum(t.data.nbytes for t in tensors.values()) - spare,
            "kv": kv,
            "profiles": self.native is not None,
            "notes": list(loaded.plan.notes),
        }

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """One command's answer."""
        if command["op"] == "run":
            return self.run(command["prompts"], command["tokens"])
        if command["op"] == "profile":
            self.native.profile(command["on"])
            return {}
        kinds: dict[str, float] = defaultdict(float)
        for kind, seconds in self.native.times():
            kinds[kind] += seconds
        return {"kinds": kinds}

    def run(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        """All prompts together. ``model_s``: seconds of it that the back end computed steps."""
        spans = [[0.0, 0.0] for _ in prompts]
        errors: list[str] = []
        done = threading.Semaphore(0)

        def sink(span: list[float]) -> Sink:
            def take(delta: Delta) -> None:
                now = time.perf_counter() - started
                span[0] = span[0] or now
                span[1] = now
                if delta.finish == "error":
                    errors.append(delta.error or "the engine gave no reason")
                if delta.finish is not None:
                    done.release()

            return take

        engine = self.loaded.engine
        before = engine.stats()
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        started = time.perf_counter()
        for prompt, span in zip(prompts, spans, strict=True):
            self.count += 1
            engine.submit(Request(f"bench-{self.count}", tuple(prompt), params), sink(span))
        for _ in prompts:
            done.acquire()
        if errors:
            raise GristmillError(errors[0])
        after = engine.stats()
        return {"spans": spans, "model_s": after.model_seconds - before.model_seconds}


def main() -> None:
    """Load, say hello, then answer commands until the input ends."""
    try:
        worker = Worker(json.loads(sys.argv[1]))
        print(json.dumps(worker.hello()), flush=True)
        for line in sys.stdin:
            print(json.dumps(worker.answer(json.loads(line))), flush=True)
        worker.loaded.close()
    except GristmillError as error:
        print(f"gristmill: error: {error}", file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
