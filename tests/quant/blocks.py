"""Random blocks of every encoding: all codes possible, scales sane."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.quant import ENCODINGS

U8 = npt.NDArray[np.uint8]

FLOATS = {"f32": "<f4", "f16": "<f2", "f64": "<f8"}
INTEGERS = {
    "i8": "i1",
    "i16": "<i2",
    "i32": "<i4",
    "i64": "<i8",
    "u8": "u1",
    "u16": "<u2",
    "u32": "<u4",
    "u64": "<u8",
}
EIGHT_BITS = ("f8_e4m3", "f8_e5m2", "f8_e8m0")
"""Of safetensors alone; every code is tested in test_decode.py."""

_SCALE_AT = {
    "q8_0": 0, "q4_0": 0, "q4_1": 0, "q5_0": 0, "q5_1": 0, "q1_0": 0, "q2_0": 0, "q2_k": 80,
    "q3_k": 108, "q4_k": 0, "q5_k": 0, "q6_k": 208, "iq4_nl": 0, "iq4_xs": 0, "iq3_xxs": 0,
    "iq3_s": 0, "iq2_xxs": 0, "iq2_xs": 0, "iq2_s": 0, "iq1_s": 0, "tq1_0": 52, "tq2_0": 64,
}  # fmt: skip
"""Where the float16 scale of a block lies."""

_MINIMUM = {
    "q4_1": (2, -7.5), "q5_1": (2, -15.5), "q2_k": (82, 1.5), "q4_k": (2, 7.5), "q5_k": (2, 15.5),
}  # fmt: skip
"""Where the second float16 lies, and how many scales it must be for weights around zero."""


def random_blocks(
    name: str, count: int, rng: np.random.Generator, spread: float | None = None
) -> U8:
    """``count`` blocks, (count, block_bytes) uint8, that decode to finite weights.

    With ``spread`` the weights have about that standard deviation and a mean near zero;
    without, float16 scales are any finite ones, subnormal and negative too.
    """
    size = ENCODINGS[name].block_bytes
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    if name in INTEGERS:
        return blocks
    if name in EIGHT_BITS:  # about 1, and never the codes for infinity and NaN
        near = {"f8_e4m3": 56, "f8_e5m2": 60, "f8_e8m0": 127}[name]
        return (near + rng.integers(-8, 8, (count, 1))).astype(np.uint8)
    if name in FLOATS or name == "bf16":
        values = rng.normal(0, 1 if spread is None else spread, (count, 1)).astype(np.float32)
        if name == "bf16":
            return (values.view("<u4") >> 16).astype("<u2").view(np.uint8)
        return values.astype(FLOATS[name]).view(np.uint8)
    if spread is not None:
        return _spread(name, blocks, rng, spread)
    if name == "mxfp4":
        blocks[:, 0] %= 252
    elif name == "q8_k":
        _put_f32(blocks, rng.normal(0, 1, (count, 1)).astype("<f4"))
    elif name == "iq1_m":
        _put_quarters(blocks, _any_half(count, rng))
    elif name != "nvfp4":
        _put_half(blocks, _SCALE_AT[name], _any_half(count, rng))
        if name in _MINIMUM:
            _put_half(blocks, _MINIMUM[name][0], _any_half(count, rng))
    return blocks


def _spread(name: str, blocks: U8, rng: np.random.Generator, spread: float) -> U8:
    count = len(blocks)
    if name == "mxfp4":
        near = 127 + round(float(np.log2(spread / 3)))
        blocks[:, 0] = np.clip(near + rng.integers(-1, 2, count), 1, 250)
        return blocks
    if name == "nvfp4":
        near = 56 + 8 * round(float(np.log2(spread / 3)))  # 56 is 1.0 in e4m3
        blocks[:, :4] = np.clip(near + rng.integers(-8, 9, (count, 4)), 1, 120)
        return blocks
    _set_scale(name, blocks, 1.0)
    sample = ENCODINGS[name].decode(blocks[:256], (min(count, 256) * ENCODINGS[name].block,))
    _set_scale(name, blocks, spread / max(float(sample.std()), 1e-9))
    return blocks


def _set_scale(name: str, blocks: U8, scale: float) -> None:
    count = len(blocks)
    half = np.full((count, 1), scale, dtype="<f2")
    if name == "q8_k":
        _put_f32(blocks, half.astype("<f4"))
    elif name == "iq1_m":
        _put_quarters(blocks, half)
    else:
        _put_half(blocks, _SCALE_AT[name], half)
        if name in _MINIMUM:
            at, ratio = _MINIMUM[name]
            _put_half(blocks, at, np.full((count, 1), scale * ratio, dtype="<f2"))


def _any_half(count: int, rng: np.random.Generator) -> npt.NDArray[np.float16]:
    word = rng.integers(0, 1 << 16, (count, 1), dtype=np.uint16)
    word[(word & 0x7C00) == 0x7C00] &= 0xBFFF  # infinity or NaN: drop its top exponent bit
    return word.view(np.float16)


def _put_half(blocks: U8, at: int, half: npt.NDArray[np.float16]) -> None:
    blocks[:, at : at + 2] = half.astype("<f2").view(np.uint8)


def _put_f32(blocks: U8, value: npt.NDArray[np.float32]) -> None:
    blocks[:, :4] = value.view(np.uint8)


def _put_quarters(blocks: U8, half: npt.NDArray[np.float16]) -> None:
    """iq1_m keeps its scale's four quarters in the top bits of its last four words."""
    words = blocks[:, 48:56].view("<u2")
    quarters = (half.view(np.uint16) >> np.array([0, 4, 8, 12], dtype=np.uint16)) & 15
    blocks[:, 48:56] = ((words & 0x0FFF) | (quarters << 12)).astype("<u2").view(np.uint8)
