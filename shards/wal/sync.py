"""Syncing the log beside the actor loop.

One thread runs `fdatasync` while the next group forms. It takes a job, syncs, and wakes the loop
through an eventfd; at most one job is under way, and what was written meanwhile is one next job.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol, TypeAlias

from shards.disk import Disk, Fd


@dataclass(frozen=True, slots=True)
class SyncDone:
    """Everything up to `batch` is durable, or `error` says why it is not."""

    batch: int
    started_ns: int
    ended_ns: int
    error: OSError | None


# What is done first, in the same thread.
Before: TypeAlias = Callable[[], None]


class Syncer(Protocol):
    """Starts syncs and hands their results back."""

    @property
    def busy(self) -> bool: ...
    def start(self, batch: int, targets: list[Fd], before: Before | None = None) -> None: ...
    def take_done(self) -> SyncDone | None: ...


def run_sync(disk: Disk, batch: int, targets: list[Fd], before: Before | None = None) -> SyncDone:
    """Sync every target in order; the first error ends it."""
    started_ns = time.monotonic_ns()
    error: OSError | None = None
    if before is not None:
        before()
    try:
        for fd in targets:
            disk.fdatasync(fd)
    except OSError as caught:
        error = caught
    return SyncDone(batch, started_ns, time.monotonic_ns(), error)


class InlineSyncer:
    """Syncs at once, in the caller: deterministic, for simulations and shutdown."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._done: SyncDone | None = None
        self.busy = False

    def start(self, batch: int, targets: list[Fd], before: Before | None = None) -> None:
        self._done = run_sync(self._disk, batch, targets, before)

    def take_done(self) -> SyncDone | None:
        done, self._done = self._done, None
        return done


class ThreadSyncer:
    """One thread per shard; `event_fd` becomes readable when a sync has ended."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._jobs: SimpleQueue[tuple[int, list[Fd], Before | None] | None] = SimpleQueue()
        self._done: SyncDone | None = None
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.busy = False
        self._thread = threading.Thread(target=self._run, name="syncer", daemon=True)
        self._thread.start()

    def start(self, batch: int, targets: list[Fd], before: Before | None = None) -> None:
        assert not self.busy, "one sync at a time"
        self.busy = True
        self._jobs.put((batch, targets, before))

    def take_done(self) -> SyncDone | None:
        try:
            os.eventfd_read(self.event_fd)
        except BlockingIOError:
            return None
        done, self._done = self._done, None
        self.busy = False
        return done

    def stop(self) -> None:
        """End the thread; a sync under way is waited for."""
        self._jobs.put(None)
        self._thread.join()
        os.close(self.event_fd)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._done = run_sync(self._disk, *job)
            os.eventfd_write(self.event_fd, 1)
