"""The read plan: which byte runs answer a cursor and its options.

A range that needs nothing special is one slice per chunk. Deleted records, a node filter that really
matches and the `include_*` options cost only where they apply. Every examined seq moves the cursor,
delivered or not.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from topics.engine.limits import READ_BYTES_DEFAULT, READ_LIMIT_DEFAULT
from topics.engine.watermarks import Gap, lost_gap

if TYPE_CHECKING:
    from topics.engine.chunk import Chunk
    from topics.engine.topic import TopicLog

# One call examines at most this many seqs, so that a reader of a topic full of its own records
# cannot hold the shard; it gets a moved cursor and comes back.
EXAMINE_MAX = 100_000


class ReadOptions(msgspec.Struct, frozen=True, gc=False):
    limit: int = READ_LIMIT_DEFAULT
    bytes_max: int = READ_BYTES_DEFAULT
    nodes: frozenset[bytes] = frozenset()  # node sections that the reader does not want back
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True

    @property
    def as_stored(self) -> bool:
        return self.include_meta and self.include_data and not self.include_tags


class ReadResult(msgspec.Struct, gc=False):
    """Records as byte runs to be joined by commas, and where the cursor stands now."""

    next_from_seq: int
    gap: Gap | None = None
    parts: list[bytes | memoryview] = msgspec.field(default_factory=list)
    count: int = 0
    size_bytes: int = 0
    examined: int = 0


def read(log: "TopicLog", from_seq: int, options: ReadOptions) -> ReadResult:
    """Records after `from_seq`, with the tombstone that stands before them, if any."""
    gap = lost_gap(from_seq, head=log.head, earliest=log.earliest, marks=log.marks, next_live=log.next_live)
    cursor = gap.resume_after if gap is not None else from_seq
    # Records below a hole come first and alone; the next read begins with the hole.
    hole = log.marks.hole_after(cursor)
    stop = hole.first - 1 if hole is not None else log.head
    result = ReadResult(cursor, gap)
    start = max(cursor + 1, log.earliest)
    at = bisect_right(log.chunks, start, key=_first_seq) - 1
    for position in range(max(at, 0), len(log.chunks)):
        chunk = log.chunks[position]
        if chunk.first_seq > stop:
            break
        first = max(start, chunk.first_seq) - chunk.first_seq
        last = min(stop + 1, chunk.end_seq) - chunk.first_seq
        if first >= last:
            continue
        room = EXAMINE_MAX - result.examined
        if not _take(chunk, first, min(last, first + room), options, result) or last > first + room:
            return result
    result.examined += max(0, stop - max(result.next_from_seq, start - 1))
    result.next_from_seq = max(stop, cursor)
    return result


def _first_seq(chunk: "Chunk") -> int:
    return chunk.first_seq


def _take(chunk: "Chunk", first: int, last: int, options: ReadOptions, result: ReadResult) -> bool:
    """Add wanted records of `first` … `last - 1`; False when the answer is full."""
    for start, stop in _wanted_runs(chunk, first, last, options.nodes):
        taken = _fitting(chunk, start, stop, options, result)
        if taken:
            part = _part(chunk, start, start + taken, options)
            result.parts.append(part)
            result.size_bytes += len(part)
            result.count += taken
        if start + taken < stop:
            _examined(chunk, result, start + taken - 1 if taken else start - 1, first)
            return False
    _examined(chunk, result, last - 1, first)
    return True


def _examined(chunk: "Chunk", result: ReadResult, index: int, first: int) -> None:
    result.next_from_seq = max(result.next_from_seq, chunk.first_seq + index)
    result.examined += max(0, index - first + 1)


def _fitting(chunk: "Chunk", start: int, stop: int, options: ReadOptions, result: ReadResult) -> int:
    """How many records from `start` on fit into the answer; at least one if it is still empty."""
    count = min(stop - start, options.limit - result.count)
    if count <= 0:
        return 0
    room = options.bytes_max - result.size_bytes
    if chunk.end_offset(start + count - 1) - chunk.starts[start] > room:
        # Record k ends one comma before record k + 1 starts.
        beyond = bisect_right(chunk.starts, chunk.starts[start] + room + 1, start + 1, start + count)
        count = beyond - 1 - start
    return count or (1 if result.count == 0 else 0)


def _wanted_runs(chunk: "Chunk", first: int, last: int, nodes: frozenset[bytes]) -> Iterator[tuple[int, int]]:
    unwanted = {chunk.nodes[section] for section in nodes if section in chunk.nodes} if nodes else None
    if not unwanted or chunk.node_ids is None:
        yield from chunk.live_runs(first, last)
        return
    mask = bytes(map(unwanted.__contains__, chunk.node_ids[first:last]))
    for start, stop in chunk.live_runs(first, last):
        while start < stop:
            begin = mask.find(0, start - first, stop - first)
            if begin < 0:
                break
            end = mask.find(1, begin, stop - first)
            start = stop if end < 0 else end + first
            yield begin + first, start


def _part(chunk: "Chunk", start: int, stop: int, options: ReadOptions) -> bytes | memoryview:
    if options.as_stored:
        return chunk.slice(start, stop)
    return chunk.cut(
        start, stop, tags=options.include_tags, meta=options.include_meta, data=options.include_data
    )
