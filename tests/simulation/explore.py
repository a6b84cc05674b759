"""Crash a workload at every disk operation, recover from everything that could be left, and judge it.

Kept here and nowhere else:
  * Before and after each changing disk operation, and once at the end, the workload is "killed" (the
    process dies) and "cut" (the power goes): each disk this can leave is recovered and shown to the
    oracle beside the journal as it stood at that moment.
  * Recovering what was recovered gives the same. So does a recovery after a crash inside recovery,
    which is tried on a seeded sample.
  * An oracle objects by AssertionError. A recovery that raises anything is a failure too.
  * The same seed gives the same states in the same order; a failure names the seed's place.
  * A harness that catches nothing proves nothing: `hunt` runs planted bugs and says which were caught.

`recover` must be a function of the disk alone, and the value it returns must not change afterwards:
it is remembered by the disk's hash.
"""

import enum
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

from tests.fakes.crash_variants import Limits
from tests.fakes.sim_disk import DEFAULT_LIMITS, CrashState, DiskOp, SimDisk

Entry = TypeVar("Entry")
Recovered = TypeVar("Recovered")


class Crash(enum.Enum):
    PROCESS = "killed process"  # everything written is still there
    MACHINE = "power cut"  # what was not synced may be gone, in part or whole


class Journal(Generic[Entry]):
    """What the workload asked for, and what it was promised, in order."""

    def __init__(self) -> None:
        self.issued: list[Entry] = []
        self.acked: list[Entry] = []

    def issue(self, entry: Entry) -> None:
        """Call before the first disk operation that could make `entry` visible."""
        self.issued.append(entry)

    def ack(self, entry: Entry) -> None:
        """Call where the product would answer its client."""
        self.acked.append(entry)

    @property
    def version(self) -> tuple[int, int]:
        return len(self.issued), len(self.acked)


Workload = Callable[[SimDisk, Journal[Entry]], None]
Recover = Callable[[SimDisk], Recovered]
Oracle = Callable[[Recovered, Journal[Entry], Crash], None]


@dataclass(frozen=True, slots=True)
class Failure:
    message: str
    op: DiskOp | None  # None: after the workload's last operation
    crash: Crash
    inside_recovery: DiskOp | None
    files: dict[str, int]  # what recovery found, with sizes
    state_hash: bytes

    def __str__(self) -> str:
        place = "at the end" if self.op is None else f"{self.op.when} op {self.op.number} {self.op.kind}"
        inside = self.inside_recovery
        again = f", again {inside.when} recovery's op {inside.number} {inside.kind}" if inside else ""
        return f"{self.crash.value} {place}{again}: {self.message}; files {self.files}"


@dataclass(slots=True)
class Report:
    seed: int
    points: int = 0  # moments at which the workload was crashed
    states: int = 0  # disks judged, each beside the journal of its moment
    distinct: int = 0  # different disks recovered
    inner_runs: int = 0  # recoveries that were crashed in turn
    inner_points: int = 0
    inner_states: int = 0
    failures: list[Failure] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"points {self.points}, states {self.states}, distinct {self.distinct}; "
            f"inside recovery: points {self.inner_points}, states {self.inner_states}; "
            f"failures {len(self.failures)}, seed {self.seed}"
        )

    def check(self) -> None:
        """Raise with every kept failure."""
        if self.failures:
            raise AssertionError("\n".join([str(self), *map(str, self.failures)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How far to look; the defaults fit a workload of some sixty operations into seconds."""

    limits: Limits = DEFAULT_LIMITS
    inner_share: float = 0.05  # of the judged disks whose recovery writes
    inner_states: int = 4  # power cuts tried at each moment inside recovery
    failures_max: int = 5  # then the workload runs on unobserved


DEFAULT_EFFORT = Effort()
# Enough that a short workload's recovery is crashed too, whatever the share says.
INNER_RUNS_MIN = 8


def explore(
    workload: Workload[Entry],
    recover: Recover[Recovered],
    oracle: Oracle[Recovered, Entry],
    *,
    seed: int,
    same: Callable[[Recovered, Recovered], bool] = operator.eq,
    effort: Effort = DEFAULT_EFFORT,
) -> Report:
    """Run `workload` once and crash it everywhere; `same` says when two recoveries agree."""
    explorer = _Explorer(recover, oracle, same, effort, seed)
    explorer.run(workload)
    return explorer.report


@dataclass(frozen=True, slots=True)
class Canary(Generic[Entry, Recovered]):
    """A planted bug: the same system, broken in one named way."""

    name: str
    workload: Workload[Entry]
    recover: Recover[Recovered]


@dataclass(frozen=True, slots=True)
class Hunt:
    caught: dict[str, Failure]
    missed: list[str]

    def __str__(self) -> str:
        missed = f", missed {', '.join(self.missed)}" if self.missed else ""
        return f"canaries {len(self.caught)}/{len(self.caught) + len(self.missed)}{missed}"


def hunt(
    canaries: Sequence[Canary[Entry, Recovered]],
    oracle: Oracle[Recovered, Entry],
    *,
    seed: int,
    same: Callable[[Recovered, Recovered], bool] = operator.eq,
    effort: Effort = DEFAULT_EFFORT,
) -> Hunt:
    """Explore each planted bug exactly as the healthy system is explored."""
    result = Hunt({}, [])
    for canary in canaries:
        report = explore(canary.workload, canary.recover, oracle, seed=seed, same=same, effort=effort)
        if report.failures:
            result.caught[canary.name] = report.failures[0]
        else:
            result.missed.append(canary.name)
    return result


@dataclass(frozen=True, slots=True)
class _Value(Generic[Recovered]):
    value: Recovered
    wrote: bool  # recovery changed the disk


_Outcome = _Value[Recovered] | Exception


class _Explorer(Generic[Entry, Recovered]):
    def __init__(
        self,
        recover: Recover[Recovered],
        oracle: Oracle[Recovered, Entry],
        same: Callable[[Recovered, Recovered], bool],
        effort: Effort,
        seed: int,
    ) -> None:
        self.report = Report(seed)
        self._recover, self._oracle, self._same, self._effort = recover, oracle, same, effort
        self._rng = Random(seed)
        self._journal: Journal[Entry] = Journal()
        self._disk = SimDisk()
        self._op: DiskOp | None = None
        self._outcomes: dict[tuple[Crash, bytes], _Outcome[Recovered]] = {}
        self._judged: tuple[int, tuple[int, int]] | None = None  # disk and journal as last judged
        self._power_cuts: list[CrashState] = []

    def run(self, workload: Workload[Entry]) -> None:
        self._disk.on_op = self._at
        workload(self._disk, self._journal)
        self._at(None)

    def _at(self, op: DiskOp | None) -> None:
        """One moment of the workload: judge everything a crash could leave now."""
        if self._is_enough():
            return
        self._op = op
        self.report.points += 1
        now = self._disk.op_count, self._journal.version
        if now == self._judged:
            return
        if self._judged is None or self._judged[0] != now[0]:
            self._power_cuts = list(self._disk.crash_plan(self._rng, self._effort.limits))
        self._judged = now
        self._judge(Crash.PROCESS, self._disk.state_hash(), self._disk.process_crash)
        for state in self._power_cuts:
            self._judge(Crash.MACHINE, state.hash, state.build)
            if self._is_enough():
                return

    def _is_enough(self) -> bool:
        return len(self.report.failures) >= self._effort.failures_max

    def _judge(self, crash: Crash, state_hash: bytes, build: Callable[[], SimDisk]) -> None:
        self.report.states += 1
        outcome = self._outcomes.get((crash, state_hash))
        if outcome is None:
            self.report.distinct += 1
            disk = build()
            outcome = self._outcomes[crash, state_hash] = self._run_recovery(disk)
            if isinstance(outcome, _Value) and outcome.wrote:
                again = self._run_recovery(disk.process_crash())
                self._compare(outcome, again, "recovering twice", crash, build, None)
        self._check(outcome, crash, build, None)
        if isinstance(outcome, _Value) and outcome.wrote:
            few = self.report.inner_runs < INNER_RUNS_MIN
            if few or self._rng.random() < self._effort.inner_share:
                self._crash_inside_recovery(outcome, crash, build)

    def _crash_inside_recovery(
        self, outcome: _Value[Recovered], crash: Crash, build: Callable[[], SimDisk]
    ) -> None:
        self.report.inner_runs += 1
        disk = build()
        seen: set[tuple[Crash, bytes]] = set()

        def at(op: DiskOp) -> None:
            self.report.inner_points += 1
            cuts = list(disk.crash_plan(self._rng, self._effort.limits))
            chosen = self._rng.sample(cuts, min(len(cuts), self._effort.inner_states))
            moments: Iterable[tuple[Crash, bytes, Callable[[], SimDisk]]] = (
                (Crash.PROCESS, disk.state_hash(), disk.process_crash),
                *((Crash.MACHINE, state.hash, state.build) for state in chosen),
            )
            for second, state_hash, build_again in moments:
                if (second, state_hash) in seen or self._is_enough():
                    continue
                seen.add((second, state_hash))
                self.report.inner_states += 1
                again = self._run_recovery(build_again())
                worst = Crash.MACHINE if Crash.MACHINE in (crash, second) else Crash.PROCESS
                self._check(again, worst, build_again, op)
                # A killed process leaves unsynced data, which a power cut during recovery may take.
                if worst is crash:
                    self._compare(outcome, again, "a crash inside recovery", worst, build_again, op)

        disk.on_op = at
        self._run_recovery(disk)

    def _run_recovery(self, disk: SimDisk) -> _Outcome[Recovered]:
        started = disk.op_count
        try:
            value = self._recover(disk)
        except Exception as error:
            return error
        return _Value(value, disk.op_count != started)

    def _check(
        self,
        outcome: _Outcome[Recovered],
        crash: Crash,
        build: Callable[[], SimDisk],
        inside: DiskOp | None,
    ) -> None:
        if isinstance(outcome, Exception):
            self._fail(f"recovery raised {outcome!r}", crash, build, inside)
            return
        try:
            self._oracle(outcome.value, self._journal, crash)
        except AssertionError as objection:
            self._fail(str(objection), crash, build, inside)

    def _compare(
        self,
        first: _Value[Recovered],
        second: _Outcome[Recovered],
        what: str,
        crash: Crash,
        build: Callable[[], SimDisk],
        inside: DiskOp | None,
    ) -> None:
        if isinstance(second, Exception):
            self._fail(f"{what}: recovery raised {second!r}", crash, build, inside)
        elif not self._same(first.value, second.value):
            self._fail(f"{what} gave {second.value!r} after {first.value!r}", crash, build, inside)

    def _fail(self, message: str, crash: Crash, build: Callable[[], SimDisk], inside: DiskOp | None) -> None:
        disk = build()
        failure = Failure(message, self._op, crash, inside, disk.tree(), disk.state_hash())
        if not self._is_enough():
            self.report.failures.append(failure)
