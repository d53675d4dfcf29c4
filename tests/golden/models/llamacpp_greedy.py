"""What llama.cpp answers, greedily, as JSON: the tokens, and the logits after the prompt.

    pip install xllamacpp==2026.10.11549 numpy
    python llamacpp_greedy.py MODEL.gguf 5,17,3

The numbers are the prompt's tokens. f32 KV, without flash attention.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from make_llamacpp_logits import LlamaCpp

TOKENS = 24


def answer(path: Path, ids: list[int]) -> dict[str, list[float] | list[int]]:
    """One model's."""
    llama = LlamaCpp(path, 1, exact=True)
    rows = llama._logits(ids, 0)  # pyright: ignore[reportPrivateUsage]
    logits, tokens = rows[-1].tolist(), list[int]()
    for i in range(TOKENS):
        tokens.append(int(rows[-1].argmax()))
        rows = llama._logits(tokens[-1:], len(ids) + i)  # pyright: ignore[reportPrivateUsage]
    llama.close()
    return {"tokens": tokens, "logits": logits}


def main() -> None:
    """Print the answer."""
    ids = [int(i) for i in sys.argv[2].split(",")]
    print(json.dumps(answer(Path(sys.argv[1]), ids)))


if __name__ == "__main__":
    main()
