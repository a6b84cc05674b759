"""What a crash leaves is no problem: `verify` after a kill and a power cut at every disk operation.

Each state is looked at as it was left, and again after a new session has begun on it and was killed.
"""

import os

import pytest

from shards import checkpoint, commands
from shards.look import check_log
from shards.look.files import Shard
from shards.look.report import Progress, Report
from shards.look.verify import look_at
from tests.fakes.crash_variants import Limits
from tests.fakes.sim_disk import SimDisk
from tests.simulation.explore import Crash, Effort, Journal, explore
from tests.simulation.log_driver import Driver
from tests.simulation.log_ledger import Ledger
from tests.simulation.log_view import TINY, open_session
from tests.simulation.log_workloads import DAYS

PROOF = os.environ.get("TOPICS_PROOF") == "1"
SEED = int(os.environ.get("TOPICS_SEED", "7"))
EFFORT = Effort(
    limits=Limits(
        torn_ops_max=3, torn_cuts_max=2, product_max=16, states_max=64 if PROOF else 6, random_picks=3
    ),
    inner_share=0.0,
)
# A power cut in the very write that closes a session cannot be told from damage later on: the next session
# took the batch for good, and says so. Nothing is lost in it, but one cannot know, so it is a problem.
BLAMED = {"sessions": "its trailer does not match its checksum"}
Problems = tuple[str, ...]


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "RESERVE_BYTES", 0)
    monkeypatch.setattr(commands, "_FRAME_OVERHEAD_BYTES", 128)
    monkeypatch.setattr(checkpoint, "SLICE_NS", 0)
    monkeypatch.setattr(checkpoint, "OWN_FILE_BYTES", 400)
    monkeypatch.setattr(check_log, "GRANULE_BYTES", TINY.granule_bytes)


def problems_on(disk: SimDisk) -> Problems:
    report = Report()
    look_at(Shard("shard-00", disk), report, Progress(0))
    return tuple(finding.line() for finding in report.findings if finding.kind != "note")


def problems_now_and_later(disk: SimDisk) -> tuple[Problems, Problems]:
    found = problems_on(disk)
    open_session(disk)
    return found, problems_on(disk)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", DAYS)
def test_what_a_crash_leaves_is_no_problem(name: str) -> None:
    def workload(disk: SimDisk, journal: Journal[str]) -> None:
        DAYS[name](Driver(disk, Ledger(), journal))

    def oracle(found: tuple[Problems, Problems], journal: Journal[str], crash: Crash) -> None:
        unknown = [line for lines in found for line in lines if not line.endswith(BLAMED.get(name, "\0"))]
        assert not unknown, found

    report = explore(workload, problems_now_and_later, oracle, seed=SEED, same=lambda *_: True, effort=EFFORT)
    print(f"\n{name}: {report}")
    report.check()
    assert report.distinct > 50
