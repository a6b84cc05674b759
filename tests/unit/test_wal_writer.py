"""Where the log's files end, and when a new one begins."""

import pytest

from shards.load import load
from shards.wal.batch import Frame
from shards.wal.writer import MIB, LogEnd, WalOptions, WalWriter
from tests.fakes.count_disk import CountDisk
from tests.fakes.shard_harness import FakeClock, ShardHarness
from tests.fakes.sim_disk import SimDisk


@pytest.mark.parametrize("file_mib", [1, 2, 3, 64, 1024])
def test_steps_are_whole_mebibytes_and_no_larger_than_a_file(file_mib: int) -> None:
    options = WalOptions.of_files(file_mib * MIB + 17)
    assert options.step_bytes % MIB == 0
    assert options.step_bytes <= max(file_mib, 1) * MIB
    assert options.granule_bytes == MIB


def test_a_killed_log_is_read_again_under_another_file_size() -> None:
    disk = SimDisk()
    first = ShardHarness(disk, FakeClock(), options=WalOptions.of_files(1 * MIB))
    assert first.write("a", 1).status == 201
    loaded, wal = load(disk.process_crash(), WalOptions.of_files(64 * MIB), FakeClock())
    assert loaded.problems == []
    assert wal is not None


def test_small_files_are_followed_by_new_ones_when_they_are_full() -> None:
    disk = SimDisk()
    harness = ShardHarness(disk, FakeClock(), options=WalOptions.of_files(1 * MIB))
    for _ in range(5):
        assert harness.write("a", "x" * 400_000).status in (200, 201)
    assert len(disk.listdir("wal")) >= 2


def test_a_steady_writer_never_waits_for_room_or_for_the_next_file() -> None:
    """Both are made with the syncs that are due anyway; appending is a write and nothing else."""
    disk = CountDisk(SimDisk())
    disk.mkdir("wal")
    writer = WalWriter(disk, WalOptions(file_bytes=4 * MIB, step_bytes=1 * MIB), LogEnd())
    frame = Frame(1, 1, 1, 1, bytes(100_000))
    for _ in range(200):
        disk.reset()
        writer.append([frame], now_ms=0)
        assert disk.calls == {"pwrite": 1}
        preparation = writer.preparation()
        if preparation is not None:
            preparation.run()
        writer.sync_now()
        assert writer.prepared() is None
    assert writer.rotations >= 4


def test_a_next_file_that_was_made_for_nothing_is_not_left_behind() -> None:
    disk = SimDisk()
    disk.mkdir("wal")
    writer = WalWriter(disk, WalOptions(file_bytes=1 * MIB, step_bytes=1 * MIB), LogEnd())
    writer.append([Frame(1, 1, 1, 1, bytes(700_000))], now_ms=0)
    preparation = writer.preparation()
    assert preparation is not None
    preparation.run()
    assert len(disk.listdir("wal")) == 2
    writer.close()
    assert len(disk.listdir("wal")) == 1
