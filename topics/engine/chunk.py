"""A chunk: a stretch of consecutive records as wire-ready bytes, with columns instead of objects.

A chunk grows with the topic's tail until it is full and is then never resized, so that a slice of a
closed chunk can be sent without a copy. Columns that no record needs do not exist.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

from topics.engine.run import FRAME_BYTES, META_KEY, TAG_KEY, Run
from topics.engine.tags import TagColumn

# Large enough that a full default read touches few chunks, small enough that copying the open one is cheap.
CHUNK_BYTES = 512 * 1024
CHUNK_RECORDS = 8192
_NODES_MAX = 2**16 - 1


class Chunk:
    """Records `first_seq` … `first_seq + count - 1`."""

    __slots__ = (
        "buffer",
        "closed",
        "deleted",
        "first_seq",
        "heads",
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
        self.closed = False

    @property
    def count(self) -> int:
        return len(self.starts)

    @property
    def end_seq(self) -> int:
        """The seq after the last record."""
        return self.first_seq + len(self.starts)

    def takes(self, run: Run) -> bool:
        """Whether `run` belongs at the end of this chunk."""
        return (
            not self.closed
            and run.first_seq == self.end_seq
            and len(self.nodes) + len(run.nodes) <= _NODES_MAX
        )

    def absorb(self, run: Run) -> None:
        before = len(self.starts)
        if self.buffer:
            self.buffer += b","
        start = len(self.buffer)
        if run.count == 1:
            self.starts.append(start)
        else:
            offsets = list(accumulate(map((1).__add__, run.lengths), initial=start))
            offsets.pop()
            self.starts.extend(offsets)
        self.buffer += run.blob
        self.heads += run.heads
        if not self.ts_values or self.ts_values[-1] != run.ts:
            self.ts_starts.append(before)
            self.ts_values.append(run.ts)
        self._absorb_columns(run, before)
        if len(self.buffer) >= CHUNK_BYTES or len(self.starts) >= CHUNK_RECORDS:
            self.closed = True

    def _absorb_columns(self, run: Run, before: int) -> None:
        if run.node_ids is not None or self.node_ids is not None:
            if self.node_ids is None:
                self.node_ids = array("H", [0]) * before
            if run.node_ids is None:
                self.node_ids.extend([0] * run.count)
            else:
                ids = [self._node_number(section) for section in run.nodes]
                self.node_ids.extend([ids[at] for at in run.node_ids])
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
        self.deleted[start:stop] = b"\x01" * (stop - start)

    def index_at_ts(self, ts: int) -> int:
        """The first record whose time is `ts` or later; `count` if there is none."""
        at = bisect_right(self.ts_values, ts - 1)
        return self.ts_starts[at] if at < len(self.ts_starts) else len(self.starts)

    def node_length(self, index: int) -> int:
        """Bytes of the node section of one record."""
        if self.node_ids is None:
            return 0
        return self.section_lengths[self.node_ids[index]]

    def cut(self, start: int, stop: int, *, tags: bool, meta: bool, data: bool) -> bytes:
        """Records `start` … `stop - 1` with their tags spliced in, or without their meta or data."""
        base = self.starts[start]
        text = bytes(memoryview(self.buffer)[base : self.end_offset(stop - 1)])
        ends = [following - 1 - base for following in self.starts[start + 1 : stop]]
        ends.append(len(text))
        heads = self.heads[start:stop]
        tag_list = self.tags.slice(start, stop) if tags and self.tags is not None else None
        metas = self.meta_lengths[start:stop] if self.meta_lengths is not None else None
        out: list[bytes] = []
        at = 0
        for index, end in enumerate(ends):
            head_end = at + heads[index]
            out.append(text[at:head_end])
            if tag_list is not None and tag_list[index]:
                out += (TAG_KEY, tag_list[index])
            meta_start = end - 1 - (metas[index] if metas is not None else 0)
            if data:
                out.append(text[head_end : end if meta else meta_start])
            else:
                out.append(text[head_end : head_end + self.node_length(start + index)])
                out.append(text[meta_start : end if meta else meta_start])
            out.append(b"," if meta else b"},")
            at = end + 1
        out[-1] = b"" if meta else b"}"
        return b"".join(out)
