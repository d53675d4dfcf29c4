"""llama, qwen2 and qwen3: one pre-norm decoder with flags.

They differ in the order of rotated features and in per-head norms on queries and keys; biases
(qwen2's on q, k and v) are used wherever a file has them. Sources: arXiv 2302.13971 (Llama),
2407.10671 (Qwen2), 2505.09388 (Qwen3); tensor names are llama.cpp's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gristmill.backends.ops import Ops, Wanted, X
from gristmill.errors import UnsupportedError
from gristmill.models import layers
from gristmill.models.config import Config, read_config
from gristmill.models.metadata import Metadata
from gristmill.models.rope import Style
from gristmill.models.wants import Wants
from gristmill.types import Checkpoint, StateSpec


@dataclass(frozen=True)
class Flags:
    """What tells one architecture of the family from another."""

    style: Style
    qk_norm: bool = False
    windows: bool = False
    """Whether a sliding window in the metadata is that of every layer (Mistral as llama)."""


FLAGS = {
    "llama": Flags("pairs", windows=True),
    "qwen2": Flags("half"),
    "qwen3": Flags("half", qk_norm=True),
}


class Dense:
    """A dense decoder: norm, attention, add; norm, gated feed-forward, add."""

    def __init__(self, checkpoint: Checkpoint, context: int | None = None) -> None:
        meta = Metadata(checkpoint.metadata)
        flags = FLAGS[meta.architecture]
        config = read_config(checkpoint, flags.style, context)
        window = meta.integer("attention.sliding_window", 0, (1 << 31) - 1, 0)
        if 0 < window < config.context:
            if not flags.windows:
                raise UnsupportedError(
                    f"A sliding window ({meta.name('attention.sliding_window')!r}) is not served "
                    f"in {meta.architecture} models: the file does not say which layers slide."
                )
            config = replace(config, window=window, local=(True,) * config.layers)
        self.config: Config = config
        wants = Wants(checkpoint.tensors)
        layers.want_ends(wants, config)
        for layer in range(config.layers):
            layers.want_attention(wants, config, layer, flags.qk_norm)
            layers.want_feed_forward(wants, config, layer)
        self._wanted = wants.finish(meta.architecture)

    def wanted(self) -> list[Wanted]:
        """The weights to pack, by their place in the file."""
        return self._wanted

    def states(self) -> list[StateSpec]:
        """What each layer remembers of a sequence."""
        return layers.layer_states(self.config)

    def forward(self, ops: Ops, weights: layers.Weights) -> X:
        """Logits of the rows that want them."""
        x = ops.embed(weights["token_embd.weight"])
        for layer in range(self.config.layers):
            x = ops.add(x, layers.attention(ops, weights, self.config, layer, x))
            x = ops.add(x, layers.feed_forward(ops, weights, self.config, layer, x, "silu"))
        return layers.head(ops, weights, self.config, x)
