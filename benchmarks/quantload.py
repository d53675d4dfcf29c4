"""Loading with --quantization: seconds, megabytes of source a second, memory.

    PYTHONPATH=src python benchmarks/quantload.py MODEL TYPE [--threads 2]

MODEL is a file or folder of 16 or 32 bits, TYPE what `serve --quantization` takes, or `none`. One
load in this process; the file is read once before, so that it is in the page cache.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from gristmill.convert.requantise import requantiser
from gristmill.engine.loader import load
from gristmill.files import open_model
from gristmill.models import understand
from gristmill.options import Options


def status(key: str) -> int:
    """A size of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) // 1024


def main() -> None:
    """Load and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("type")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    checkpoint = understand(open_model(given.model))
    size = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    for path in [given.model] if given.model.is_file() else given.model.iterdir():
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    options = Options(model=str(given.model), context=512, threads=given.threads)
    change = None
    if given.type != "none":
        change = requantiser(checkpoint, given.type, threads=given.threads)
    before = status("RssAnon")
    Path("/proc/self/clear_refs").write_text("5")  # from here on the peak counts
    began = time.perf_counter()
    loaded = load(checkpoint, options, change=change)
    took = time.perf_counter() - began
    print(f"{given.type}: {took:.1f} s, {size / took / 1e6:.0f} MB of source a second")
    print(f"weights {loaded.plan.facts.weights_bytes >> 20} MiB; anonymous memory {before} MiB "
          f"before, {status('RssAnon')} after; at most resident {status('VmHWM')}")  # fmt: skip
    if change is not None:
        print(change.told())
    loaded.close()


if __name__ == "__main__":
    main()
