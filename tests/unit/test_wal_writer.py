"""Where the log's files end, and when a new one begins."""

import pytest

from shards.load import load
from shards.wal.writer import MIB, WalOptions
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
