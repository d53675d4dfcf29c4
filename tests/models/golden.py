"""The tiny models of ``tests/golden/models``: real files, with the logits of transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gristmill.files import open_model
from gristmill.types import Checkpoint

GOLDEN = Path(__file__).parent.parent / "golden" / "models"
TINY = ("tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3", "tiny-gemma3-window")


@dataclass(frozen=True)
class Tiny:
    """A model, some tokens, and what transformers computes for them, [T, vocab]."""

    checkpoint: Checkpoint
    ids: list[int]
    logits: npt.NDArray[np.float32]


def tiny(name: str, folder: Path) -> Tiny:
    """Unpack a model into ``folder`` and open it."""
    with np.load(GOLDEN / f"{name}.npz") as data:
        path = folder / f"{name}.gguf"
        path.write_bytes(data["gguf"].tobytes())
        return Tiny(open_model(path), data["ids"].tolist(), data["logits"])
