"""A shard process: `python -m shards.worker --boot-fd N`, started by the supervisor.

Its life: take the lock of the shard's directory, accept links at once, load the log in a thread while
probes are answered, serve, and on SIGTERM answer what was taken, close the log and leave.
"""

import fcntl
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import trio

from shards.actor import Actor
from shards.background import ThreadBackground
from shards.checkpoint import CheckpointOptions
from shards.clock import RealClock
from shards.disk import RealDisk
from shards.keeper import Keeper
from shards.load import Loaded, load
from shards.quota import ShardQuota
from shards.shard import Shard
from shards.wal.batch import UnknownFormat
from shards.wal.sync import ThreadSyncer
from shards.wal.writer import WalOptions, WalWriter
from topics import child
from topics.settings import Settings

log = logging.getLogger("shard")

# While the disk is full at start, opening the log is tried again this often.
_RETRY_OPEN_S = 5.0
# At the end, commands already taken get this long to be answered.
_DRAIN_S = 10.0
READER_THREADS = 2


class Worker:
    def __init__(self, boot: child.Boot) -> None:
        self._boot = boot
        self._settings = boot.settings
        directory = boot.data_dir / f"shard-{boot.index:02d}"
        directory.mkdir(mode=0o700, exist_ok=True)
        self._lock_fd = _lock(directory / "LOCK")
        self._disk = RealDisk(directory)
        self._clock = RealClock()
        self._syncer = ThreadSyncer(self._disk)
        self._storing = ThreadBackground("store")
        self._reading = ThreadBackground("reader", threads=READER_THREADS)
        self._wal: WalWriter | None = None
        self._wal_options = WalOptions.of_files(self._settings.wal_file_bytes)
        self.actor = Actor(
            _listen(boot.shard_socket(boot.index)),
            self._syncer,
            self._clock,
            index=boot.index,
            epoch=boot.epoch,
            body_bytes_max=self._settings.limits.body_bytes,
            backgrounds=(self._storing, self._reading),
        )
        self._quota = ShardQuota(boot, self.actor)
        self._reload_wanted = trio.Event()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            with trio.open_signal_receiver(signal.SIGTERM) as terminations:
                nursery.start_soon(self._quota.run)
                nursery.start_soon(self.actor.run)
                self._boot.say(child.LISTENING)
                self.actor.on_must_reload = lambda: self._reload_wanted.set()
                nursery.start_soon(self._keep_loaded)
                await anext(terminations)
                # Still receiving: a second SIGTERM must not end the process while it closes its log.
                await self._stop()
            nursery.cancel_scope.cancel()

    async def _keep_loaded(self) -> None:
        """Load the log; again after its writing failed, for memory is ahead of it then."""
        reason = ""
        while True:
            self.actor.status.state, self.actor.status.progress = "recovering", 0.0
            self._quota.allowed.detach()
            await self.actor.threads_idle()
            if self._wal is not None:
                reason = str(self._wal.failure) if self._wal.failure and self._wal.failure.final else ""
                self._wal.abandon()
            loaded = await self._load(reason)
            self._boot.say(child.READY)
            with trio.move_on_after(_RETRY_OPEN_S if loaded.no_space else float("inf")):
                await self._reload_wanted.wait()
            self.actor.let_go_of_shard()
            self._reload_wanted = trio.Event()

    async def _load(self, read_only_because: str) -> Loaded:
        status, started_ns = self.actor.status, self._clock.monotonic_ns()
        meter = self._quota.new_meter()

        def progress(share: float) -> None:
            status.progress = share

        def load_here() -> tuple[Loaded, WalWriter | None]:
            return load(
                self._disk,
                self._wal_options,
                self._clock,
                progress=progress,
                read_only_because=read_only_because,
                meter=meter,
                cache_bytes=self._settings.cache_bytes // (self._settings.wal_shards or 1),
            )

        loaded, self._wal = await trio.to_thread.run_sync(load_here)
        self._report(loaded, (self._clock.monotonic_ns() - started_ns) / 1e9)
        keeper = None
        if self._wal is not None:
            options = _checkpoint_options(self._settings)
            keeper = Keeper(self._disk, loaded, self._wal, self._storing, self._clock, options)
        self.actor.shard = Shard(
            loaded, self._wal, self._syncer, self._clock, self._settings.limits,
            sync_interval_ms=self._settings.sync_interval_ms, allowed=self._quota.allowed,
            readers=self._reading, keeper=keeper,
        )  # fmt: skip
        self._quota.loaded()
        status.state, status.progress = "ready" if self._wal is not None else "read_only", 1.0
        status.detail = "; ".join(loaded.problems)
        return loaded

    def _report(self, loaded: Loaded, seconds: float) -> None:
        findings = loaded.findings
        records = sum(topic.log.count for topic in loaded.registry)
        log.info(
            "log.replayed",
            extra={
                "shard": self._boot.index, "topics": len(loaded.registry), "records": records,
                "batches": findings.batches, "bytes": findings.bytes_read, "seconds": round(seconds, 3),
                "machine_crash": loaded.machine_crash, "holes": loaded.holes,
            },
        )  # fmt: skip
        if findings.cut_bytes:
            log.warning("log.tail_cut", extra={"shard": self._boot.index, "bytes": findings.cut_bytes})
        if loaded.storage is not None:
            for name, reason in loaded.storage.snapshots.refused.items():
                log.error(
                    "snapshot.refused", extra={"shard": self._boot.index, "file": name, "reason": reason}
                )
        for place in findings.quarantined:
            log.error("log.quarantined", extra={"shard": self._boot.index, "place": place})
        for problem in loaded.problems:
            log.error("log.read_only", extra={"shard": self._boot.index, "problem": problem})

    async def _stop(self) -> None:
        self.actor.status.state = "stopping"
        if self.actor.shard is not None:
            with trio.move_on_after(_DRAIN_S):
                await self.actor.drained()
            await self.actor.threads_idle()
        if self.actor.shard is not None:
            self.actor.shard.close()
        log.info("shard.stopped", extra={"shard": self._boot.index})


def _checkpoint_options(settings: Settings) -> CheckpointOptions:
    return CheckpointOptions(
        log_bytes=settings.checkpoint_bytes,
        age_ms=settings.segment_max_age_ms,
        segment_events=settings.segment_max_events,
        segment_bytes=settings.segment_max_bytes,
    )


def _lock(path: Path) -> int:
    """Keep an orphan of an earlier server from writing beside its successor."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(64)
    listener.setblocking(False)
    return listener


def main() -> int:
    boot = child.boot()
    status = 0
    try:
        trio.run(Worker(boot).run)
    except* UnknownFormat as refused:
        log.error("log.refused", extra={"shard": boot.index, "reason": str(refused.exceptions[0])})
        status = os.EX_CONFIG
    return status


if __name__ == "__main__":
    sys.exit(main())
