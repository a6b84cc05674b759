"""Runs the phases: round by round, row by row, both parties next to each other.

Kept here and nowhere else:
  * The parties take turns in going first, so that neither always meets the machine the other left.
  * A phase has its own processes and its own directory, which is removed when it is over.
  * A phase that fails is an entry of its own; the run goes on.
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import wrk
from benchmarks.processes import Cores
from benchmarks.redis_server import missing_tools
from benchmarks.rows import Row
from benchmarks.samples import PhaseFailed, Place, Sample, Scale, Work

OURS, REDIS = "topics", "redis"
# What a phase may fail with: its tools, its servers, the machine. Errors in this program are not among them.
_FAILURES = (PhaseFailed, RuntimeError, OSError, ValueError)


@dataclass(slots=True)
class Outcome:
    """A row with what each party did in each round; None stands for a phase without a result."""

    row: Row
    samples: dict[str, list[Sample | None]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def values(self, party: str) -> list[float | None]:
        """The headline figure of each round."""
        return [None if s is None else getattr(s, self.row.headline) for s in self.samples.get(party, [])]


def missing() -> dict[str, str]:
    """Per party, why it cannot be measured here (for us: with HTTP load)."""
    reasons = {}
    if not wrk.installed():
        reasons[OURS] = "wrk is not installed: our HTTP rows are skipped (Debian: apt install wrk)"
    if absent := missing_tools():
        names = " and ".join(absent)
        reasons[REDIS] = f"{names} not installed: the Redis column is skipped (Debian: apt install redis)"
    return reasons


def parties(row: Row, absent: dict[str, str]) -> dict[str, Work]:
    """Who is measured in this row."""
    able: dict[str, Work] = {}
    if OURS not in absent or not row.uses_wrk:
        able[OURS] = row.ours
    if row.redis is not None and REDIS not in absent:
        able[REDIS] = row.redis
    return able


def run(
    rows: Sequence[Row],
    scale: Scale,
    *,
    parent: Path,
    cores: Cores,
    absent: dict[str, str],
    tell: Callable[[str], None],
) -> list[Outcome]:
    outcomes = [Outcome(row, {party: [] for party in parties(row, absent)}) for row in rows]
    for number in range(scale.rounds):
        for outcome in outcomes:
            works = list(parties(outcome.row, absent).items())
            for party, work in reversed(works) if number % 2 else works:
                said = f"round {number + 1}/{scale.rounds}  {outcome.row.name}  {party}: "
                try:
                    sample = _phase(work, outcome.row, scale, parent, cores)
                except _FAILURES as failure:
                    outcome.samples[party].append(None)
                    outcome.problems.append(f"{party}, round {number + 1}: {failure}")
                    tell(f"{said}failed: {failure}")
                    continue
                outcome.samples[party].append(sample)
                if sample.failures:
                    outcome.problems.append(
                        f"{party}, round {number + 1}: {sample.failures} of {sample.requests} requests failed"
                    )
                tell(said + _short(sample, outcome.row))
    return outcomes


def _phase(work: Work, row: Row, scale: Scale, parent: Path, cores: Cores) -> Sample:
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes < row.free_bytes_min:
        raise PhaseFailed(f"{free_bytes} bytes are free on the disk, {row.free_bytes_min} are needed")
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=parent, ignore_cleanup_errors=True) as name:
        return work(Place(Path(name), scale, cores))


def _short(sample: Sample, row: Row) -> str:
    if row.headline == "p99_us":
        return f"p99 {sample.p99_us:,.0f} µs"
    return f"{sample.per_second:,.0f} records/s"
