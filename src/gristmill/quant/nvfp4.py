"""NVFP4 as Hugging Face folders have it: "nvfp4_hf". w = e2m1[code]·(scale·global).

ModelOpt multiplies by its ``weight_scale_2``; compressed-tensors divides each scale by its
``weight_global_scale``; MLX's mode nvfp4 has none.

parts: codes as in mxfp4_hf; scales f8_e4m3 (N, K/16), or u8 that are the same (MLX); global f32,
one number, optional. settings: divide (true: w = e2m1[code]·(scale / global)).
"""

from __future__ import annotations

import numpy as np

from gristmill.errors import FormatError
from gristmill.quant.composite import Codes, Composite, expect, finite, flag, floats, part
from gristmill.quant.encoding import F32
from gristmill.quant.floats import E4M3
from gristmill.quant.mxfp4 import check_codes, codes_of
from gristmill.types import RawTensor


def _check(tensor: RawTensor) -> None:
    n, k = tensor.shape
    check_codes(tensor)
    if k % 16:
        raise FormatError(f"Tensor '{tensor.name}' in nvfp4_hf: {k} inputs are no groups of 16.")
    expect(tensor, "scales", ("f8_e4m3", "u8"), (n, k // 16))
    if "global" in tensor.parts:
        _global(tensor)


def _global(tensor: RawTensor) -> F32:
    found = part(tensor, "global")
    if found.encoding != "f32" or found.elements != 1:
        raise FormatError(
            f"Tensor '{tensor.name}' in nvfp4_hf: its global scale is {found.encoding} of shape "
            f"{list(found.shape)}; one f32 is wanted."
        )
    value = finite(tensor, "global scale", floats(found).reshape(-1))
    if not value.all() and flag(tensor, "divide"):
        raise FormatError(f"Tensor '{tensor.name}' in nvfp4_hf: its global scale is 0.")
    return value


def _codes(tensor: RawTensor, start: int, stop: int) -> Codes:
    n, k = tensor.shape
    raw = np.frombuffer(part(tensor, "scales").data, np.uint8).reshape(n, k // 16)[start:stop]
    given = "global" in tensor.parts
    return Codes(
        codes_of(tensor, start, stop),
        bits=4,
        group=16,
        scale=finite(tensor, "scales", E4M3[raw]),
        scale_type="e4m3",
        number="e2m1",
        factor=float(_global(tensor)[0]) if given else 1.0,
        divide=given and flag(tensor, "divide"),
    )


COMPOSITES = (Composite("nvfp4_hf", _check, _codes),)
