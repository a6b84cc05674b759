"""The dual watermark and the only tombstone rule.

  * `earliest` is the first live record; eviction, expiry and deletes all move it.
  * `evict_floor` moves only when live records are lost to a cap or to time; it alone triggers a
    tombstone for a cursor below it.
  * A hole is a lost range with live records around it (a crash-lost tail, a quarantined stretch).
    Deletes never erase a hole; eviction past it swallows it.

`lost_gap` is used by every way of reading.
"""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Hole:
    """Seqs `first` … `last` that may have been handed out and can no longer be read."""

    first: int
    last: int
    reason: str  # as the contract spells it
    cause: str  # what we know beyond it: "crash" or "corruption"


@dataclass(frozen=True, slots=True)
class Gap:
    """What a reader asked for and can no longer have, and where its reading goes on."""

    first: int
    last: int
    reason: str
    resume_after: int
    cause: str = ""

    @property
    def missed_estimate(self) -> int:
        return max(0, self.last - self.first + 1)


@dataclass(slots=True)
class Watermarks:
    """The highest seqs lost to a cap and to time, and the holes above them in seq order."""

    cap_evicted: int = 0
    ttl_expired: int = 0
    holes: list[Hole] = field(default_factory=list)

    @property
    def evict_floor(self) -> int:
        return max(self.cap_evicted, self.ttl_expired) + 1

    def evicted(self, *, cap: int = 0, ttl: int = 0) -> None:
        """Live records up to these seqs were lost; holes below are part of that loss now."""
        self.cap_evicted = max(self.cap_evicted, cap)
        self.ttl_expired = max(self.ttl_expired, ttl)
        floor = self.evict_floor
        if self.holes and self.holes[0].first < floor:
            self.holes = [
                Hole(max(hole.first, floor), hole.last, hole.reason, hole.cause)
                for hole in self.holes
                if hole.last >= floor
            ]

    def add_hole(self, hole: Hole) -> None:
        """Holes arrive in seq order; a continuation of the last one extends it."""
        if hole.last < hole.first:
            return
        if self.holes:
            last = self.holes[-1]
            assert hole.first > last.last, (hole, last)
            if hole.first == last.last + 1 and (hole.reason, hole.cause) == (last.reason, last.cause):
                self.holes[-1] = Hole(last.first, hole.last, hole.reason, hole.cause)
                return
        self.holes.append(hole)

    def insert_hole(self, hole: Hole) -> None:
        """A hole between others, found late; where it overlaps one that is known, only the rest is new."""
        pieces, first = [], hole.first
        for known in self.holes:
            if known.last < first or known.first > hole.last:
                continue
            if known.first > first:
                pieces.append(Hole(first, known.first - 1, hole.reason, hole.cause))
            first = known.last + 1
        if first <= hole.last:
            pieces.append(Hole(first, hole.last, hole.reason, hole.cause))
        self.holes = sorted([*self.holes, *pieces], key=lambda known: known.first)

    def hole_after(self, cursor: int) -> Hole | None:
        """The first hole that is not wholly behind a reader at `cursor`."""
        return next((hole for hole in self.holes if hole.last > cursor), None)


def lost_gap(
    cursor: int, *, head: int, earliest: int, marks: Watermarks, next_live: Callable[[int], int]
) -> Gap | None:
    """What a reader at `cursor` lost involuntarily before the next record it can have.

    `next_live(seq)` is the first live seq at or after `seq`, or head + 1.
    """
    assert marks.evict_floor <= earliest, (marks, earliest)
    wanted = cursor + 1
    if cursor > head:
        return Gap(1, head, "recreated", resume_after=earliest - 1)
    if wanted < marks.evict_floor:
        return Gap(wanted, earliest - 1, _reason(wanted, marks), resume_after=earliest - 1)
    hole = marks.hole_after(cursor)
    if hole is not None and (wanted >= hole.first or next_live(wanted) > hole.last):
        return Gap(max(wanted, hole.first), hole.last, hole.reason, resume_after=hole.last, cause=hole.cause)
    return None


def _reason(wanted: int, marks: Watermarks) -> str:
    by_cap, by_ttl = marks.cap_evicted >= wanted, marks.ttl_expired >= wanted
    if by_cap and by_ttl:
        return "mixed"
    return "cap" if by_cap else "ttl"
