"""Fitting blocks of 32: q4_0, q4_1, q5_0, q5_1, iq4_nl, mxfp4, and the steps that all share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gristmill.quant.encoding import F32, U8, half_bytes, inverse
from gristmill.quant.iq4 import LEVELS

_SIGNED = (-1.6, -1.2, -0.9, -0.6, -0.3, 0.0, 0.3, 0.6)
"""By how many codes the largest weight's own code may differ from the lowest."""
_SPREAD = (-0.8, -0.4, 0.0, 0.4, 0.8, 1.2, 1.7, 2.3)
"""By how many codes the range of a block with a minimum may be stretched."""

Floats = npt.NDArray[np.floating]
"""float32, for which numpy's types do not vouch after arithmetic."""
Codes = Callable[[Floats], F32]
"""Weights by the scale → the nearest values of the codes, as float32."""


def total(a: Floats, b: Floats) -> F32:
    """Σ a·b of each row: (n, 1)."""
    return np.einsum("ij,ij->i", a, b)[:, None]


def best_scale(x: F32, w: F32 | None, codes: Codes, ends: Sequence[float]) -> F32:
    """The scale of each row, (n, 1), for which codes·scale is nearest to ``x``.

    ``ends``: the code values that a row's largest weight is tried at.
    """
    at = np.abs(x).argmax(axis=1)[:, None]
    peak = inverse(np.take_along_axis(x, at, axis=1))
    wx = x if w is None else w * x
    best = np.zeros((len(x), 1), np.float32)
    gain = np.zeros((len(x), 1), np.float32)
    for end in ends:
        q = codes(x * (peak * np.float32(end)))
        xq, qq = total(wx, q), total(q if w is None else w * q, q)
        scale = xq * inverse(qq)
        better = xq * scale > gain  # what the squared error is smaller by than the row's own
        np.copyto(gain, xq * scale, where=better)
        np.copyto(best, scale, where=better)
    return best


def whole(low: int, high: int) -> Codes:
    """Codes that are the whole numbers from ``low`` to ``high``."""

    def codes(scaled: Floats) -> F32:
        np.rint(scaled, out=scaled)
        return np.clip(scaled, low, high, out=scaled).astype(np.float32, copy=False)

    return codes


def signed_ends(low: int) -> list[float]:
    """Ends for whole codes from ``low`` to ``−low − 1``: the largest weight on either side."""
    return [low - step for step in _SIGNED] + [-low - 1 + step for step in _SIGNED if step <= 0.3]


def best_range(x: F32, w: F32 | None, top: int, *, below: bool) -> tuple[F32, F32]:
    """Scale and minimum of each row, (n, 1) each, for codes 0 … ``top``: x ≈ scale·q + minimum.

    ``below``: the minimum must not be above 0.
    """
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    if below:
        low = np.minimum(low, 0)
    reach = inverse(high - low)
    ones = np.ones_like(x) if w is None else w
    wx = ones * x
    sw, sx, sxx = ones.sum(axis=1, keepdims=True), wx.sum(axis=1, keepdims=True), total(wx, x)
    best_d, best_m = (high - low) / np.float32(top), low.copy()
    least = np.full((len(x), 1), np.inf, np.float32)
    above = x - low
    codes = whole(0, top)
    for step in _SPREAD:
        q = codes(above * (reach * np.float32(top + step)))
        wq = ones * q
        sq, sqq, sxq = wq.sum(axis=1, keepdims=True), total(wq, q), total(wx, q)
        det = inverse(sw * sqq - sq * sq)
        d, m = (sw * sxq - sx * sq) * det, (sqq * sx - sq * sxq) * det
        if below:
            positive = m > 0
            d = np.where(positive, sxq * inverse(sqq), d)
            m = np.where(positive, np.float32(0), m)
        error = d * (d * sqq + 2 * (m * sq - sxq)) + m * (m * sw - 2 * sx) + sxx
        better = (error < least) & (d > 0)
        np.copyto(least, error, where=better)
        np.copyto(best_d, d, where=better)
        np.copyto(best_m, m, where=better)
    return best_d, best_m


# ------------------------------------------------------------------ layouts


def joined(q: U8) -> U8:
    """(n, 32) codes → 16 bytes, element i in the low half of byte i, i + 16 in its high half."""
    return (q[:, :16] & np.uint8(15)) | (q[:, 16:] << np.uint8(4))


def _fifth(q: U8) -> U8:
    return np.packbits(q >> np.uint8(4), axis=1, bitorder="little")


def _signed(x: F32, w: F32 | None, low: int) -> tuple[U8, U8]:
    codes = whole(low, -low - 1)
    d, d_bytes = half_bytes(best_scale(x, w, codes, signed_ends(low)), "scale")
    return d_bytes, (codes(x * inverse(d)) - np.float32(low)).astype(np.uint8)


def _ranged(x: F32, w: F32 | None, top: int) -> tuple[U8, U8, U8]:
    d, m = best_range(x, w, top, below=False)
    d, d_bytes = half_bytes(d, "scale")
    m, m_bytes = half_bytes(m, "minimum")
    return d_bytes, m_bytes, whole(0, top)((x - m) * inverse(d)).astype(np.uint8)


def fit_q4_0(x: F32, w: F32 | None) -> U8:
    """(n, 32) → (n, 18)."""
    d, q = _signed(x, w, -8)
    return np.concatenate([d, joined(q)], axis=1)


def fit_q5_0(x: F32, w: F32 | None) -> U8:
    """(n, 32) → (n, 22)."""
    d, q = _signed(x, w, -16)
    return np.concatenate([d, _fifth(q), joined(q)], axis=1)


def fit_q4_1(x: F32, w: F32 | None) -> U8:
    """(n, 32) → (n, 20)."""
    d, m, q = _ranged(x, w, 15)
    return np.concatenate([d, m, joined(q)], axis=1)


def fit_q5_1(x: F32, w: F32 | None) -> U8:
    """(n, 32) → (n, 24)."""
    d, m, q = _ranged(x, w, 31)
    return np.concatenate([d, m, _fifth(q), joined(q)], axis=1)


# ------------------------------------------------------------------- tables


def _nearest_levels() -> U8:
    """The level nearest to each half, −130 … 130: midpoints between levels are halves."""
    halves = (np.arange(520) + 0.5) / 2 - 130
    return np.abs(halves[:, None] - LEVELS).argmin(axis=1).astype(np.uint8)


_LEVEL_OF_HALF = _nearest_levels()
LEVEL_ENDS = [end * scale for end in (-127.0, 113.0) for scale in (0.8, 0.87, 0.93, 1.0, 1.07)]
"""Values of the table that a block's largest weight is tried at."""


def level_codes(scaled: Floats) -> U8:
    """The nearest level's number."""
    half = np.clip(np.floor(scaled * 2), -260, 259).astype(np.int16)
    return _LEVEL_OF_HALF[half + np.int16(260)]


def level_values(scaled: Floats) -> F32:
    """The nearest level."""
    return LEVELS[level_codes(scaled)]


def fit_iq4_nl(x: F32, w: F32 | None) -> U8:
    """(n, 32) → (n, 18)."""
    d, d_bytes = half_bytes(best_scale(x, w, level_values, LEVEL_ENDS), "scale")
    return np.concatenate([d_bytes, joined(level_codes(x * inverse(d)))], axis=1)


_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_MAGNITUDE_OF_EIGHTH = (
    np.abs((np.arange(64)[:, None] + 0.5) / 8 - _MAGNITUDES).argmin(axis=1).astype(np.uint8)
)


def _e2m1(scaled: Floats) -> tuple[npt.NDArray[np.uint8], F32]:
    """The nearest four-bit float's code, and its value."""
    size = np.abs(scaled)
    code = _MAGNITUDE_OF_EIGHTH[np.minimum(size * 8, 63).astype(np.uint8)]
    return code | (np.signbit(scaled).astype(np.uint8) << np.uint8(3)), _MAGNITUDES[code]


def fit_mxfp4(x: F32, w: F32 | None) -> U8:
    """(n, 32) → (n, 17): of the powers of two around the largest weight's, the best."""
    size = np.abs(x)
    _, exponent = np.frexp(size.max(axis=1, keepdims=True))
    best = np.zeros((len(x), 1), np.int32)
    least = np.full((len(x), 1), np.inf, np.float32)
    for more in (-4, -3, -2):
        power = np.clip(exponent + more, -126, 127)
        scale = np.ldexp(np.float32(1), power)
        wrong = _e2m1(x / scale)[1] * scale - size
        error = total(wrong if w is None else w * wrong, wrong)
        better = error < least
        np.copyto(least, error, where=better)
        np.copyto(best, power, where=better)
    code, _ = _e2m1(x / np.ldexp(np.float32(1), best))
    return np.concatenate([(best + 127).astype(np.uint8), joined(code)], axis=1)
