"""One life of a topic: its records, watermarks and counters, and the operations that change them.

Pure state. Callers log what they do here; replaying the same operations gives the same topic.
`count`, `bytes` and `earliest` are exact by record after every operation.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from topics.engine.chunk import Chunk
from topics.engine.config import TopicConfig
from topics.engine.idempotency import IdempotencyWindow
from topics.engine.run import Run
from topics.engine.sealed import Lost, Sealed
from topics.engine.tags import TagMatch
from topics.engine.watermarks import Hole, Watermarks

Piece: TypeAlias = Chunk | Sealed


class _Trim(NamedTuple):
    """What it takes to lose everything below a seq."""

    removed: int
    removed_bytes: int
    last_removed: int
    dead_chunks: int
    earliest: int


def _first_seq(chunk: Piece) -> int:
    return chunk.first_seq


class TopicLog:
    """The records of one topic. `topic_id` is never reused: it is the topic's epoch."""

    __slots__ = (
        "bytes",
        "chunks",
        "config",
        "count",
        "earliest",
        "head",
        "keys",
        "last_read_ts",
        "last_ts",
        "last_write_ts",
        "marks",
        "name",
        "topic_id",
    )

    def __init__(self, topic_id: int, name: str, config: TopicConfig) -> None:
        self.topic_id = topic_id
        self.name = name
        self.config = config
        self.head = 0
        self.earliest = 1
        self.count = 0
        self.bytes = 0
        self.last_ts = 0
        self.chunks: list[Piece] = []
        self.marks = Watermarks()
        self.keys = IdempotencyWindow()
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None

    def append(self, run: Run, *, logged: bool = True) -> None:
        """Add records at the head. A jump in seqs leaves a range that was never logged: a hole."""
        first, count, ts = run.first_seq, run.count, run.ts
        assert first > self.head, (first, self.head)
        if first > self.head + 1:
            self.lose(first - 1, cause="crash")
        chunk = self.chunks[-1] if self.chunks else None
        if not isinstance(chunk, Chunk) or chunk.logged != logged or not chunk.takes(run):
            if isinstance(chunk, Chunk):
                chunk.closed = True
            chunk = Chunk(first)
            chunk.logged = logged
            self.chunks.append(chunk)
        chunk.absorb(run)
        if self.count == 0:
            self.earliest = first
        self.head = first + count - 1
        self.count += count
        self.bytes += run.payload_bytes()
        if ts > self.last_ts:
            self.last_ts = ts
        self.last_write_ts = ts

    def lose(self, upto: int, *, cause: str) -> None:
        """Seqs after the head up to `upto` may have been handed out and are gone."""
        if upto <= self.head:
            return
        self.marks.add_hole(Hole(self.head + 1, upto, "cap", cause))
        self.head = upto
        if self.count == 0:
            self.earliest = upto + 1

    def next_live(self, seq: int) -> int:
        """The first live seq at or after `seq`; head + 1 if there is none."""
        seq = max(seq, self.earliest)
        at = max(0, bisect_right(self.chunks, seq, key=_first_seq) - 1)
        for position in range(at, len(self.chunks)):
            chunk = self.chunks[position]
            index = chunk.first_live(max(0, seq - chunk.first_seq), chunk.count)
            if index >= 0:
                return chunk.first_seq + index
        return self.head + 1

    def trim_below(self, bound: int) -> tuple[int, int]:
        """Take every live record below `bound` out; returns how many, and the last one's seq (0: none)."""
        trim = self._plan_trim(bound)
        self.count -= trim.removed
        self.bytes -= trim.removed_bytes
        self.earliest = trim.earliest
        del self.chunks[: trim.dead_chunks]
        return trim.removed, trim.last_removed

    def _plan_trim(self, bound: int) -> _Trim:
        """What `trim_below` will do. Raises Lost, and has changed nothing then."""
        removed = removed_bytes = last_removed = dead_chunks = 0
        last: tuple[Piece, int, int] | None = None
        for chunk in self.chunks:
            if chunk.first_seq >= bound:
                break
            first = max(0, self.earliest - chunk.first_seq)
            stop = min(bound, chunk.end_seq) - chunk.first_seq
            live = chunk.live_count(first, stop)
            if live > 0:
                removed += live
                removed_bytes += chunk.live_bytes(first, stop)
                last = (chunk, first, stop)
            if chunk.end_seq <= bound:
                dead_chunks += 1
        if last is not None:
            chunk, first, stop = last
            last_removed = chunk.first_seq + chunk.last_live(first, stop)
        earliest = self.next_live(bound) if removed else self.earliest
        return _Trim(removed, removed_bytes, last_removed, dead_chunks, earliest)

    def expire(self, now_ms: int) -> None:
        """Lose what is older than the topic's TTL."""
        if not self.config.ttl_ms or not self.count:
            return
        bound = self._expiry_bound(now_ms - self.config.ttl_ms)
        if bound > self.earliest:
            self.marks.evicted(ttl=self.trim_below(bound)[1])

    def foresee_expiry(self, config: TopicConfig, now_ms: int) -> None:
        """Have at hand what `expire` will need under this config. Raises Lost."""
        if config.ttl_ms and self.count:
            self._plan_trim(self._expiry_bound(now_ms - config.ttl_ms))

    def _expiry_bound(self, cutoff: int) -> int:
        bound = 0
        for chunk in self.chunks:
            index = chunk.index_at_ts(cutoff)
            bound = chunk.first_seq + index
            if index < chunk.count:
                break
        return bound

    def evict_to_caps(self) -> None:
        """Lose the oldest records until the topic is within its caps; one that rejects loses nothing."""
        bound = self._cap_bound(self.config, self.count, self.bytes)
        if bound:
            self.marks.evicted(cap=self.trim_below(bound)[1])

    def foresee_eviction(self, config: TopicConfig, run: Run | None = None) -> None:
        """Have at hand what `evict_to_caps` will need under this config, with this run. Raises Lost."""
        count, size = self.count, self.bytes
        if run is not None and (config.cap_records or config.cap_bytes):
            count, size = count + run.count, size + run.payload_bytes()
        bound = self._cap_bound(config, count, size)
        if bound:
            self._plan_trim(bound)

    def _cap_bound(self, config: TopicConfig, count: int, size: int) -> int:
        """Below which seq records go when so many are live; 0 if none does."""
        if config.discard != "old":
            return 0
        bound = 0
        if config.cap_records and count > config.cap_records:
            bound = self._seq_of_live(count - config.cap_records)
        if config.cap_bytes and size > config.cap_bytes:
            bound = max(bound, self._seq_within_bytes(size - config.cap_bytes))
        return bound

    def evict_below(self, bound: int, *, ttl: bool) -> None:
        """Apply an eviction that was decided before (replay)."""
        _, last = self.trim_below(bound)
        lost = max(last, bound - 1)
        self.marks.evicted(ttl=lost) if ttl else self.marks.evicted(cap=lost)

    def _seq_of_live(self, skip: int) -> int:
        """The seq after the first `skip` live records."""
        for chunk in self.chunks:
            first = max(0, self.earliest - chunk.first_seq)
            if first == 0 and isinstance(chunk, Sealed) and chunk.live <= skip:
                skip -= chunk.live
                continue
            for start, stop in chunk.live_runs(first, chunk.count):
                if skip < stop - start:
                    return chunk.first_seq + start + skip
                skip -= stop - start
        return self.head + 1

    def _seq_within_bytes(self, excess: int) -> int:
        """The lowest seq below which live records take at least `excess` bytes."""
        for chunk in self.chunks:
            first = max(0, self.earliest - chunk.first_seq)
            if first == 0 and isinstance(chunk, Sealed) and chunk.live_payload <= excess:
                excess -= chunk.live_payload
                continue
            for start, stop in chunk.live_runs(first, chunk.count):
                for index in range(start, stop):
                    if excess <= 0:
                        return chunk.first_seq + index
                    excess -= chunk.payload_bytes(index, index + 1)
        return self.head + 1

    def matching(
        self, match: TagMatch, *, below: int, found: Mapping[Sealed, list[int]] = MappingProxyType({})
    ) -> list[int]:
        """Live seqs below `below` whose tag matches, ascending; by the tag index only.

        `found`: what a search in the files of pages has brought, as indexes of records.
        """
        seqs: list[int] = []
        for chunk in self.chunks:
            if chunk.first_seq >= below:
                break
            if isinstance(chunk, Sealed) and (chunk in found or not chunk.may_match(match)):
                hits: Iterable[int] = found.get(chunk, ())
            else:
                hits = chunk.tags.find(match, below=below - chunk.first_seq) if chunk.tags is not None else ()
            floor, stop = self.earliest - chunk.first_seq, below - chunk.first_seq
            kept = sorted(index for index in hits if floor <= index < stop)
            dead = chunk.deleted if kept else None
            seqs += [chunk.first_seq + index for index in kept if dead is None or not dead[index]]
        return seqs

    def pages_to_search(self, match: TagMatch, *, below: int) -> list[Sealed]:
        """Pages that may hold such a tag."""
        return [
            chunk
            for chunk in self.chunks
            if isinstance(chunk, Sealed)
            and chunk.first_seq < below
            and chunk.end_seq > self.earliest
            and chunk.may_match(match)
        ]

    def delete(self, ranges: list[tuple[int, int]]) -> int:
        """Delete the live records of inclusive seq ranges, in ascending order; returns how many.

        A page that cannot be read is passed over: whoever reads it next meets the loss.
        """
        removed = 0
        emptied: set[int] = set()
        for first, last in ranges:
            at = max(0, bisect_right(self.chunks, first, key=_first_seq) - 1)
            for chunk in self.chunks[at:]:
                if chunk.first_seq > last:
                    break
                with suppress(Lost):
                    removed += self._delete_in(chunk, first, last)
                if chunk.closed and chunk.live_count(0, chunk.count) == 0:
                    emptied.add(chunk.first_seq)
        if removed:
            self.count -= removed
            with suppress(Lost):
                self.earliest = self.next_live(self.earliest)
            emptied.update(c.first_seq for c in self.chunks if c.closed and c.end_seq <= self.earliest)
            if emptied:
                self.chunks = [chunk for chunk in self.chunks if chunk.first_seq not in emptied]
        return removed

    def _delete_in(self, chunk: Piece, first: int, last: int) -> int:
        start = max(first, self.earliest, chunk.first_seq) - chunk.first_seq
        stop = min(last + 1, chunk.end_seq) - chunk.first_seq
        if isinstance(chunk, Sealed) and chunk.live and start < stop:
            if start == 0 and stop == chunk.count:
                removed = chunk.live
                self.bytes -= chunk.live_payload
                chunk.delete_all()
                return removed
            self.reconcile(chunk)
        removed = 0
        for run_start, run_stop in list(chunk.live_runs(start, stop)):
            self.bytes -= chunk.payload_bytes(run_start, run_stop)
            removed += run_stop - run_start
            chunk.mark_deleted(run_start, run_stop)
        return removed

    def quarantine(self, page: Sealed, ranges: list[tuple[int, int]], left: Chunk | None) -> None:
        """Records of these inclusive seq ranges cannot be read any more: they become holes.

        `left` is the page's chunk without them, None if nothing of it is left.
        """
        for first, last in ranges:
            first = max(first, self.marks.evict_floor)
            if first <= last:
                self.marks.insert_hole(Hole(first, last, "cap", "corruption"))
        self._take_as_it_is(page, left)
        self.earliest = self.next_live(self.earliest)

    def reconcile(self, page: Sealed) -> None:
        """The flags in a page's file may be ahead of what was known of it: count again, then."""
        chunk = page.columns()
        if chunk.live_count(0, page.count) != page.live:
            self._take_as_it_is(page, chunk)

    def _take_as_it_is(self, page: Sealed, chunk: Chunk | None) -> None:
        """Count a page's live records by its chunk; nothing else is asked of other pages than they know."""
        known, known_bytes = page.live, page.live_payload
        page.live = 0 if chunk is None else chunk.live_count(0, page.count)
        page.live_payload = 0 if chunk is None else chunk.live_bytes(0, page.count)
        first = self.earliest - page.first_seq
        if first <= 0:
            self.count -= known - page.live
            self.bytes -= known_bytes - page.live_payload
        else:
            later = [piece for piece in self.chunks if piece.first_seq > page.first_seq]
            self.count = sum(piece.live_count(0, piece.count) for piece in later)
            self.bytes = sum(piece.live_bytes(0, piece.count) for piece in later)
            if chunk is not None:
                self.count += chunk.live_count(first, page.count)
                self.bytes += chunk.live_bytes(first, page.count)
        if not page.live:
            self.chunks.remove(page)
