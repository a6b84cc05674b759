"""Reading the log back: which batches count, which are a torn tail, what is damaged.

The rules:
  * Batches count in one chain: consecutive numbers, each naming its predecessor's identity.
  * Where the chain stops, a batch that was never known to be durable is a torn tail: it and everything
    behind it is cut, unless a later session went on from exactly there (it had cut the same tail).
  * A batch that some later header calls durable, and that is not intact, is corruption. Its directory
    (from its header, or else from its trailer) names what is lost; intact frames of it still count.
  * If neither witness is left, the loss cannot be named: the log is readable, but not writable until
    it was repaired.
  * Nothing is deleted and nothing is guessed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from shards.disk import Disk
from shards.wal import batch as codec
from shards.wal.batch import Batch, FrameEntry, UnknownFormat
from shards.wal.frame import Kind
from shards.wal.writer import LogEnd


class Verdict(Enum):
    KEEP = "keep"
    CUT = "cut"
    QUARANTINE = "quarantine"


def verdict(*, intact: bool, number: int, durable: int) -> Verdict:
    """What to make of the batch that stands next in the chain."""
    if intact:
        return Verdict.KEEP
    return Verdict.QUARANTINE if number <= durable else Verdict.CUT


@dataclass(frozen=True, slots=True)
class LogFile:
    """What is known of a file after a first look at its batches."""

    number: int
    path: str
    size: int
    session_first: int | None  # where its session took over; None: no batch was found in it
    durable: int  # the highest batch that its headers call durable
    last_batch: int
    session: int


@dataclass(slots=True)
class Findings:
    """What recovery has to say beside the batches themselves."""

    end: LogEnd = field(default_factory=LogEnd)
    batches: int = 0
    bytes_read: int = 0
    cut_bytes: int = 0
    # The log's end was cut although it does not look like an interrupted write: trust no head.
    uncertain_tail: bool = False
    quarantined: list[str] = field(default_factory=list)
    unnamed_loss: list[str] = field(default_factory=list)
    time_ms: int = 0  # the latest time that the log knows of
    content: dict[str, int] = field(default_factory=dict)  # bytes of each file that are not preallocated
    # Where in each file the accepted batches stand that nothing proves durable.
    unproven: dict[str, tuple[int, int]] = field(default_factory=dict)


def survey(disk: Disk, directory: str) -> list[LogFile]:
    """Every log file in order, after a look at its headers."""
    files = []
    for name in _listed(disk, directory):
        if not name.endswith(".wal"):
            continue
        path = f"{directory}/{name}"
        data = _read_all(disk, path)
        found = list(find_batches(data))
        files.append(
            LogFile(
                int(name.removesuffix(".wal")),
                path,
                len(data),
                min((batch.session_first for batch in found), default=None),
                max((batch.durable for batch in found), default=0),
                max((batch.number for batch in found), default=0),
                max((batch.session for batch in found), default=0),
            )
        )
    return files


def _listed(disk: Disk, directory: str) -> list[str]:
    try:
        return disk.listdir(directory)
    except FileNotFoundError:
        return []


def _read_all(disk: Disk, path: str) -> bytes:
    fd = disk.open(path)
    try:
        size, parts, offset = disk.size(fd), [], 0
        while offset < size:
            part = disk.pread(fd, size - offset, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
        # Nearly always one piece; a log file is large enough for a copy to be felt at a start.
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        disk.close(fd)


def find_batches(data: bytes) -> Iterator[Batch]:
    """Walk from batch to batch; a batch with a damaged header is found by its trailer."""
    at, any_found = 0, False
    while at < len(data):
        found = codec.decode(data, at)
        if found is not None:
            any_found = True
            yield found
            at = found.end
            continue
        following = _next_header(data, at)
        for found in _found_by_trailer(data, at, following):
            any_found = True
            yield found
        at = following
    # A session starts a new file, so another format shows at its beginning and nothing of ours follows.
    version = codec.version_at(data, 0)
    if not any_found and version is not None and version != codec.VERSION:
        raise UnknownFormat(version)


def _next_header(data: bytes, at: int) -> int:
    while True:
        at = data.find(codec.MAGIC, at + 1)
        if at < 0:
            return len(data)
        if codec.decode(data, at) is not None:
            return at


def _found_by_trailer(data: bytes, start: int, stop: int) -> Iterator[Batch]:
    at = data.find(codec.END_MAGIC, start, stop)
    while at >= 0:
        found = codec.decode_backwards(data, codec.end_behind(at))
        if found is not None and found.start >= start:
            yield found
            start = found.end
        at = data.find(codec.END_MAGIC, max(at + 1, start), stop)


def replay(
    disk: Disk, files: list[LogFile], findings: Findings, behind: LogEnd | None = None
) -> Iterator[tuple[FrameEntry, memoryview]]:
    """The frames that count, in order, with their bodies. `entry.intact` says which are damaged.

    `behind`: the batch after which to begin, because a snapshot has what stands before it.
    """
    behind = behind or LogEnd()
    durable = max((file.durable for file in files), default=0)
    session = max((file.session for file in files), default=behind.session)
    end = LogEnd(behind.batch, behind.identity, session, files[-1].number if files else 0)
    for position, file in enumerate(files):
        content = _read_all(disk, file.path)
        data = memoryview(content)
        # A later session's batches say how far it had accepted what stands before it.
        limit = min(
            (
                later.session_first
                for later in files[position + 1 :]
                if later.session_first is not None and later.session > file.session
            ),
            default=None,
        )
        at = 0
        for batch in find_batches(content):
            if batch.number <= behind.batch:
                at = batch.end
                continue
            if batch.number <= end.batch or (limit is not None and batch.number >= limit):
                continue
            if not _continues(batch, end, durable, findings):
                break
            found = codec.entries(data, batch)
            intact = not batch.from_trailer and all(entry.intact for entry in found)
            if verdict(intact=intact, number=batch.number, durable=durable) is Verdict.CUT:
                break
            end = LogEnd(batch.number, batch.identity, session, end.file)
            at = batch.end
            # Whatever was cut before this batch had been judged by the session that wrote it.
            findings.uncertain_tail = False
            if batch.number > durable:
                start, _ = findings.unproven.get(file.path, (batch.start, 0))
                findings.unproven[file.path] = (start, batch.end)
            findings.batches += 1
            findings.time_ms = max(findings.time_ms, batch.time_ms)
            for entry in found:
                if not entry.intact:
                    findings.quarantined.append(_described(file, batch, entry))
                yield entry, data[entry.start : entry.start + entry.length]
        content_bytes = len(content.rstrip(b"\0"))
        findings.content[file.path] = max(content_bytes, min(at, file.size))
        if content_bytes > at:
            findings.cut_bytes += content_bytes - at
            # A write that a kill interrupted leaves its beginning, and preallocated zeros behind it.
            findings.uncertain_tail = not codec.is_beginning(content, at, content_bytes)
        findings.bytes_read += file.size
    if end.batch < durable:
        findings.unnamed_loss.append(
            f"batches {end.batch + 1} to {durable} were durable once and cannot be found"
        )
    findings.end = end


def _continues(batch: Batch, end: LogEnd, durable: int, findings: Findings) -> bool:
    """Whether `batch` comes next; a durable batch missing before it is a loss that has no name."""
    if batch.number == end.batch + 1 and (batch.from_trailer or batch.predecessor == end.identity):
        return True
    if end.batch + 1 > durable:
        return False
    findings.unnamed_loss.append(
        f"batch {batch.number} does not follow batch {end.batch}: what stood between them is gone"
    )
    return True


def _described(file: LogFile, batch: Batch, entry: FrameEntry) -> str:
    seqs = f"{entry.first_seq}..{entry.first_seq + max(entry.count, 1) - 1}"
    kind = Kind(entry.kind).name if entry.kind in list(Kind) else str(entry.kind)
    return (
        f"{file.path} batch {batch.number}: {kind} of topic {entry.topic_id}, seqs {seqs}, "
        f"{entry.length} bytes at offset {entry.start}"
    )
