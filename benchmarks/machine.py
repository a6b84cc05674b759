"""What the figures were measured on: read from the machine, never guessed."""

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.processes import PROJECT_ROOT, Cores

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    date: str
    commit: str
    changed: bool  # tracked files differ from the commit
    cpu: str
    cores: int
    pinning: str
    memory_gib: float
    kernel: str
    filesystem: str
    python: str
    wrk: str
    redis: str
    load_average: str


def describe(data_directory: Path, cores: Cores) -> Machine:
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        commit=_said(["git", "rev-parse", "--short", "HEAD"]) or UNKNOWN,
        changed=bool(_said(["git", "status", "--porcelain", "--untracked-files=no"])),
        cpu=cpu_model(Path("/proc/cpuinfo").read_text()),
        cores=len(os.sched_getaffinity(0)),
        pinning=_pinning(cores),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        kernel=platform.release(),
        filesystem=filesystem(data_directory.resolve(), Path("/proc/mounts").read_text()),
        python=platform.python_version(),
        wrk=_version(["wrk", "-v"]),
        redis=_version(["redis-server", "--version"]),
        load_average=" ".join(f"{load:.2f}" for load in os.getloadavg()),
    )


def cpu_model(cpuinfo: str) -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def filesystem(directory: Path, mounts: str) -> str:
    """The type of the file system that holds `directory`: the longest mount point above it."""
    best, kind = Path(), UNKNOWN
    for line in mounts.splitlines():
        _, point, mounted_kind, *_ = line.split(" ")
        # The table writes a space in a path as \040.
        mount = Path(point.replace("\\040", " "))
        # A later mount on the same point hides the earlier one.
        if directory.is_relative_to(mount) and len(mount.parts) >= len(best.parts):
            best, kind = mount, mounted_kind
    return kind


def _pinning(cores: Cores) -> str:
    if not cores.load:
        return "none (fewer than 4 cores)"
    return f"load on {_listed(cores.load)}, servers on {_listed(cores.server)}"


def _listed(cores: frozenset[int]) -> str:
    return ",".join(map(str, sorted(cores)))


def _version(argv: list[str]) -> str:
    """The first version number in what the tool says of itself; wrk says it with exit code 1."""
    if shutil.which(argv[0]) is None:
        return "not installed"
    found = re.search(r"\d+\.\d+(\.\d+)?", _said(argv))
    return found.group(0) if found else UNKNOWN


def _said(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
