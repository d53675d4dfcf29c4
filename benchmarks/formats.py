"""Memory and speed of quantised folders beside GGUF files of the same shapes.

    python benchmarks/make_formats.py OUT_DIR --vocabulary some.gguf
    python benchmarks/formats.py OUT_DIR [--threads 2] [--rounds 15]

For each format both models are packed in one process, and steps of 1 and of 8 streams are played
on one, then on the other. A step's time is the processor's if ``--processor-time``, which needs
one thread: on a machine that others use it says more than the clock.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from make_formats import FORMATS

from gristmill import backends
from gristmill.backends.ops import BLOCK_TOKENS, Backend, Batch
from gristmill.files import open_model
from gristmill.models import build, understand

STREAMS = (1, 8)
PAST = 16


@dataclass
class Packed:
    """A packed model whose steps can be played."""

    stored: int
    """Bytes in the file."""
    packed: int
    play: Callable[[int], object]
    """One step of so many streams."""


def packed(path: Path, backend: Backend) -> Packed:
    """Open, pack, compile."""
    checkpoint = understand(open_model(path))
    model = build(checkpoint)
    weights = {want.name: backend.pack(want, checkpoint.tensors) for want in model.wanted()}
    memory = backend.memory(model.states(), backend.kv_dtype("auto"))
    blocks = -(-(PAST + 1) // BLOCK_TOKENS)
    memory.resize(0, blocks * max(STREAMS))
    program = backend.compile(lambda ops: model.forward(ops, weights), memory)
    rng = np.random.default_rng(0)

    def play(streams: int) -> object:
        rows = np.arange(streams, dtype=np.int32)
        spans = np.stack([rows, np.ones_like(rows), np.full_like(rows, PAST)], 1)
        table = np.arange(streams * blocks, dtype=np.int32).reshape(streams, blocks)
        ids = rng.integers(1000, 40_000, streams).astype(np.int32)
        return program.run(Batch(ids, np.full(streams, PAST, np.int32), spans, (table,), rows))

    used = {part.tensor for want in model.wanted() for part in want.parts}
    stored = sum(checkpoint.tensors[name].nbytes for name in used)
    return Packed(stored, sum(weight.nbytes for weight in weights.values()), play)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS))
    args = parser.parse_args()
    if args.processor_time and args.threads != 1:
        parser.error("the processor's time is that of one thread: --threads 1")
    clock = time.process_time if args.processor_time else time.perf_counter
    heads = "".join(f" ms, {n} streams | speed |" for n in STREAMS)
    print(f"| format | beside | memory ÷ stored |{heads}")
    print(f"|---|---|---:|{'---:|---:|' * len(STREAMS)}")
    for form in args.formats:
        backend = backends.open("cpu", args.threads)
        beside = FORMATS[form][2]
        ours, theirs = (packed(args.folder / name, backend) for name in (form, f"{beside}.gguf"))
        cells = ""
        for streams in STREAMS:
            times: tuple[list[float], list[float]] = ([], [])
            for model in (ours, theirs):
                model.play(streams)
            for i in range(args.rounds):
                for side in (0, 1) if i % 2 else (1, 0):
                    started = clock()
                    (ours, theirs)[side].play(streams)
                    times[side].append(clock() - started)
            mine, other = median(times[0]), median(times[1])
            cells += f" {mine * 1e3:.1f} | {other / mine:.2f}× |"
        print(f"| {form} | {beside} | {ours.packed / ours.stored:.3f} |{cells}", flush=True)
        backend.close()


if __name__ == "__main__":
    main()
