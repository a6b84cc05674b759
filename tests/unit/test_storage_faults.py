"""Sealed records and trouble: damage, disks that refuse for a moment, clients that leave, a reload."""

import errno

import pytest

from shards.wal.writer import WalOptions
from tests.fakes.fault_disk import FaultDisk
from tests.fakes.shard_harness import FakeClock, ShardHarness, reply_of
from tests.fakes.sim_disk import SimDisk
from topics.engine.sealed import Sealed
from topics.engine.topic import TopicLog
from topics.protocol.messages import Op

OPTIONS = WalOptions(file_bytes=4 << 20, step_bytes=1 << 20)


def shard_on(disk: SimDisk | FaultDisk | None = None) -> ShardHarness:
    return ShardHarness(disk or SimDisk(), FakeClock(), options=OPTIONS)


def log_of(shard: ShardHarness, name: str = "a") -> TopicLog:
    topic = shard.shard.registry.find(name)
    assert topic is not None
    return topic.log


def damage(shard: ShardHarness, *, before_end: int) -> None:
    """Overwrite one byte of the data of the first page of topic a."""
    page = log_of(shard).chunks[0]
    assert isinstance(page, Sealed)
    fd = shard.disk.open(f"segments/{page.file:08d}.seg", write=True)
    shard.disk.pwrite(fd, b"#", page.offset + page.length - page.count - before_end)
    shard.disk.close(fd)


def remove_first_page(shard: ShardHarness) -> None:
    page = log_of(shard).chunks[0]
    assert isinstance(page, Sealed)
    shard.disk.unlink(f"segments/{page.file:08d}.seg")


def test_a_damaged_block_of_a_large_page_costs_its_records_and_no_others() -> None:
    shard = shard_on()
    shard.write("a", *["x" * 20_000] * 20)
    shard.checkpoint()
    shard = shard.reopen()
    damage(shard, before_end=120_000)
    seen, tombstones, cursor = 0, [], 0
    while cursor < 20:
        page = shard.read("a", cursor)
        seen += len(page["records"])
        tombstones += [page["tombstone"]] if page["tombstone"] else []
        cursor = page["next_from_seq"]
    (tombstone,) = tombstones
    assert tombstone["cause"] == "corruption"
    assert seen + tombstone["missed_estimate"] == 20
    assert log_of(shard).count == seen > 14


def test_a_damaged_page_that_replay_meets_does_not_stop_the_start() -> None:
    shard = shard_on()
    records = [{"data": "x" * 20_000, "tag": f"t{at}"} for at in range(20)]
    shard.do(Op.WRITE, "a", {"records": records})
    shard.checkpoint()
    shard.do(Op.DELETE_RECORDS, "a", {"match": "t3"})
    damage(shard, before_end=120_000)
    assert isinstance(shard.disk, SimDisk)
    after = shard.reopen(shard.disk.process_crash())
    assert not after.loaded.problems
    assert after.write("a", "more").status == 200


def test_two_lost_pages_in_a_row_are_two_losses_and_no_error() -> None:
    shard = shard_on()
    shard.do(Op.PUT_TOPIC, "a", {"cap_records": 10})
    for numbers in (range(1, 6), range(6, 13)):
        shard.write("a", *numbers)
        shard.checkpoint()
    shard = shard.reopen()
    for page in log_of(shard).chunks:
        assert isinstance(page, Sealed)
        shard.disk.unlink(f"segments/{page.file:08d}.seg")
    assert shard.read("a", 6)["tombstone"]["cause"] == "corruption"
    assert shard.read("a", 2)["tombstone"]["cause"] == "corruption"
    assert log_of(shard).count == 0


def test_a_disk_that_refuses_for_a_moment_loses_nothing() -> None:
    disk = FaultDisk(SimDisk())
    shard = shard_on(disk)
    shard.write("a", 1, 2, 3)
    shard.checkpoint()
    shard = shard.reopen()
    disk.fail("open", errno.EMFILE, path_part="segments")
    refused = shard.do(Op.DIFF, "a", {})
    assert (disk.fired, refused.status, refused.body["error"]["code"]) == (1, 503, "not_ready")
    page = shard.read("a")
    assert [record["data"] for record in page["records"]] == [1, 2, 3]
    assert page["tombstone"] is None


def test_a_write_that_meets_a_lost_page_is_applied_once() -> None:
    shard = shard_on()
    shard.do(Op.PUT_TOPIC, "a", {"cap_records": 10})
    for numbers in (range(1, 6), range(6, 11), range(11, 13)):
        shard.write("a", *numbers)
        shard.checkpoint()
    shard = shard.reopen()
    remove_first_page(shard)
    assert shard.write("a", *"vwxyz").body["seqs"] == [13, 14, 15, 16, 17]
    assert [record["data"] for record in shard.read("a", 12)["records"]] == list("vwxyz")
    assert [record["data"] for record in shard.reopen().read("a", 12)["records"]] == list("vwxyz")


def test_a_wide_delete_reads_no_page_that_it_empties() -> None:
    disk = FaultDisk(SimDisk())
    shard = shard_on(disk)
    for number in range(6):
        shard.write("a", number)
        shard.checkpoint()
    shard = shard.reopen()
    disk.fail("open", errno.EIO, forever=True, path_part="segments")
    assert shard.do(Op.DELETE_RECORDS, "a", {"before_seq": 100}).body["deleted"] == 6
    assert disk.fired == 0
    assert log_of(shard).count == 0
    disk.heal()
    assert shard.reopen().read("a")["records"] == []


def test_a_client_that_leaves_while_a_page_is_read_disturbs_nobody() -> None:
    shard = shard_on()
    shard.write("a", 1, 2, 3)
    shard.checkpoint()
    shard = shard.reopen()
    leaving, staying = shard.command(Op.DIFF, "a"), shard.command(Op.DIFF, "a")
    shard.shard.execute(leaving)
    leaving.cancelled = True
    shard.shard.forget(leaving)
    shard.submit_command(staying)
    shard.settle()
    assert len(reply_of(staying).body["records"]) == 3


def test_whoever_waits_for_a_page_is_handed_on_when_the_shard_reloads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shard = shard_on()
    shard.do(Op.WRITE, "a", {"records": [{"data": 1, "tag": "t"}]})
    shard.checkpoint()
    shard = shard.reopen()
    reading = shard.command(Op.DIFF, "a")
    deleting = shard.command(Op.DELETE_RECORDS, "a", {"match": "t"})
    for command in (reading, deleting):
        shard.shard.execute(command)
    assert set(map(id, shard.shard.take_waiting())) == {id(reading), id(deleting)}
    # What was read for them comes too late, and is nobody's business.
    shard.shard.background_done()
    assert shard.shard.take_ready().again == []
    assert not shard.shard.fetching


def test_a_key_of_a_record_that_was_never_logged_is_not_remembered_by_a_snapshot() -> None:
    shard = shard_on()
    shard.write("e", 1, config={"durability": "ephemeral"}, idempotency_key="k")
    shard.checkpoint()
    assert shard.reopen().write("e", 2, idempotency_key="k").body["deduped"] is False


def test_flags_that_cannot_be_written_do_not_stop_checkpoints() -> None:
    disk = FaultDisk(SimDisk())
    shard = shard_on(disk)
    for tag in "xyz":
        shard.do(Op.WRITE, "a", {"records": [{"data": tag, "tag": tag}]})
    shard.checkpoint()
    shard.do(Op.DELETE_RECORDS, "a", {"match": "y"})
    disk.fail("pwrite", errno.EIO, path_part="segments/00000001")
    shard.write("b", 1)
    shard.checkpoint()
    assert shard.keeper is not None
    assert (disk.fired, shard.keeper.failures) == (1, 0)
    assert [record["data"] for record in shard.reopen().read("a")["records"]] == ["x", "z"]


def test_files_of_failed_checkpoints_are_removed_by_the_next_good_one() -> None:
    disk = FaultDisk(SimDisk())
    shard = shard_on(disk)
    shard.write("a", 1)
    disk.fail("fsync_dir", errno.ENOSPC, path_part="segments")
    shard.checkpoint()
    assert isinstance(disk.inner, SimDisk)
    (left,) = [path for path in disk.inner.tree() if path.startswith("segments/")]
    for _ in range(2):
        shard.checkpoint()
    assert left not in disk.inner.tree()


@pytest.mark.parametrize("name", ["snap/.00000001.snap.swp", "snap/notes", "segments/old.seg"])
def test_a_stray_file_is_left_alone_and_stops_nothing(name: str) -> None:
    shard = shard_on()
    shard.write("a", 1)
    shard.checkpoint()
    shard.disk.close(shard.disk.open(name, create=True))
    shard = shard.reopen()
    for _ in range(2):
        shard.write("a", 2)
        shard.checkpoint()
    assert isinstance(shard.disk, SimDisk)
    assert name in shard.disk.tree()


def test_a_checkpoint_that_meets_a_lost_page_ends_and_the_shard_goes_on() -> None:
    shard = shard_on()
    shard.do(Op.WRITE, "a", {"records": [{"data": n, "tag": str(n)} for n in range(3)]})
    shard.do(Op.DELETE_RECORDS, "a", {"match": "1"})
    shard.checkpoint()
    shard.do(Op.PUT_TOPIC, "a", {"durability": "ephemeral"})
    shard.write("a", "gone with the process")
    shard = shard.reopen()
    shard.write("a", "again")
    remove_first_page(shard)
    for _ in range(3):
        shard.checkpoint()
    assert shard.keeper is not None
    assert shard.keeper.checkpoints >= 1
    assert shard.read("a")["tombstone"] is not None
