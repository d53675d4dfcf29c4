"""Which encoding each tensor of a file gets: llama.cpp's habits, by the name of the whole.

Norms, biases and routers stay float32. The head (or an embedding that is one too) gets more bits;
the recipes ending in _M give some layers' values and down projections more as well, those in
_S the first layers' alone. A row that is no whole number of blocks gets the nearest encoding
with smaller ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gristmill.errors import UsageError
from gristmill.files.ggml_types import GGML_TYPES_BY_NAME


@dataclass(frozen=True, slots=True)
class Recipe:
    """``base`` is most matrices' encoding, ``file_type`` the number that GGUF has for the whole."""

    name: str
    base: str
    file_type: int


RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("F32", "f32", 0),
        Recipe("F16", "f16", 1),
        Recipe("BF16", "bf16", 32),
        Recipe("Q8_0", "q8_0", 7),
        Recipe("Q6_K", "q6_k", 18),
        Recipe("Q5_K_M", "q5_k", 17),
        Recipe("Q5_K_S", "q5_k", 16),
        Recipe("Q5_1", "q5_1", 9),
        Recipe("Q5_0", "q5_0", 8),
        Recipe("Q4_K_M", "q4_k", 15),
        Recipe("Q4_K_S", "q4_k", 14),
        Recipe("Q4_1", "q4_1", 3),
        Recipe("Q4_0", "q4_0", 2),
        Recipe("IQ4_NL", "iq4_nl", 25),
        Recipe("IQ4_XS", "iq4_xs", 30),
        Recipe("MXFP4", "mxfp4", 38),
    )
}
"""Every way to encode a file."""

_ALIASES = {"Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_SMALLER = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "iq4_xs": "iq4_nl"}
_KEPT = re.compile(
    r"(.*_norm\.(\d+\.)?weight|.*ffn_gate_inp(_shexp)?\.weight|.*per_layer_model_proj\.weight"
    r"|.*ssm_conv1d.*|.*shortconv\.conv.*|rope_.*)"
)
"""What is never quantised: small, or too sensitive."""
_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.weight")
_PLAIN = ("f32", "f16", "bf16")


def recipe_of(name: str) -> Recipe:
    """The recipe called ``name``, in any case. Raises UsageError naming all."""
    upper = name.upper()
    found = RECIPES.get(_ALIASES.get(upper, upper))
    if found is None:
        raise UsageError(f"There is no type '{name}'; types are {', '.join(RECIPES)}.")
    return found


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model the recipes look at."""

    layers: int
    experts: int = 0
    heads_per_kv: int = 1
    tied: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """A recipe for one model. ``embedding`` and ``output``: what was asked for those instead."""

    recipe: Recipe
    shape: Shape
    weighted: bool = False
    """Whether there is an importance for the columns."""
    embedding: str | None = None
    output: str | None = None

    def encoding(self, name: str, shape: tuple[int, ...]) -> str:
        """The encoding of a tensor in the new file."""
        if len(shape) < 2 or not name.endswith("weight") or _KEPT.fullmatch(name):
            return "f32"
        head = name == "output.weight" or (self.shape.tied and name == "token_embd.weight")
        if head and self.output:
            return _fitting(self.output, shape[-1])
        if name == "token_embd.weight" and self.embedding:
            return _fitting(self.embedding, shape[-1])
        if self.recipe.base in _PLAIN:
            return self.recipe.base
        return _fitting(self._head(shape[-1]) if head else self._inner(name, len(shape)), shape[-1])

    def _head(self, columns: int) -> str:
        base = self.recipe.base
        if base in {"q8_0", "mxfp4"} or columns % GGML_TYPES_BY_NAME[base].elements:
            return "q8_0"
        return "q6_k"

    def _inner(self, name: str, axes: int) -> str:
        base = self.recipe.base
        found = _LAYER.fullmatch(name)
        if found is None:
            return "q8_0" if base == "mxfp4" else base
        layer, part = int(found[1]), found[2]
        if base == "mxfp4":
            return base if axes == 3 or not self.shape.experts else "q8_0"
        if part in ("attn_v", "attn_k", "attn_qkv", "attn_output"):
            return self._attention(part, layer)
        if part in ("ffn_down", "ffn_down_exps", "ffn_down_shexp"):
            return self._down(layer)
        return base

    def _attention(self, part: str, layer: int) -> str:
        name, base = self.recipe.name, self.recipe.base
        if self.shape.experts == 8 and part in ("attn_v", "attn_k"):
            return "q8_0"
        if part == "attn_v":
            if name in ("Q4_K_M", "Q5_K_M") and self._favoured(layer):
                return "q6_k"
            if name == "Q4_K_S" and layer < 4:
                return "q5_k"
            if name in ("IQ4_NL", "IQ4_XS") and self.shape.heads_per_kv >= 4:
                return "q5_k"
        if part == "attn_qkv" and name in ("Q4_K_M", "Q5_K_M"):
            return "q5_k" if name == "Q4_K_M" else "q6_k"
        if part == "attn_output" and self.shape.experts == 8 and base in ("q4_k", "iq4_nl",
                                                                          "iq4_xs"):  # fmt: skip
            return "q5_k"
        return base

    def _down(self, layer: int) -> str:
        name, first = self.recipe.name, layer < self.shape.layers // 8
        if name in ("Q4_K_M", "Q5_K_M") and self._favoured(layer):
            return "q6_k"
        if first and (name == "Q4_K_S" or (name in ("IQ4_NL", "IQ4_XS") and not self.weighted)):
            return "q5_k"
        if first and self.weighted and name in ("Q4_0", "Q5_0"):
            return "q4_1" if name == "Q4_0" else "q5_1"
        return self.recipe.base

    def _favoured(self, layer: int) -> bool:
        """The first and last eighth of the layers, and every third between."""
        layers = self.shape.layers
        first = layers // 8
        return layer < first or layer >= 7 * layers // 8 or (layer - first) % 3 == 2


def _fitting(encoding: str, columns: int) -> str:
    if columns % GGML_TYPES_BY_NAME[encoding].elements:
        encoding = _SMALLER.get(encoding, encoding)
    return "f16" if columns % GGML_TYPES_BY_NAME[encoding].elements else encoding
