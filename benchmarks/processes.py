"""Processes of a phase: started in a group of their own, pinned where that helps, always ended.

Only groups that were started here are ever signalled. Every wait has an end.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

PROJECT_ROOT = Path(__file__).resolve().parent.parent
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
_POLL_SECONDS = 0.01
# With fewer cores a pinned server would lose more to its own processes than it gains.
_PINNING_CORES_MIN = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cores:
    """Where servers and load generators run; empty sets leave it to the kernel."""

    server: frozenset[int] = frozenset()
    load: frozenset[int] = frozenset()


def share_out(available: frozenset[int]) -> Cores:
    """A quarter of the cores for the load, the others for the server."""
    if len(available) < _PINNING_CORES_MIN:
        return Cores()
    ordered = sorted(available)
    load = frozenset(ordered[-(len(ordered) // 4) :])
    return Cores(available - load, load)


@contextmanager
def _on(cores: frozenset[int]) -> Iterator[None]:
    """What is started inside inherits these cores from this process."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Child:
    """A process with its descendants; leaving the `with` block ends all of them."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        output: Path,
        cores: frozenset[int],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._output = output
        with output.open("ab") as sink, _on(cores):
            self.process = subprocess.Popen(
                list(argv),
                cwd=PROJECT_ROOT,
                env=None if environ is None else dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def wait_for(self, what: str, look: Callable[[], T | None]) -> T:
        """The first thing `look` finds, unless the process ends or the time is over before."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            found = look()
            if found is not None:
                return found
            with suppress(subprocess.TimeoutExpired):
                code = self.process.wait(_POLL_SECONDS)
                raise RuntimeError(f"ended with {code} before {what}: {self.output()[-2000:]}")
        raise RuntimeError(f"{what}: not within {START_SECONDS_MAX} s: {self.output()[-2000:]}")

    def finish(self, within_seconds: float) -> int:
        """Wait for it to end by itself; its exit code."""
        try:
            return self.process.wait(within_seconds)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"still running after {within_seconds} s: {self.process.args!r}") from None

    def stop(self) -> None:
        """Ask it to end, and see that it did."""
        self.process.send_signal(signal.SIGTERM)
        code = self.finish(STOP_SECONDS_MAX)
        if code not in (0, -signal.SIGTERM):
            raise RuntimeError(f"ended with {code} at SIGTERM: {self.output()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL for the whole group, also for what outlived its leader."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS_MAX)


def start_client(module: str, job: object, *, output: Path, cores: frozenset[int]) -> Child:
    """A client of ours, which takes its job as JSON and gives its result as JSON."""
    return Child([sys.executable, "-m", module, json.dumps(job)], output=output, cores=cores)


def client_result(child: Child, within_seconds: float) -> dict[str, Any]:
    if code := child.finish(within_seconds):
        raise RuntimeError(f"the client ended with {code}: {child.output()[-1000:]}")
    result: dict[str, Any] = json.loads(child.output())
    return result


def run(argv: Sequence[str], *, output: Path, cores: frozenset[int], within_seconds: float) -> str:
    """Run to the end; what it said. An exit code other than 0 is an error."""
    with Child(argv, output=output, cores=cores) as child:
        if code := child.finish(within_seconds):
            raise RuntimeError(f"{argv[0]} ended with {code}: {child.output()[-2000:]}")
        return child.output()
