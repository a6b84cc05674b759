"""The table in Markdown and the whole run as JSON. Pure: values in, text out.

Every round is in the JSON; the table shows the median with the lowest and the highest of them. What was
skipped or failed is named below the table.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.machine import Machine
from benchmarks.rows import Row, Target
from benchmarks.runner import OURS, REDIS, Outcome
from benchmarks.samples import Sample, Scale
from benchmarks.stats import Figure, figure, ratios

NONE = "-"
_COLUMNS = (
    "work", "topics", "p50 / p99", "Redis", "p50 / p99",
    "topics : Redis", ": base row", "floor, aim", "standing",
)  # fmt: skip
_NOTES = """\
Records carry 200 bytes. A cell is the median of all rounds, in brackets the lowest and the highest.
Ratios are taken within a round; the parties are measured next to each other and take turns in going first.
Every phase has fresh processes and a fresh data directory.

topics runs with one shard (`TOPICS_WAL_SHARDS=1`) and otherwise with its defaults, loaded by wrk; batches are
written with `?return_seqs=false`. Redis runs with an append-only file, without snapshots and rewrites; XADDs
come from redis-benchmark after a short warm-up, XRANGE and the loud client of `influence` from a client that
only counts the bytes or lines of the answers. Latencies are of a request (for Redis: of a pipeline), as the
load generator states them; wrk adds what a stalled connection would have asked in the meantime, the others do
not, so percentiles of the two are comparable only roughly.

Rows of `influence` are latencies of a client that writes 400 single records a second on 8 connections, the
same one for both parties: lower is better, and a ratio above 1 is slower."""


class Table:
    """The figures of a run, looked up by row."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._by_name = {outcome.row.name: outcome for outcome in outcomes}

    def to_redis(self, outcome: Outcome) -> Figure | None:
        return _quotient(outcome.values(OURS), outcome.values(REDIS))

    def to_base(self, outcome: Outcome) -> Figure | None:
        base = self._by_name.get(outcome.row.base or "")
        return None if base is None else _quotient(outcome.values(OURS), base.values(OURS))

    def standing(self, outcome: Outcome) -> str:
        """Where the median is against floor and aim."""
        target = outcome.row.target
        if target is None:
            return NONE
        held = {
            "redis": self.to_redis(outcome),
            "base": self.to_base(outcome),
            "figure": figure(outcome.values(OURS)),
        }[target.of]
        if held is None:
            return "not measured"
        if held.median >= target.aim:
            return "aim reached"
        return "floor reached" if held.median >= target.floor else "below the floor"

    def line(self, outcome: Outcome) -> str:
        row = outcome.row
        cells = [
            f"{row.title}<br>`{row.name}`",
            _value(row, outcome.values(OURS)),
            latency(outcome.samples.get(OURS, [])),
            f"{_value(row, outcome.values(REDIS))}<br>{row.peer}",
            latency(outcome.samples.get(REDIS, [])),
            _ratio(self.to_redis(outcome)),
            _ratio(self.to_base(outcome)),
            _target(row.target),
            self.standing(outcome),
        ]
        return _cells(cells)


def markdown(outcomes: Sequence[Outcome], machine: Machine, scale: Scale, skipped: Sequence[str]) -> str:
    table = Table(outcomes)
    problems = [f"`{outcome.row.name}`: {problem}" for outcome in outcomes for problem in outcome.problems]
    parts = [
        f"# Benchmark of {machine.date}, commit {machine.commit}{' with changes' if machine.changed else ''}",
        _machine_lines(machine, scale),
        "\n".join([_cells(_COLUMNS), _cells(["---"] * len(_COLUMNS)), *map(table.line, outcomes)]),
        _NOTES,
    ]
    if skipped:
        parts.append("Skipped:\n" + "\n".join(f"- {reason}" for reason in skipped))
    listed = "".join(f"\n- {one_line(problem)}" for problem in problems)
    parts.append(f"Failures:{listed or ' none.'}")
    return "\n\n".join(parts) + "\n"


def as_json(outcomes: Sequence[Outcome], machine: Machine, scale: Scale, skipped: Sequence[str]) -> str:
    table = Table(outcomes)
    rows = [_row_json(table, outcome) for outcome in outcomes]
    run = {"machine": asdict(machine), "scale": asdict(scale), "skipped": list(skipped), "rows": rows}
    return json.dumps(run, indent=1, ensure_ascii=False) + "\n"


def number(value: float) -> str:
    """Three significant digits or whole numbers: 0.123, 4.57, 81.2, 1,234, 1.23 M."""
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def latency(samples: Sequence[Sample | None]) -> str:
    """The medians of both percentiles over the rounds."""
    p50 = figure([None if sample is None else sample.p50_us for sample in samples])
    p99 = figure([None if sample is None else sample.p99_us for sample in samples])
    if p50 is None or p99 is None:
        return NONE
    return f"{duration(p50.median)} / {duration(p99.median)}"


def duration(us: float) -> str:
    return f"{number(us)} µs" if us < 1000 else f"{number(us / 1000)} ms"


def one_line(text: str) -> str:
    """Fit for a list item: a failure may quote pages of a server's log."""
    flat = " ".join(text.split())
    return flat if len(flat) <= 400 else f"{flat[:200]} … {flat[-200:]}"


def _cells(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _value(row: Row, values: Sequence[float | None]) -> str:
    found = figure(values)
    if found is None:
        return NONE
    partly = f", {found.rounds} of {len(values)} rounds" if found.rounds < len(values) else ""
    if row.headline == "p99_us":
        return f"p99 {duration(found.median)} ({duration(found.low)}-{duration(found.high)}{partly})"
    return f"{number(found.median)} /s ({number(found.low)}-{number(found.high)}{partly})"


def _ratio(found: Figure | None) -> str:
    return NONE if found is None else f"**{found.median:.2f}** ({found.low:.2f}-{found.high:.2f})"


def _target(target: Target | None) -> str:
    if target is None:
        return NONE
    of = {"redis": "x Redis", "base": "x base row", "figure": "/s"}[target.of]
    return f"{number(target.floor)}, {number(target.aim)} {of}"


def _quotient(values: list[float | None], bases: list[float | None]) -> Figure | None:
    return figure(ratios(values, bases)) if len(values) == len(bases) else None


def _machine_lines(machine: Machine, scale: Scale) -> str:
    sizes = f"{scale.diff_records:,} records in a topic that is read, {scale.replay_records:,} in a replay"
    lines = [
        f"CPU: {machine.cpu}, {machine.cores} cores, {machine.memory_gib} GiB; pinning: {machine.pinning}",
        f"kernel {machine.kernel}, file system {machine.filesystem}",
        f"load average before the run: {machine.load_average}",
        f"Python {machine.python}, wrk {machine.wrk}, Redis {machine.redis}",
        f"{scale.rounds} rounds, {scale.seconds} s a phase; {sizes}",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _row_json(table: Table, outcome: Outcome) -> dict[str, Any]:
    row = outcome.row
    rounds = {
        party: [None if sample is None else asdict(sample) for sample in samples]
        for party, samples in outcome.samples.items()
    }
    figures = {
        OURS: figure(outcome.values(OURS)),
        REDIS: figure(outcome.values(REDIS)),
        "to_redis": table.to_redis(outcome),
        "to_base": table.to_base(outcome),
    }
    return {
        "name": row.name,
        "title": row.title,
        "peer": row.peer,
        "headline": row.headline,
        "base": row.base,
        "target": None if row.target is None else asdict(row.target),
        "standing": table.standing(outcome),
        "figures": {name: None if found is None else asdict(found) for name, found in figures.items()},
        "rounds": rounds,
        "problems": outcome.problems,
    }
