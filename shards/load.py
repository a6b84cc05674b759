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
from shards.wal import frame as frames
from shards.wal.batch import Frame
from shards.wal.recovery import Findings, LogFile, replay, survey
from shards.wal.writer import WalFailed, WalOptions, WalWriter
from topics import __version__
from topics.engine.metering import Meter

_COPY_BYTES = 1024 * 1024


@dataclass(slots=True)
class Loaded:
    registry: Registry = field(default_factory=Registry)
    findings: Findings = field(default_factory=Findings)
    problems: list[str] = field(default_factory=list)  # any: the shard must not write
    no_space: bool = False  # the only problem is a full disk: worth another try
    machine_crash: bool = False
    holes: int = 0

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
) -> tuple[Loaded, WalWriter | None]:
    """State from the log, and the log open for appending (None: it may only be read)."""
    failed = None if read_only_because else _make_directory(disk, options.directory)
    files = survey(disk, options.directory)
    total_bytes = sum(file.size for file in files)
    findings, state = Findings(), Replay(Registry(meter))
    read_bytes = 0
    for entry, body in replay(disk, files, findings):
        state.apply(entry, body)
        read_bytes += entry.length
        progress(read_bytes / total_bytes)
    _check_witness(files, options, state, findings)
    loaded = Loaded(state.registry, findings, [*state.problems, *findings.unnamed_loss])
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
    boot_id = clock.boot_id()
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
        for path, (start, end) in loaded.findings.unproven.items():
            _make_durable(disk, path, start, end)
        findings = loaded.findings
        wal = WalWriter(disk, options, replace(findings.end, bytes=sum(findings.content.values())))
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
