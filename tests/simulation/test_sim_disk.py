"""The simulated disk forgets exactly what a real one may forget; faults fire, counts count."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.disk import Disk, RealDisk
from tests.fakes.count_disk import CountDisk
from tests.fakes.crash_variants import SECTOR_BYTES, Limits, torn_cuts
from tests.fakes.fault_disk import FaultDisk
from tests.fakes.sim_disk import DiskOp, SimDisk
from tests.simulation.toy_log import read_all

SEED = 20


# -- the disk while nothing goes wrong --

NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a"])
DIRECTORIES = st.sampled_from(["d", "d/e", "f"])
STEP = st.one_of(
    st.tuples(st.just("create"), NAMES),
    st.tuples(st.just("pwrite"), NAMES, st.binary(max_size=40), st.integers(0, 60)),
    st.tuples(st.just("truncate"), NAMES, st.integers(0, 60)),
    st.tuples(st.just("fallocate"), NAMES, st.integers(0, 60), st.integers(1, 40)),
    st.tuples(st.just("fdatasync"), NAMES),
    st.tuples(st.just("rename"), st.one_of(NAMES, DIRECTORIES), st.one_of(NAMES, DIRECTORIES)),
    st.tuples(st.just("unlink"), NAMES),
    st.tuples(st.just("mkdir"), DIRECTORIES),
    st.tuples(st.just("fsync_dir"), st.one_of(DIRECTORIES, st.just(""))),
    st.tuples(st.just("listdir"), st.one_of(DIRECTORIES, NAMES, st.just(""))),
    st.tuples(st.just("pread"), NAMES, st.integers(0, 80), st.integers(0, 80)),
    st.tuples(st.just("size"), NAMES),
)
Step = tuple[object, ...]


def perform(disk: Disk, step: Step) -> object:
    """Do one step with an fd of its own where it needs one; the answer, or the errno."""
    kind, first, *rest = str(step[0]), *step[1:]
    try:
        if kind == "create":
            disk.close(disk.open(str(first), create=True))
            return None
        if kind in ("rename", "unlink", "mkdir", "fsync_dir", "listdir"):
            return getattr(disk, kind)(first, *rest)
        fd = disk.open(str(first), write=True)
        try:
            return getattr(disk, kind)(fd, *rest)
        finally:
            disk.close(fd)
    except OSError as error:
        return error.errno


@given(st.lists(STEP, max_size=40))
def test_the_simulated_disk_answers_like_a_real_one(steps: list[Step]) -> None:
    with TemporaryDirectory() as root:
        real, simulated = RealDisk(Path(root)), SimDisk()
        for disk in (real, simulated):
            disk.mkdir("d/e")
        for step in steps:
            assert perform(simulated, step) == perform(real, step), step
        assert simulated.tree() == {
            str(path.relative_to(root)): path.stat().st_size
            for path in Path(root).rglob("*")
            if path.is_file()
        }


def test_an_unlinked_file_stays_usable_through_its_open_fd() -> None:
    disk = SimDisk()
    fd = disk.open("a", create=True)
    disk.unlink("a")
    disk.pwrite(fd, b"still here", 0)
    assert disk.pread(fd, 20, 0) == b"still here"
    assert disk.listdir("") == []


@pytest.mark.parametrize("use", [lambda d, fd: d.pread(fd, 1, 0), lambda d, fd: d.close(fd)])
def test_a_closed_fd_is_refused_and_never_reused(use: Callable[[SimDisk, int], object]) -> None:
    disk = SimDisk()
    fd = disk.open("a", create=True)
    disk.close(fd)
    assert disk.open("a") != fd
    with pytest.raises(OSError, match="Bad file descriptor"):
        use(disk, fd)


def test_a_file_opened_for_reading_cannot_be_written() -> None:
    disk = SimDisk()
    disk.close(disk.open("a", create=True))
    fd = disk.open("a")
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.pwrite(fd, b"x", 0)


def test_every_changing_operation_is_numbered_and_seen_before_and_after() -> None:
    disk, seen = SimDisk(), list[DiskOp]()
    disk.on_op = seen.append
    fd = disk.open("a", create=True)
    disk.pwrite(fd, b"x", 0)
    disk.pread(fd, 1, 0)
    disk.fdatasync(fd)
    disk.fsync_dir("")
    kinds = ["create", "pwrite", "fdatasync", "fsync_dir"]
    assert [(op.kind, op.when) for op in seen] == [(k, when) for k in kinds for when in ("before", "after")]
    assert [op.number for op in seen[::2]] == [op.number for op in seen[1::2]] == [1, 2, 3, 4]
    assert disk.op_count == 4


# -- what a crash leaves --


def synced_file(disk: SimDisk, path: str, content: bytes) -> int:
    fd = disk.open(path, create=True)
    disk.pwrite(fd, content, 0)
    disk.fdatasync(fd)
    disk.fsync_dir("")
    return fd


def contents_after_crash(disk: SimDisk, path: str) -> set[bytes | None]:
    return {
        read_all(state, path) if path in state.tree() else None for state in disk.crash_states(Random(SEED))
    }


def trees_after_crash(disk: SimDisk) -> set[tuple[str, ...]]:
    return {tuple(state.tree()) for state in disk.crash_states(Random(SEED))}


def test_synced_data_under_an_unsynced_name_may_vanish() -> None:
    disk = SimDisk()
    fd = disk.open("a", create=True)
    disk.pwrite(fd, b"data", 0)
    disk.fdatasync(fd)
    assert contents_after_crash(disk, "a") == {None, b"data"}
    disk.fsync_dir("")
    assert contents_after_crash(disk, "a") == {b"data"}


def test_a_synced_name_promises_nothing_about_its_data() -> None:
    disk = SimDisk()
    fd = disk.open("a", create=True)
    disk.fsync_dir("")
    disk.pwrite(fd, b"data", 0)
    assert {b"", b"d", b"dat", b"data", bytes(4), b"d\0\0\0"} <= contents_after_crash(disk, "a")


def test_a_file_in_a_directory_whose_own_name_was_not_synced_may_vanish() -> None:
    disk = SimDisk()
    disk.mkdir("d")
    fd = disk.open("d/a", create=True)
    disk.fdatasync(fd)
    disk.fsync_dir("d")
    assert trees_after_crash(disk) == {(), ("d/a",)}
    disk.fsync_dir("")
    assert trees_after_crash(disk) == {("d/a",)}


def test_every_subset_of_unsynced_name_changes_is_a_state() -> None:
    disk = SimDisk()
    for name in ("x", "y", "z"):
        synced_file(disk, name, name.encode())
    disk.unlink("x")
    disk.rename("y", "w")
    disk.close(disk.open("new", create=True))
    expected = {
        tuple(sorted((*(("x",) if x else ()), "w" if moved else "y", "z", *(("new",) if new else ()))))
        for x in (False, True)
        for moved in (False, True)
        for new in (False, True)
    }
    assert trees_after_crash(disk) == expected


def test_a_rename_between_directories_needs_both_directories_synced() -> None:
    disk = SimDisk()
    disk.mkdir("d")
    disk.mkdir("e")
    disk.close(disk.open("d/a", create=True))
    disk.fsync_dir("d")
    disk.fsync_dir("")
    disk.rename("d/a", "e/a")
    assert trees_after_crash(disk) == {("d/a",), ("e/a",)}
    disk.fsync_dir("d")
    assert trees_after_crash(disk) == {(), ("e/a",)}
    disk.fsync_dir("e")
    assert trees_after_crash(disk) == {("e/a",)}


def test_unsynced_writes_leave_every_prefix_and_one_reordered_write() -> None:
    disk = SimDisk()
    fd = synced_file(disk, "a", b"")
    for index, byte in enumerate((b"1", b"2", b"3")):
        disk.pwrite(fd, byte * 2, index * 2)
    found = contents_after_crash(disk, "a")
    assert {b"", b"11", b"1122", b"112233"} <= found
    assert {b"\0\x0022", b"\0\x002233", b"11\0\x0033", b"\0\0\0\x0033"} <= found
    assert {b"11\0\0", b"1122\0\0"} <= found  # the size arrived, the data did not


def test_a_large_write_is_torn_at_sector_boundaries_and_may_hold_garbage() -> None:
    disk = SimDisk()
    fd = synced_file(disk, "a", b"s" * 100)
    data = b"w" * (4 * SECTOR_BYTES)
    disk.pwrite(fd, data, 100)
    found = contents_after_crash(disk, "a")
    for boundary in range(1, 5):
        assert b"s" * 100 + b"w" * (boundary * SECTOR_BYTES - 100) in found
    assert (
        b"s" * 100 + bytes(SECTOR_BYTES - 100) + b"w" * (3 * SECTOR_BYTES + 100) in found
    )  # first sector lost
    garbage = [content for content in found if content and len(set(content)) > 50]
    assert any(len(content) == SECTOR_BYTES for content in garbage)  # in the torn sector
    assert any(len(content) == 100 + len(data) for content in garbage)  # and all over
    assert all(content and content.startswith(b"s" * 100) for content in found)  # the synced part, always


def test_the_number_of_cuts_of_a_huge_write_is_bounded() -> None:
    cuts = torn_cuts(3, 1 << 20, 8)
    assert len(cuts) < 20
    assert {SECTOR_BYTES - 3, (1 << 20) - 3} <= set(cuts)
    assert torn_cuts(0, 1, 8) == ()


def test_equal_disks_are_one_state_however_they_came_about() -> None:
    disk = SimDisk()
    fd = synced_file(disk, "a", b"x")
    disk.pwrite(fd, b"y", 0)
    disk.pwrite(fd, b"y", 0)
    disk.fallocate(fd, 0, 1)
    hashes = [state.hash for state in disk.crash_plan(Random(SEED))]
    assert len(hashes) == len(set(hashes)) == 3  # the old byte, the new one, or garbage


def test_writing_what_is_there_already_changes_nothing() -> None:
    disk = SimDisk()
    fd = synced_file(disk, "a", b"same" * 300)
    disk.pwrite(fd, b"same" * 200 + b"new!", 0)
    found = contents_after_crash(disk, "a")
    assert len(found) > 2
    assert all(content and content[:800] == b"same" * 200 for content in found)
    assert all(content and content[804:] == b"same" * 99 for content in found)


def test_an_unsynced_truncation_may_come_back_whole() -> None:
    disk = SimDisk()
    fd = synced_file(disk, "a", b"abcdef")
    disk.truncate(fd, 2)
    assert contents_after_crash(disk, "a") == {b"abcdef", b"ab"}


def test_preallocated_space_reads_as_zeros_and_is_durable_only_after_a_sync() -> None:
    disk = SimDisk()
    fd = synced_file(disk, "a", b"ab")
    disk.fallocate(fd, 0, 4)
    assert disk.pread(fd, 10, 0) == b"ab\0\0"
    assert contents_after_crash(disk, "a") == {b"ab", b"ab\0\0"}
    disk.fdatasync(fd)
    assert contents_after_crash(disk, "a") == {b"ab\0\0"}


def test_a_killed_process_loses_nothing_but_a_later_power_cut_still_can() -> None:
    disk = SimDisk()
    fd = disk.open("a", create=True)
    disk.pwrite(fd, b"data", 0)
    left = disk.process_crash()
    assert (read_all(left, "a"), left.open_count, left.boot_id) == (b"data", 0, disk.boot_id)
    assert left.state_hash() == disk.state_hash()
    assert {None, b"", b"data"} <= contents_after_crash(left, "a")
    disk.pwrite(fd, b"more", 4)
    assert read_all(left, "a") == b"data", "the new process has a disk of its own"


@settings(max_examples=60)
@given(st.lists(STEP, max_size=12), st.integers(0, 3))
def test_crash_states_are_distinct_durable_closed_and_contain_the_extremes(
    steps: list[Step], seed: int
) -> None:
    disk = SimDisk()
    disk.mkdir("d/e")
    for step in steps:
        perform(disk, step)
    small = Limits(product_max=16, states_max=64, random_picks=2)
    states = list(disk.crash_states(Random(seed), small))
    hashes = [state.state_hash() for state in states]
    assert len(set(hashes)) == len(hashes)
    assert hashes == [plan.hash for plan in disk.crash_plan(Random(seed), small)]
    assert disk.state_hash() in hashes
    for state in states:
        assert state.open_count == 0
        assert state.boot_id == disk.boot_id + 1
        assert [again.state_hash() for again in state.crash_states()] == [state.state_hash()]


@settings(max_examples=60)
@given(st.lists(STEP, max_size=12), st.lists(STEP, max_size=6))
def test_what_was_synced_in_full_survives_until_it_is_touched_again(
    before: list[Step], after: list[Step]
) -> None:
    disk = SimDisk()
    for step in before:
        perform(disk, step)
    for path in disk.tree():
        perform(disk, ("fdatasync", path))
    for directory in directories(disk):
        disk.fsync_dir(directory)
    assert {state.state_hash() for state in disk.crash_states()} == {disk.state_hash()}
    synced = {path: read_all(disk, path) for path in disk.tree()}
    touched = {str(name) for step in after for name in step[1:] if isinstance(name, str)}
    for step in after:
        perform(disk, step)
    untouched = {path for path in synced if not any(f"{path}/".startswith(f"{name}/") for name in touched)}
    for state in disk.crash_states(limits=Limits(product_max=16, states_max=64, random_picks=2)):
        for path in untouched:
            assert read_all(state, path) == synced[path]


def directories(disk: SimDisk, path: str = "") -> Iterator[str]:
    yield path
    for name in disk.listdir(path):
        below = f"{path}/{name}".lstrip("/")
        if below not in disk.tree():
            yield from directories(disk, below)


# -- faults and counts --


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("forever", [False, True])
def test_a_fault_hits_call_n_and_is_counted(error: int, forever: bool) -> None:
    disk = FaultDisk(SimDisk())
    fd = disk.open("a", create=True)
    fault = disk.fail("pwrite", error, nth=3, forever=forever)
    outcomes = []
    for _ in range(5):
        try:
            outcomes.append(disk.pwrite(fd, b"x", 0))
        except OSError as raised:
            outcomes.append(-(raised.errno or 0))
    assert outcomes == ([1, 1, -error, -error, -error] if forever else [1, 1, -error, 1, 1])
    assert disk.fired == fault.fired == (3 if forever else 1)
    disk.heal()
    assert disk.pwrite(fd, b"x", 0) == 1


def test_a_short_write_leaves_its_beginning_and_says_how_much() -> None:
    disk = FaultDisk(SimDisk())
    fd = disk.open("a", create=True)
    disk.short(3)
    assert disk.pwrite(fd, memoryview(b"abcdef"), 0) == 3
    assert disk.pread(fd, 10, 0) == b"abc"
    disk.fail("pwrite", errno.ENOSPC, accept_bytes=2)
    with pytest.raises(OSError, match="No space left"):
        disk.pwrite(fd, b"defg", 3)
    assert disk.pread(fd, 10, 0) == b"abcde"
    assert disk.fired == 2


def test_a_fault_can_be_limited_to_one_path() -> None:
    disk = FaultDisk(SimDisk())
    first, second = disk.open("a.wal", create=True), disk.open("b.snap", create=True)
    disk.fail("fdatasync", errno.EIO, path_part=".snap")
    disk.fdatasync(first)
    with pytest.raises(OSError, match="Input/output error"):
        disk.fdatasync(second)


def test_an_unknown_kind_of_fault_is_refused_because_it_could_never_fire() -> None:
    with pytest.raises(ValueError, match="'fsync'"):
        FaultDisk(SimDisk()).fail("fsync", errno.EIO)


def test_a_sync_that_succeeds_after_a_failed_one_proves_nothing() -> None:
    simulated = SimDisk()
    disk = FaultDisk(CountDisk(simulated))
    fd = synced_file(simulated, "a", b"old")
    disk.pwrite(fd, b"new", 0)
    disk.fail("fdatasync", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk.fdatasync(fd)
    disk.fdatasync(fd)
    assert disk.pread(fd, 3, 0) == b"new"
    assert contents_after_crash(simulated, "a") == {b"old"}


def test_calls_and_accepted_bytes_are_counted_by_kind() -> None:
    faulty = FaultDisk(SimDisk())
    faulty.short(4)
    disk = CountDisk(faulty)
    fd = disk.open("a", create=True)
    disk.pwrite(fd, b"abcdef", 0)
    disk.pwrite(fd, b"ef", 4)
    disk.fdatasync(fd)
    disk.pread(fd, 100, 0)
    assert disk.calls == {"create": 1, "pwrite": 2, "fdatasync": 1, "pread": 1}
    assert disk.bytes == {"pwrite": 6, "pread": 6}
    disk.reset()
    assert not disk.calls
