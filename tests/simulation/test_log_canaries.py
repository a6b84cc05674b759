"""A harness that catches nothing proves nothing: bugs planted in the real code must be seen.

Each canary breaks one rule of the log; the same days that the healthy code passes must then fail.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from shards import answers, checkpoint, commands, load, rewriting
from shards.checkpoint import Checkpoint
from shards.command import Answer
from shards.disk import Disk
from shards.shard import Shard
from shards.state import TopicState
from shards.store import snapshot
from shards.store.segments import SegmentStore
from shards.store.snapshot import Snapshots
from shards.wal import batch as codec
from shards.wal import frame as frames
from shards.wal.batch import Frame
from shards.wal.writer import WalWriter
from tests.fakes.crash_variants import Limits
from tests.simulation.explore import Effort
from tests.simulation.log_workloads import DAYS
from tests.simulation.test_log_crashes import explore_day
from topics.engine.sealed import Sealed

FIRST_ONE = Effort(
    limits=Limits(torn_ops_max=3, torn_cuts_max=2, product_max=16, states_max=32, random_picks=3),
    inner_share=0.0,
    failures_max=1,
)

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "RESERVE_BYTES", 0)
    monkeypatch.setattr(commands, "_FRAME_OVERHEAD_BYTES", 128)
    monkeypatch.setattr(checkpoint, "SLICE_NS", 0)
    monkeypatch.setattr(checkpoint, "OWN_FILE_BYTES", 400)
    monkeypatch.setattr(rewriting, "SMALL_PAGES", 2)


def ack_before_sync(patch: pytest.MonkeyPatch) -> None:
    original = answers.write_answer

    def ungated(*args: Any, **fields: Any) -> Answer:
        return original(*args, **fields | {"synced": False})

    patch.setattr(answers, "write_answer", ungated)


def ack_of_an_older_sync(patch: pytest.MonkeyPatch) -> None:
    """A sync that was started before a group was written lets the group's answers go."""
    original = Shard.sync_done

    def hasty(self: Shard) -> None:
        for group in self._groups:
            group.batch = 0
        original(self)

    patch.setattr(Shard, "sync_done", hasty)


class _WithoutDirectorySync:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def fsync_dir(self, path: str) -> None:
        pass


def no_directory_sync(patch: pytest.MonkeyPatch) -> None:
    original = WalWriter._new_file

    def new_file(self: WalWriter) -> None:
        disk = self._disk
        self._disk = _WithoutDirectorySync(disk)
        try:
            original(self)
        finally:
            self._disk = disk

    patch.setattr(WalWriter, "_new_file", new_file)


def durable_claimed_too_early(patch: pytest.MonkeyPatch) -> None:
    original = codec.encode

    def boastful(batch_frames: Sequence[Frame], **fields: Any) -> tuple[list[bytes], int]:
        return original(batch_frames, **fields | {"durable": fields["number"] - 1})

    patch.setattr(codec, "encode", boastful)


def ceilings_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: TopicState, value: int) -> None:
        pass

    patch.setattr(TopicState, "durable_ceiling", property(lambda self: 2**62, nothing))


def opening_batch_not_synced(patch: pytest.MonkeyPatch) -> None:
    class Hasty(WalWriter):
        opened = False

        def sync_now(self) -> None:
            if self.opened:
                super().sync_now()
            self.opened = True
            self.synced(self.batch)

    patch.setattr(load, "WalWriter", Hasty)


def old_files_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(load, "_make_durable", lambda *args: None)


def file_left_behind_unsynced(patch: pytest.MonkeyPatch) -> None:
    """A file that was followed by a new one while a sync ran is never synced again."""
    original = WalWriter.synced

    def forgetful(self: WalWriter, batch: int) -> None:
        self._unsynced = [(fd, 0) for fd, _ in self._unsynced]
        original(self, batch)

    patch.setattr(WalWriter, "synced", forgetful)


def growth_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WalWriter, "_sync_size", lambda self: None)


def class_change_without_head(patch: pytest.MonkeyPatch) -> None:
    original = frames.config_frame
    patch.setattr(frames, "config_frame", lambda topic_id, config, head: original(topic_id, config, 0))


def keys_not_logged(patch: pytest.MonkeyPatch) -> None:
    original = frames.append_frame
    patch.setattr(frames, "append_frame", lambda *args, **fields: original(*args, **fields | {"key": b""}))


def floors_not_logged(patch: pytest.MonkeyPatch) -> None:
    original = frames.append_frame
    patch.setattr(
        frames, "append_frame", lambda *args, **fields: original(*args, **fields | {"cap_evicted": 0})
    )


def deletes_not_logged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(frames, "delete_frame", lambda topic_id, ranges: frames.ceiling_frame(topic_id, 2**40))


class _WithoutDataSync(_WithoutDirectorySync):
    def fsync_dir(self, path: str) -> None:
        self._disk.fsync_dir(path)

    def fdatasync(self, fd: int) -> None:
        pass


def _through(patch: pytest.MonkeyPatch, owner: type, method: str, broken: Callable[[Disk], Any]) -> None:
    """One method of `owner` works on a disk that forgets something."""
    original = getattr(owner, method)

    def forgetful(self: Any, *args: Any) -> Any:
        disk = self._disk
        self._disk = broken(disk)
        try:
            return original(self, *args)
        finally:
            self._disk = disk

    patch.setattr(owner, method, forgetful)


def segments_not_synced(patch: pytest.MonkeyPatch) -> None:
    _through(patch, SegmentStore, "write_file", _WithoutDataSync)


def segments_directory_not_synced(patch: pytest.MonkeyPatch) -> None:
    _through(patch, SegmentStore, "write_file", _WithoutDirectorySync)


def snapshot_not_synced(patch: pytest.MonkeyPatch) -> None:
    _through(patch, Snapshots, "write", _WithoutDataSync)


def snapshot_ahead_of_the_log(patch: pytest.MonkeyPatch) -> None:
    original = Checkpoint._save

    def hasty(self: Checkpoint) -> bool:
        durable, self._wal.durable = self._wal.durable, 2**60
        try:
            return original(self)
        finally:
            self._wal.durable = durable

    patch.setattr(Checkpoint, "_save", hasty)


def log_trimmed_before_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    original = Checkpoint._save

    def hasty(self: Checkpoint) -> bool:
        for path in self._wal.needless(self._wal.durable):
            self._disk.unlink(path)
        return original(self)

    patch.setattr(Checkpoint, "_save", hasty)


def entry_claims_too_much(patch: pytest.MonkeyPatch) -> None:
    original = snapshot.entry_of

    def boastful(topic: TopicState, pages: list[Any], as_of: int) -> bytes:
        return original(topic, pages, as_of + 1)

    patch.setattr(snapshot, "entry_of", boastful)


def deletes_of_pages_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = Sealed.mark_deleted

    def forgetful(self: Sealed, start: int, stop: int) -> None:
        original(self, start, stop)
        self.pending.clear()

    patch.setattr(Sealed, "mark_deleted", forgetful)


def dropped_topics_not_known(patch: pytest.MonkeyPatch) -> None:
    original = Checkpoint._save

    def forgetful(self: Checkpoint) -> bool:
        self._head.last_batch = self._head.start_batch
        return original(self)

    patch.setattr(Checkpoint, "_save", forgetful)


CANARIES: list[tuple[Plant, tuple[str, ...], str]] = [
    (segments_not_synced, ("checkpoints",), "recovered and then lost"),
    (segments_directory_not_synced, ("checkpoints",), "recovered and then lost"),
    (snapshot_not_synced, ("checkpoints",), "problem"),
    (snapshot_ahead_of_the_log, ("checkpoints",), "problem"),
    (log_trimmed_before_the_snapshot, ("checkpoints",), "problem"),
    (entry_claims_too_much, ("checkpoints",), "seqs"),
    (deletes_of_pages_forgotten, ("sealed_deletes",), "back"),
    (dropped_topics_not_known, ("sealed_deletes",), "problem"),
    (ack_before_sync, ("classes",), "acked seqs"),
    (ack_of_an_older_sync, ("rotation",), "acked seqs"),
    (no_directory_sync, ("classes",), "problem"),
    (durable_claimed_too_early, ("classes",), "problem"),
    (ceilings_not_waited_for, ("classes", "idle_topics"), "handed out again"),
    (opening_batch_not_synced, ("rotation",), "problem"),
    (old_files_not_synced, ("sessions",), "problem"),
    (file_left_behind_unsynced, ("rotation",), "acked seqs"),
    (growth_not_synced, ("classes",), "cut off"),
    (class_change_without_head, ("class_changes",), "moved back"),
    (keys_not_logged, ("classes",), "is forgotten"),
    (floors_not_logged, ("caps_and_time",), "moved back"),
    (deletes_not_logged, ("deletes_and_config",), "back"),
]


@pytest.mark.timeout(600)
def test_every_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    missed, wrong_reason = [], []
    for plant, days, expected in CANARIES:
        messages: list[str] = []
        for day in days:
            with monkeypatch.context() as patch:
                plant(patch)
                messages += map(str, explore_day(DAYS[day], effort=FIRST_ONE).failures)
            if messages:
                break
        if not messages:
            missed.append(plant.__name__)
        elif expected not in messages[0]:
            wrong_reason.append(f"{plant.__name__}: {messages[0]}")
    print(f"\ncanaries {len(CANARIES) - len(missed)}/{len(CANARIES)}")
    assert not missed
    assert not wrong_reason, "\n".join(wrong_reason)
