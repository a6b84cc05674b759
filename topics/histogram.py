"""A histogram with fixed bounds: a few integers, added to on hot paths."""

from bisect import bisect_left


class Histogram:
    """Counts per bucket, not cumulative; one more for what lies above the last bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0

    def add(self, value: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
