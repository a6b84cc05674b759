"""The Disk seam: every call that touches a data file goes through one of these.

`RealDisk` is the only place that calls `os` for data files. Tests put a simulated disk, a faulty
one or a counting one behind the same interface.

Kept here and nowhere else:
  * Paths are relative to the disk's root and use "/".
  * `pwrite` and `pwritev` may write less than they were given; callers loop.
  * A name created, renamed or removed is durable only after `fsync_dir` of its directory.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

Fd = int


class Disk(Protocol):
    """What the log and recovery need from a disk, and nothing more."""

    def open(self, path: str, *, create: bool = False, write: bool = False) -> Fd: ...
    def close(self, fd: Fd) -> None: ...
    def pread(self, fd: Fd, length: int, offset: int) -> bytes: ...
    def pwrite(self, fd: Fd, data: bytes | memoryview, offset: int) -> int: ...
    def pwritev(self, fd: Fd, parts: Sequence[bytes | memoryview], offset: int) -> int: ...
    def fdatasync(self, fd: Fd) -> None: ...
    def truncate(self, fd: Fd, length: int) -> None: ...
    def fallocate(self, fd: Fd, offset: int, length: int) -> None: ...
    def size(self, fd: Fd) -> int: ...
    def rename(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def listdir(self, path: str) -> list[str]: ...
    def mkdir(self, path: str) -> None: ...
    def fsync_dir(self, path: str) -> None: ...


class RealDisk:
    """Files under one root directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, path: str, *, create: bool = False, write: bool = False) -> Fd:
        flags = os.O_CLOEXEC | (os.O_RDWR if write or create else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return os.open(self._root / path, flags, 0o600)

    def close(self, fd: Fd) -> None:
        os.close(fd)

    def pread(self, fd: Fd, length: int, offset: int) -> bytes:
        return os.pread(fd, length, offset)

    def pwrite(self, fd: Fd, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def pwritev(self, fd: Fd, parts: Sequence[bytes | memoryview], offset: int) -> int:
        return os.pwritev(fd, parts, offset)

    def fdatasync(self, fd: Fd) -> None:
        os.fdatasync(fd)

    def truncate(self, fd: Fd, length: int) -> None:
        os.ftruncate(fd, length)

    def fallocate(self, fd: Fd, offset: int, length: int) -> None:
        try:
            os.posix_fallocate(fd, offset, length)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            # A filesystem without preallocation still gets the size, which recovery uses as a witness.
            os.ftruncate(fd, max(os.fstat(fd).st_size, offset + length))

    def size(self, fd: Fd) -> int:
        return os.fstat(fd).st_size

    def rename(self, old: str, new: str) -> None:
        os.rename(self._root / old, self._root / new)

    def unlink(self, path: str) -> None:
        os.unlink(self._root / path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(self._root / path))

    def mkdir(self, path: str) -> None:
        os.makedirs(self._root / path, mode=0o700, exist_ok=True)

    def fsync_dir(self, path: str) -> None:
        fd = os.open(self._root / path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
