"""MXFP4 (OCP MX v1.0) as Hugging Face folders have it: "mxfp4_hf". w = e2m1[code]·2^(e − 127).

gpt-oss' ``*_blocks`` and ``*_scales``, compressed-tensors' mxfp4-pack-quantized, MLX's mxfp4.
Unlike GGUF's mxfp4, two neighbours share a byte (the first in its low four bits), and the
scales lie in a tensor of their own.

parts: codes u8 (…, K/2) or (…, K/32, 16), or u32 (N, K/8); scales u8 (…, K/32), the leading sizes
making N.
"""

from __future__ import annotations

import math

import numpy as np

from gristmill.errors import FormatError
from gristmill.quant.composite import Composite, finite, part, stored, whole
from gristmill.quant.encoding import F32, U8
from gristmill.quant.floats import E2M1
from gristmill.quant.fp8 import exponents
from gristmill.types import RawTensor


def check_codes(tensor: RawTensor) -> None:
    """Two codes in a byte: raises FormatError for codes of another type or shape."""
    n, k = tensor.shape
    codes = part(tensor, "codes")
    row, lead = (codes.shape[-1:] or (0,))[0], math.prod(codes.shape[:-1])
    split = row == 16 and k % 32 == 0 and lead * 32 == n * k
    fits = {
        "u8": split or (2 * row == k and lead == n),
        "u32": 8 * row == k and lead == n,
    }
    if not fits.get(codes.encoding, False):
        raise FormatError(
            f"Tensor '{tensor.name}' in {tensor.encoding}: its codes are {codes.encoding} of shape "
            f"{list(codes.shape)}; u8 of shape {[n, k // 2]} are wanted."
        )


def codes_of(tensor: RawTensor, start: int, stop: int) -> U8:
    """Codes of rows [start, stop): uint8 (stop − start, K)."""
    n, k = tensor.shape
    raw = np.frombuffer(part(tensor, "codes").data, np.uint8).reshape(n, k // 2)[start:stop]
    out = np.empty((stop - start, k // 2, 2), np.uint8)
    out[:, :, 0], out[:, :, 1] = raw & 15, raw >> 4
    return out.reshape(stop - start, k)


def _check(tensor: RawTensor) -> None:
    n, k = tensor.shape
    check_codes(tensor)
    scales = part(tensor, "scales")
    groups = k // 32
    if (
        k % 32
        or scales.encoding not in ("u8", "f8_e8m0")
        or scales.shape[-1:] != (groups,)
        or math.prod(scales.shape[:-1]) != n
    ):
        raise FormatError(
            f"Tensor '{tensor.name}' in mxfp4_hf: its scales are {scales.encoding} of shape "
            f"{list(scales.shape)}; u8 of shape {[n, k / 32]} are wanted."
        )


def _values(tensor: RawTensor, start: int, stop: int) -> F32:
    n, k = tensor.shape
    scale = exponents(part(tensor, "scales")).reshape(n, k // 32)[start:stop]
    finite(tensor, "scales", scale)
    return E2M1[codes_of(tensor, start, stop)] * np.repeat(scale, 32, axis=1)


def blocks(tensor: RawTensor) -> U8:
    """All rows as GGUF's mxfp4 has them: uint8 (N, K/32, 17). Raises FormatError."""
    n, k = tensor.shape
    first, last, picked = stored(tensor, 0, n)
    source = whole(tensor)
    scales = np.frombuffer(part(source, "scales").data, np.uint8).reshape(-1, k // 32)[first:last]
    finite(tensor, "scales", exponents(part(source, "scales")).reshape(-1, k // 32)[first:last])
    codes = codes_of(source, first, last)
    if picked is not None:
        scales, codes = scales[picked], codes[picked]
    halves = codes.reshape(n, k // 32, 2, 16)
    out = np.empty((n, k // 32, 17), np.uint8)
    out[:, :, 0] = scales
    out[:, :, 1:] = halves[:, :, 0] | halves[:, :, 1] << 4
    return out


COMPOSITES = (Composite("mxfp4_hf", _check, values=_values),)
