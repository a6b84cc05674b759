"""A disk that counts what it is asked: calls and bytes by kind, and nothing else changed."""

from collections import Counter
from collections.abc import Sequence

from shards.disk import Disk, Fd


class CountDisk:
    """Passes everything on; `calls["fdatasync"]`, `bytes["pwrite"]` (as accepted, not as offered)."""

    def __init__(self, inner: Disk) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def reset(self) -> None:
        self.calls.clear()
        self.bytes.clear()

    def open(self, path: str, *, create: bool = False, write: bool = False) -> Fd:
        self.calls["create" if create else "open"] += 1
        return self.inner.open(path, create=create, write=write)

    def close(self, fd: Fd) -> None:
        self.calls["close"] += 1
        self.inner.close(fd)

    def pread(self, fd: Fd, length: int, offset: int) -> bytes:
        self.calls["pread"] += 1
        found = self.inner.pread(fd, length, offset)
        self.bytes["pread"] += len(found)
        return found

    def pwrite(self, fd: Fd, data: bytes | memoryview, offset: int) -> int:
        self.calls["pwrite"] += 1
        taken = self.inner.pwrite(fd, data, offset)
        self.bytes["pwrite"] += taken
        return taken

    def pwritev(self, fd: Fd, parts: Sequence[bytes | memoryview], offset: int) -> int:
        return self.pwrite(fd, b"".join(parts), offset)

    def fdatasync(self, fd: Fd) -> None:
        self.calls["fdatasync"] += 1
        self.inner.fdatasync(fd)

    def truncate(self, fd: Fd, length: int) -> None:
        self.calls["truncate"] += 1
        self.inner.truncate(fd, length)

    def fallocate(self, fd: Fd, offset: int, length: int) -> None:
        self.calls["fallocate"] += 1
        self.inner.fallocate(fd, offset, length)
        self.bytes["fallocate"] += length

    def size(self, fd: Fd) -> int:
        self.calls["size"] += 1
        return self.inner.size(fd)

    def rename(self, old: str, new: str) -> None:
        self.calls["rename"] += 1
        self.inner.rename(old, new)

    def unlink(self, path: str) -> None:
        self.calls["unlink"] += 1
        self.inner.unlink(path)

    def listdir(self, path: str) -> list[str]:
        self.calls["listdir"] += 1
        return self.inner.listdir(path)

    def mkdir(self, path: str) -> None:
        self.calls["mkdir"] += 1
        self.inner.mkdir(path)

    def fsync_dir(self, path: str) -> None:
        self.calls["fsync_dir"] += 1
        self.inner.fsync_dir(path)
