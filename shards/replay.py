"""Log frames → state. The inverse of what commands log; nothing is decided here.

A damaged frame of records becomes a hole of exactly its range. A damaged control frame cannot be
made good: it is reported and the shard must not write until it was looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from shards.state import Registry, TopicState
from shards.wal import frame as frames
from shards.wal.batch import FrameEntry
from shards.wal.frame import FrameError, Kind
from topics.engine.idempotency import Remembered
from topics.engine.watermarks import Hole


@dataclass(slots=True)
class Replay:
    """State under reconstruction, and what the sessions in the log said of themselves."""

    registry: Registry = field(default_factory=Registry)
    boot_id: str = ""
    closed: bool = True
    problems: list[str] = field(default_factory=list)
    # Up to this batch a snapshot was being made: topics that are not in it were dropped meanwhile.
    snapshot_batch: int = 0

    def apply(self, entry: FrameEntry, body: bytes | memoryview) -> None:
        if entry.batch <= self.snapshot_batch and self._is_known(entry):
            return
        if not entry.intact:
            self._damaged(entry)
            return
        try:
            if entry.kind in (Kind.OPEN, Kind.CLOSE):
                self._session(entry, body)
            elif entry.kind == Kind.CREATE:
                name, config = frames.decode_create(body)
                if self.registry.find(name) is not None:
                    raise FrameError(f"topic {name} exists already")
                self.registry.add(entry.topic_id, name, config)
            else:
                self._change(entry, body)
        except FrameError as error:
            self.problems.append(f"frame of kind {entry.kind}, topic {entry.topic_id}: {error}")

    def _is_known(self, entry: FrameEntry) -> bool:
        """Whether the snapshot has what this frame says, or has left it out because it is over."""
        if entry.kind in (Kind.OPEN, Kind.CLOSE):
            return False
        topic = self.registry.by_id(entry.topic_id)
        if topic is None:
            return entry.kind != Kind.CREATE
        return entry.batch <= topic.as_of

    def _session(self, entry: FrameEntry, body: bytes | memoryview) -> None:
        self.closed = entry.kind == Kind.CLOSE
        if not self.closed:
            self.boot_id = frames.decode_open(body)

    def _change(self, entry: FrameEntry, body: bytes | memoryview) -> None:
        topic = self.registry.by_id(entry.topic_id)
        if topic is None:
            raise FrameError("unknown topic")
        if entry.kind == Kind.DROP:
            self.registry.remove(topic)
        elif (apply := _APPLY.get(entry.kind)) is not None:
            apply(topic, entry, body)
        else:
            raise FrameError("unknown kind")

    def _damaged(self, entry: FrameEntry) -> None:
        topic = self.registry.by_id(entry.topic_id)
        if entry.kind == Kind.APPEND and topic is not None:
            topic.log.lose(entry.first_seq + entry.count - 1, cause="corruption")
            topic.logged_head = topic.replayed_head = topic.log.head
        else:
            self.problems.append(f"a damaged frame of kind {entry.kind}, topic {entry.topic_id}")


def _append(topic: TopicState, entry: FrameEntry, body: bytes | memoryview) -> None:
    append = frames.decode_append(entry.first_seq, entry.count, entry.flags, body)
    log, run = topic.log, append.run
    if run.first_seq <= log.head:
        raise FrameError(f"seq {run.first_seq} comes after {log.head}")
    log.append(run)
    topic.logged_head = topic.replayed_head = log.head
    if append.cap_evicted:
        log.evict_below(append.cap_evicted + 1, ttl=False)
        topic.logged_cap = append.cap_evicted
    if append.key:
        entry_kept = Remembered(run.first_seq, run.count, run.ts)
        log.keys.remember(append.key, entry_kept, window_ms=log.config.idempotency_window_ms)


def _delete(topic: TopicState, entry: FrameEntry, body: bytes | memoryview) -> None:
    topic.log.delete(frames.decode_delete(body))


def _floor(topic: TopicState, entry: FrameEntry, body: bytes | memoryview) -> None:
    cap_evicted, ttl_expired = frames.decode_floor(body)
    if cap_evicted > topic.log.marks.cap_evicted:
        topic.log.evict_below(cap_evicted + 1, ttl=False)
    if ttl_expired > topic.log.marks.ttl_expired:
        topic.log.evict_below(ttl_expired + 1, ttl=True)
    topic.logged_cap, topic.logged_ttl = cap_evicted, ttl_expired


def _ceiling(topic: TopicState, entry: FrameEntry, body: bytes | memoryview) -> None:
    topic.ceiling = entry.first_seq


def _config(topic: TopicState, entry: FrameEntry, body: bytes | memoryview) -> None:
    topic.log.lose(entry.first_seq, cause="crash")
    topic.replayed_head = topic.log.head
    topic.log.config = frames.decode_config(body)


def _hole(topic: TopicState, entry: FrameEntry, body: bytes | memoryview) -> None:
    hole: Hole = frames.decode_hole(entry.first_seq, body)
    topic.log.lose(hole.last, cause=hole.cause)
    topic.replayed_head = topic.log.head


_APPLY: dict[int, Callable[[TopicState, FrameEntry, bytes | memoryview], None]] = {
    Kind.APPEND: _append,
    Kind.DELETE: _delete,
    Kind.FLOOR: _floor,
    Kind.CEILING: _ceiling,
    Kind.CONFIG: _config,
    Kind.HOLE: _hole,
}


def settle_head(topic: TopicState, *, machine_crash: bool) -> Hole | None:
    """Where a topic's head is after an unclean end; returns what may have been lost above the log.

    A killed process loses nothing that was written, so only ephemeral records, which are never
    written, are gone. After a machine crash anything up to the ceiling may have been seen.
    """
    log = topic.log
    if (machine_crash or topic.ephemeral) and topic.ceiling > log.head:
        first = log.head + 1
        log.lose(topic.ceiling, cause="crash")
        topic.replayed_head = log.head
        return Hole(first, log.head, "cap", "crash")
    return None
