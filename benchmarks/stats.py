"""The arithmetic of the table. Pure.

Kept here and nowhere else:
  * A figure is the median of all rounds with the lowest and the highest; no round is left out.
  * A ratio is taken within a round, where both sides saw the same machine, and then treated like a figure.
  * A round in which one side failed has no ratio.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Figure:
    median: float
    low: float
    high: float
    rounds: int


def figure(values: Sequence[float | None]) -> Figure | None:
    """What the rounds say together; None stands for a round without a value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Figure(median(known), min(known), max(known), len(known))


def ratios(values: Sequence[float | None], bases: Sequence[float | None]) -> list[float | None]:
    """Round by round, `values` as multiples of `bases`."""
    return [
        value / base if value is not None and base else None
        for value, base in zip(values, bases, strict=True)
    ]


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed (nearest rank)."""
    if not ascending:
        raise ValueError("no values, so no percentile")
    if not 0 < percent <= 100:
        raise ValueError(f"percent is {percent}, it must be above 0 and at most 100")
    rank = -int(-len(ascending) * percent // 100)  # rounded up
    return ascending[min(rank, len(ascending)) - 1]
