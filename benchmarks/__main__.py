"""`python -m benchmarks`: measure, print the table, keep it as Markdown and JSON.

A benchmark is not a test: it fails only when nothing could be measured, never because a machine was slow.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine, report, runner
from benchmarks.processes import PROJECT_ROOT, share_out
from benchmarks.rows import ROWS, Row, chosen
from benchmarks.samples import Scale

RESULTS = PROJECT_ROOT / "benchmarks" / "results"
_QUICK_REPLAY_RECORDS = 100_000
_QUICK_DIFF_RECORDS = 10_000


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    # An exception, so that a run which is asked to end takes its servers with it.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    rows = chosen(options.rows, quick=options.quick, long=options.long)
    if not rows:
        names = "\n".join(f"  {row.name}" for row in ROWS)
        sys.stderr.write(f"no row matches {options.rows!r}; the rows are\n{names}\n")
        return 2
    scale = _scale(options)
    cores = share_out(frozenset(os.sched_getaffinity(0)))
    absent = runner.missing()
    skipped = [*absent.values(), *_left_out(rows)]
    for reason in skipped:
        _tell(reason)
    # Looked at before the run: the load that the run itself makes says nothing.
    found = machine.describe(options.dir, cores)
    began = time.monotonic()
    outcomes = runner.run(rows, scale, parent=options.dir, cores=cores, absent=absent, tell=_tell)
    table = report.markdown(outcomes, found, scale, skipped)
    changed = "-changed" if found.changed else ""
    path = _free_name(options.out, f"{found.date}-{found.commit}{changed}")
    path.with_name(f"{path.name}.md").write_text(table)
    path.with_name(f"{path.name}.json").write_text(report.as_json(outcomes, found, scale, skipped))
    _tell(f"\n{table}\n{time.monotonic() - began:.0f} s; kept as {path}.md and {path}.json")
    measured = any(value is not None for outcome in outcomes for value in outcome.values(runner.OURS))
    return 0 if measured else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round of the main rows")
    parser.add_argument("--rows", metavar="PATTERN", help="only rows whose name contains or matches this")
    parser.add_argument("--rounds", type=_positive, help="how often each point is measured (3)")
    parser.add_argument("--seconds", type=_positive, help="how long each point is measured (3)")
    parser.add_argument("--long", action="store_true", help="also the rows that take a minute each")
    parser.add_argument(
        "--dir", type=Path, default=Path(tempfile.gettempdir()),
        help="where the servers keep their data; it decides which disk is measured (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go (benchmarks/results)")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _scale(options: argparse.Namespace) -> Scale:
    if options.quick:
        return Scale(
            rounds=options.rounds or 1,
            seconds=options.seconds or 1,
            diff_records=_QUICK_DIFF_RECORDS,
            replay_records=_QUICK_REPLAY_RECORDS,
        )
    return Scale(rounds=options.rounds or 3, seconds=options.seconds or 3)


def _left_out(rows: Sequence[Row]) -> list[str]:
    names = [row.name for row in ROWS if row not in rows]
    return [f"rows not part of this run: {', '.join(names)}"] if names else []


def _free_name(directory: Path, name: str) -> Path:
    """A name that no earlier result has: results are kept."""
    directory.mkdir(parents=True, exist_ok=True)
    taken, number = directory / name, 1
    while taken.with_name(f"{taken.name}.md").exists():
        number += 1
        taken = directory / f"{name}-{number}"
    return taken


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
