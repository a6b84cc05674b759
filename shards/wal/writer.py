"""Appending to the log: one write per batch, files that rotate, room that is taken before it is needed.

Kept here and nowhere else:
  * A log is never rewound and never overwritten. A session starts a new file; a failed batch is
    abandoned where it lies and nothing is written behind it in that file.
  * Space is preallocated in steps, so that a full disk is noticed before a batch is built. The file's
    size is also the witness that its end was not cut off. Beside the loop, with the sync that is due
    anyway (`preparation`), as long as that keeps up; otherwise on the spot.
  * Any EIO and any failed sync is final: the writer refuses from then on.
Decided elsewhere: when to sync (sync.py), what to do about a failure (the actor).
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from shards.disk import Disk, Fd
from shards.wal import batch as codec
from shards.wal.batch import Frame

MIB = 1024 * 1024
# Parts of this size on average are handed to the kernel as they are; joining smaller ones is cheaper.
_LARGE_PART_BYTES = 4096
_PARTS_MAX = 512


class WalFailed(Exception):
    """The log cannot be written. `final`: not until a restart; else when there is room again."""

    def __init__(self, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.final = final


@dataclass(frozen=True, slots=True)
class WalOptions:
    directory: str = "wal"
    file_bytes: int = 64 * MIB  # a file that has grown past this is followed by a new one
    step_bytes: int = 8 * MIB  # preallocated at once

    @classmethod
    def of_files(cls, file_bytes: int) -> "WalOptions":
        """Options for files of this size: small ones are preallocated in smaller steps, of whole MiB."""
        return cls(file_bytes=file_bytes, step_bytes=max(1, min(8 * MIB, file_bytes) // MIB) * MIB)

    @property
    def granule_bytes(self) -> int:
        """Every size that preallocation leaves is a multiple of this, whatever the settings are."""
        return gcd(self.step_bytes, MIB)


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the next session goes on: what recovery found."""

    batch: int = 0
    identity: int = 0
    session: int = 0
    file: int = 0
    files: tuple[tuple[int, int, int], ...] = ()  # what is there: number, last batch, bytes


def file_name(directory: str, number: int) -> str:
    return f"{directory}/{number:08d}.wal"


class Preparation:
    """Room that is made while appending goes on: more of the current file, or the whole next one.

    `run` may be called in a thread: it touches the disk and nothing else. More of a file counts when the
    file has been synced after it.
    """

    def __init__(self, disk: Disk, directory: str, *, file: int, fd: Fd, start: int, stop: int) -> None:
        self._disk = disk
        self._directory = directory
        self.file = file
        self.fd = fd  # negative: the file is still to be made
        self.start = start
        self.stop = stop
        self.error: OSError | None = None

    def run(self) -> None:
        try:
            if self.fd >= 0:
                self._disk.fallocate(self.fd, self.start, self.stop - self.start)
            else:
                self.fd = new_file(self._disk, self._directory, self.file, self.stop)
        except OSError as error:
            self.error = error


def new_file(disk: Disk, directory: str, number: int, length: int) -> Fd:
    """A file of the log with room for `length` bytes, durable as such. Leaves nothing behind if it fails."""
    path = file_name(directory, number)
    fd = disk.open(path, create=True)
    try:
        disk.fallocate(fd, 0, length)
        disk.fdatasync(fd)
        disk.fsync_dir(directory)
    except OSError:
        disk.close(fd)
        disk.unlink(path)
        raise
    return fd


class WalWriter:
    """The end of the log, open for appending."""

    def __init__(self, disk: Disk, options: WalOptions, end: LogEnd) -> None:
        self._disk = disk
        self._options = options
        self.session = end.session + 1
        self._session_first = end.batch + 1
        self.batch = end.batch
        self.durable = end.batch
        self._identity = end.identity
        self._file = end.file
        self._fd: Fd = -1
        self._position = 0
        self._allocated = 0
        # Files before the current one: number, last batch, bytes.
        self._earlier = list(end.files)
        # The preparation under way, and the next file when it is ready.
        self._preparing: Preparation | None = None
        self._next: Preparation | None = None
        self._written_since_sync = 0
        # Files before the current one that a sync must still cover, each with its last batch.
        self._unsynced: list[tuple[Fd, int]] = []
        self.failure: WalFailed | None = None
        self.frames = 0
        self.batches = 0
        self.rotations = 0
        self.bytes_written = 0
        self._new_file()

    @property
    def bytes_on_disk(self) -> int:
        """What the log's files take, preallocated space included."""
        return sum(size for _, _, size in self._earlier) + self._allocated

    @property
    def identity(self) -> int:
        """Of the last batch."""
        return self._identity

    @property
    def room_bytes(self) -> int:
        """Bytes that can be appended without asking the disk for space."""
        return self._allocated - self._position

    def reserve(self, length: int) -> None:
        """Make room for `length` bytes, or raise WalFailed with nothing changed."""
        self._refuse_if_failed()
        if self.room_bytes >= length:
            return
        try:
            if self._next is not None or (
                self._position >= self._options.file_bytes and not self._next_comes
            ):
                self._new_file()
            if self.room_bytes < length:
                step = self._options.step_bytes
                wanted = -(-(self._position + length) // step) * step
                self._disk.fallocate(self._fd, self._allocated, wanted - self._allocated)
                self._allocated = wanted
                self._sync_size()
        except OSError as error:
            raise self._failed(error, "make room in") from error

    def append(self, frames: Sequence[Frame], *, now_ms: int) -> int:
        """Write one batch; returns its number. After a failure nothing of it counts."""
        self._refuse_if_failed()
        number = self.batch + 1
        parts, identity = codec.encode(
            frames,
            number=number,
            session=self.session,
            session_first=self._session_first,
            durable=self.durable,
            predecessor=self._identity,
            time_ms=now_ms,
        )
        length = sum(map(len, parts))
        try:
            self.reserve(length)
        except WalFailed as failed:
            # The caller's memory is ahead of the log now; only a reload makes them equal again.
            self.failure = failed
            raise
        self._write(parts, length)
        self.batch, self._identity = number, identity
        self.frames += len(frames)
        self.batches += 1
        self.bytes_written += length
        self._written_since_sync += length
        return number

    @property
    def _next_comes(self) -> bool:
        """Whether the next file is being made: until it is there, this one grows past its size."""
        return self._preparing is not None and self._preparing.file > self._file

    def preparation(self) -> Preparation | None:
        """Room to be made during the sync that starts now, if more will soon be needed.

        What was written since the last sync will be written again, and more.
        """
        options, step = self._options, self._options.step_bytes
        ahead = step // 2 + 2 * self._written_since_sync
        self._written_since_sync = 0
        if self.room_bytes >= ahead or self._next is not None or self._preparing is not None:
            return None
        length = -(-ahead // step) * step
        if self._allocated < options.file_bytes:
            file, fd, start = self._file, self._fd, self._allocated
        else:
            file, fd, start = self._file + 1, -1, 0
        self._preparing = Preparation(
            self._disk, options.directory, file=file, fd=fd, start=start, stop=start + length
        )
        return self._preparing

    def prepared(self) -> WalFailed | None:
        """The preparation under way has ended, and the sync with it has succeeded. Returns what is final."""
        done, self._preparing = self._preparing, None
        if done is None:
            return None
        if done.error is not None:
            # A full disk is met again where there is somebody to tell.
            failed = self._failed(done.error, "make room in")
            return failed if failed.final else None
        if done.file > self._file:
            self._next = done
        elif done.file == self._file and done.start == self._allocated:
            self._allocated = done.stop
        return None

    def sync_targets(self) -> list[Fd]:
        """The files that must be synced for everything appended so far to be durable."""
        return [*(fd for fd, _ in self._unsynced), self._fd]

    def synced(self, batch: int) -> None:
        """A sync of all targets that was started when `batch` was the last one has succeeded."""
        self.durable = max(self.durable, batch)
        # A file that was left while the sync ran may hold batches that came after its start.
        while self._unsynced and self._unsynced[0][1] <= batch:
            self._disk.close(self._unsynced.pop(0)[0])

    def needless(self, batch: int) -> list[str]:
        """Forget the files that hold nothing behind this batch; their paths, the oldest first.

        Whoever removes them does so when everything in them is durable elsewhere.
        """
        synced = {number for number, last, _ in self._earlier if last <= min(batch, self.durable)}
        paths = [
            file_name(self._options.directory, number) for number, _, _ in self._earlier if number in synced
        ]
        self._earlier = [file for file in self._earlier if file[0] not in synced]
        return paths

    def sync_failed(self, error: OSError) -> WalFailed:
        return self._failed(error, "sync", final=True)

    def sync_now(self) -> None:
        """Sync here and now, while nobody else does; raises WalFailed."""
        batch, targets = self.batch, self.sync_targets()
        try:
            for fd in targets:
                self._disk.fdatasync(fd)
        except OSError as error:
            raise self.sync_failed(error) from error
        self.synced(batch)

    def close(self) -> None:
        """Give back what was preallocated; the last batch says that the log ends here."""
        if self.failure is None:
            self._disk.truncate(self._fd, self._position)
            self._disk.fdatasync(self._fd)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the files as they are."""
        for fd in self.sync_targets():
            self._disk.close(fd)
        for unused in (self._preparing, self._next):
            if unused is not None and unused.start == 0 and unused.fd >= 0:
                self._disk.close(unused.fd)
                self._disk.unlink(file_name(self._options.directory, unused.file))

    def _write(self, parts: list[bytes], length: int) -> None:
        offset, end = self._position, self._position + length
        try:
            if len(parts) <= _PARTS_MAX and length >= _LARGE_PART_BYTES * len(parts):
                offset += self._disk.pwritev(self._fd, parts, offset)
            if offset < end:
                rest = memoryview(b"".join(parts))[offset - self._position :]
                while rest:
                    written = self._disk.pwrite(self._fd, rest, offset)
                    rest = rest[written:]
                    offset += written
        except OSError as error:
            # Nothing may follow an abandoned batch in its file, so whatever comes starts a new one.
            raise self._failed(error, "write to", must_reload=True) from error
        self._position = offset

    def _sync_size(self) -> None:
        """A size that is not durable would be no witness."""
        try:
            self._disk.fdatasync(self._fd)
        except OSError as error:
            raise self.sync_failed(error) from error

    def _new_file(self) -> None:
        """Go on in the next file: the prepared one, or one that is made now."""
        number, length = self._file + 1, self._options.step_bytes
        if self._next is not None:
            fd, length = self._next.fd, self._next.stop
            self._next = None
        else:
            fd = new_file(self._disk, self._options.directory, number, length)
        if self._fd >= 0:
            self.rotations += 1
            self._unsynced.append((self._fd, self.batch))
            self._earlier.append((self._file, self.batch, self._allocated))
        self._fd, self._file = fd, number
        self._position, self._allocated = 0, length

    def _refuse_if_failed(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _failed(
        self, error: OSError, doing: str, *, final: bool = False, must_reload: bool = False
    ) -> WalFailed:
        transient = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        failed = WalFailed(f"could not {doing} the log: {error}", final=final or not transient)
        if failed.final or must_reload:
            self.failure = failed
        return failed
