"""Checkpoints: what they seal, what they write again, what they give back, and what stops them."""

import errno

import pytest

from shards import checkpoint
from shards.rewriting import SMALL_PAGES
from shards.wal.writer import WalOptions
from tests.fakes.fault_disk import FaultDisk
from tests.fakes.shard_harness import FakeClock, ShardHarness
from tests.fakes.sim_disk import SimDisk
from topics.engine.sealed import Sealed
from topics.engine.topic import TopicLog
from topics.protocol.messages import Op

OPTIONS = WalOptions(file_bytes=64 * 1024, step_bytes=16 * 1024)


def shard_on(disk: SimDisk | FaultDisk | None = None) -> ShardHarness:
    return ShardHarness(disk or SimDisk(), FakeClock(), options=OPTIONS)


def log_of(shard: ShardHarness, name: str) -> TopicLog:
    topic = shard.shard.registry.find(name)
    assert topic is not None
    return topic.log


def segments(shard: ShardHarness) -> set[str]:
    assert isinstance(shard.disk, SimDisk)
    return {path for path in shard.disk.tree() if path.startswith("segments/")}


def data(shard: ShardHarness, name: str) -> list[object]:
    return [record["data"] for record in shard.read(name, limit=1000)["records"]]


def test_records_are_sealed_and_read_as_before() -> None:
    shard = shard_on()
    shard.write("a", 1, 2, 3)
    shard.checkpoint()
    assert all(isinstance(piece, Sealed) for piece in log_of(shard, "a").chunks)
    shard.write("a", 4)
    assert data(shard, "a") == [1, 2, 3, 4]
    assert data(shard.reopen(), "a") == [1, 2, 3, 4]


def test_small_pages_in_a_row_become_one() -> None:
    shard = shard_on()
    for number in range(3 * SMALL_PAGES):
        shard.write("a", number)
        shard.checkpoint()
        assert len(log_of(shard, "a").chunks) <= SMALL_PAGES + 1
    assert data(shard, "a") == list(range(3 * SMALL_PAGES))
    assert data(shard.reopen(), "a") == list(range(3 * SMALL_PAGES))


def test_what_is_deleted_while_pages_are_written_again_stays_deleted() -> None:
    shard = shard_on()
    for number in range(SMALL_PAGES):
        shard.do(Op.WRITE, "a", {"records": [{"data": number, "tag": str(number)}]})
        if number < SMALL_PAGES - 1:
            shard.checkpoint()
    shard.checkpoint()
    shard.start_checkpoint()
    shard.go_on()
    for number in (0, 3, 4):
        assert shard.do(Op.DELETE_RECORDS, "a", {"match": str(number)}).body["deleted"] == 1
    shard.finish_checkpoint()
    left = [number for number in range(SMALL_PAGES) if number not in (0, 3, 4)]
    assert data(shard, "a") == left
    assert log_of(shard, "a").count == len(left)
    again = shard.reopen()
    assert data(again, "a") == left
    assert log_of(again, "a").count == len(left)


def test_a_file_whose_pages_are_mostly_gone_is_given_back() -> None:
    shard = shard_on()
    for number in range(8):
        shard.write(f"t{number}", "x" * 300)
    shard.checkpoint()
    first = segments(shard)
    for number in range(7):
        shard.do(Op.DELETE_TOPIC, f"t{number}")
    for _ in range(3):
        shard.write("other", 1)
        shard.checkpoint()
    assert not first & segments(shard)
    assert data(shard, "t7") == ["x" * 300]
    assert data(shard.reopen(), "t7") == ["x" * 300]


def test_an_emptied_topic_gives_its_files_back() -> None:
    shard = shard_on()
    shard.write("a", *range(20))
    shard.checkpoint()
    first = segments(shard)
    shard.do(Op.DELETE_RECORDS, "a", {"before_seq": 100})
    for _ in range(3):
        shard.write("other", 1)
        shard.checkpoint()
    assert not first & segments(shard)
    assert log_of(shard, "a").count == 0


def test_the_log_is_shortened_after_the_second_checkpoint() -> None:
    shard = shard_on()
    assert isinstance(shard.disk, SimDisk)
    for turn in range(4):
        for number in range(40):
            shard.write("a", f"{turn}-{number}" + "x" * 3000)
        shard.checkpoint()
    kept = [path for path in shard.disk.tree() if path.startswith("wal/")]
    assert "wal/00000001.wal" not in kept
    assert len(data(shard.reopen(), "a")) == 160


def test_ephemeral_records_are_never_sealed() -> None:
    shard = shard_on()
    shard.write("e", 1, 2, config={"durability": "ephemeral"})
    shard.checkpoint()
    assert segments(shard) == set()
    assert data(shard, "e") == [1, 2]
    after = shard.reopen()
    page = after.read("e")
    assert page["records"] == []
    assert page["tombstone"]["gap_from"] == 1


def test_keys_are_remembered_by_a_snapshot() -> None:
    shard = shard_on()
    first = shard.write("a", 1, idempotency_key="k")
    shard.checkpoint()
    shard.checkpoint()
    again = shard.reopen().write("a", 2, idempotency_key="k")
    assert again.body["deduped"] is True
    assert again.body["first_seq"] == first.body["first_seq"]


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("create", "segments"),
        ("pwrite", "segments"),
        ("fdatasync", "segments"),
        ("fsync_dir", "segments"),
        ("create", "snap"),
        ("pwrite", "snap"),
        ("fdatasync", "snap"),
        ("rename", "snap"),
        ("fsync_dir", "snap"),
    ],
)
def test_a_checkpoint_that_fails_changes_nothing_and_the_next_one_succeeds(kind: str, where: str) -> None:
    disk = FaultDisk(SimDisk())
    shard = shard_on(disk)
    shard.write("a", 1, 2, 3)
    shard.start_checkpoint()
    disk.fail(kind, errno.ENOSPC, path_part=where)
    shard.finish_checkpoint()
    assert disk.fired
    assert shard.keeper is not None
    assert (shard.keeper.checkpoints, shard.keeper.failures) == (0, 1)
    shard.write("a", 4)
    assert data(shard, "a") == [1, 2, 3, 4]
    shard.checkpoint()
    assert shard.keeper.checkpoints == 1
    assert data(shard, "a") == [1, 2, 3, 4]
    assert isinstance(disk.inner, SimDisk)
    assert data(shard.reopen(disk.inner), "a") == [1, 2, 3, 4]


def test_slices_end_when_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SLICE_NS", 0)
    shard = shard_on()
    for number in range(20):
        shard.write(f"t{number}", number)
    shard.start_checkpoint()
    slices = 0
    while shard.keeper is not None and shard.keeper.under_way:
        shard.go_on()
        slices += 1
        if slices > 30:
            shard.finish_checkpoint()
    assert slices > 30
