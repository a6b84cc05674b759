"""Snapshots: what a shard knows, so that its log before that need not be replayed.

  snap/<number>.snap      header | head | topic | topic | …        (CBOR items behind a checksum)

* Topics are noted one by one while the shard goes on. Each entry says up to which batch of the log it
  holds (`as_of`); replay begins behind the batch at which noting began and passes over what an entry
  has already. So noting needs no pause, and no topic is older than its entry says.
* Made as a temporary file, synced, renamed; the log up to `last_batch` is durable by then.
* The two newest are kept, and the log that the older one needs: one damaged snapshot costs time, not data.
"""

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

import cbor2
import msgspec
from xxhash import xxh3_64_intdigest

from shards.disk import Disk
from shards.state import Registry, TopicState
from shards.store.segments import SegmentStore
from shards.wal.batch import UnknownFormat
from topics.engine.chunk import Chunk
from topics.engine.config import TopicConfig
from topics.engine.sealed import Sealed
from topics.engine.topic import TopicLog
from topics.engine.watermarks import Hole, Watermarks

DIRECTORY = "snap"
_NAME = re.compile(r"[0-9]{8,}\.(?:snap|tmp)")
MAGIC = b"TSNP"
VERSION = 1
KEPT = 2
# magic, version, reserved, body length; a checksum of these and the body follows
_HEADER = Struct("<4sHHQ")
_CHECKSUM = Struct("<Q")


class SnapshotDamaged(Exception):
    """Not a snapshot that can be trusted."""


class UnknownSnapshotFormat(UnknownFormat):
    """The snapshot was written by a newer version."""

    def __init__(self, version: int) -> None:
        Exception.__init__(self, f"the snapshot has format version {version}, this server reads {VERSION}")


@dataclass(slots=True)
class SnapshotHead:
    start_batch: int = 0  # replay begins behind it
    start_identity: int = 0
    last_batch: int = 0  # no entry is younger
    time_ms: int = 0
    boot_id: str = ""
    next_topic_id: int = 1
    next_file: int = 1
    # Files that hold damaged pages: out of use, and not ours to remove.
    damaged_files: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Snapshot:
    number: int
    head: SnapshotHead
    entries: list[list[Any]]

    def kept(self) -> "Kept":
        files = set(self.head.damaged_files)
        for entry in self.entries:
            files.update(page[0] for page in entry[PAGES])
        return Kept(self.number, self.head.start_batch, files)


class Kept(NamedTuple):
    """A snapshot that is there: where its replay would begin, and the segment files that it needs."""

    number: int
    start_batch: int
    files: set[int]


# Positions in an entry.
PAGES = 19


class _Seen(NamedTuple):
    """What a snapshot says of a topic's records."""

    head: int
    earliest: int
    live: int
    payload: int
    marks: Watermarks


def _unlogged(log: TopicLog) -> list[Hole]:
    """Where records stand that the log does not have."""
    return [
        Hole(chunk.first_seq, chunk.end_seq - 1, "cap", "crash")
        for chunk in log.chunks
        if isinstance(chunk, Chunk) and not chunk.logged
    ]


def _seen(topic: TopicState, pages: list[Sealed]) -> _Seen:
    """The records as a replay of the log would find them: those that were never logged are lost."""
    log = topic.log
    unlogged = _unlogged(log)
    head = topic.replayed_head
    if not unlogged and head == log.head:
        return _Seen(head, log.earliest, log.count, log.bytes, log.marks)
    marks = Watermarks(min(log.marks.cap_evicted, head), min(log.marks.ttl_expired, head))
    for hole in sorted([*log.marks.holes, *unlogged], key=lambda hole: hole.first):
        first, last = max(hole.first, marks.evict_floor), min(hole.last, head)
        if first <= last:
            marks.insert_hole(Hole(first, last, hole.reason, hole.cause))
    count = size = 0
    earliest = head + 1
    for page in reversed(pages):
        start = max(0, log.earliest - page.first_seq)
        if page.live_count(start, page.count):
            earliest = page.first_seq + page.first_live(start, page.count)
        count += page.live_count(start, page.count)
        size += page.live_bytes(start, page.count)
    return _Seen(head, earliest, count, size, marks)


def entry_of(topic: TopicState, pages: list[Sealed], as_of: int) -> bytes:
    """A topic as its entry, between two groups: `pages` hold every record of it that was logged."""
    log = topic.log
    head, earliest, count, size, marks = _seen(topic, pages)
    unlogged = _unlogged(log)
    return cbor2.dumps(
        [
            log.topic_id,
            log.name,
            msgspec.structs.asdict(log.config),
            as_of,
            head,
            earliest,
            count,
            size,
            log.last_ts,
            log.last_write_ts,
            log.last_read_ts,
            marks.cap_evicted,
            marks.ttl_expired,
            [[hole.first, hole.last, hole.reason, hole.cause] for hole in marks.holes],
            topic.ceiling,
            topic.logged_head,
            topic.logged_cap,
            topic.logged_ttl,
            topic.written_ms,
            [_page_fields(page) for page in pages],
            log.keys.packed(lambda seq: seq <= head and not any(h.first <= seq <= h.last for h in unlogged)),
        ]
    )


def _page_fields(page: Sealed) -> list[object]:
    return [
        page.file,
        page.offset,
        page.length,
        page.first_seq,
        page.count,
        page.live,
        page.live_payload,
        page.first_ts,
        page.last_ts,
        page.tags_between,
        [list(ends) for ends in page.pending],
    ]


def restore(registry: Registry, store: SegmentStore, entry: list[Any]) -> TopicState:
    """The topic that an entry describes. Raises SnapshotDamaged."""
    try:
        topic_id, name, config, as_of, head, earliest, count, size, last_ts = entry[:9]
        topic = registry.add(topic_id, name, msgspec.convert(config, TopicConfig))
        log = topic.log
        log.head, log.earliest, log.count, log.bytes, log.last_ts = head, earliest, count, size, last_ts
        topic.replayed_head = head
        log.last_write_ts, log.last_read_ts, log.marks.cap_evicted, log.marks.ttl_expired = entry[9:13]
        log.marks.holes = [Hole(*fields) for fields in entry[13]]
        topic.ceiling, topic.logged_head, topic.logged_cap, topic.logged_ttl, topic.written_ms = entry[14:19]
        log.chunks = [_page_of(store, topic_id, fields) for fields in entry[PAGES]]
        log.keys.unpack(entry[20])
    except (TypeError, ValueError, msgspec.ValidationError, StructError) as error:
        raise SnapshotDamaged(f"an entry that cannot be read: {error}") from error
    topic.as_of = as_of
    return topic


def _page_of(store: SegmentStore, topic_id: int, fields: list[Any]) -> Sealed:
    file, offset, length, first_seq, count, live, live_payload, first_ts, last_ts, between, pending = fields
    page = Sealed(
        store, topic_id=topic_id, file=file, offset=offset, length=length, first_seq=first_seq, count=count,
        live=live, live_payload=live_payload, first_ts=first_ts, last_ts=last_ts,
        tags_between=None if between is None else (between[0], between[1]),
    )  # fmt: skip
    page.pending = [(start, stop) for start, stop in pending]
    return page


def encode(head: SnapshotHead, entries: Iterable[bytes]) -> list[bytes]:
    body = b"".join((cbor2.dumps(_head_fields(head)), *entries))
    header = _HEADER.pack(MAGIC, VERSION, 0, len(body))
    return [header, _CHECKSUM.pack(_checksum(header, body)), body]


def _checksum(header: bytes, body: bytes | memoryview) -> int:
    return xxh3_64_intdigest(body, xxh3_64_intdigest(header))


def _head_fields(head: SnapshotHead) -> dict[str, object]:
    return {name: getattr(head, name) for name in SnapshotHead.__slots__}


def decode(number: int, data: bytes) -> Snapshot:
    """Raises SnapshotDamaged or UnknownSnapshotFormat."""
    body_at = _HEADER.size + _CHECKSUM.size
    if len(data) < body_at:
        raise SnapshotDamaged(f"{len(data)} bytes are no snapshot")
    magic, version, _, length = _HEADER.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    body = memoryview(data)[body_at:]
    if magic != MAGIC or len(body) != length or _checksum(data[: _HEADER.size], body) != checksum:
        raise SnapshotDamaged("its checksum does not fit")
    if version != VERSION:
        raise UnknownSnapshotFormat(version)
    stream = io.BytesIO(body)
    decoder = cbor2.CBORDecoder(stream)
    try:
        head = SnapshotHead(**decoder.decode())
        entries = []
        while stream.tell() < length:
            entries.append(decoder.decode())
    except (cbor2.CBORDecodeError, TypeError, ValueError) as error:
        raise SnapshotDamaged(str(error)) from error
    return Snapshot(number, head, entries)


class Snapshots:
    """The snapshots of a shard, oldest first."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.kept: list[Kept] = []
        # Names of those that cannot be trusted, and why; they are left where they are.
        self.refused: dict[str, str] = {}
        self._next_number = 1

    def find(self) -> Snapshot | None:
        """The newest that can be trusted. Raises UnknownSnapshotFormat."""
        try:
            names = self._disk.listdir(DIRECTORY)
        except FileNotFoundError:
            return None
        newest = None
        for name in sorted(name for name in names if _NAME.fullmatch(name)):
            number = int(name.split(".")[0])
            self._next_number = max(self._next_number, number + 1)
            if name.endswith(".snap"):
                try:
                    newest = decode(number, self._read(name))
                except SnapshotDamaged as error:
                    self.refused[name] = str(error)
                else:
                    self.kept.append(newest.kept())
        return newest

    def _read(self, name: str) -> bytes:
        fd = self._disk.open(f"{DIRECTORY}/{name}")
        try:
            size, data = self._disk.size(fd), b""
            while len(data) < size and (part := self._disk.pread(fd, size - len(data), len(data))):
                data += part
            return data
        finally:
            self._disk.close(fd)

    def write(self, data: list[bytes]) -> int:
        """A new snapshot, durable when this returns; its number. May be called in a thread."""
        number = self._next_number
        self._next_number += 1
        self._disk.mkdir(DIRECTORY)
        self._disk.fsync_dir(".")
        temporary = f"{DIRECTORY}/{number:08d}.tmp"
        fd = self._disk.open(temporary, create=True)
        try:
            rest, at = memoryview(b"".join(data)), 0
            while rest:
                written = self._disk.pwrite(fd, rest, at)
                rest, at = rest[written:], at + written
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
        self._disk.rename(temporary, f"{DIRECTORY}/{number:08d}.snap")
        self._disk.fsync_dir(DIRECTORY)
        return number

    def remove_others(self) -> None:
        """Remove all but the newest, and what was never finished. May be called in a thread."""
        kept = {f"{snapshot.number:08d}.snap" for snapshot in self.kept} | self.refused.keys()
        names = [name for name in self._disk.listdir(DIRECTORY) if _NAME.fullmatch(name)]
        others = [name for name in names if name not in kept]
        for name in others:
            self._disk.unlink(f"{DIRECTORY}/{name}")
        if others:
            self._disk.fsync_dir(DIRECTORY)
