"""The few statistics a measurement needs. No distribution is assumed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], q: float) -> float:
    """The ``q``-th percentile (0 to 100), linear between the neighbours; NaN of nothing.

    The rank of ``q`` among n sorted values is ``q / 100 · (n - 1)``, as numpy's default.
    """
    if not 0 <= q <= 100:
        raise ValueError(f"a percentile lies between 0 and 100, not at {q}")
    if not values:
        return math.nan
    ordered = sorted(values)
    rank = q / 100 * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


@dataclass(frozen=True, slots=True)
class Spread:
    """What is said of repeated measurements: the median, the least and the most."""

    median: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    """Over the values that are numbers; all NaN when there is none."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Spread(math.nan, math.nan, math.nan)
    return Spread(statistics.median(known), min(known), max(known))
