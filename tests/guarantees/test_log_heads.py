"""Where a topic stands after each kind of end: exact heads, honest tombstones, nothing that comes back."""

from random import Random
from typing import Any

import pytest

from shards.state import CEILING_STEP
from tests.fakes.shard_harness import CHECKPOINTS, FakeClock, ShardHarness
from tests.fakes.sim_disk import SimDisk
from topics.protocol.messages import Op


def new_shard() -> ShardHarness:
    return ShardHarness(SimDisk(), FakeClock(), deferred=True)


def power_cuts(shard: ShardHarness) -> list[ShardHarness]:
    """The next session on everything that a power cut could leave now."""
    assert isinstance(shard.disk, SimDisk)
    return [
        ShardHarness(state, FakeClock(wall_ms=shard.clock.wall_ms, boot_id="boot-2"))
        for state in shard.disk.crash_states(Random(1))
    ]


def read_all(shard: ShardHarness, topic: str) -> tuple[list[int], list[dict[str, Any]]]:
    """Every seq that can be read from 0 on, and every tombstone on the way."""
    seqs: list[int] = []
    tombstones = []
    cursor = 0
    while True:
        page = shard.read(topic, cursor)
        seqs += [record["$seq"] for record in page["records"]]
        if page["tombstone"]:
            tombstones.append(page["tombstone"])
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return seqs, tombstones


def be_idle(shard: ShardHarness) -> None:
    for _ in range(3):
        shard.tick(1100)
        shard.settle()


@pytest.mark.parametrize("durability", ["disk", "memory", "fsync"])
def test_a_killed_process_leaves_exact_heads_and_no_tombstone(durability: str) -> None:
    shard = new_shard()
    shard.write("t", 1, 2, 3, config={"durability": durability})
    after = shard.crash()
    assert read_all(after, "t") == ([1, 2, 3], [])
    assert after.write("t", 4).body["first_seq"] == 4


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_an_idle_topic_is_clean_and_gets_no_tombstone_from_a_power_cut(durability: str) -> None:
    shard = new_shard()
    shard.write("t", 1, 2, 3, config={"durability": durability})
    be_idle(shard)
    for after in power_cuts(shard):
        assert read_all(after, "t") == ([1, 2, 3], [])
        assert after.write("t", 4).body["first_seq"] == 4


def test_an_idle_shard_asks_nothing_of_its_disk() -> None:
    shard = new_shard()
    shard.write("t", 1)
    be_idle(shard)
    assert isinstance(shard.disk, SimDisk)
    before = shard.disk.op_count
    be_idle(shard)
    assert shard.disk.op_count == before
    # Until what it has is old enough to be sealed.
    due_ns = shard.shard.next_due_ns()
    assert due_ns is not None
    assert due_ns > shard.clock.elapsed_ns + CHECKPOINTS.age_ms * 900_000


def test_a_busy_topic_loses_its_tail_to_a_power_cut_under_one_tombstone_that_says_so() -> None:
    shard = new_shard()
    shard.write("t", 1, 2, 3)
    ends = set()
    for after in power_cuts(shard):
        seqs, (tombstone,) = read_all(after, "t")
        assert seqs in ([], [1, 2, 3])
        ends.add(len(seqs))
        assert (tombstone["reason"], tombstone["cause"]) == ("cap", "crash")
        assert tombstone["gap_from"] == len(seqs) + 1
        assert tombstone["gap_to"] == 3 + CEILING_STEP
        assert after.write("t", 4).body["first_seq"] == 3 + CEILING_STEP + 1
    assert ends == {0, 3}


def test_a_clean_end_loses_nothing_and_moves_no_head() -> None:
    shard = new_shard()
    shard.write("d", 1, 2)
    shard.write("e", 1, 2, config={"durability": "ephemeral"})
    shard.close()
    for after in [shard.crash(), *power_cuts(shard)]:
        assert read_all(after, "d") == ([1, 2], [])
        seqs, (tombstone,) = read_all(after, "e")
        assert seqs == []
        assert (tombstone["gap_from"], tombstone["gap_to"], tombstone["cause"]) == (1, 2, "crash")
        assert after.write("e", 3).body["first_seq"] == 3
        assert after.write("d", 3).body["first_seq"] == 3


def test_a_record_keeps_the_promise_of_the_class_it_was_written_under() -> None:
    shard = new_shard()
    shard.write("t", "kept", config={"durability": "fsync"})
    shard.do(Op.PUT_TOPIC, "t", {"durability": "ephemeral"})
    shard.write("t", "lost")
    shard.do(Op.PUT_TOPIC, "t", {"durability": "fsync"})
    shard.write("t", "kept")
    for after in [shard.crash(), *power_cuts(shard)]:
        seqs, tombstones = read_all(after, "t")
        assert seqs == [1, 3]
        assert (tombstones[0]["gap_from"], tombstones[0]["gap_to"]) == (2, 2)


def test_a_clock_that_goes_back_brings_no_expired_record_back() -> None:
    shard = new_shard()
    shard.write("t", 1, 2, config={"durability": "fsync", "ttl_ms": 1000})
    shard.clock.advance(5000)
    shard.commit()
    assert shard.read("t")["records"] == []
    shard.tick(1100)
    shard.settle()
    shard.clock.wall_ms -= 3_600_000
    after = shard.crash()
    seqs, (tombstone,) = read_all(after, "t")
    assert seqs == []
    assert (tombstone["reason"], tombstone["gap_to"]) == ("ttl", 2)
    assert after.write("t", 3).body["first_seq"] == 3


def test_what_a_reader_was_told_is_expired_stays_so_even_if_the_process_dies_at_once() -> None:
    shard = new_shard()
    shard.write("t", 1, 2, config={"durability": "fsync", "ttl_ms": 1000})
    shard.clock.advance(5000)
    shard.commit()
    assert shard.read("t")["earliest_seq"] == 3
    shard.clock.wall_ms -= 3_600_000
    assert shard.crash().read("t")["earliest_seq"] == 3


def test_time_in_records_never_goes_back_over_a_restart() -> None:
    shard = new_shard()
    shard.write("t", 1)
    shard.clock.wall_ms -= 3_600_000
    shard.write("t", 2)
    after = shard.crash()
    after.write("t", 3)
    stamps = [record["$ts"] for record in after.read("t")["records"]]
    assert stamps == sorted(stamps)
