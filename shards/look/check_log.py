"""Is the log whole? Every checksum, the chain of batches, and how it meets the snapshots.

The rules are those of recovery (shards/wal/recovery.py), told apart more finely:
  * What is damaged in a batch that a later header or a snapshot calls durable is a problem.
  * What is damaged behind that, at the log's end, is what a crash leaves: a note. A start cuts it.
  * A log that was closed in order ends with its last byte, and all of it was synced: nothing is excused.
"""

from collections.abc import Iterator, Sequence

from shards.look import bodies
from shards.look.files import WAL, Shard
from shards.look.report import Progress, Report
from shards.look.text import number_text
from shards.store.snapshot import Snapshot
from shards.wal import batch as codec
from shards.wal.batch import Batch, FrameEntry
from shards.wal.frame import FrameError, Kind
from shards.wal.recovery import LogFile, find_batches, survey
from shards.wal.writer import LogEnd, WalOptions

# Preallocation is in whole steps of this, whatever the settings are; a log that was closed ends anywhere.
GRANULE_BYTES = WalOptions().granule_bytes
_BAD_TRAILER = "its trailer does not match its checksum"


def batch_defects(data: bytes, batch: Batch, entries: Sequence[FrameEntry]) -> Iterator[tuple[int, str]]:
    """What is not as it was written in a batch, each with its offset in the file."""
    if batch.from_trailer:
        yield batch.start, "its header does not match its checksum"
    elif batch.end > len(data):
        yield batch.start, f"it takes {batch.end - batch.start} bytes, {len(data) - batch.start} are there"
    else:
        back = codec.decode_backwards(data, batch.end)
        if back is None or (back.start, back.identity) != (batch.start, batch.identity):
            yield batch.end - codec.TRAILER_BYTES, _BAD_TRAILER
    view = memoryview(data)
    for entry in entries:
        if not entry.intact:
            yield entry.start, f"the frame {bodies.described(entry)} does not match its checksum"
            continue
        try:
            bodies.summary(entry, codec.body_of(view, entry))
        except FrameError as error:
            yield entry.start, f"the frame {bodies.described(entry)} is intact and impossible: {error}"


class LogCheck:
    """One walk over the log of a shard, file by file. Raises UnknownFormat."""

    def __init__(self, shard: Shard, report: Report, snapshots: Sequence[Snapshot]) -> None:
        self._shard, self._report, self._snapshots = shard, report, snapshots
        self.files = survey(shard.disk, WAL)
        self.batches = 0
        self.in_use = False  # something was logged beside the sessions themselves
        self._durable = max((file.durable for file in self.files), default=0)
        self._durable_in: dict[int, int] = {}
        for file in self.files:
            self._durable_in[file.session] = max(self._durable_in.get(file.session, 0), file.durable)
        self._closed_sessions = self._find_closed_sessions()
        # The log is durable up to a snapshot's last batch before the snapshot gets its name.
        self._snapshot_batch = max((snapshot.head.last_batch for snapshot in snapshots), default=0)
        written = [at for at, file in enumerate(self.files) if file.session_first is not None]
        self._last = written[-1] if written else -1
        self._end: LogEnd | None = None if snapshots else LogEnd()
        self._closing = False  # the batch that was read last closes its session, at the end of its file

    def run(self, progress: Progress) -> None:
        for position, file in enumerate(self.files):
            try:
                with self._shard.opened(file.path) as opened:
                    data = opened.read(0, opened.size)
            except FileNotFoundError:
                continue  # a checkpoint has just removed it; if not, the chain shows it
            self._check_file(position, file, data)
            progress.add(len(data))
        end = self._end.batch if self._end is not None else 0
        if end < self._durable:
            text = f"batches {end + 1} to {self._durable} were durable once and cannot be found"
            self._report.problem(WAL, None, text)
        if end < self._snapshot_batch:
            text = f"the log ends with batch {end}; a snapshot knows of batch {self._snapshot_batch}"
            self._report.problem(WAL, None, text)

    def _check_file(self, position: int, file: LogFile, data: bytes) -> None:
        # A later session's batches say how far it had accepted what stands before it.
        later = [
            other.session_first
            for other in self.files[position + 1 :]
            if other.session_first is not None and other.session > file.session
        ]
        limit = min(later, default=None)
        cut_off = position >= self._last and len(data) % GRANULE_BYTES != 0
        excused = 2**64 if cut_off else max(self._durable, self._snapshot_batch)
        at = self._walk(file, data, limit=limit, excused=excused)
        if at is not None:
            self._check_rest(file, data, at, limit=limit, excused=excused)
        if position > self._last and not data.strip(b"\0"):
            self._report.note(file.path, None, "prepared and not used: there is no batch in it")
        if cut_off and not (position == self._last and self._closing):
            text = f"cut off: it ends after {len(data)} bytes, and no session was closed there"
            self._report.problem(file.path, len(data), text)

    def _walk(self, file: LogFile, data: bytes, *, limit: int | None, excused: int) -> int | None:
        """From batch to batch. Where they end; None: there is nothing to be said about what follows.

        `excused`: a defect in a batch with a higher number is what a crash leaves.
        """
        at = 0
        for batch in find_batches(data):
            if limit is not None and batch.number >= limit:
                self._report.note(
                    file.path, batch.start, f"batch {batch.number} and on: cut by a later session"
                )
                return None
            if batch.start > at:
                if self._next_number > excused:
                    return at
                text = f"{batch.start - at} bytes are no batch"
                self._report.problem(file.path, at, text)
            entries = codec.entries(data, batch)
            defects = list(batch_defects(data, batch, entries))
            broken = self._chain_defect(batch)
            if [text for _, text in defects] == [_BAD_TRAILER] and self._may_be_torn(batch, excused):
                text = f"torn trailer of batch {batch.number}; the batch itself is whole"
                self._report.note(file.path, defects.pop()[0], text)
            if (broken and self._next_number > excused) or (defects and batch.number > excused):
                return batch.start
            if broken:
                self._say_broken(file, batch, broken)
            for offset, text in defects:
                self._report.problem(file.path, offset, f"batch {batch.number}: {text}")
            self._take(batch, entries, at_end=batch.end == len(data))
            at = batch.end
        return at

    def _may_be_torn(self, batch: Batch, excused: int) -> bool:
        """Whether a crash may have left the batch without its end.

        With all of its frames it counts nevertheless, and a later session has gone on from it. It was never
        known to be durable then by the session that wrote it, and that one was not closed.
        """
        if batch.number > excused:
            return True
        known = self._durable_in.get(batch.session, 0)
        return batch.number > known and batch.session not in self._closed_sessions

    def _say_broken(self, file: LogFile, batch: Batch, broken: str) -> None:
        """What is missing before a batch was removed if no snapshot needs it.

        A checkpoint removes files from the front, but a power cut may bring some of them back.
        """
        text = f"batch {batch.number}: {broken}"
        is_gap = self._end is None or batch.number > self._end.batch + 1
        by = [one.number for one in self._snapshots if is_gap and one.head.start_batch + 1 < batch.number]
        if self._snapshots and is_gap and not by:
            self._report.note(file.path, batch.start, f"{text}; no snapshot needs them")
        else:
            self._report.problem(file.path, batch.start, text, by)

    def _find_closed_sessions(self) -> set[int]:
        """The sessions that ended in order: by their last batch."""
        last = {file.session: file for file in self.files if file.session_first is not None}
        closed = set()
        for session, file in last.items():
            with self._shard.opened(file.path) as opened:
                data = opened.read(0, opened.size)
            *_, batch = find_batches(data)
            if any(entry.kind == Kind.CLOSE for entry in codec.entries(data, batch)):
                closed.add(session)
        return closed

    @property
    def _next_number(self) -> int:
        return self._end.batch + 1 if self._end is not None else self._snapshots[0].head.start_batch + 1

    def _take(self, batch: Batch, entries: Sequence[FrameEntry], *, at_end: bool) -> None:
        self._end = LogEnd(batch.number, batch.identity)
        self.batches += 1
        self._closing = at_end and any(entry.kind == Kind.CLOSE for entry in entries)
        if any(entry.topic_id for entry in entries):
            self.in_use = True
        for snapshot in self._snapshots:
            head = snapshot.head
            if head.start_batch == batch.number and head.start_identity != batch.identity:
                path = f"snap/{snapshot.number:08d}.snap"
                self._report.problem(path, None, f"batch {batch.number} is not the one that it begins behind")

    def _chain_defect(self, batch: Batch) -> str:
        """Why `batch` does not come next; empty if it does."""
        if self._end is None:
            return self._beginning_defect(batch)
        number, before = batch.number, self._end.batch
        if number <= before:
            return f"it stands behind batch {before}"
        if number > before + 1:
            gone = number - before - 1
            return f"it follows batch {before}: {number_text(gone, 'batch', 'batches')} missing before it"
        if not batch.from_trailer and batch.predecessor != self._end.identity:
            return f"it names another predecessor than the batch {before} that is there"
        return ""

    def _beginning_defect(self, batch: Batch) -> str:
        """A log may begin late: with what the oldest snapshot does not have."""
        oldest = self._snapshots[0]
        needed = oldest.head.start_batch + 1
        if batch.number > needed:
            return f"the log begins with it, and snapshot {oldest.number} needs it from batch {needed} on"
        known = batch.number == needed and not batch.from_trailer
        if known and batch.predecessor != oldest.head.start_identity:
            return f"it names another predecessor than snapshot {oldest.number} does"
        return ""

    def _check_rest(self, file: LogFile, data: bytes, at: int, *, limit: int | None, excused: int) -> None:
        """What stands behind the last batch that counts: zeros, or a batch that was being written."""
        content_bytes = len(data.rstrip(b"\0"))
        if content_bytes <= at:
            return
        number = self._next_number
        length = content_bytes - at
        if number <= excused and (limit is None or number < limit):
            self._report.problem(file.path, at, f"{length} bytes are no batch")
        elif codec.is_beginning(data, at, content_bytes):
            text = f"torn tail: the beginning of batch {number}, which was being written; a start cuts it"
            self._report.note(file.path, at, text)
        else:
            text = (
                f"damaged tail: {length} bytes behind the last good batch, none of them known to be durable; "
                "a power cut may leave this, a start cuts it"
            )
            self._report.note(file.path, at, text)
