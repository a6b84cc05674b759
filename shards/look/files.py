"""Reading the files of one shard: snapshots whole, segments page by page. Nothing is judged here."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shards.disk import Disk, Fd, RealDisk
from shards.store import page as pages
from shards.store import segments, snapshot
from shards.store.page import PageDamaged, PageHead
from shards.store.snapshot import Snapshot, SnapshotDamaged, UnknownSnapshotFormat

WAL = "wal"


class Shard:
    """The files of a shard, opened for reading only."""

    def __init__(self, name: str, disk: Disk) -> None:
        self.name = name
        self.disk = disk

    @classmethod
    def of(cls, root: Path, name: str) -> "Shard":
        return cls(name, RealDisk(root.absolute() / name))

    def listed(self, directory: str) -> list[str]:
        try:
            return self.disk.listdir(directory)
        except FileNotFoundError:
            return []

    @contextmanager
    def opened(self, path: str) -> Iterator["OpenFile"]:
        fd = self.disk.open(path)
        try:
            yield OpenFile(self.disk, fd)
        except OSError as error:
            # A failed read knows only its descriptor.
            error.filename = error.filename or path
            raise
        finally:
            self.disk.close(fd)

    def size(self, path: str) -> int:
        with self.opened(path) as file:
            return file.size


class OpenFile:
    def __init__(self, disk: Disk, fd: Fd) -> None:
        self._disk, self._fd = disk, fd
        self.size = disk.size(fd)

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; less only at the end of the file."""
        parts = []
        while length > 0 and (part := self._disk.pread(self._fd, length, offset)):
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    path: str
    number: int
    size: int
    snapshot: Snapshot | None
    reason: str = ""  # why there is none
    unknown: bool = False  # because another release wrote it


def snapshot_numbers(shard: Shard) -> set[int]:
    names = shard.listed(snapshot.DIRECTORY)
    return {int(name[:-5]) for name in names if name.endswith(".snap") and name[:-5].isdecimal()}


def snapshot_files(shard: Shard) -> Iterator[SnapshotFile]:
    """Oldest first."""
    for number in sorted(snapshot_numbers(shard)):
        path = f"{snapshot.DIRECTORY}/{number:08d}.snap"
        try:
            with shard.opened(path) as file:
                data = file.read(0, file.size)
        except FileNotFoundError:
            continue  # a checkpoint has just removed it
        try:
            yield SnapshotFile(path, number, len(data), snapshot.decode(number, data))
        except SnapshotDamaged as error:
            yield SnapshotFile(path, number, len(data), None, str(error))
        except UnknownSnapshotFormat as error:
            yield SnapshotFile(path, number, len(data), None, str(error), unknown=True)


def segment_numbers(shard: Shard) -> list[int]:
    names = shard.listed(segments.DIRECTORY)
    return [int(name[:-4]) for name in names if name.endswith(".seg") and name[:-4].isdecimal()]


@dataclass(frozen=True, slots=True)
class FoundPage:
    """A page, or a place where one should begin and does not (`head` is None)."""

    offset: int
    head: PageHead | None
    reason: str = ""


def find_pages(file: OpenFile, known: Iterable[int]) -> Iterator[FoundPage]:
    """From page to page by their headers; behind a damaged one, on at the next offset that is `known`.

    Raises UnknownPageFormat.
    """
    starts = sorted(known)
    at = segments.HEADER_BYTES
    while at < file.size:
        try:
            head = pages.decode_head(file.read(at, pages.HEAD_BYTES))
        except PageDamaged as damaged:
            yield FoundPage(at, None, damaged.reason)
        else:
            if at + head.length <= file.size:
                yield FoundPage(at, head)
                at += head.length
                continue
            reason = f"the page takes {head.length} bytes, the file ends after {file.size - at}"
            yield FoundPage(at, None, reason)
        at = next((start for start in starts if start > at), file.size)
