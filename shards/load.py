"""Loading a shard from its files, and opening its log for a new session.

A session begins with one batch that says what the last one left behind: holes, exact heads, the boot
it runs in. Until that batch is durable a crash simply loads the same files again, with the same result.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shards.clock import Clock
from shards.disk import Disk
from shards.replay import Replay, settle_head
from shards.state import Registry
from shards.store.damage import quarantine
from shards.store.segments import PageLost, SegmentStore
from shards.store.snapshot import DIRECTORY as SNAPSHOTS
from shards.store.snapshot import Snapshot, Snapshots, restore
from shards.wal import frame as frames
from shards.wal.batch import Frame, FrameEntry
from shards.wal.recovery import Findings, LogFile, replay, survey
from shards.wal.writer import LogEnd, WalFailed, WalOptions, WalWriter
from topics import __version__
from topics.engine.metering import Meter

_COPY_BYTES = 1024 * 1024
CACHE_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Storage:
    """What a shard has beside its log."""

    segments: SegmentStore
    snapshots: Snapshots
    damaged_files: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Loaded:
    registry: Registry = field(default_factory=Registry)
    findings: Findings = field(default_factory=Findings)
    problems: list[str] = field(default_factory=list)  # any: the shard must not write
    no_space: bool = False  # the only problem is a full disk: worth another try
    machine_crash: bool = False
    holes: int = 0
    boot_id: str = ""
    storage: Storage | None = None

    @property
    def time_ms(self) -> int:
        return self.findings.time_ms


def load(
    disk: Disk,
    options: WalOptions,
    clock: Clock,
    *,
    progress: Callable[[float], None] = lambda share: None,
    read_only_because: str = "",
    meter: Meter | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> tuple[Loaded, WalWriter | None]:
    """State from snapshot and log, and the log open for appending (None: it may only be read)."""
    failed = None if read_only_because else _make_directory(disk, options.directory)
    storage = Storage(SegmentStore(disk, cache_bytes=cache_bytes), Snapshots(disk))
    storage.segments.find_files()
    findings, state = Findings(), Replay(Registry(meter))
    snapshot = storage.snapshots.find()
    start = _restore(snapshot, storage, state, findings) if snapshot is not None else LogEnd()
    files = survey(disk, options.directory)
    total_bytes = sum(file.size for file in files)
    read_bytes = 0
    for entry, body in replay(disk, files, findings, start):
        _apply(state, storage, entry, body)
        read_bytes += entry.length
        progress(read_bytes / total_bytes)
    if findings.end.batch < state.snapshot_batch:
        findings.unnamed_loss.append(
            f"the log ends with batch {findings.end.batch}; the snapshot knows of {state.snapshot_batch}"
        )
    _check_witness(files, options, state, findings)
    loaded = Loaded(state.registry, findings, [*state.problems, *findings.unnamed_loss], storage=storage)
    if read_only_because:
        loaded.problems.append(read_only_because)
    if failed is not None:
        loaded.no_space = not loaded.problems and _is_no_space(failed)
        loaded.problems.append(f"the log's directory cannot be made: {failed}")
    opening = _settle(loaded, state, clock)
    if loaded.problems:
        return loaded, None
    now_ms = max(findings.time_ms, clock.now_ms())
    return loaded, _open(disk, options, files, loaded, opening, now_ms)


def _restore(snapshot: Snapshot, storage: Storage, state: Replay, findings: Findings) -> LogEnd:
    """The state that a snapshot describes; where in the log to go on."""
    head = snapshot.head
    for entry in sorted(snapshot.entries, key=lambda entry: int(entry[0])):
        # One that was dropped while the snapshot was made has left its name to a later one.
        former = state.registry.find(entry[1])
        if former is not None:
            state.registry.remove(former)
        restore(state.registry, storage.segments, entry)
    state.registry.skip_ids(head.next_topic_id)
    state.snapshot_batch = head.last_batch
    state.boot_id, state.closed = head.boot_id, False
    storage.segments.next_number = max(storage.segments.next_number, head.next_file)
    storage.damaged_files.update(head.damaged_files)
    findings.time_ms = head.time_ms
    return LogEnd(head.start_batch, head.start_identity)


def _apply(state: Replay, storage: Storage, entry: FrameEntry, body: bytes | memoryview) -> None:
    """A frame may concern a sealed page that turns out to be damaged; then it is taken out first."""
    while True:
        try:
            state.apply(entry, body)
            return
        except PageLost as lost:
            topic = state.registry.by_id(entry.topic_id)
            assert topic is not None
            quarantine(topic.log, storage.segments, lost)
            storage.damaged_files.add(lost.page.file)


def _make_directory(disk: Disk, directory: str) -> OSError | None:
    try:
        disk.mkdir(directory)
        disk.fsync_dir(".")
    except OSError as error:
        return error
    return None


def _is_no_space(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _check_witness(files: list[LogFile], options: WalOptions, state: Replay, findings: Findings) -> None:
    """Preallocation leaves a file at a multiple of a granule; only a closed log may end elsewhere."""
    written = [at for at, file in enumerate(files) if file.session_first is not None]
    last = written[-1] if written else -1
    # What stands behind the last written file was only just made when its session ended.
    suspects = files[last + 1 :] if state.closed else files[max(last, 0) :]
    for file in suspects:
        if file.size % options.granule_bytes:
            findings.unnamed_loss.append(f"{file.path} was cut off at {file.size} bytes")


def _settle(loaded: Loaded, state: Replay, clock: Clock) -> list[Frame]:
    """Fix every head; returns what the new session must log about it."""
    boot_id = loaded.boot_id = clock.boot_id()
    loaded.machine_crash = not state.closed and (state.boot_id != boot_id or loaded.findings.uncertain_tail)
    opening = [frames.open_frame(boot_id, __version__)]
    for topic in loaded.registry:
        hole = settle_head(topic, machine_crash=loaded.machine_crash)
        if hole is not None:
            opening.append(frames.hole_frame(topic.log.topic_id, hole))
            loaded.holes += 1
        topic.durable_ceiling = topic.log.head
        if not topic.clean:
            opening.append(topic.make_clean())
    return opening


def _open(
    disk: Disk,
    options: WalOptions,
    files: list[LogFile],
    loaded: Loaded,
    opening: list[Frame],
    now_ms: int,
) -> WalWriter | None:
    wal: WalWriter | None = None
    try:
        if loaded.storage is not None and loaded.storage.snapshots.kept:
            # A snapshot that a power cut could still take away is nothing to go on from.
            disk.fsync_dir(SNAPSHOTS)
        for path, (start, end) in loaded.findings.unproven.items():
            _make_durable(disk, path, start, end)
        findings = loaded.findings
        present = tuple((file.number, file.last_batch, findings.content[file.path]) for file in files)
        wal = WalWriter(disk, options, replace(findings.end, files=present))
        wal.append(opening, now_ms=now_ms)
        wal.sync_now()
        for file in files:
            _give_back(disk, file, loaded.findings.content[file.path])
    except (OSError, WalFailed) as error:
        if wal is not None:
            wal.abandon()
        loaded.no_space = _is_no_space(error.__cause__ if isinstance(error, WalFailed) else error)
        loaded.problems.append(f"the log cannot be opened for writing: {error}")
        return None
    return wal


def _make_durable(disk: Disk, path: str, start: int, end: int) -> None:
    """The new session calls everything it has read durable, so it must be.

    After a failed sync the kernel may show pages that are not on the disk and call them clean. The same
    bytes at the same place make them dirty again, so that this sync means what it says.
    """
    fd = disk.open(path, write=True)
    try:
        while start < end:
            part = disk.pread(fd, min(_COPY_BYTES, end - start), start)
            if not part:
                break
            start += disk.pwrite(fd, part, start)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)


def _give_back(disk: Disk, file: LogFile, content_bytes: int) -> None:
    """Return preallocated space behind the last byte of a file that nobody writes any more."""
    if content_bytes < file.size:
        fd = disk.open(file.path, write=True)
        try:
            disk.truncate(fd, content_bytes)
        finally:
            disk.close(fd)
