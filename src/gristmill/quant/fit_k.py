"""Fitting blocks of 256 whose groups have scales that are codes themselves: q4_k q5_k q6_k iq4_xs.

First every group gets the scale (and minimum) that suits it best; then the block's own scale
makes codes of those, and the groups choose anew among the codes there are.
"""

from __future__ import annotations

import numpy as np

from gristmill.quant.encoding import F32, U8, half_bytes, inverse
from gristmill.quant.fit_small import (
    LEVEL_ENDS,
    Codes,
    best_range,
    best_scale,
    joined,
    level_codes,
    level_values,
    signed_ends,
    total,
    whole,
)


def _groups(x: F32, w: F32 | None, size: int) -> tuple[F32, F32 | None]:
    return x.reshape(-1, size), None if w is None else w.reshape(-1, size)


def _of_blocks(per_group: F32, groups: int) -> F32:
    """(n·groups, 1) → (n, groups)."""
    return per_group.reshape(-1, groups)


# ------------------------------------------------- scales and minima: q4_k, q5_k


def _range_codes(x: F32, w: F32 | None, top: int) -> tuple[U8, U8, U8, U8]:
    """The bytes of d and dmin, the 12 bytes of 6-bit scales and minima, and codes (n, 8, 32)."""
    rows, weights = _groups(x, w, 32)
    scale, minimum = best_range(rows, weights, top, below=True)
    d, d_bytes = half_bytes(_of_blocks(scale, 8).max(axis=1, keepdims=True) / 63, "scale")
    low = -_of_blocks(minimum, 8)
    dmin, dmin_bytes = half_bytes(low.max(axis=1, keepdims=True) / 63, "minimum")
    steps, unit = np.repeat(d, 8, axis=1).reshape(-1, 1), np.repeat(dmin, 8, axis=1).reshape(-1, 1)
    per_step, per_unit = inverse(steps), inverse(unit)
    codes, six = whole(0, top), whole(0, 63)
    first = np.rint(scale * per_step)
    start = six(-minimum * per_unit)
    sw = np.float32(32) if weights is None else weights.sum(axis=1, keepdims=True)
    best_s, best_m = six(first.copy()), start.copy()
    least = np.full_like(first, np.inf)
    for more in (0, -1, 1):
        s = six(first + np.float32(more))
        d_now = steps * s
        q = codes((rows + unit * start) * inverse(d_now))
        rest = d_now * q - rows  # the minimum that suits these codes best, then codes for it
        m = six((rest if weights is None else rest * weights).sum(axis=1, keepdims=True) / sw
                * per_unit)  # fmt: skip
        for m_now in (start, m):
            shift = unit * m_now
            q = codes((rows + shift) * inverse(d_now))
            wrong = d_now * q - shift - rows
            error = total(wrong if weights is None else weights * wrong, wrong)
            better = error < least
            np.copyto(least, error, where=better)
            np.copyto(best_s, s, where=better)
            np.copyto(best_m, m_now, where=better)
    q = codes((rows + unit * best_m) * inverse(steps * best_s)).astype(np.uint8)
    packed = pack_six(
        _of_blocks(best_s, 8).astype(np.uint8), _of_blocks(best_m, 8).astype(np.uint8)
    )
    return d_bytes, dmin_bytes, packed, q.reshape(-1, 8, 32)


def pack_six(scales: U8, minima: U8) -> U8:
    """Scales and minima, (n, 8) each, 0 to 63 → the 12 bytes of ``q4_k``."""
    upper_s = (scales[:, 4:] >> np.uint8(4)) << np.uint8(6)
    upper_m = (minima[:, 4:] >> np.uint8(4)) << np.uint8(6)
    lower = (scales[:, 4:] & np.uint8(15)) | ((minima[:, 4:] & np.uint8(15)) << np.uint8(4))
    return np.concatenate([scales[:, :4] | upper_s, minima[:, :4] | upper_m, lower], axis=1)


def _pairs(q: U8) -> U8:
    """(n, 8, 32) codes → 128 bytes: 32 bytes for two groups, the first in the low halves."""
    low = q & np.uint8(15)
    return (low[:, 0::2] | (low[:, 1::2] << np.uint8(4))).reshape(-1, 128)


def fit_q4_k(x: F32, w: F32 | None) -> U8:
    """(n, 256) → (n, 144)."""
    d, dmin, scales, q = _range_codes(x, w, 15)
    return np.concatenate([d, dmin, scales, _pairs(q)], axis=1)


def fit_q5_k(x: F32, w: F32 | None) -> U8:
    """(n, 256) → (n, 176)."""
    d, dmin, scales, q = _range_codes(x, w, 31)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    fifth = np.bitwise_or.reduce((q >> np.uint8(4)) << shifts, axis=1)
    return np.concatenate([d, dmin, scales, fifth, _pairs(q)], axis=1)


# ------------------------------------------------------- scales alone: q6_k, iq4_xs


def _scale_codes(
    x: F32, w: F32 | None, values: Codes, ends: list[float], size: int, low: int
) -> tuple[F32, U8, F32]:
    """d (n, 1), its bytes, and the groups' scale codes (n, groups) from ``low`` to −low − 1.

    d is the largest scale by ``low``, then what suits the codes that come of it best.
    """
    groups = 256 // size
    rows, weights = _groups(x, w, size)
    scale = _of_blocks(best_scale(rows, weights, values, ends), groups)
    at = np.abs(scale).argmax(axis=1)[:, None]
    d = np.take_along_axis(scale, at, axis=1) / np.float32(low)
    code = whole(low, -low - 1)(scale * inverse(d))
    by_code = values(x.reshape(-1, groups, size) * inverse(d * code)[:, :, None])
    whole_block = (by_code * code[:, :, None]).reshape(len(x), 256)
    weighted = whole_block if w is None else w * whole_block
    d = total(weighted, x) * inverse(total(weighted, whole_block))
    rounded, d_bytes = half_bytes(d, "scale")
    return rounded, d_bytes, code


def fit_q6_k(x: F32, w: F32 | None) -> U8:
    """(n, 256) → (n, 210)."""
    values = whole(-32, 31)
    d, d_bytes, code = _scale_codes(x, w, values, signed_ends(-32), 16, -128)
    q = values(x.reshape(-1, 16, 16) * inverse(d * code)[:, :, None])
    whole_q = (q.reshape(-1, 2, 128) + np.float32(32)).astype(np.uint8)
    lower = whole_q & np.uint8(15)
    low = lower[:, :, :64] | (lower[:, :, 64:] << np.uint8(4))
    upper = (whole_q >> np.uint8(4)).reshape(-1, 2, 4, 32)
    high = upper[:, :, 0] | (upper[:, :, 1] << 2) | (upper[:, :, 2] << 4) | (upper[:, :, 3] << 6)
    scales = code.astype(np.int8).view(np.uint8)
    return np.concatenate(
        [low.reshape(-1, 128), high.reshape(-1, 64).astype(np.uint8), scales, d_bytes], axis=1
    )


def fit_iq4_xs(x: F32, w: F32 | None) -> U8:
    """(n, 256) → (n, 136)."""
    d, d_bytes, code = _scale_codes(x, w, level_values, LEVEL_ENDS, 32, -32)
    q = level_codes(x.reshape(-1, 8, 32) * inverse(d * code)[:, :, None]).reshape(-1, 32)
    scales = (code + np.float32(32)).astype(np.uint8)
    lower = (scales[:, 0::2] & np.uint8(15)) | ((scales[:, 1::2] & np.uint8(15)) << np.uint8(4))
    shifts = np.arange(0, 16, 2, dtype=np.uint16)
    upper = np.bitwise_or.reduce((scales >> np.uint8(4)).astype(np.uint16) << shifts, axis=1)
    high = upper.astype("<u2")[:, None].view(np.uint8)
    return np.concatenate([d_bytes, high, lower, joined(q).reshape(-1, 128)], axis=1)
