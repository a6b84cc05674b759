"""A chunk: a stretch of consecutive records as wire-ready bytes, with columns instead of objects.

A chunk grows with the topic's tail until it is full and is then never resized, so that a slice of a
closed chunk can be sent without a copy. Columns that no record needs do not exist.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, compress, repeat
from operator import add, sub
from typing import TypeVar

from topics.engine.run import FRAME_BYTES, META_KEY, TAG_KEY, Run
from topics.engine.tags import TagColumn

T = TypeVar("T")

# Large enough that a full default read touches few chunks, small enough that copying the open one is cheap.
CHUNK_BYTES = 512 * 1024
CHUNK_RECORDS = 8192
_NODES_MAX = 2**16 - 1

# Stretches shorter than this on average are cheaper to copy into one part than to send one by one.
_VIEW_BYTES_MIN = 16 * 1024

_LOW_BYTE = 0 if sys.byteorder == "little" else 1
_NOT = bytes((1, 0)) + bytes(254)


class Chunk:
    """Records `first_seq` … `first_seq + count - 1`."""

    __slots__ = (
        "bare",
        "buffer",
        "closed",
        "deleted",
        "first_seq",
        "heads",
        "logged",
        "meta_lengths",
        "node_ids",
        "nodes",
        "section_lengths",
        "starts",
        "tags",
        "ts_starts",
        "ts_values",
    )

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.buffer = bytearray()
        self.starts: array[int] = array("I")
        self.heads = bytearray()
        self.nodes: dict[bytes, int] = {b"": 0}
        self.section_lengths = [0]
        self.node_ids: array[int] | None = None
        self.meta_lengths: array[int] | None = None
        self.tags: TagColumn | None = None
        self.deleted: bytearray | None = None
        self.ts_starts: array[int] = array("I")
        self.ts_values: array[int] = array("Q")
        self.bare = True  # none of the optional columns exists
        self.closed = False
        self.logged = True  # the log has its records; all of one chunk are alike in this

    @classmethod
    def of_columns(
        cls,
        first_seq: int,
        *,
        buffer: bytearray,
        starts: "array[int]",
        heads: bytearray,
        ts_starts: "array[int]",
        ts_values: "array[int]",
        nodes: list[bytes],
        node_ids: "array[int] | None",
        meta_lengths: "array[int] | None",
        tags: TagColumn | None,
        deleted: bytearray | None,
    ) -> "Chunk":
        """The closed chunk whose columns these were; they belong to the new one.

        Columns that exist are of one length. `nodes` are distinct and in the order of their numbers, so
        the first is empty. `deleted` exists only if a record is deleted, and says 1 for those.
        """
        chunk = cls(first_seq)
        chunk.buffer, chunk.starts, chunk.heads = buffer, starts, heads
        chunk.ts_starts, chunk.ts_values = ts_starts, ts_values
        chunk.nodes = {section: number for number, section in enumerate(nodes)}
        chunk.section_lengths = list(map(len, nodes))
        chunk.node_ids, chunk.meta_lengths, chunk.tags, chunk.deleted = node_ids, meta_lengths, tags, deleted
        chunk.bare = node_ids is None and meta_lengths is None and tags is None and deleted is None
        chunk.closed = True
        return chunk

    @property
    def count(self) -> int:
        return len(self.starts)

    @property
    def end_seq(self) -> int:
        """The seq after the last record."""
        return self.first_seq + len(self.starts)

    def content(self) -> "Chunk":
        """Itself: its bytes are in memory."""
        return self

    def takes(self, run: Run) -> bool:
        """Whether `run` belongs at the end of this chunk."""
        return (
            not self.closed
            and run.first_seq == self.first_seq + len(self.starts)
            and len(self.nodes) + len(run.nodes) <= _NODES_MAX
        )

    def absorb(self, run: Run) -> None:
        starts, buffer = self.starts, self.buffer
        before = len(starts)
        if before:
            buffer += b","
        if run.count == 1:
            starts.append(len(buffer))
        else:
            offsets = list(accumulate(map((1).__add__, run.lengths), initial=len(buffer)))
            offsets.pop()
            starts.extend(array("I", offsets))
        buffer += run.blob
        self.heads += run.heads
        if not before or self.ts_values[-1] != run.ts:
            self.ts_starts.append(before)
            self.ts_values.append(run.ts)
        if not (self.bare and run.node_ids is None and run.meta_lengths is None and run.tag_lengths is None):
            self._absorb_columns(run, before)
        if len(buffer) >= CHUNK_BYTES or len(starts) >= CHUNK_RECORDS:
            self.closed = True

    def _absorb_columns(self, run: Run, before: int) -> None:
        self.bare = False
        if run.node_ids is not None or self.node_ids is not None:
            if self.node_ids is None:
                self.node_ids = array("H", [0]) * before
            if run.node_ids is None:
                self.node_ids.extend([0] * run.count)
            elif run.count == 1:
                self.node_ids.append(self._node_number(run.nodes[run.node_ids[0]]))
            else:
                numbers = [self._node_number(section) for section in run.nodes]
                self.node_ids.extend(array("H", list(map(numbers.__getitem__, run.node_ids))))
        if run.meta_lengths is not None or self.meta_lengths is not None:
            if self.meta_lengths is None:
                self.meta_lengths = array("I", [0]) * before
            self.meta_lengths.extend(run.meta_lengths if run.meta_lengths is not None else [0] * run.count)
        if run.tag_lengths is not None or self.tags is not None:
            if self.tags is None:
                self.tags = TagColumn(before)
            if run.tag_lengths is not None:
                self.tags.extend(run.tag_lengths, run.tags)
            else:
                self.tags.extend_untagged(run.count)
        if self.deleted is not None:
            self.deleted += bytes(run.count)

    def _node_number(self, section: bytes) -> int:
        number = self.nodes.get(section)
        if number is None:
            number = self.nodes[section] = len(self.nodes)
            self.section_lengths.append(len(section))
        return number

    def end_offset(self, index: int) -> int:
        """Where record `index` ends in the buffer (exclusive)."""
        return self.starts[index + 1] - 1 if index + 1 < len(self.starts) else len(self.buffer)

    def _fences(self, start: int, stop: int) -> "array[int]":
        """Where records `start` … `stop - 1` begin, and where one more would."""
        fences = self.starts[start : stop + 1]
        if stop == len(self.starts):
            fences.append(len(self.buffer) + 1)
        return fences

    def slice(self, start: int, stop: int) -> bytes | memoryview:
        """Records `start` … `stop - 1`, joined by commas; no copy if the chunk is closed."""
        view = memoryview(self.buffer)[self.starts[start] : self.end_offset(stop - 1)]
        # An exported view would forbid an open chunk to grow.
        return view if self.closed else bytes(view)

    def payload_bytes(self, start: int, stop: int) -> int:
        """`data` + `meta` bytes of records `start` … `stop - 1`, deleted ones included."""
        if start >= stop:
            return 0
        count = stop - start
        total = self.end_offset(stop - 1) - self.starts[start] - (count - 1)
        total -= sum(self.heads[start:stop]) + FRAME_BYTES * count
        if self.node_ids is not None:
            lengths = self.section_lengths
            total -= sum(lengths[at] for at in self.node_ids[start:stop])
        if self.meta_lengths is not None:
            total -= len(META_KEY) * (count - self.meta_lengths[start:stop].count(0))
        return total

    def live_runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Maximal stretches of records in `start` … `stop - 1` that are not deleted."""
        if self.deleted is None:
            if start < stop:
                yield start, stop
            return
        while start < stop:
            first = self.deleted.find(0, start, stop)
            if first < 0:
                return
            end = self.deleted.find(1, first, stop)
            start = stop if end < 0 else end
            yield first, start

    def live_count(self, start: int, stop: int) -> int:
        deleted = self.deleted.count(1, start, stop) if self.deleted is not None else 0
        return max(0, stop - start) - deleted

    def live_bytes(self, start: int, stop: int) -> int:
        return sum(self.payload_bytes(first, end) for first, end in self.live_runs(start, stop))

    def last_live(self, start: int, stop: int) -> int:
        """The last record in the range that is not deleted, or -1."""
        if self.deleted is None:
            return stop - 1 if start < stop else -1
        return self.deleted.rfind(0, start, stop)

    def first_live(self, start: int, stop: int) -> int:
        """The first record in the range that is not deleted, or -1."""
        if self.deleted is None:
            return start if start < stop else -1
        return self.deleted.find(0, start, stop)

    def mark_deleted(self, start: int, stop: int) -> None:
        if self.deleted is None:
            self.deleted = bytearray(len(self.starts))
            self.bare = False
        self.deleted[start:stop] = b"\x01" * (stop - start)

    def index_at_ts(self, ts: int) -> int:
        """The first record whose time is `ts` or later; `count` if there is none."""
        at = bisect_right(self.ts_values, ts - 1)
        return self.ts_starts[at] if at < len(self.ts_starts) else len(self.starts)

    def wanted(self, start: int, stop: int, nodes: frozenset[bytes]) -> bytes:
        """One byte per record: 1 if it is live and not from one of `nodes`. Empty if all of them are."""
        flags = b""
        if self.deleted is not None:
            flags = bytes(self.deleted[start:stop].translate(_NOT))
        if nodes and self.node_ids is not None:
            unwanted = [self.nodes[section] for section in nodes if section in self.nodes]
            if unwanted:
                others = self._from_others(start, stop, unwanted)
                flags = _both(flags, others) if flags else others
        return flags if 0 in flags else b""

    def _from_others(self, start: int, stop: int, unwanted: list[int]) -> bytes:
        assert self.node_ids is not None
        ids = self.node_ids[start:stop]
        table = bytearray(b"\x01") * max(256, len(self.nodes))
        for number in unwanted:
            table[number] = 0
        if len(table) == 256:
            return ids.tobytes()[_LOW_BYTE::2].translate(table)
        return bytes(map(table.__getitem__, ids))

    def sent_bytes_max(self, start: int, stop: int, *, tags: bool) -> int:
        """At least what records `start` … `stop - 1` take in an answer."""
        size = self.end_offset(stop - 1) - self.starts[start]
        if tags and self.tags is not None:
            size += len(TAG_KEY) * (stop - start) + self.tags.size_bytes(start, stop)
        return size

    def pick(self, start: int, stop: int, wanted: bytes) -> list[bytes | memoryview]:
        """The wanted records of `start` … `stop - 1` as stored; a copy unless their stretches are long."""
        offsets = list(compress(self._fences(start, stop), _edges(wanted)))
        begins, ends = offsets[::2], offsets[1::2]
        if self.closed and sum(ends) - sum(begins) >= _VIEW_BYTES_MIN * len(begins):
            view = memoryview(self.buffer)
            return [view[begin : end - 1] for begin, end in zip(begins, ends, strict=True)]
        # Every stretch brings the comma behind it, except the last.
        ends[-1] -= 1
        return [b"".join(_slices(self.buffer, begins, ends))]

    def cut(self, start: int, stop: int, wanted: bytes, *, tags: bool, meta: bool, data: bool) -> bytes:
        """Records `start` … `stop - 1` with their tags spliced in, or without their meta or data.

        Only the wanted ones, unless `wanted` is empty.
        """
        text: bytes | bytearray = self.buffer
        fences = self._fences(start, stop).tolist()
        if wanted:
            text = b",".join(self.pick(start, stop, wanted))
            fences = list(accumulate(compress(map(sub, fences[1:], fences), wanted), initial=0))
        heads_end = []
        if tags or not data:
            heads_end = list(map(add, fences, _only(self.heads[start:stop], wanted)))
        # Per record: what is copied before its tag ends with its head, what is copied behind the tag
        # ends at `until`, and the copy goes on at `resume`.
        until = resume = heads_end
        if not (meta and data):
            braces = metas = [fence - 2 for fence in fences[1:]]
            if self.meta_lengths is not None:
                metas = list(map(sub, braces, _only(self.meta_lengths[start:stop], wanted)))
            until = metas if data else list(map(add, heads_end, self._node_lengths(start, stop, wanted)))
            resume = metas if meta else braces
        begins = [fences[0], *resume[:-1]]
        if tags and self.tags is not None:
            columns = [_slices(text, begins, heads_end), _only(self.tags.sections(start, stop), wanted)]
            if until is not heads_end:
                columns.append(_slices(text, heads_end, until))
        else:
            columns = [_slices(text, begins, until)]
        pieces: list[bytes | bytearray] = [b""] * (len(begins) * len(columns))
        for at, column in enumerate(columns):
            pieces[at :: len(columns)] = column
        pieces.append(text[resume[-1] : fences[-1] - 1])
        return b"".join(pieces)

    def _node_lengths(self, start: int, stop: int, wanted: bytes) -> Iterable[int]:
        """Bytes of the node section per record."""
        if self.node_ids is None:
            return repeat(0)
        return _only(map(self.section_lengths.__getitem__, self.node_ids[start:stop]), wanted)


def stretches(first: int, wanted: bytes) -> list[tuple[int, int]]:
    """Maximal stretches of wanted records, `first` being the number of the first flag's record."""
    edges = list(compress(range(first, first + len(wanted) + 1), _edges(wanted)))
    return list(zip(edges[::2], edges[1::2], strict=True))


def stretch_count(wanted: bytes) -> int:
    return _edges(wanted).count(1) // 2


def _edges(wanted: bytes) -> bytes:
    """One byte more than flags: 1 where a stretch of wanted records begins, and behind its end."""
    flags = int.from_bytes(wanted, "little")
    return (flags ^ flags << 8).to_bytes(len(wanted) + 1, "little")


def _both(one: bytes, other: bytes) -> bytes:
    flags = int.from_bytes(one, "little") & int.from_bytes(other, "little")
    return flags.to_bytes(len(one), "little")


def _only(values: Iterable[T], wanted: bytes) -> Iterable[T]:
    return compress(values, wanted) if wanted else values


def _slices(text: bytes | bytearray, begins: list[int], ends: list[int]) -> list[bytes | bytearray]:
    return [text[begin:end] for begin, end in zip(begins, ends, strict=True)]
