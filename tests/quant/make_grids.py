"""Prints the bitmaps of src/gristmill/quant/grids.py from the `gguf` package's tables.

Every grid, written as numbers whose digits are the coordinates (first coordinate lowest), is
ascending, so the set of its points says everything: one bit for each point there could be.

    python tests/quant/make_grids.py

Last run with gguf 0.19.0.
"""

from __future__ import annotations

import base64
from typing import Any

import gguf.quants
import numpy as np
import numpy.typing as npt

GRIDS = {
    "iq2_xxs": "IQ2_XXS",
    "iq2_xs": "IQ2_XS",
    "iq2_s": "IQ2_S",
    "iq3_xxs": "IQ3_XXS",
    "iq3_s": "IQ3_S",
    "iq1": "IQ1_S",
}
"""Our name → a class of gguf.quants that holds the grid."""


def points(name: str) -> npt.NDArray[np.float32]:
    """A grid of the `gguf` package: (points, coordinates)."""
    source: Any = getattr(gguf.quants, GRIDS[name])
    source.init_grid()
    return source.grid.reshape(source.grid_shape)


def bitmap(table: npt.NDArray[np.float32]) -> str:
    """The set of a grid's points as base-85 text."""
    levels = np.unique(table)
    digits = np.searchsorted(levels, table)
    weights = np.array([len(levels) ** i for i in range(table.shape[1])])
    numbers = (digits * weights).sum(axis=1)
    if np.any(np.diff(numbers) <= 0):
        raise SystemExit("the grid is not ascending: a bitmap cannot hold it")
    present = np.zeros(len(levels) ** table.shape[1], dtype=np.uint8)
    present[numbers] = 1
    return base64.b85encode(np.packbits(present, bitorder="little").tobytes()).decode()


def main() -> None:
    """Print the table."""
    print("_BITMAPS = {")
    for name in GRIDS:
        text = bitmap(points(name))
        print(f'    "{name}": (')
        for at in range(0, len(text), 88):
            print(f'        "{text[at : at + 88]}"')
        print("    ),")
    print("}")


if __name__ == "__main__":
    main()
