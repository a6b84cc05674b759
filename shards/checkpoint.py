"""A checkpoint: tails become sealed pages, the state becomes a snapshot, and the log can be shortened.

    note    topic by topic, between commands: close its tail, plan its pages, write down its entry
    write   each file of planned pages, in a thread; then the pages stand where the chunks stood
    flag    deletes that the noted entries know of, into the files' flags
    wait    until the log is durable up to the last entry
    save    the snapshot: temporary file, sync, rename
    trim    remove log files, snapshots and segment files that neither of the two snapshots needs

Nothing changes in memory before what it leads to is durable, so a checkpoint can end anywhere: by a crash,
or by a full disk. What it has written by then is left over and removed by the next one that succeeds.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from shards.background import Background
from shards.clock import Clock
from shards.disk import Disk
from shards.load import Storage
from shards.state import Registry, TopicState
from shards.store import page as pages
from shards.store import snapshot as snapshots
from shards.store.segments import HEADER_BYTES
from shards.store.snapshot import KEPT, Kept, SnapshotHead
from shards.wal.writer import WalWriter
from topics.engine.chunk import Chunk
from topics.engine.sealed import Sealed

log = logging.getLogger("shard")

# One slice of noting; between two of them commands are run.
SLICE_NS = 1_000_000
# A topic with this much to seal gets files of its own.
OWN_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    log_bytes: int = 64 * 1024 * 1024  # written since the last one: time for the next
    age_ms: int = 3_600_000  # the same for what is older than this
    segment_events: int = 10_000
    segment_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True)
class PlannedPage:
    topic: TopicState
    chunk: Chunk
    sealed: Sealed
    flags: bytes  # deletes as they were written


@dataclass(slots=True)
class PlannedFile:
    number: int
    size: int = HEADER_BYTES
    events: int = 0
    parts: list[list[bytes | memoryview]] = field(default_factory=list)
    planned: list[PlannedPage] = field(default_factory=list)


@dataclass(slots=True)
class Flips:
    """The first of a page's pending deletes, as flags at offsets of its file."""

    page: Sealed
    placed: list[tuple[int, bytes]]


class Checkpoint:
    """One checkpoint under way. `step` does a slice; `ended` when there is nothing left to do."""

    def __init__(
        self, disk: Disk, storage: Storage, registry: Registry, wal: WalWriter, background: Background,
        clock: Clock, options: CheckpointOptions, *, boot_id: str, now_ms: int,
    ) -> None:  # fmt: skip
        self._disk, self._storage, self._registry, self._wal = disk, storage, registry, wal
        self._background, self._clock, self._options = background, clock, options
        self._head = SnapshotHead(
            start_batch=wal.batch, start_identity=wal.identity, time_ms=now_ms, boot_id=boot_id
        )
        self._topics: Iterator[TopicState] = iter(list(registry))
        self._entries: list[bytes] = []
        self._files = set(storage.damaged_files)  # that the entries need
        self._shared = PlannedFile(storage.segments.new_number())
        self._flips: dict[int, list[Flips]] = {}
        self._jobs = 0
        self._advance: Callable[[], bool] = self._note
        self.ended = False
        self.failed: Exception | None = None
        self.records = 0

    def step(self) -> bool:
        """One slice; whether another can follow at once. To be called between two groups."""
        if self._jobs or self.ended:
            return False
        return self._advance()

    # -- note

    def _note(self) -> bool:
        end_ns = self._clock.monotonic_ns() + SLICE_NS
        for topic in self._topics:
            if self._registry.by_id(topic.log.topic_id) is topic:
                self._note_topic(topic)
            if self._clock.monotonic_ns() > end_ns:
                return True
        # Topics that were dropped before their turn are part of what the snapshot knows.
        self._head.last_batch = self._wal.batch
        self._write(self._shared)
        self._advance = self._flag
        return True

    def _note_topic(self, topic: TopicState) -> None:
        pieces = topic.log.chunks
        fresh = [piece for piece in pieces if isinstance(piece, Chunk) and piece.logged]
        sealed = [piece for piece in pieces if isinstance(piece, Sealed)]
        for page in sealed:
            if page.pending:
                self._plan_flips(page)
        own = sum(len(chunk.buffer) for chunk in fresh) >= OWN_FILE_BYTES
        file = PlannedFile(self._storage.segments.new_number()) if own else self._shared
        for chunk in fresh:
            if file.planned and (
                file.size + len(chunk.buffer) > self._options.segment_bytes
                or (own and file.events + chunk.count > self._options.segment_events)
            ):
                self._write(file)
                file = PlannedFile(self._storage.segments.new_number())
                if not own:
                    self._shared = file
            sealed.append(self._plan(file, topic, chunk))
        if own:
            self._write(file)
        self._entries.append(snapshots.entry_of(topic, sealed, self._wal.batch))
        self._files.update(page.file for page in sealed)

    def _plan(self, file: PlannedFile, topic: TopicState, chunk: Chunk) -> Sealed:
        chunk.closed = True
        parts = pages.encode(topic.log.topic_id, chunk)
        length = sum(map(len, parts))
        count = chunk.count
        sealed = Sealed(
            self._storage.segments, topic_id=topic.log.topic_id, file=file.number, offset=file.size,
            length=length, first_seq=chunk.first_seq, count=count, live=chunk.live_count(0, count),
            live_payload=chunk.live_bytes(0, count), first_ts=chunk.ts_values[0],
            last_ts=chunk.ts_values[-1],
            tags_between=chunk.tags.between() if chunk.tags is not None else None,
        )  # fmt: skip
        flags = bytes(chunk.deleted) if chunk.deleted is not None else bytes(count)
        # An entry that is written while a page is planned asks for its live records.
        self._storage.segments.keep(sealed, chunk)
        file.parts.append(parts)
        file.planned.append(PlannedPage(topic, chunk, sealed, flags))
        file.size += length
        file.events += count
        self.records += count
        return sealed

    # -- write

    def _write(self, file: PlannedFile) -> None:
        if file.planned:
            segments = self._storage.segments
            self._submit(partial(segments.write_file, file.number, file.parts), partial(self._install, file))

    def _install(self, file: PlannedFile) -> None:
        """The file is durable: its pages stand for the chunks from now on."""
        self._storage.segments.files.add(file.number)
        for planned in file.planned:
            chunks = planned.topic.log.chunks
            at = next((at for at, piece in enumerate(chunks) if piece is planned.chunk), None)
            if at is not None:
                _catch_up(planned)
                chunks[at] = planned.sealed
        file.parts.clear()

    # -- flag

    def _plan_flips(self, page: Sealed) -> None:
        flags_at = page.offset + page.length - page.count
        placed = [(flags_at + start, pages.deleted_flags(stop - start)) for start, stop in page.pending]
        self._flips.setdefault(page.file, []).append(Flips(page, placed))

    def _flag(self) -> bool:
        segments = self._storage.segments
        for number, flips in self._flips.items():
            changes = [change for flip in flips for change in flip.placed]
            self._submit(partial(segments.flip_flags, number, changes), partial(_flipped, flips))
        self._advance = self._save
        return True

    # -- save

    def _save(self) -> bool:
        if self._wal.durable < self._head.last_batch:
            return False
        head = self._head
        head.next_topic_id = self._registry.next_id
        head.next_file = self._storage.segments.next_number
        head.damaged_files = sorted(self._storage.damaged_files)
        kept, entries = self._storage.snapshots, self._entries

        def save() -> None:
            found.append(kept.write(snapshots.encode(head, entries)))

        found: list[int] = []
        self._submit(save, lambda: self._saved(found[0]))
        return True

    def _saved(self, number: int) -> None:
        kept = self._storage.snapshots
        kept.kept = [*kept.kept, Kept(number, self._head.start_batch, self._files)][-KEPT:]
        self._entries.clear()
        self._advance = self._trim

    # -- trim

    def _trim(self) -> bool:
        storage = self._storage
        kept = storage.snapshots.kept
        needless_log = self._wal.needless(kept[0].start_batch) if len(kept) == KEPT else []
        used = {
            piece.file for topic in self._registry for piece in topic.log.chunks if isinstance(piece, Sealed)
        }
        used.update(storage.damaged_files)
        for snapshot in kept:
            used |= snapshot.files
        needless = sorted(storage.segments.files - used)

        def remove() -> None:
            storage.snapshots.remove_others()
            for path in needless_log:
                self._disk.unlink(path)
            if needless_log:
                self._disk.fsync_dir(needless_log[0].rpartition("/")[0])
            storage.segments.remove_files(needless)

        def removed() -> None:
            storage.segments.files.difference_update(needless)
            self.ended = True

        self._submit(remove, removed)
        return True

    # -- jobs

    def _submit(self, job: Callable[[], None], then: Callable[[], None]) -> None:
        self._jobs += 1

        def done(error: Exception | None) -> None:
            self._jobs -= 1
            if error is not None:
                self.failed, self.ended = error, True
            elif not self.ended:
                then()

        self._background.submit(job, done)


def _catch_up(planned: PlannedPage) -> None:
    """What was deleted since the page was planned is pending in it."""
    chunk, sealed = planned.chunk, planned.sealed
    sealed.live = chunk.live_count(0, chunk.count)
    sealed.live_payload = chunk.live_bytes(0, chunk.count)
    if chunk.deleted is not None and bytes(chunk.deleted) != planned.flags:
        fresh = [index for index in range(chunk.count) if chunk.deleted[index] and not planned.flags[index]]
        sealed.pending = _as_stretches(fresh)


def _as_stretches(indexes: list[int]) -> list[tuple[int, int]]:
    stretches: list[tuple[int, int]] = []
    for index in indexes:
        if stretches and stretches[-1][1] == index:
            stretches[-1] = (stretches[-1][0], index + 1)
        else:
            stretches.append((index, index + 1))
    return stretches


def _flipped(flips: list[Flips]) -> None:
    for flip in flips:
        del flip.page.pending[: len(flip.placed)]
