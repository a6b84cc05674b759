"""The log keeps its promises through a kill and a power cut at every disk operation.

What is promised, per state: see log_ledger.py. Every recovery is also read from every cursor, written to,
crashed again and repeated (log_view.py, explore.py). TOPICS_PROOF=1 looks at many more states.
"""

import os
from collections.abc import Callable
from random import Random

import pytest

from shards import checkpoint, commands, rewriting
from shards.disk import Disk
from tests.fakes.crash_variants import Limits
from tests.fakes.fault_disk import FaultDisk
from tests.fakes.sim_disk import SimDisk
from tests.simulation.explore import Crash, Effort, Journal, Report, Workload, explore
from tests.simulation.log_driver import Driver
from tests.simulation.log_ledger import Ledger
from tests.simulation.log_view import Recovered, recover, same_recovery
from tests.simulation.log_workloads import DAYS, Day

PROOF = os.environ.get("TOPICS_PROOF") == "1"
SEED = int(os.environ.get("TOPICS_SEED", "7"))

THOROUGH = Effort(limits=Limits(torn_cuts_max=4, product_max=64, states_max=256, random_picks=8))
SAMPLED = Effort(
    limits=Limits(torn_ops_max=3, torn_cuts_max=2, product_max=16, states_max=32, random_picks=3),
    inner_share=0.004,
    inner_states=1,
)
EFFORT = THOROUGH if PROOF else SAMPLED


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are grown and followed often, because so little is asked for at once."""
    monkeypatch.setattr(commands, "RESERVE_BYTES", 0)
    monkeypatch.setattr(commands, "_FRAME_OVERHEAD_BYTES", 128)
    # A checkpoint looks at one topic at a time, and a topic soon has files of its own.
    monkeypatch.setattr(checkpoint, "SLICE_NS", 0)
    monkeypatch.setattr(checkpoint, "OWN_FILE_BYTES", 400)
    monkeypatch.setattr(rewriting, "SMALL_PAGES", 2)


def explore_day(
    day: Day, *, effort: Effort = EFFORT, through: Callable[[Disk], Disk] = lambda disk: disk
) -> Report:
    ledger = Ledger()

    def workload(disk: SimDisk, journal: Journal[str]) -> None:
        day(Driver(through(disk), ledger, journal))

    def oracle(recovered: Recovered, journal: Journal[str], crash: Crash) -> None:
        ledger.judge(recovered, crash)

    checked: Workload[str] = workload
    return explore(checked, recover, oracle, seed=SEED, same=same_recovery, effort=effort)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", DAYS)
def test_a_crash_at_any_operation_keeps_every_promise(name: str) -> None:
    report = explore_day(DAYS[name])
    print(f"\n{name}: {report}")
    report.check()
    assert report.points > 40
    assert report.distinct > 100
    assert report.inner_states > 20


@pytest.mark.timeout(600)
@pytest.mark.parametrize("accept_bytes", [97, 400])
def test_a_kill_between_the_parts_of_one_write_loses_only_what_was_not_acked(accept_bytes: int) -> None:
    """A write is made in many parts; a kill between them leaves a batch without its end."""
    faulty: list[FaultDisk] = []

    def through(disk: Disk) -> Disk:
        faulty.append(FaultDisk(disk))
        faulty[0].short(accept_bytes, forever=True)
        return faulty[0]

    few = Effort(
        limits=Limits(torn_ops_max=1, torn_cuts_max=1, product_max=4, states_max=8, random_picks=1),
        inner_share=0.0,
    )
    report = explore_day(DAYS["classes"], effort=few, through=through)
    print(f"\nshort writes of {accept_bytes}: {report}, {faulty[0].fired} short writes")
    report.check()
    assert faulty[0].fired > 15


def random_day(driver: Driver, rng: Random, steps: int) -> None:
    """Commands of all kinds in any order, with syncs that end when they like."""
    names = ["f", "d", "e", "c"]
    patches: list[dict[str, object]] = [
        {"durability": "fsync"},
        {"durability": "disk"},
        {"durability": "ephemeral"},
        {"cap_records": 4},
        {"cap_records": 0},
        {"priority": 3},
    ]
    live = {view.name for view in driver.views.values()}
    for _ in range(steps):
        name = rng.choice(names)
        pick = rng.random()
        if pick < 0.5 or name not in live:
            driver.write(name, rng.choice((1, 1, 2, 5)), size=rng.choice((5, 50, 700)), tag=rng.choice("ab"))
            live.add(name)
        elif pick < 0.6:
            driver.delete(name, match=rng.choice("ab"))
        elif pick < 0.65:
            driver.delete(name, before_seq=rng.randrange(1, 12))
        elif pick < 0.75:
            driver.put(name, **rng.choice(patches))
        elif pick < 0.8:
            driver.drop(name)
            live.discard(name)
        else:
            driver.tick(rng.choice((0, 60, 1500)))
        if rng.random() < 0.6:
            driver.commit()
        if rng.random() < 0.4:
            driver.finish_sync()
        if rng.random() < 0.4:
            driver.sync_done()


@pytest.mark.timeout(1200)
def test_what_one_crash_has_left_the_next_ones_keep() -> None:
    """Random days, one after another on the same disk, each ended by a kill or a power cut."""
    walks, days = (400, 12) if PROOF else (30, 8)
    crashes = 0
    for walk in range(walks):
        rng = Random(SEED * 1000 + walk)
        ledger, journal = Ledger(), Journal[str]()
        disk = SimDisk()
        driver = Driver(disk, ledger, journal, boot_id="boot-1")
        for day in range(days):
            random_day(driver, rng, rng.randrange(4, 16))
            crashes += 1
            if rng.random() < 0.4:
                crash, disk = Crash.PROCESS, disk.process_crash()
            else:
                crash = Crash.MACHINE
                plan = list(disk.crash_plan(rng, SAMPLED.limits))
                disk = rng.choice(plan).build()
            try:
                ledger.judge(recover(disk.process_crash()), crash)
                driver.reopen(disk, boot_id=f"boot-{disk.boot_id}")
            except AssertionError as objection:
                raise AssertionError(f"walk {walk}, day {day}, {crash.value}: {objection}") from objection
    print(f"\nwalks {walks}, crashes {crashes}, seed {SEED}")
    assert crashes == walks * days
