"""Models: from a checkpoint to a ``forward`` written against ``backends.ops``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from gristmill.backends.ops import Ops, Wanted, Weight, X
from gristmill.errors import FormatError, UnsupportedError
from gristmill.models.config import Config
from gristmill.models.dense import Dense
from gristmill.models.families import FAMILIES
from gristmill.models.gemma4 import Gemma4
from gristmill.models.granitehybrid import GraniteHybrid
from gristmill.models.huggingface import understand
from gristmill.models.lfm2 import Lfm2
from gristmill.models.qwen35 import Qwen35
from gristmill.types import Checkpoint, StateSpec

__all__ = ["ARCHITECTURES", "Config", "Model", "build", "understand"]


class Model(Protocol):
    """One checkpoint's architecture: what it wants, what it remembers, what it computes."""

    config: Config

    def wanted(self) -> list[Wanted]:
        """The weights to pack; ``forward`` finds them by ``Wanted.name``."""
        ...

    def states(self) -> list[StateSpec]:
        """What each layer must remember of a sequence, by layer."""
        ...

    def forward(self, ops: Ops, weights: Mapping[str, Weight], *, logits: bool = True) -> X:
        """Logits [S, vocab] of the rows that want them; else what the head would read, [S, d]."""
        ...


ARCHITECTURES: Mapping[str, Callable[[Checkpoint, int | None], Model]] = {
    **dict.fromkeys(FAMILIES, Dense),
    "gemma4": Gemma4,
    "granitehybrid": GraniteHybrid,
    "lfm2": Lfm2,
    "qwen35": Qwen35,
    "qwen35moe": Qwen35,
    "qwen3next": Qwen35,
}
"""Every architecture that is served, by GGUF's ``general.architecture``."""


def build(checkpoint: Checkpoint, context: int | None = None) -> Model:
    """The model of a checkpoint, its metadata and every tensor's shape checked.

    ``context`` is the most tokens a request will have (None: all the model was made for); it
    decides between LongRoPE's tables. Raises UnsupportedError for an architecture or feature
    that is not served, FormatError for metadata and tensors that cannot be or disagree.
    """
    name = checkpoint.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise FormatError("The file's metadata has no text 'general.architecture'.")
    if name == "clip":
        raise UnsupportedError(
            "This file holds only the part of a model that sees or hears ('clip'); the part that "
            "reads and writes text is a file of its own."
        )
    make = ARCHITECTURES.get(name)
    if make is None:
        raise UnsupportedError(
            f"Models of architecture {name!r:.60} are not served; served are "
            f"{', '.join(sorted(ARCHITECTURES))}."
        )
    return make(checkpoint, context)
