"""Files of sealed pages, and the pages of them that are in memory.

    segments/<number>.seg      header | page | page | …

A file is written once, whole, by one checkpoint; afterwards only delete flags change in it. A large
topic has files of its own, small ones share a file. A number is never used again. Which pages count is
said by the snapshot; a file that no snapshot names is left over from a checkpoint that did not finish.
"""

import re
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct

from xxhash import xxh3_64_intdigest

from shards.disk import Disk, Fd
from shards.store import page as codec
from shards.store.page import PageDamaged
from topics.engine.chunk import Chunk
from topics.engine.sealed import Lost, Sealed
from topics.engine.tags import TagMatch

DIRECTORY = "segments"
_NAME = re.compile(r"[0-9]{8,}\.seg")
MAGIC = b"TSEG"
VERSION = 1
# magic, version, reserved, number; its checksum follows
_HEADER = Struct("<4sHHQ")
_CHECKSUM = Struct("<Q")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
# What a chunk takes beside the bytes of its page.
_CHUNK_BYTES = 2048
# However small the cache is, one answer can be put together from it.
_PAGES_MIN = 32
_PARTS_MAX = 512


class PageLost(Lost):
    """A page cannot be read as it was sealed. `chunk`: what is left of it, without the damaged records."""

    def __init__(self, page: Sealed, reason: str, chunk: Chunk | None, ranges: list[tuple[int, int]]) -> None:
        super().__init__(f"page from seq {page.first_seq} in file {page.file}: {reason}")
        self.page = page
        self.chunk = chunk
        self.ranges = ranges


def path_of(number: int) -> str:
    return f"{DIRECTORY}/{number:08d}.seg"


def file_header(number: int) -> bytes:
    header = _HEADER.pack(MAGIC, VERSION, 0, number)
    return header + _CHECKSUM.pack(xxh3_64_intdigest(header))


class SegmentStore:
    """The files of one shard. Pages that were used lately stay in memory, within `cache_bytes`."""

    def __init__(self, disk: Disk, *, cache_bytes: int) -> None:
        self._disk = disk
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[Sealed, tuple[Chunk, int]] = OrderedDict()
        self.cached_bytes = 0
        # Pages whose file is being written.
        self.planned: dict[Sealed, Chunk] = {}
        self.next_number = 1
        self.files: dict[int, int] = {}  # what is there, with its size

    def find_files(self) -> None:
        """Know what is there."""
        try:
            names = self._disk.listdir(DIRECTORY)
        except FileNotFoundError:
            return
        numbers = [int(name.removesuffix(".seg")) for name in names if _NAME.fullmatch(name)]
        self.files = {number: self._size_of(number) for number in numbers}
        self.next_number = max(self.next_number, max(self.files, default=0) + 1)

    def new_number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    # -- pages in memory

    def resident(self, page: Sealed) -> Chunk | None:
        found = self._cached.get(page)
        if found is None:
            return self.planned.get(page)
        self._cached.move_to_end(page)
        return found[0]

    def bring(self, page: Sealed) -> Chunk:
        """Raises PageLost."""
        chunk = self.resident(page)
        if chunk is None:
            chunk = self.read(page)
            self.keep(page, chunk)
        return chunk

    def keep(self, page: Sealed, chunk: Chunk) -> None:
        """Hold the page in memory for a while. What was deleted meanwhile is deleted in the chunk, too."""
        if page in self._cached:
            return
        page.apply_pending(chunk)
        size = page.length + _CHUNK_BYTES
        self._cached[page] = (chunk, size)
        self.cached_bytes += size
        while self.cached_bytes > self._cache_bytes and len(self._cached) > _PAGES_MIN:
            self.cached_bytes -= self._cached.popitem(last=False)[1][1]

    def drop(self, page: Sealed) -> None:
        found = self._cached.pop(page, None)
        if found is not None:
            self.cached_bytes -= found[1]

    # -- files; these may be called in a thread

    def read(self, page: Sealed) -> Chunk:
        """The page from its file, every checksum looked at. Raises PageLost."""
        everything = [(page.first_seq, page.end_seq - 1)]
        try:
            data = self._read(page.file, page.offset, page.length)
            found = codec.decode(data)
        except (FileNotFoundError, PageDamaged) as error:
            # Any other error of the disk may pass, and says nothing about the bytes.
            raise PageLost(page, str(error), None, everything) from error
        if (found.head.first_seq, found.head.count) != (page.first_seq, page.count):
            raise PageLost(page, f"there are records from {found.head.first_seq} instead", None, everything)
        if found.damaged:
            raise PageLost(page, "damaged blocks", found.chunk, found.damaged)
        return found.chunk

    def _size_of(self, number: int) -> int:
        fd = self._disk.open(path_of(number))
        try:
            return self._disk.size(fd)
        finally:
            self._disk.close(fd)

    def search(self, page: Sealed, match: TagMatch) -> list[int]:
        """Records of the page whose tags match, by its tag part alone. Raises PageLost."""
        try:
            head = codec.decode_head(self._read(page.file, page.offset, codec.HEAD_BYTES))
            if (head.first_seq, head.count, head.length) != (page.first_seq, page.count, page.length):
                raise PageDamaged(f"there are records from {head.first_seq} instead")
            tags = self._read(page.file, page.offset + head.tags_at, head.tags_length)
            return codec.find_tags(head, tags, match)
        except (FileNotFoundError, PageDamaged) as error:
            raise PageLost(page, str(error), None, [(page.first_seq, page.end_seq - 1)]) from error

    def _read(self, number: int, offset: int, length: int) -> bytes:
        fd = self._disk.open(path_of(number))
        try:
            parts = []
            while length > 0 and (part := self._disk.pread(fd, length, offset)):
                parts.append(part)
                length -= len(part)
                offset += len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            self._disk.close(fd)

    def write_file(self, number: int, pages: Sequence[list[bytes | memoryview]]) -> None:
        """A new file of these pages, durable when this returns."""
        self._disk.mkdir(DIRECTORY)
        fd = self._disk.open(path_of(number), create=True)
        try:
            at = self._write(fd, 0, [file_header(number)])
            for parts in pages:
                at = self._write(fd, at, parts)
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
        self._disk.fsync_dir(DIRECTORY)
        self._disk.fsync_dir(".")

    def _write(self, fd: Fd, at: int, parts: Sequence[bytes | memoryview]) -> int:
        for first in range(0, len(parts), _PARTS_MAX):
            some = parts[first : first + _PARTS_MAX]
            end = at + sum(map(len, some))
            written = self._disk.pwritev(fd, some, at)
            rest = memoryview(b"".join(some))[written:] if at + written < end else memoryview(b"")
            at += written
            while rest:
                written = self._disk.pwrite(fd, rest, at)
                rest = rest[written:]
                at += written
        return at

    def flip_flags(self, number: int, changes: list[tuple[int, bytes]]) -> None:
        """Overwrite flags at these offsets of a file, durable when this returns."""
        fd = self._disk.open(path_of(number), write=True)
        try:
            for offset, flags in changes:
                while flags:
                    written = self._disk.pwrite(fd, flags, offset)
                    flags, offset = flags[written:], offset + written
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)

    def remove_files(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            with suppress(FileNotFoundError):
                self._disk.unlink(path_of(number))
        if numbers:
            self._disk.fsync_dir(DIRECTORY)
