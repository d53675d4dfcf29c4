"""What guesses of the next tokens bring: the same requests with and without, in one process.

    python benchmarks/drafts.py MODEL [--streams 1,8] [--rounds 5]

Each round runs every kind of text through two engines on the same weights' file, one that
guesses and one that does not, one after the other: *edit* (a file to be printed again with a name
changed, greedy), *quote* (a part of the prompt to be repeated, greedy), *chat* (a story at
temperature 1, where nothing repeats). Texts of equal seed must be equal: a difference ends the
run. Told are tokens a second from the first token on, medians of rounds, and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from pathlib import Path

from gristmill.engine.loader import Loaded, load
from gristmill.files import open_model
from gristmill.options import Options
from gristmill.types import Delta, Request, SamplingParams

CODE = (Path(__file__).parents[1] / "src/gristmill/engine/pace.py").read_text()[:2500]
KINDS = {
    "edit": (
        f"Rename the class Pace to Tempo and print the whole file:\n```python\n{CODE}\n```",
        0.0,
    ),
    "quote": (f"Repeat the first sentences of this text word for word:\n\n{CODE[:1200]}", 0.0),
    "chat": ("Write a long story about a miller, his daughters and a talking river.", 1.0),
}


class Run:
    """One crowd of equal requests."""

    def __init__(self, loaded: Loaded, text: str, temperature: float, streams: int, tokens: int):
        self.answers: list[list[int]] = [[] for _ in range(streams)]
        self.drafted = self.kept = 0
        self._first = 0.0
        self._left = threading.Semaphore(0)
        for at in range(streams):
            turn = f"<|im_start|>user\n{text} ({at})<|im_end|>\n<|im_start|>assistant\n"
            ids = loaded.tokenizer.encode(turn, add_special=True, parse_special=True)
            sampling = SamplingParams(
                temperature=temperature, max_tokens=tokens, ignore_eos=True, seed=at
            )
            request = Request(f"{time.monotonic()}-{at}", tuple(ids), sampling=sampling)
            loaded.engine.submit(request, lambda delta, at=at: self._take(at, delta))
        for _ in range(streams):
            self._left.acquire()
        self.rate = sum(map(len, self.answers)) / (time.perf_counter() - self._first)

    def _take(self, at: int, delta: Delta) -> None:
        if delta.tokens and not self._first:
            self._first = time.perf_counter()
        self.answers[at] += delta.tokens
        if delta.finish is not None:
            if delta.timings is not None:
                self.drafted += delta.timings.draft_tokens
                self.kept += delta.timings.draft_accepted
            self._left.release()


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    engines = {
        most: load(open_model(given.model), Options(model=str(given.model), draft_tokens=most))
        for most in (0, 16)
    }
    print("| text | streams | plain tokens/s | with guesses | ratio | computed | kept |")
    print("|---|---|---|---|---|---|---|")
    for name, (text, temperature) in KINDS.items():
        for streams in map(int, given.streams.split(",")):
            rates: dict[int, list[float]] = {most: [] for most in engines}
            for number in range(given.rounds + 1):
                tokens = given.tokens if streams == 1 else given.tokens // 2
                runs = {
                    most: Run(engine, text, temperature, streams, tokens)
                    for most, engine in engines.items()
                }
                if runs[0].answers != runs[16].answers:
                    raise SystemExit(f"{name}: the texts differ")
                if number:  # the first warms up
                    for most, run in runs.items():
                        rates[most].append(run.rate)
            plain, guessed = (statistics.median(rates[most]) for most in (0, 16))
            ratio = statistics.median(b / a for a, b in zip(rates[0], rates[16], strict=True))
            last = runs[16]
            print(
                f"| {name} | {streams} | {plain:.1f} | {guessed:.1f} | {ratio:.2f} | "
                f"{last.drafted} | {last.kept} |",
                flush=True,
            )
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
