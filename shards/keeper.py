"""When a checkpoint is due, and who drives it: at most one at a time, slice by slice."""

import logging

from shards.background import Background
from shards.checkpoint import Checkpoint, CheckpointOptions
from shards.clock import Clock
from shards.disk import Disk
from shards.load import Loaded
from shards.wal.writer import WalWriter

log = logging.getLogger("shard")

# After one that failed, for example on a full disk, the next one is not tried at once.
RETRY_NS = 10_000_000_000
# Without commands between them, slices follow each other this quickly.
PAUSE_NS = 1_000_000


class Keeper:
    def __init__(
        self, disk: Disk, loaded: Loaded, wal: WalWriter, background: Background, clock: Clock,
        options: CheckpointOptions,
    ) -> None:  # fmt: skip
        assert loaded.storage is not None
        self._disk, self._loaded, self._storage, self._wal = disk, loaded, loaded.storage, wal
        self._background, self._clock, self._options = background, clock, options
        self._under_way: Checkpoint | None = None
        # What was replayed at the start is to be sealed like what is written from now on.
        self._sealed_bytes = -loaded.findings.bytes_read
        self._sealed_ns = clock.monotonic_ns()
        self._not_before_ns = 0
        self.checkpoints = 0
        self.failures = 0

    @property
    def under_way(self) -> bool:
        return self._under_way is not None

    def figures(self) -> dict[str, object]:
        """For metrics."""
        segments = self._storage.segments
        return {
            "checkpoints": self.checkpoints,
            "checkpoint_failures": self.failures,
            "segment_files": len(segments.files),
            "segment_bytes": sum(segments.files.values()),
            "cache_bytes": segments.cached_bytes,
            "damaged_files": len(self._storage.damaged_files),
        }

    def next_due_ns(self) -> int | None:
        """When the next slice or the next checkpoint is due; None while there is nothing to seal."""
        if self.under_way:
            return None if self._background.busy else self._clock.monotonic_ns() + PAUSE_NS
        fresh = self._wal.bytes_written - self._sealed_bytes
        if not fresh or self._wal.failure is not None:
            return None
        full = fresh >= self._options.log_bytes
        return max(self._not_before_ns, 0 if full else self._sealed_ns + self._options.age_ms * 1_000_000)

    def start(self, now_ms: int) -> None:
        self._sealed_bytes = self._wal.bytes_written
        self._sealed_ns = self._clock.monotonic_ns()
        self._under_way = Checkpoint(
            self._disk, self._storage, self._loaded.registry, self._wal, self._background, self._clock,
            self._options, boot_id=self._loaded.boot_id, now_ms=now_ms,
        )  # fmt: skip

    def step(self) -> bool:
        """A slice of the checkpoint under way, between two groups; whether another can follow at once."""
        self._background.take_done()
        checkpoint = self._under_way
        if checkpoint is None:
            return False
        more = checkpoint.step()
        if checkpoint.ended:
            self._under_way = None
            self._report(checkpoint)
            return False
        return more

    def abandon(self, error: Exception) -> None:
        """The checkpoint under way leads nowhere; what it has written is removed by the next one."""
        checkpoint, self._under_way = self._under_way, None
        if checkpoint is not None:
            checkpoint.fail(error)
            self._report(checkpoint)

    def _report(self, checkpoint: Checkpoint) -> None:
        seconds = (self._clock.monotonic_ns() - self._sealed_ns) / 1e9
        if checkpoint.failed is None:
            self.checkpoints += 1
            log.info("checkpoint.done", extra={"records": checkpoint.records, "seconds": round(seconds, 3)})
        else:
            self.failures += 1
            self._sealed_bytes = -self._loaded.findings.bytes_read
            self._not_before_ns = self._clock.monotonic_ns() + RETRY_NS
            log.error("checkpoint.failed", extra={"reason": repr(checkpoint.failed)})
