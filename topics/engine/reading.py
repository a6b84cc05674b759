"""The read plan: which byte runs answer a cursor and its options.

A range that needs nothing special is one slice per chunk. Deleted records, a node filter that really
matches and the `include_*` options cost only where they apply, and short stretches between records
that are passed over are joined: the layers below pay per part. Every examined seq moves the cursor,
delivered or not.
"""

from bisect import bisect_right
from typing import TYPE_CHECKING

import msgspec

from topics.engine.chunk import Chunk, stretch_count, stretches
from topics.engine.limits import READ_BYTES_DEFAULT, READ_LIMIT_DEFAULT
from topics.engine.sealed import Cold
from topics.engine.watermarks import Gap, lost_gap

if TYPE_CHECKING:
    from topics.engine.topic import Piece, TopicLog

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


class ReadResult(msgspec.Struct, gc=False):
    """Records as byte runs to be joined by commas, and where the cursor stands now."""

    next_from_seq: int
    gap: Gap | None = None
    parts: list[bytes | memoryview] = msgspec.field(default_factory=list)
    count: int = 0
    size_bytes: int = 0
    examined: int = 0


def read(log: "TopicLog", from_seq: int, options: ReadOptions, *, patient: bool = True) -> ReadResult:
    """Records after `from_seq`, with the tombstone that stands before them, if any.

    Raises Cold where a page is not in memory; who is not patient gets what stands before it, if anything.
    """
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
        try:
            content = chunk.content()
        except Cold:
            if patient or not result.count:
                raise
            return result
        if not _take(content, first, min(last, first + room), options, result) or last > first + room:
            return result
    result.examined += max(0, stop - max(result.next_from_seq, start - 1))
    result.next_from_seq = max(stop, cursor)
    return result


def _first_seq(chunk: "Piece") -> int:
    return chunk.first_seq


def _take(chunk: Chunk, first: int, last: int, options: ReadOptions, result: ReadResult) -> bool:
    """Add wanted records of `first` … `last - 1`; False when the answer is full."""
    wanted = chunk.wanted(first, last, options.nodes)
    if wanted:
        end = _take_wanted(chunk, first, wanted, options, result)
    else:
        end = _take_fitting(chunk, [(first, last)], last, options, result)
    result.next_from_seq = max(result.next_from_seq, chunk.first_seq + end - 1)
    result.examined += end - first
    return end == last


def _take_wanted(chunk: Chunk, first: int, wanted: bytes, options: ReadOptions, result: ReadResult) -> int:
    """Add what the flags say from `first` on, in few parts; returns where the taking ended."""
    stop = first + _reach(wanted, options.limit - result.count)
    room = options.bytes_max - result.size_bytes
    if stop > first and chunk.sent_bytes_max(first, stop, tags=options.include_tags) > room:
        return _take_fitting(chunk, stretches(first, wanted), first + len(wanted), options, result)
    wanted = wanted[: stop - first]
    if count := wanted.count(1):
        parts = _parts(chunk, first, stop, wanted, options)
        # A comma between two stretches counts as little inside a part as between two parts.
        commas = stretch_count(wanted) - len(parts)
        result.size_bytes += sum(map(len, parts)) - commas
        result.parts += parts
        result.count += count
    return stop


def _reach(wanted: bytes, limit: int) -> int:
    """How many records can be examined before more than `limit` of them are wanted."""
    if wanted.count(1) <= limit:
        return len(wanted)
    return bisect_right(range(len(wanted)), limit, key=lambda at: wanted.count(1, 0, at + 1))


def _take_fitting(
    chunk: Chunk,
    runs: list[tuple[int, int]],
    last: int,
    options: ReadOptions,
    result: ReadResult,
) -> int:
    """Add what fits, measured stretch by stretch; returns where the taking ended, `last` if all fits."""
    parts: list[bytes | memoryview] = []
    for start, stop in runs:
        taken = _fitting(chunk, start, stop, options, result)
        if taken:
            (part,) = _parts(chunk, start, start + taken, b"", options)
            parts.append(part)
            result.size_bytes += len(part)
            result.count += taken
        if start + taken < stop:
            last = start + taken
            break
    if parts:
        result.parts.append(parts[0] if len(parts) == 1 else b",".join(parts))
    return last


def _fitting(chunk: Chunk, start: int, stop: int, options: ReadOptions, result: ReadResult) -> int:
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


def _parts(
    chunk: Chunk, start: int, stop: int, wanted: bytes, options: ReadOptions
) -> list[bytes | memoryview]:
    """The wanted records of `start` … `stop - 1`, all of them if `wanted` is empty."""
    tags = options.include_tags and chunk.tags is not None
    meta = options.include_meta or chunk.meta_lengths is None
    if tags or not meta or not options.include_data:
        return [chunk.cut(start, stop, wanted, tags=tags, meta=meta, data=options.include_data)]
    return chunk.pick(start, stop, wanted) if wanted else [chunk.slice(start, stop)]
