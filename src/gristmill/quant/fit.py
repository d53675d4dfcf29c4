"""Encoding with care: scales (and minima) that make a block's squared error small.

``Encoding.pack`` rounds to nearest by the largest weight of a block. ``fit`` tries several scales
around that one, takes for each the least-squares scale of the codes it gives, and keeps the best.
Errors may be weighted by an importance for each column (input feature), as matrices made from
a text's activations have it.

A block-wise method is all array algebra over (blocks, elements), in pieces that stay in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from gristmill.errors import FormatError, UnsupportedError
from gristmill.quant import floats, q8_0
from gristmill.quant.encoding import CHUNK, F32, U8, Encoding
from gristmill.quant.fit_k import fit_iq4_xs, fit_q4_k, fit_q5_k, fit_q6_k
from gristmill.quant.fit_small import (
    fit_iq4_nl,
    fit_mxfp4,
    fit_q4_0,
    fit_q4_1,
    fit_q5_0,
    fit_q5_1,
)

Fit = Callable[[F32, F32 | None], U8]
"""(n, block) float32 and their weights, or None → (n, block_bytes) uint8."""


def _rounded(encoding: Encoding) -> Fit:
    """Codes so fine, or so plain, that nothing is to be searched for."""
    pack = encoding.pack
    assert pack is not None

    def fit(values: F32, weights: F32 | None) -> U8:
        del weights
        return pack(values)

    return fit


FITS: Mapping[str, tuple[int, int, Fit]] = MappingProxyType(
    {
        **{
            e.name: (e.block, e.block_bytes, _rounded(e))
            for e in (*floats.ENCODINGS, *q8_0.ENCODINGS)
            if e.pack is not None
        },
        "q4_0": (32, 18, fit_q4_0),
        "q4_1": (32, 20, fit_q4_1),
        "q5_0": (32, 22, fit_q5_0),
        "q5_1": (32, 24, fit_q5_1),
        "q4_k": (256, 144, fit_q4_k),
        "q5_k": (256, 176, fit_q5_k),
        "q6_k": (256, 210, fit_q6_k),
        "iq4_nl": (32, 18, fit_iq4_nl),
        "iq4_xs": (256, 136, fit_iq4_xs),
        "mxfp4": (32, 17, fit_mxfp4),
    }
)
"""Name → (elements of a block, its bytes, how its blocks are fitted)."""


def fit(name: str, values: npt.ArrayLike, importance: npt.ArrayLike | None = None) -> U8:
    """Encode rows (…, K) as ``name``: the blocks' bytes, uint8 (rows, bytes of a row).

    ``importance``: (K,), how much an error in each column matters, at least 0. Raises
    UnsupportedError for an encoding that is not written, FormatError if rows are not whole
    blocks, or a value is not finite or too large.
    """
    if name not in FITS:
        raise UnsupportedError(f"Cannot write weights as '{name}'; written are {', '.join(FITS)}.")
    block, size, how = FITS[name]
    rows = np.ascontiguousarray(values, dtype=np.float32)
    columns = rows.shape[-1] if rows.ndim else 1
    if columns % block:
        raise FormatError(f"Rows of {columns} weights are not whole blocks of {block} ({name}).")
    rows = rows.reshape(-1, columns)
    per_row = columns // block
    out = np.empty((len(rows), per_row * size), np.uint8)
    weights = _weights(importance, columns) if block > 1 else None
    step = max(1, CHUNK // max(columns, 1))
    with np.errstate(all="ignore"):
        for at in range(0, len(rows), step):
            part = rows[at : at + step]
            if block > 1 and not np.isfinite(part).all():
                raise FormatError(f"Weights that are not finite numbers cannot be {name}.")
            share = None
            if weights is not None:
                share = np.broadcast_to(weights, part.shape).reshape(-1, block)
            packed = how(part.reshape(-1, block), share)
            out[at : at + step] = packed.reshape(len(part), -1)
    return out


def _weights(importance: npt.ArrayLike | None, columns: int) -> F32 | None:
    if importance is None:
        return None
    found = np.asarray(importance, np.float32)
    if found.shape != (columns,) or not np.isfinite(found).all() or (found < 0).any():
        raise FormatError(f"An importance for {columns} columns must be as many numbers from 0 up.")
    mean = float(found.mean())
    if mean <= 0:
        return None
    return found / np.float32(mean) + np.float32(1e-3)  # no column is worth nothing at all
