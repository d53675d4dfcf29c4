"""gristmill against llama.cpp on one file: same threads, one run, measurements interleaved.

    python benchmarks/compare.py MODEL.gguf --peer-python PEERS/bin/python [--rounds 5]

Both sides stay loaded; each figure is measured on one, then on the other, `rounds` times. The
table shows medians (with the spread) and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


class Side:
    """A worker process that answers commands."""

    def __init__(self, python: str, script: str, model: str, threads: int) -> None:
        self.process = subprocess.Popen(
            [python, str(HERE / script), model, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.hello = self.read()

    def read(self) -> dict[str, float]:
        """The next answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} ended without an answer")
        return json.loads(line)

    def ask(self, command: dict[str, object]) -> float:
        """Send a command, return tokens per second."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self.read()["tokens_per_s"]


def cpu_name() -> str:
    """The processor, as Linux names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", default="1,4,8")
    parser.add_argument("--prompts", default="512,2034")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    streams = [int(n) for n in args.streams.split(",") if n]
    prompts = [int(n) for n in args.prompts.split(",") if n]
    tasks = [
        ("decode", f"decode, {n} streams", {"streams": n, "tokens": args.tokens}) for n in streams
    ]
    tasks += [("prompt", f"prompt of {n}", {"tokens": n}) for n in prompts]
    ours = Side(sys.executable, "worker_gristmill.py", args.model, args.threads)
    peer = Side(args.peer_python, "worker_llamacpp.py", args.model, args.threads)
    print(f"{Path(args.model).name}, {args.threads} threads, {cpu_name()}, {ours.hello['name']}")
    print(f"load: {ours.hello['load_s']:.2f} s against {peer.hello['load_s']:.2f} s")
    rows = []
    for op, label, fields in tasks:
        command = {"op": op, **fields}
        ours.ask(command), peer.ask(command)  # warm-up
        pairs = [(ours.ask(command), peer.ask(command)) for _ in range(args.rounds)]
        a, b = ([pair[i] for pair in pairs] for i in (0, 1))
        ratio = statistics.median(a) / statistics.median(b)
        rows.append({"what": label, "gristmill": a, "llama.cpp": b, "ratio": ratio})
        print(
            f"{label:18} {statistics.median(a):8.1f} ({min(a):.1f}–{max(a):.1f})"
            f"  llama.cpp {statistics.median(b):8.1f} ({min(b):.1f}–{max(b):.1f})"
            f"  ratio {ratio:.2f}",
            flush=True,
        )
    if args.json:
        card = {"cpu": cpu_name(), "level": ours.hello["name"], "threads": args.threads}
        result = {"model": Path(args.model).name, "card": card, "rows": rows}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
