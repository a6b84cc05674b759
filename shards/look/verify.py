"""`topics verify`: whether everything in a data directory is as it was written, and fits together.

A server may run meanwhile. It appends, and a checkpoint removes files; a shard whose files changed under
the look is looked at again before anything is called missing.
"""

import json

from shards.look.check_log import LogCheck
from shards.look.check_store import StoreCheck
from shards.look.datadir import DataDir
from shards.look.files import WAL, Shard, snapshot_numbers
from shards.look.report import Progress, Report
from shards.look.text import number_text
from shards.store.segments import DIRECTORY as SEGMENTS
from shards.store.snapshot import DIRECTORY as SNAPSHOTS
from shards.wal.batch import UnknownFormat

CLEAN, PROBLEMS, CANNOT_LOOK = 0, 1, 2
_TRIES = 5


def verify(data: DataDir, *, as_json: bool) -> int:
    """Prints what was found; the exit code."""
    around, in_use = Report(), False
    shards = [Shard.of(data.path, name) for name in data.shards]
    progress = Progress(sum(_bytes_of(shard) for shard in shards))
    if data.server:
        around.note(
            "LOCK", None, f"a server (pid {data.server}) is running: the files may change under this look"
        )
    elif (data.path / "RUN").exists():
        around.note("RUN", None, "left by a server that was killed")
    if data.complaint:
        around.problem("LAYOUT", None, data.complaint)
    reports = [around]
    lines = []
    for shard in shards:
        report, line, used = _verify_shard(shard, progress, running=bool(data.server))
        in_use = in_use or used
        reports.append(report)
        lines.append(line)
    # A start that was killed leaves shards without a directory, but nothing was written to any by then.
    say = around.problem if in_use else around.note
    for name in data.missing():
        say(name, None, "missing: LAYOUT knows of this shard")
    for name in data.unexpected():
        around.problem(name, None, "LAYOUT knows of no such shard")
    progress.clear()
    return _say(reports, lines, as_json=as_json)


def _verify_shard(shard: Shard, progress: Progress, *, running: bool) -> tuple[Report, str, bool]:
    """What was found, a line about what was looked at, and whether the shard was ever written to."""
    for attempt in range(1, _TRIES + 1):
        report, before = Report(f"{shard.name}/"), _listing(shard)
        line, used = "", True
        try:
            line, used = look_at(shard, report, progress, running=running)
        except FileNotFoundError as error:
            report.problem(_inside(shard, error), None, "it went away during the look")
        except OSError as error:
            report.problem(_inside(shard, error), None, f"cannot be read: {error.strerror}")
        if running:
            report.excuse(snapshot_numbers(shard))
        if not (running and report.count("problem") and _listing(shard) != before) or attempt == _TRIES:
            break
    return report, line, used


def look_at(shard: Shard, report: Report, progress: Progress, *, running: bool = False) -> tuple[str, bool]:
    """Everything about one shard, into `report`. May raise OSError."""
    # Snapshots first: what one of them names is there before it, and the log reaches at least as far.
    store = StoreCheck(shard, report, running=running)
    store.read_snapshots(progress)
    store.check_segments(progress)
    batches, files, used = 0, 0, bool(store.snapshots or store.refused)
    try:
        log = LogCheck(shard, report, store.snapshots)
        log.run(progress)
        batches, files, used = log.batches, len(log.files), used or log.in_use
    except UnknownFormat as error:
        report.unknown(WAL, str(error))
    counted = (
        number_text(batches, "batch", "batches"),
        number_text(files, "log file"),
        number_text(store.pages, "page"),
        number_text(len(store.segments), "segment file"),
        number_text(len(store.snapshots), "snapshot"),
    )
    return f"{shard.name}: {counted[0]} in {counted[1]}, {counted[2]} in {counted[3]}, {counted[4]}", used


def _listing(shard: Shard) -> list[list[str]]:
    return [shard.listed(directory) for directory in (SNAPSHOTS, SEGMENTS, WAL)]


def _bytes_of(shard: Shard) -> int:
    """What there is to read. The log is read twice, but the first time counts for nothing."""
    total = 0
    for directory in (SNAPSHOTS, SEGMENTS, WAL):
        for name in shard.listed(directory):
            try:
                total += shard.size(f"{directory}/{name}")
            except OSError:
                continue
    return total


def _inside(shard: Shard, error: OSError) -> str:
    """The file of an error, as it is called inside of its shard."""
    return str(error.filename or "").rpartition(f"/{shard.name}/")[2] or "."


def _say(reports: list[Report], lines: list[str], *, as_json: bool) -> int:
    problems, notes, unknown = (
        sum(report.count(kind) for report in reports) for kind in ("problem", "note", "unknown")
    )
    for report in reports:
        for finding in report.findings:
            print(finding.json() if as_json else finding.line())
    if as_json:
        print(json.dumps({"kind": "summary", "problems": problems, "notes": notes, "unknown": unknown}))
    else:
        for line in lines:
            print(line)
        print(f"{number_text(problems, 'problem')}, {number_text(notes, 'note')}")
    if problems:
        return PROBLEMS
    return CANNOT_LOOK if unknown else CLEAN
