"""What a machine crash can leave of one file or one list of names. Pure: values in, values out.

Kept here and nowhere else:
  * A file may keep any prefix of its unsynced operations; the last write of the prefix may be torn, may
    have grown the file without its data, or may have left garbage inside the range it was writing.
  * One unsynced operation may be missing while later ones are present, and a write may lose its first
    or a middle sector while the rest arrived.
  * Bytes outside the ranges of unsynced operations never change: a torn sector does not harm neighbours.
    Nor does a byte change that is written with the value it has already.
  * Names may keep any subset of their unsynced changes.
  * Everything is a function of its arguments, garbage included, so that equal states hash equally.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import pairwise, product
from math import prod
from random import Random
from typing import NamedTuple

SECTOR_BYTES = 512
# Long enough that neighbouring ranges look different, short enough to be made once at import.
GARBAGE = Random(0xBAD).randbytes(8191)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where enumeration stops being exhaustive; below each bound every combination is visited."""

    torn_ops_max: int = 8  # how many of the newest pending operations of a file are torn and reordered
    torn_cuts_max: int = 8  # sector boundaries tried inside one write
    subset_ops_max: int = 6  # pending name changes of which every subset is tried
    product_max: int = 256  # combinations of file contents under one set of names
    states_max: int = 1024  # names times contents, above it contents are thinned out
    random_picks: int = 16  # seeded samples of whatever was not enumerated

    def contents_tried(self, counts: Sequence[int]) -> int:
        """About how many combinations of file contents one set of names gets when it is not thinned out."""
        full = prod(counts)
        return full if full <= self.product_max else 2 * sum(counts)


class Content(NamedTuple):
    """The bytes of a file; what lies between the end of `data` and `size` is zeros."""

    data: bytes
    size: int

    def digest(self) -> bytes:
        return blake2b(b"%d:" % self.size + self.data, digest_size=16).digest()


EMPTY = Content(b"", 0)


class Write(NamedTuple):
    offset: int
    data: bytes


class Truncate(NamedTuple):
    length: int


class Grow(NamedTuple):
    """fallocate: the file is at least this long."""

    length: int


FileOp = Write | Truncate | Grow


class Image:
    """A file's content under change. Shares the bytes it came from until the first change."""

    __slots__ = ("_data", "size")

    def __init__(self, content: Content) -> None:
        self._data: bytes | bytearray = content.data
        self.size = content.size

    def apply(self, op: FileOp) -> None:
        if isinstance(op, Grow):
            self.size = max(self.size, op.length)
            return
        data = self._data if isinstance(self._data, bytearray) else bytearray(self._data)
        self._data = data
        if isinstance(op, Truncate):
            del data[op.length :]
            self.size = op.length
        elif op.data:
            if len(data) < op.offset:
                data.extend(bytes(op.offset - len(data)))
            end = op.offset + len(op.data)
            data[op.offset : end] = op.data
            self.size = max(self.size, end)

    def read(self, length: int, offset: int) -> bytes:
        length = max(0, min(length, self.size - offset))
        found = bytes(self._data[offset : offset + length])
        return found + bytes(length - len(found))

    def freeze(self) -> Content:
        return Content(bytes(self._data.rstrip(b"\0")), self.size)


def changed(content: Content, ops: Iterable[FileOp]) -> Content:
    image = Image(content)
    for op in ops:
        image.apply(op)
    return image.freeze()


def file_variants(durable: Content, pending: Sequence[FileOp], limits: Limits) -> list[Content]:
    """Every content considered; the first is "nothing arrived", the second "everything arrived"."""
    prefixes = [durable]
    for op in pending:
        prefixes.append(changed(prefixes[-1], (op,)))
    found = dict.fromkeys(prefixes)
    window = max(0, len(pending) - limits.torn_ops_max)
    for before, op in zip(prefixes[window:], pending[window:], strict=False):
        if isinstance(op, Write):
            found.update(dict.fromkeys(_torn(before, op, limits)))
    found.update(dict.fromkeys(_reordered(durable, prefixes[window], pending[window:])))
    for ends in (durable, prefixes[-1]):
        found.pop(ends, None)
    return [durable, prefixes[-1], *found]


def _reordered(durable: Content, window_start: Content, ops: Sequence[FileOp]) -> Iterator[Content]:
    """One operation missing before a later one; and one operation that arrived all alone."""
    for missing in range(len(ops)):
        for last in range(missing + 1, len(ops)):
            yield changed(window_start, (*ops[:missing], *ops[missing + 1 : last + 1]))
    for op in ops:
        yield changed(durable, (op,))


def _torn(before: Content, op: Write, limits: Limits) -> Iterator[Content]:
    start, data = op
    grown = Grow(start + len(data))
    yield changed(before, (grown,))
    cuts = torn_cuts(start, len(data), limits.torn_cuts_max)
    for cut in cuts:
        arrived = Write(start, data[:cut])
        yield changed(before, (arrived,))
        yield changed(before, (arrived, grown))
    for cut in {0, *cuts[:1], *cuts[-1:]}:
        sector_end = min(len(data), cut + SECTOR_BYTES - (start + cut) % SECTOR_BYTES)
        yield changed(before, (Write(start, data[:cut]), _spoiled(before, op, cut, sector_end)))
    yield changed(before, (_spoiled(before, op, 0, len(data)),))
    edges = [0, *_boundaries(start, len(data))][:3]
    for low, high in pairwise(edges):  # the first sector lost, then a middle one
        yield changed(before, (Write(start, data[:low]), Write(start + high, data[high:])))


@cache
def torn_cuts(start: int, length: int, boundaries_max: int) -> tuple[int, ...]:
    """How many bytes of a write at `start` may have arrived: a few odd places and sector boundaries."""
    odd = {1, 7, length // 2, length - 1}
    boundaries = _boundaries(start, length)
    if len(boundaries) > boundaries_max:
        third = max(1, boundaries_max // 3)
        middle_step = max(1, len(boundaries) // max(1, boundaries_max - 2 * third))
        boundaries = sorted({*boundaries[:third], *boundaries[-third:], *boundaries[third::middle_step]})
    return tuple(sorted(cut for cut in odd.union(boundaries) if 0 < cut < length))


def _boundaries(start: int, length: int) -> list[int]:
    """Offsets inside a write where a sector of the file begins."""
    first = SECTOR_BYTES - start % SECTOR_BYTES
    return list(range(first, length, SECTOR_BYTES))


def _spoiled(before: Content, op: Write, low: int, high: int) -> Write:
    """Garbage instead of the bytes `low` … `high - 1` of a write, except where nothing was to change."""
    start = op.offset + low
    old, new = Image(before).read(high - low, start), op.data[low:high]
    if old[: len(new)] == new:
        return Write(start, new)
    garbage = _garbage(start, high - low)
    # Beyond the old end of the file there is nothing that could have stayed.
    kept = (
        ours if ours == theirs else spoiled for ours, theirs, spoiled in zip(old, new, garbage, strict=False)
    )
    return Write(start, bytes(kept) + garbage[len(old) :])


def _garbage(offset: int, length: int) -> bytes:
    start = offset % len(GARBAGE)
    return (GARBAGE[start:] + GARBAGE * (length // len(GARBAGE) + 1))[:length]


def subsets(count: int, limits: Limits, rng: Random) -> Iterator[tuple[bool, ...]]:
    """Which of `count` ordered changes arrived: all subsets, or the telling ones when there are many."""
    if count <= limits.subset_ops_max:
        yield from product((False, True), repeat=count)
        return
    for kept in range(count + 1):
        yield tuple(index < kept for index in range(count))
    for odd_one in range(count):
        yield tuple(index == odd_one for index in range(count))
        yield tuple(index != odd_one for index in range(count))
    for _ in range(limits.random_picks):
        yield tuple(rng.random() < 0.5 for _ in range(count))


def content_choices(
    counts: Sequence[int], limits: Limits, rng: Random, *, thin: bool
) -> Iterator[tuple[int, ...]]:
    """Which variant (0 none, 1 all, then the others) each changed file has, for one set of names."""
    if prod(counts) <= limits.product_max and not thin:
        yield from product(*(range(count) for count in counts))
        return
    for arrived in subsets(len(counts), limits, rng):
        yield tuple(map(int, arrived))
    if not thin:
        for position, count in enumerate(counts):
            for others in (0, 1):
                for variant in range(count):
                    yield (*[others] * position, variant, *[others] * (len(counts) - position - 1))
    for _ in range(limits.random_picks):
        yield tuple(rng.randrange(count) for count in counts)
