"""The smallest log worth crashing: checksummed records, rotation by snapshot, and four bugs to plant.

It exists to prove that the harness sees what it should; the product's log is explored elsewhere.
"""

import enum
from collections.abc import Iterator
from struct import Struct
from zlib import crc32

from shards.disk import Fd
from tests.fakes.sim_disk import SimDisk
from tests.simulation.explore import Crash, Journal

HEAD = Struct("<II")  # body length, checksum of length and body
SNAPSHOT, SNAPSHOT_TEMP = "toy/snapshot", "toy/snapshot.tmp"


class Bug(enum.Enum):
    ACK_BEFORE_SYNC = "ack before sync"
    NO_DIRECTORY_SYNC = "no directory sync after create"
    NO_TEMP_SYNC = "no temp-file sync before rename"
    PRUNE_TOO_EARLY = "old log unlinked before the snapshot's name is durable"


def encode(body: bytes) -> bytes:
    length = len(body).to_bytes(4, "little")
    return HEAD.pack(len(body), crc32(length + body)) + body


def decode(data: bytes) -> tuple[list[bytes], int]:
    """The intact records at the start, and where they end."""
    bodies, at = [], 0
    while at + HEAD.size <= len(data):
        length, checksum = HEAD.unpack_from(data, at)
        body = data[at + HEAD.size : at + HEAD.size + length]
        if len(body) < length or crc32(data[at : at + 4] + body) != checksum:
            break
        bodies.append(body)
        at += HEAD.size + length
    return bodies, at


class ToyLog:
    """Records go to `toy/log-N`; a snapshot holds everything before the log it names."""

    def __init__(self, disk: SimDisk, bug: Bug | None = None) -> None:
        self._disk, self._bug = disk, bug
        self._bodies: list[bytes] = []
        disk.mkdir("toy")
        disk.fsync_dir("")
        self._fd = self._create_log(1)

    def append(self, bodies: list[bytes], journal: Journal[bytes]) -> None:
        """One group: a write for each record, one sync, then the acks."""
        for body in bodies:
            journal.issue(body)
            record = encode(body)
            self._disk.pwrite(self._fd, record, self._end)
            self._end += len(record)
        if self._bug is not Bug.ACK_BEFORE_SYNC:
            self._disk.fdatasync(self._fd)
        for body in bodies:
            journal.ack(body)
        if self._bug is Bug.ACK_BEFORE_SYNC:
            self._disk.fdatasync(self._fd)
        self._bodies += bodies

    def rotate(self) -> None:
        """Snapshot all records, begin a new log, drop the old one."""
        old = log_path(self._generation)
        self._disk.close(self._fd)
        self._fd = self._create_log(self._generation + 1)
        temp = self._disk.open(SNAPSHOT_TEMP, create=True)
        records = b"".join(map(encode, [str(self._generation).encode(), *self._bodies]))
        self._disk.pwrite(temp, records, 0)
        if self._bug is not Bug.NO_TEMP_SYNC:
            self._disk.fdatasync(temp)
        self._disk.close(temp)
        self._disk.rename(SNAPSHOT_TEMP, SNAPSHOT)
        if self._bug is not Bug.PRUNE_TOO_EARLY:
            self._disk.fsync_dir("toy")
        self._disk.unlink(old)
        self._disk.fsync_dir("toy")

    def _create_log(self, generation: int) -> Fd:
        self._generation, self._end = generation, 0
        fd = self._disk.open(log_path(generation), create=True)
        if self._bug is not Bug.NO_DIRECTORY_SYNC:
            self._disk.fsync_dir("toy")
        return fd


def log_path(generation: int) -> str:
    return f"toy/log-{generation}"


def recover(disk: SimDisk) -> tuple[bytes, ...]:
    """Snapshot first, then the logs from the one it names on; a torn tail is cut, a temp file removed."""
    if "toy" not in disk.listdir(""):
        return ()
    names = disk.listdir("toy")
    if "snapshot.tmp" in names:
        disk.unlink(SNAPSHOT_TEMP)
        disk.fsync_dir("toy")
    bodies: list[bytes] = []
    first = 1
    if "snapshot" in names:
        head, *bodies = decode(read_all(disk, SNAPSHOT))[0] or [b"1"]
        first = int(head)
    for generation in _generations(names, first):
        found, end = decode(read_all(disk, log_path(generation)))
        bodies += found
        _cut(disk, log_path(generation), end)
    return tuple(bodies)


def _generations(names: list[str], first: int) -> Iterator[int]:
    numbers = sorted(int(name.removeprefix("log-")) for name in names if name.startswith("log-"))
    return (number for number in numbers if number >= first)


def read_all(disk: SimDisk, path: str) -> bytes:
    fd = disk.open(path)
    try:
        return disk.pread(fd, disk.size(fd), 0)
    finally:
        disk.close(fd)


def _cut(disk: SimDisk, path: str, end: int) -> None:
    fd = disk.open(path, write=True)
    if disk.size(fd) > end:
        disk.truncate(fd, end)
        disk.fdatasync(fd)
    disk.close(fd)


def oracle(recovered: tuple[bytes, ...], journal: Journal[bytes], crash: Crash) -> None:
    """The log is a prefix of what was issued, and holds all that was acked."""
    assert list(recovered) == journal.issued[: len(recovered)], "recovered what was never written"
    assert len(recovered) >= len(journal.acked), f"lost {len(journal.acked) - len(recovered)} acked"
