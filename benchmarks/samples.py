"""What one phase measured, and what it was given to run with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.processes import Cores

Detail = float | int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One phase of one party. `failures` are requests that were refused, broken or never answered."""

    per_second: float
    p50_us: float | None = None
    p99_us: float | None = None
    requests: int = 0
    failures: int = 0
    seconds: float
    detail: Mapping[str, Detail] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything."""

    rounds: int
    seconds: int
    sustained_seconds: int = 60
    diff_records: int = 50_000
    replay_records: int = 500_000


@dataclass(frozen=True, slots=True)
class Place:
    """A directory that is empty and for this phase alone, and the terms of the run."""

    directory: Path
    scale: Scale
    cores: Cores


class PhaseFailed(Exception):
    """The phase has no result; the message says why and ends up in the table."""


Work = Callable[[Place], Sample]
Headline = Literal["per_second", "p99_us"]
