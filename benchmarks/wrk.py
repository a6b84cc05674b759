"""wrk as the load generator for HTTP: its scripts, its command line and what it reports.

The script reports in one JSON line, which is all that is read. Its percentiles are wrk's own.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import Child

MARK = "BENCH "
_TIMEOUT_SECONDS = 20

_DONE = (
    """
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\\n"""
    + MARK
    + """{"requests":%d,"duration_us":%d,"bytes":%d,"p50_us":%d,"p99_us":%d,'
    .. '"connect":%d,"read":%d,"write":%d,"timeout":%d,"status":%d}\\n',
    summary.requests, summary.duration, summary.bytes, latency:percentile(50), latency:percentile(99),
    e.connect, e.read, e.write, e.timeout, e.status))
end
"""
)


@dataclass(frozen=True, slots=True)
class Report:
    requests: int
    seconds: float
    p50_us: float
    p99_us: float
    refused: int  # answered with a status of 400 or more
    broken: int  # not answered: connection or time-out

    @property
    def answered_well_per_second(self) -> float:
        return (self.requests - self.refused) / self.seconds


def installed() -> bool:
    return shutil.which("wrk") is not None


def script(path: str, bodies: Sequence[Path]) -> str:
    """Lua that posts these bodies in turn; a single one is formatted once and costs nothing per request."""
    lines = [
        'wrk.method = "POST"',
        f"wrk.path = {json.dumps(path)}",
        'wrk.headers["Content-Type"] = "application/json"',
        "local function content(name)",
        '  local file = assert(io.open(name, "rb"))',
        '  local text = file:read("*a")',
        "  file:close()",
        "  return text",
        "end",
    ]
    if len(bodies) == 1:
        lines.append(f"wrk.body = content({json.dumps(str(bodies[0]))})")
    else:
        names = ", ".join(json.dumps(str(body)) for body in bodies)
        lines += [
            f"local names = {{{names}}}",
            "local requests, at = {}, 0",
            "function init(args)",
            "  for i, name in ipairs(names) do",
            "    requests[i] = wrk.format(nil, nil, nil, content(name))",
            "  end",
            "end",
            "function request()",
            "  at = at % #requests + 1",
            "  return requests[at]",
            "end",
        ]
    return "\n".join(lines) + _DONE


def parse(output: str) -> Report:
    """The report in what wrk printed."""
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    if len(lines) != 1:
        raise ValueError(f"wrk gave {len(lines)} reports instead of one: {output[-1000:]!r}")
    said: dict[str, Any] = json.loads(lines[0].removeprefix(MARK))
    if said["requests"] <= 0 or said["duration_us"] <= 0:
        raise ValueError(f"wrk had no answers: {lines[0]}")
    return Report(
        requests=said["requests"],
        seconds=said["duration_us"] / 1e6,
        p50_us=said["p50_us"],
        p99_us=said["p99_us"],
        refused=said["status"],
        broken=said["connect"] + said["read"] + said["write"] + said["timeout"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One run of wrk against one path."""

    port: int
    path: str
    bodies: Sequence[bytes]
    connections: int
    seconds: int
    threads: int = 1

    def start(self, directory: Path, name: str, cores: frozenset[int]) -> Child:
        files = [directory / f"{name}-{number}.json" for number in range(len(self.bodies))]
        for file, body in zip(files, self.bodies, strict=True):
            file.write_bytes(body)
        lua = directory / f"{name}.lua"
        lua.write_text(script(self.path, files))
        threads = min(self.threads, self.connections)
        argv = [
            "wrk", "--script", str(lua), "--threads", str(threads), "--connections", str(self.connections),
            "--duration", f"{self.seconds}s", "--timeout", f"{_TIMEOUT_SECONDS}s",
            f"http://127.0.0.1:{self.port}",
        ]  # fmt: skip
        return Child(argv, output=directory / f"{name}.out", cores=cores)

    def run(self, directory: Path, name: str, cores: frozenset[int]) -> Report:
        with self.start(directory, name, cores) as child:
            return finished(child, self.seconds)


def finished(child: Child, seconds: int) -> Report:
    if code := child.finish(seconds + _TIMEOUT_SECONDS + 10):
        raise RuntimeError(f"wrk ended with {code}: {child.output()[-1000:]}")
    return parse(child.output())
