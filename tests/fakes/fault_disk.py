"""A disk that fails on demand, and says whether it did.

Kept here and nowhere else:
  * A fault hits the Nth matching call after it was armed, once or from then on for ever.
  * A failed `fdatasync` drops the file's dirty pages where the disk below can, as kernels do: the next
    sync of the same file succeeds and proves nothing.
  * `fired` counts what really happened. A test that arms a fault asserts that it fired.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from shards.disk import Disk, Fd
from tests.fakes.count_disk import CountDisk
from tests.fakes.sim_disk import SimDisk

KINDS = frozenset(
    (
        *("open", "create", "close", "pread", "pwrite", "fdatasync", "truncate", "fallocate", "size"),
        *("rename", "unlink", "listdir", "mkdir", "fsync_dir"),
    )
)


@dataclass(slots=True, kw_only=True)
class Fault:
    kind: str
    nth: int  # the first matching call after arming is 1
    error: int | None  # an errno; None only for a short write
    forever: bool
    accept_bytes: int | None  # how much of a pwrite arrives first
    path_part: str  # only calls whose path contains this
    calls: int = 0
    fired: int = 0

    def is_due(self) -> bool:
        """Counts a matching call; true if it is one to fail."""
        self.calls += 1
        due = self.calls == self.nth or (self.forever and self.calls > self.nth)
        self.fired += due
        return due


class FaultDisk:
    """Passes everything on, except what an armed fault says otherwise."""

    def __init__(self, inner: Disk) -> None:
        self.inner = inner
        self.faults: list[Fault] = []
        self._paths: dict[Fd, str] = {}

    def fail(
        self,
        kind: str,
        error: int,
        *,
        nth: int = 1,
        forever: bool = False,
        accept_bytes: int | None = None,
        path_part: str = "",
    ) -> Fault:
        """Raise `OSError(error)`; with `accept_bytes` a pwrite leaves that much behind first."""
        return self._arm(kind, nth, error, forever, accept_bytes, path_part)

    def short(self, accept_bytes: int, *, nth: int = 1, forever: bool = False, path_part: str = "") -> Fault:
        """Let a pwrite take at most `accept_bytes` and say so."""
        if accept_bytes < 1:
            raise ValueError(f"accept_bytes is {accept_bytes}; at least 1, or its caller loops for ever")
        return self._arm("pwrite", nth, None, forever, accept_bytes, path_part)

    def heal(self) -> None:
        """Disarm every fault; what has fired stays counted."""
        for fault in self.faults:
            fault.nth, fault.forever = 0, False

    @property
    def fired(self) -> int:
        return sum(fault.fired for fault in self.faults)

    def open(self, path: str, *, create: bool = False, write: bool = False) -> Fd:
        self._check("create" if create else "open", path)
        fd = self.inner.open(path, create=create, write=write)
        self._paths[fd] = path
        return fd

    def close(self, fd: Fd) -> None:
        self._check("close", self._path(fd))
        self.inner.close(fd)
        self._paths.pop(fd, None)

    def pread(self, fd: Fd, length: int, offset: int) -> bytes:
        self._check("pread", self._path(fd))
        return self.inner.pread(fd, length, offset)

    def pwrite(self, fd: Fd, data: bytes | memoryview, offset: int) -> int:
        fault = self._due("pwrite", self._path(fd))
        if fault is None:
            return self.inner.pwrite(fd, data, offset)
        taken = 0
        if fault.accept_bytes:
            taken = self.inner.pwrite(fd, data[: fault.accept_bytes], offset)
        self._raise(fault, self._path(fd))
        return taken

    def pwritev(self, fd: Fd, parts: Sequence[bytes | memoryview], offset: int) -> int:
        return self.pwrite(fd, b"".join(parts), offset)

    def fdatasync(self, fd: Fd) -> None:
        fault = self._due("fdatasync", self._path(fd))
        if fault is not None:
            simulated = _simulated_disk_below(self.inner)
            if simulated is not None:
                simulated.drop_pending(fd)
            self._raise(fault, self._path(fd))
        self.inner.fdatasync(fd)

    def truncate(self, fd: Fd, length: int) -> None:
        self._check("truncate", self._path(fd))
        self.inner.truncate(fd, length)

    def fallocate(self, fd: Fd, offset: int, length: int) -> None:
        self._check("fallocate", self._path(fd))
        self.inner.fallocate(fd, offset, length)

    def size(self, fd: Fd) -> int:
        self._check("size", self._path(fd))
        return self.inner.size(fd)

    def rename(self, old: str, new: str) -> None:
        self._check("rename", f"{old} -> {new}")
        self.inner.rename(old, new)

    def unlink(self, path: str) -> None:
        self._check("unlink", path)
        self.inner.unlink(path)

    def listdir(self, path: str) -> list[str]:
        self._check("listdir", path)
        return self.inner.listdir(path)

    def mkdir(self, path: str) -> None:
        self._check("mkdir", path)
        self.inner.mkdir(path)

    def fsync_dir(self, path: str) -> None:
        self._check("fsync_dir", path)
        self.inner.fsync_dir(path)

    def _arm(
        self, kind: str, nth: int, error: int | None, forever: bool, accept_bytes: int | None, path_part: str
    ) -> Fault:
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}; a fault can hit one of {sorted(KINDS)}")
        if nth < 1:
            raise ValueError(f"nth is {nth}; the first call is 1")
        fault = Fault(
            kind=kind, nth=nth, error=error, forever=forever, accept_bytes=accept_bytes, path_part=path_part
        )
        self.faults.append(fault)
        return fault

    def _path(self, fd: Fd) -> str:
        return self._paths.get(fd, "")

    def _due(self, kind: str, path: str) -> Fault | None:
        """The first fault that hits this call; all armed ones count it."""
        matching = [fault for fault in self.faults if fault.kind == kind and fault.path_part in path]
        due = [fault for fault in matching if fault.is_due()]
        return due[0] if due else None

    def _check(self, kind: str, path: str) -> None:
        fault = self._due(kind, path)
        if fault is not None:
            self._raise(fault, path)

    def _raise(self, fault: Fault, path: str) -> None:
        if fault.error is not None:
            raise OSError(fault.error, os.strerror(fault.error), path)


def _simulated_disk_below(disk: Disk) -> SimDisk | None:
    while isinstance(disk, FaultDisk | CountDisk):
        disk = disk.inner
    return disk if isinstance(disk, SimDisk) else None
