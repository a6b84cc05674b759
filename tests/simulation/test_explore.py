"""The harness sees every planted bug in a toy log, and finds nothing in a healthy one."""

from collections.abc import Callable
from zlib import crc32

import pytest

from tests.fakes.sim_disk import SimDisk
from tests.simulation import toy_log
from tests.simulation.explore import Canary, Crash, Effort, Journal, explore, hunt
from tests.simulation.toy_log import Bug, ToyLog, read_all

SEED = 20


def toy_workload(bug: Bug | None = None) -> Callable[[SimDisk, Journal[bytes]], None]:
    def run(disk: SimDisk, journal: Journal[bytes]) -> None:
        log = ToyLog(disk, bug)
        bodies = (b"%d:" % index + bytes([65 + index % 26]) * (40 * index % 700) for index in range(100))
        for group_size in (1, 4, 3):
            for _ in range(3):
                log.append([next(bodies) for _ in range(group_size)], journal)
            log.rotate()
        log.append([next(bodies)], journal)

    return run


def test_the_toy_log_keeps_its_promise_at_every_operation_and_every_planted_bug_is_caught() -> None:
    report = explore(toy_workload(), toy_log.recover, toy_log.oracle, seed=SEED)
    canaries = [Canary(bug.value, toy_workload(bug), toy_log.recover) for bug in Bug]
    caught = hunt(canaries, toy_log.oracle, seed=SEED)
    print(f"\ntoy log: {report}; {caught}")
    report.check()
    assert report.points > 100
    assert report.distinct > 500
    assert report.inner_states > 50
    assert caught.missed == []
    assert len(caught.caught) == 4
    assert all("acked" in failure.message for failure in caught.caught.values()), caught.caught


def test_a_healthy_system_is_not_reported_as_a_caught_canary() -> None:
    result = hunt([Canary("healthy", toy_workload(), toy_log.recover)], toy_log.oracle, seed=SEED)
    assert str(result) == "canaries 0/1, missed healthy"


def test_the_same_seed_explores_the_same_states() -> None:
    first, second = (
        explore(toy_workload(), toy_log.recover, toy_log.oracle, seed=seed) for seed in (SEED, SEED)
    )
    assert first == second


def one_record(disk: SimDisk, journal: Journal[bytes]) -> None:
    ToyLog(disk).append([b"one"], journal)


def test_a_recovery_that_raises_is_a_failure() -> None:
    def refuse(disk: SimDisk) -> tuple[bytes, ...]:
        raise RuntimeError("cannot recover")

    report = explore(one_record, refuse, toy_log.oracle, seed=SEED, effort=Effort(failures_max=2))
    assert len(report.failures) == 2
    with pytest.raises(AssertionError, match="cannot recover"):
        report.check()


def test_a_recovery_that_differs_the_second_time_is_a_failure() -> None:
    def forgetful(disk: SimDisk) -> tuple[bytes, ...]:
        bodies = toy_log.recover(disk)
        if "tried" in disk.listdir(""):
            return (*bodies, b"from the second try")
        disk.close(disk.open("tried", create=True))
        return bodies

    report = explore(one_record, forgetful, toy_log.oracle, seed=SEED)
    assert any("recovering twice" in failure.message for failure in report.failures)


def test_a_crash_inside_recovery_that_loses_records_is_a_failure() -> None:
    def rewrites_in_place(disk: SimDisk) -> tuple[bytes, ...]:
        bodies = toy_log.recover(disk)
        if "log-1" in (disk.listdir("toy") if "toy" in disk.listdir("") else []):
            fd = disk.open(toy_log.log_path(1), write=True)
            disk.truncate(fd, 0)
            disk.pwrite(fd, b"".join(map(toy_log.encode, bodies)), 0)
            disk.fdatasync(fd)
            disk.close(fd)
        return bodies

    every = Effort(inner_share=1.0, failures_max=1000)
    report = explore(one_record, rewrites_in_place, toy_log.oracle, seed=SEED, effort=every)
    inside = [failure.message for failure in report.failures if failure.inside_recovery]
    assert len(inside) == len(report.failures)
    assert any(message.startswith("a crash inside recovery gave ()") for message in inside)
    assert "lost 1 acked" in inside


def test_what_is_acked_after_a_write_survives_a_killed_process_only() -> None:
    def acked_after_write(disk: SimDisk, journal: Journal[bytes]) -> None:
        ToyLog(disk, Bug.ACK_BEFORE_SYNC).append([b"one"], journal)

    def forgiving(recovered: tuple[bytes, ...], journal: Journal[bytes], crash: Crash) -> None:
        if crash is Crash.PROCESS:
            toy_log.oracle(recovered, journal, crash)

    explore(acked_after_write, toy_log.recover, forgiving, seed=SEED).check()
    strict = explore(acked_after_write, toy_log.recover, toy_log.oracle, seed=SEED)
    assert {failure.crash for failure in strict.failures} == {Crash.MACHINE}


def test_what_is_acked_before_its_write_is_lost_even_to_a_killed_process() -> None:
    def acked_too_soon(disk: SimDisk, journal: Journal[bytes]) -> None:
        log = ToyLog(disk)
        journal.ack(b"one")
        log.append([b"one"], journal)

    report = explore(
        acked_too_soon, toy_log.recover, toy_log.oracle, seed=SEED, effort=Effort(failures_max=1000)
    )
    assert {failure.crash for failure in report.failures} == set(Crash)


def test_a_torn_record_is_never_taken_for_a_whole_one() -> None:
    def trusts_length_alone(disk: SimDisk) -> tuple[bytes, ...]:
        path = toy_log.log_path(1)
        data = read_all(disk, path) if path in disk.tree() else b""
        length = int.from_bytes(data[:4], "little")
        return (data[8 : 8 + length],) if length and len(data) >= 8 + length else ()

    report = explore(one_record, trusts_length_alone, toy_log.oracle, seed=SEED)
    assert any("never written" in failure.message for failure in report.failures)
    assert crc32(b"\3\0\0\0one") == toy_log.HEAD.unpack_from(toy_log.encode(b"one"))[1]
