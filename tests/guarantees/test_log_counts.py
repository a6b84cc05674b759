"""What a record costs, counted: writes, syncs, bytes in the log and in memory, objects, copies in a read."""

import gc
import tracemalloc
from pathlib import Path

import pytest

from shards.disk import RealDisk
from shards.wal.batch import batch_overhead
from shards.wal.writer import WalOptions
from tests.fakes.count_disk import CountDisk
from tests.fakes.shard_harness import FakeClock, ShardHarness, reply_of
from tests.fakes.sim_disk import SimDisk
from topics.engine.chunk import CHUNK_RECORDS
from topics.protocol.messages import Op

MIB = 1024 * 1024
# Room for a whole test in one file, so that growing it does not blur the counts.
ROOMY = WalOptions(file_bytes=64 * MIB, step_bytes=8 * MIB)


@pytest.fixture
def disk() -> CountDisk:
    return CountDisk(SimDisk())


def shard_on(disk: CountDisk, durability: str, topics: int = 1) -> ShardHarness:
    """Topics that have been written to once, so that their ceilings are synced."""
    shard = ShardHarness(disk, options=ROOMY, deferred=True)
    for at in range(topics):
        shard.do(Op.PUT_TOPIC, f"t{at}", {"durability": durability})
        shard.write(f"t{at}", 0)
    disk.reset()
    shard.answered.clear()
    return shard


def submit_group(shard: ShardHarness, count: int, topics: int, size: int) -> None:
    for at in range(count):
        shard.submit(Op.WRITE, f"t{at % topics}", {"records": [{"data": "x" * (size - 2)}]})


@pytest.mark.parametrize("count", [1, 32, 256])
def test_a_group_of_any_size_is_one_write_and_one_sync(disk: CountDisk, count: int) -> None:
    shard = shard_on(disk, "fsync", topics=8)
    submit_group(shard, count, 8, 200)
    shard.settle()
    assert all(reply_of(command).status == 200 for command in shard.answered)
    assert dict(disk.calls) == {"pwrite": 1, "fdatasync": 1}


def test_groups_that_form_while_a_sync_runs_share_the_next_one(disk: CountDisk) -> None:
    shard = shard_on(disk, "fsync")
    for _ in range(10):
        submit_group(shard, 4, 1, 200)
        shard.commit()
    assert dict(disk.calls) == {"pwrite": 10}
    shard.settle()
    assert dict(disk.calls) == {"pwrite": 10, "fdatasync": 2}


def test_the_disk_class_is_synced_once_per_interval_and_only_when_dirty(disk: CountDisk) -> None:
    shard = shard_on(disk, "disk")
    for _ in range(40):
        submit_group(shard, 4, 1, 200)
        shard.settle()
    assert dict(disk.calls) == {"pwrite": 40}, "every answer has left without a sync"
    assert len(shard.answered) == 40 * 4
    shard.tick(shard.sync_interval_ms + 1)
    shard.finish_sync()
    shard.sync_done()
    assert disk.calls["fdatasync"] == 1
    disk.reset()
    for _ in range(5):
        shard.tick(shard.sync_interval_ms + 1)
        shard.settle()
    assert not disk.calls["fdatasync"]


def rendered_bytes(first_seq: int, count: int, ts: int, size: int) -> int:
    """A record as stored and as sent: its data and the frame `{"$seq":…,"$ts":…,"data":…}`."""
    return sum(
        len(f'{{"$seq":{seq},"$ts":{ts},"data":}}') + size for seq in range(first_seq, first_seq + count)
    )


def test_bytes_in_the_log_of_single_records_in_a_group(disk: CountDisk) -> None:
    """A record alone costs 80 bytes beside itself (time, two directory entries), a batch at most 128 once."""
    shard = shard_on(disk, "disk")
    submit_group(shard, 32, 1, 200)
    shard.settle()
    stored = rendered_bytes(2, 32, shard.clock.wall_ms, 200)
    assert disk.bytes["pwrite"] == batch_overhead(32) + 32 * 8 + stored
    assert batch_overhead(32) - 32 * 72 <= 128
    assert disk.bytes["pwrite"] / 32 <= 200 + 140


def test_bytes_in_the_log_of_a_large_batch(disk: CountDisk) -> None:
    """In a batch a record costs 5 bytes beside itself: its length and a comma."""
    shard = shard_on(disk, "disk")
    reply = shard.write("t0", *["x" * 198] * 1000)
    assert reply.status == 200
    stored = rendered_bytes(2, 1000, shard.clock.wall_ms, 200)
    assert disk.bytes["pwrite"] == batch_overhead(1) + 8 + 4 * 1000 + 999 + stored
    assert disk.bytes["pwrite"] / 1000 <= 200 + 55


def fill(shard: ShardHarness, count: int) -> None:
    for _ in range(count // 100):
        reply = shard.write("t", *range(1000, 1100))
        assert reply.status in (200, 201)
        shard.answered.clear()


def test_memory_per_record_is_its_bytes_and_a_few_columns(tmp_path: Path) -> None:
    """Bound: the rendered bytes (46 here) and an eighth for a growing buffer, and 12 bytes of columns."""
    shard = ShardHarness(RealDisk(tmp_path), options=ROOMY)
    fill(shard, 1000)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        fill(shard, 20_000)
        gc.collect()
        per_record = (tracemalloc.get_traced_memory()[0] - before) / 20_000
    finally:
        tracemalloc.stop()
    rendered = rendered_bytes(10_000, 1, shard.clock.wall_ms, 4)
    print(f"\nmemory per record: {per_record:.1f} bytes, rendered {rendered}")
    assert rendered < per_record <= rendered * 1.125 + 12
    shard.close()


def test_there_is_no_object_per_record(tmp_path: Path) -> None:
    shard = ShardHarness(RealDisk(tmp_path), options=ROOMY)
    fill(shard, 1000)
    gc.collect()
    before = len(gc.get_objects())
    fill(shard, 20_000)
    gc.collect()
    grown = len(gc.get_objects()) - before
    chunks = 20_000 // CHUNK_RECORDS + 1
    print(f"\nobjects for 20000 records: {grown}")
    assert grown <= 20 * chunks
    shard.close()


def read_cost(shard: ShardHarness, from_seq: int) -> tuple[int, int, list[bytes | memoryview]]:
    """Peak bytes allocated while a diff of 1000 records is handled, the answer's size, and its parts."""
    command = shard.command(Op.DIFF, "t", {"from_seq": from_seq, "limit": 1000})
    gc.collect()
    tracemalloc.start()
    try:
        shard.shard.execute(command)
        shard.commit()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert command.answer is not None
    parts = command.answer.parts
    assert reply_of(command).body["records"][-1]["$seq"] == from_seq + 1000
    return peak, sum(map(len, parts)), parts


def test_a_read_copies_an_open_chunk_once_and_a_closed_one_not_at_all() -> None:
    shard = ShardHarness(SimDisk(), FakeClock(), options=ROOMY)
    for _ in range(20):
        shard.write("t", *["x" * 198] * 200)
    state = shard.shard.registry.find("t")
    assert state is not None
    closed, *_, tail = state.log.chunks
    assert closed.closed
    assert not tail.closed

    peak, size, parts = read_cost(shard, tail.first_seq - 1)
    print(f"\nopen chunk: peak {peak} for an answer of {size} bytes")
    assert size > 200_000
    assert peak < 2 * size

    peak, size, parts = read_cost(shard, 100)
    views = [part for part in parts if isinstance(part, memoryview)]
    print(f"closed chunk: peak {peak} for an answer of {size} bytes")
    assert len(views) == 1
    assert views[0].obj is closed.content().buffer
    assert len(views[0]) > 0.99 * size
    assert peak < size // 10
