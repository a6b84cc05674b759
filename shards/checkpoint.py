"""A checkpoint: tails become sealed pages, the state becomes a snapshot, and the log can be shortened.

    look    which pages are worth being written again; they are read in a thread
    note    topic by topic, between commands: close its tail, plan its pages, write down its entry
    write   each file of planned pages, in a thread; then the pages stand where the chunks stood
    wait    until the log is durable up to the last entry
    save    the snapshot: temporary file, sync, rename
    flag    deletes that the entries know of, which are durable by now, into the files' flags
    trim    remove log files, snapshots and segment files that neither of the two snapshots needs

Nothing changes in memory before what it leads to is durable, so a checkpoint can end anywhere: by a crash,
or by a full disk. What it has written by then is left over and removed by the next one that succeeds.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from shards.background import Background
from shards.clock import Clock
from shards.disk import Disk
from shards.load import Storage
from shards.planning import PlannedFile, Source
from shards.rewriting import Rewriting
from shards.state import Registry, TopicState
from shards.store import page as pages
from shards.store import snapshot as snapshots
from shards.store.snapshot import KEPT, Kept, SnapshotHead
from shards.wal.writer import WalWriter
from topics.engine.chunk import Chunk
from topics.engine.joining import joined
from topics.engine.sealed import Sealed
from topics.engine.topic import Piece

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
        self._rewriting = Rewriting(storage.segments)
        self._advance: Callable[[], bool] = self._look
        self.ended = False
        self.failed: Exception | None = None
        self.records = 0

    def step(self) -> bool:
        """One slice; whether another can follow at once. To be called between two groups."""
        if self._jobs or self.ended:
            return False
        return self._advance()

    # -- look

    def _look(self) -> bool:
        end_ns = self._clock.monotonic_ns() + SLICE_NS
        for topic in self._topics:
            self._rewriting.look_at(topic)
            if self._clock.monotonic_ns() > end_ns:
                return True
        self._submit(self._rewriting.read, self._begin_noting)
        return True

    def _begin_noting(self) -> None:
        # Replay begins here: whatever was logged before is in the entries.
        self._head.start_batch, self._head.start_identity = self._wal.batch, self._wal.identity
        self._head.time_ms = max(self._head.time_ms, self._clock.now_ms())
        self._topics = iter(list(self._registry))
        self._advance = self._note

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
        self._advance = self._save
        return True

    def _note_topic(self, topic: TopicState) -> None:
        pieces = [piece for piece in topic.log.chunks if isinstance(piece, Sealed) or piece.logged]
        fresh_bytes = sum(len(piece.buffer) for piece in pieces if isinstance(piece, Chunk))
        own = fresh_bytes >= OWN_FILE_BYTES
        file = PlannedFile(self._storage.segments.new_number()) if own else self._shared
        sealed: list[Sealed] = []
        while pieces:
            chunk, sources = self._next_page(pieces)
            del pieces[: len(sources)]
            if chunk is None:
                page = sources[0].piece
                assert isinstance(page, Sealed)
                if page.pending:
                    self._plan_flips(page)
                sealed.append(page)
                continue
            if self._is_full(file, chunk, own=own):
                self._write(file)
                file = PlannedFile(self._storage.segments.new_number())
                if not own:
                    self._shared = file
            sealed.append(file.add(self._storage.segments, topic, chunk, sources))
            self.records += chunk.count
        if own:
            self._write(file)
        self._entries.append(snapshots.entry_of(topic, sealed, self._wal.batch))
        self._files.update(page.file for page in sealed)

    def _is_full(self, file: PlannedFile, chunk: Chunk, *, own: bool) -> bool:
        if not file.planned:
            return False
        too_many = own and file.events + chunk.count > self._options.segment_events
        return too_many or file.size + len(chunk.buffer) > self._options.segment_bytes

    def _next_page(self, pieces: list[Piece]) -> tuple[Chunk | None, list[Source]]:
        """The chunk to be sealed next, None if a page stays as it is; and the pieces that it stands for."""
        first = pieces[0]
        if isinstance(first, Chunk):
            return first, [Source(first, 0)]
        group = self._rewriting.groups.get(first, [])
        if not group or pieces[: len(group)] != group:
            return None, [Source(first, 0)]
        chunks, sources, at = [], [], 0
        for page in group:
            chunk = self._rewriting.chunks[page]
            page.apply_pending(chunk)
            chunks.append(chunk)
            sources.append(Source(page, at, known=len(page.pending)))
            at += page.count
        return (chunks[0] if len(chunks) == 1 else joined(chunks)), sources

    # -- write

    def _write(self, file: PlannedFile) -> None:
        if file.planned:
            segments = self._storage.segments
            # Known from now on: whatever becomes of it, a later checkpoint removes what nobody needs.
            segments.files[file.number] = file.size
            self._submit(partial(segments.write_file, file.number, file.parts), partial(self._install, file))

    def _install(self, file: PlannedFile) -> None:
        """The file is durable: its pages stand for the chunks from now on."""
        for planned in file.planned:
            planned.install()
            self._storage.segments.planned.pop(planned.sealed, None)
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
            self._background.submit(
                partial(segments.flip_flags, number, changes), partial(self._flipped, number, flips)
            )
            self._jobs += 1
        self._advance = self._trim
        return True

    def _flipped(self, number: int, flips: list[Flips], error: Exception | None) -> None:
        self._jobs -= 1
        if error is not None:
            # They stay pending, and the entries have them.
            log.error("flags.not_written", extra={"file": number, "reason": repr(error)})
            return
        for flip in flips:
            del flip.page.pending[: len(flip.placed)]

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
        self._advance = self._flag

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
        needless = sorted(storage.segments.files.keys() - used)

        def remove() -> None:
            storage.snapshots.remove_others()
            for path in needless_log:
                self._disk.unlink(path)
            if needless_log:
                self._disk.fsync_dir(needless_log[0].rpartition("/")[0])
            storage.segments.remove_files(needless)

        def removed() -> None:
            for number in needless:
                storage.segments.files.pop(number, None)
            self.ended = True

        self._submit(remove, removed)
        return True

    def fail(self, error: Exception) -> None:
        self.failed, self.ended = error, True
        self._storage.segments.planned.clear()

    # -- jobs

    def _submit(self, job: Callable[[], None], then: Callable[[], None]) -> None:
        self._jobs += 1

        def done(error: Exception | None) -> None:
            self._jobs -= 1
            if error is not None:
                self.fail(error)
            elif not self.ended:
                then()

        self._background.submit(job, done)
