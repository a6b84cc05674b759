"""A real server under test: started, listened to, hurt, and always ended.

* What the server's processes say on stderr is read by one thread and can be waited for.
* A process is hit only after it was seen to be a child of this server, and a hit counts only when
  the supervisor has reported the death.
* Waiting is for a condition, with a deadline, and says at its end what was waited for.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.crash.client import Address, Reply, ask

ROOT = Path(__file__).resolve().parent.parent.parent
SHARDS = 2
CHILDREN = ("shard-0", "shard-1", "router", "gateway")
# Generous, for a busy machine with two cores. Nothing waits this long when all is well.
START_S = 30.0
HEAL_S = 30.0
STOP_S = 30.0
ORPHANS_S = 5.0

LogLine = dict[str, Any]
T = TypeVar("T")


def eventually(what: str, look: Callable[[], T | None], within_s: float = HEAL_S) -> T:
    """The first thing `look` sees that is not None or False."""
    end_s = time.monotonic() + within_s
    pause = threading.Event()
    while True:
        seen = look()
        if seen is not None and seen is not False:
            return seen
        assert time.monotonic() < end_s, f"not within {within_s} s: {what}"
        pause.wait(0.01)


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for good: a pid alone may be given to another one later."""

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        return cls(pid, int(_stat(pid)[19]))

    def parent(self) -> int:
        return int(_stat(self.pid)[1])

    def alive(self) -> bool:
        """Whether it still runs. A zombie, which only waits to be reaped, does not."""
        try:
            fields = _stat(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return False
        return fields[0] not in "ZX" and int(fields[19]) == self.started_ticks

    def wait_gone(self, end_s: float) -> bool:
        """Whether it has ended by `end_s` of the monotonic clock."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            # Alive after the pidfd was opened: so the pidfd is of this process and of no later one.
            if self.alive():
                select.select([pidfd], [], [], max(0.0, end_s - time.monotonic()))
        finally:
            os.close(pidfd)
        return not self.alive()


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third one, the state, on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class Server:
    """One run of `topics serve`, and everything it has said so far."""

    def __init__(self, process: "subprocess.Popen[str]", port_file: Path, data_dir: Path) -> None:
        self.process = process
        self.data_dir = data_dir
        self.lines: list[LogLine] = []
        self.plain: list[str] = []
        self._born: list[ProcessId] = []
        self._port_file = port_file
        self._said = threading.Condition()
        self._hearing = threading.Thread(target=self._hear, name="stderr", daemon=True)
        self._hearing.start()

    # -- what it says

    def _hear(self) -> None:
        assert self.process.stderr is not None
        for text in self.process.stderr:
            with self._said:
                try:
                    self._take(json.loads(text))
                except ValueError:
                    self.plain.append(text.rstrip("\n"))
                self._said.notify_all()

    def _take(self, line: LogLine) -> None:
        self.lines.append(line)
        if line["event"] == "child.started":
            with suppress(FileNotFoundError, ProcessLookupError):
                self._born.append(ProcessId.of(line["child_pid"]))

    def wait_line(self, what: str, wanted: Callable[[LogLine], bool], *, since: int = 0) -> LogLine:
        """The first log line from number `since` on that is wanted; lines of the future count too."""
        end_s = time.monotonic() + HEAL_S
        looked = since
        with self._said:
            while True:
                for line in self.lines[looked:]:
                    if wanted(line):
                        return line
                looked = len(self.lines)
                left_s = end_s - time.monotonic()
                assert left_s > 0, f"the server did not say: {what}; its last words: {self.last_words()}"
                self._said.wait(left_s)

    def wait_event(self, event: str, *, since: int = 0, **fields: object) -> LogLine:
        return self.wait_line(
            f"{event} {fields}",
            lambda line: line["event"] == event and fields.items() <= line.items(),
            since=since,
        )

    def last_words(self) -> str:
        return "\n".join([*(str(line) for line in self.lines[-15:]), *self.plain[-15:]])

    # -- where it is

    @property
    def address(self) -> Address:
        def bound() -> int | None:
            assert self.process.poll() is None, f"the server ended: {self.last_words()}"
            with suppress(FileNotFoundError):
                return int(self._port_file.read_text())
            return None

        return Address("127.0.0.1", eventually("a port", bound, START_S))

    def pid_of(self, child: str) -> int:
        """The pid of the child's present life; of the one that is starting if it is between two."""
        with self._said:
            started = [line for line in self.lines if line["event"] == "child.started"]
        return next(int(line["child_pid"]) for line in reversed(started) if line["child"] == child)

    def process_of(self, child: str) -> ProcessId:
        found = ProcessId.of(self.pid_of(child))
        assert found.parent() == self.process.pid, f"{child} is not a child of this server"
        return found

    def ask(self, method: str, path: str, body: object = None, **options: Any) -> Reply:
        return ask(self.address, method, path, body, **options)

    def wait_ready(self, within_s: float = HEAL_S) -> None:
        address = self.address

        def ready() -> bool:
            assert self.process.poll() is None, f"the server ended: {self.last_words()}"
            with suppress(OSError):
                return ask(address, "GET", "/v0/ready", timeout_s=5).status == 200
            return False

        eventually("/v0/ready", ready, within_s)

    # -- what is done to it

    def signal_child(self, child: str, number: signal.Signals) -> None:
        os.kill(self.process_of(child).pid, number)

    def kill_child(self, child: str) -> int:
        """SIGKILL, and its death as the supervisor saw it; the number of log lines before it."""
        with self._said:
            before = len(self.lines)
        target = self.process_of(child)
        os.kill(target.pid, signal.SIGKILL)
        death = self.wait_event("child.exited", since=before, child=child, child_pid=target.pid)
        assert death["exit_code"] == -signal.SIGKILL, death
        return before

    def kill(self) -> None:
        """SIGKILL to the supervisor, and to nobody else."""
        self.process.kill()
        self.process.wait(STOP_S)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(number)
        return self.wait_end()

    def wait_end(self, within_s: float = STOP_S) -> int:
        code = self.process.wait(within_s)
        self._hearing.join(STOP_S)
        return code

    def end(self) -> None:
        """Leave no process behind, whatever the test has found."""
        self.process.kill()
        self.process.wait(STOP_S)
        end_s = time.monotonic() + ORPHANS_S
        orphans = [process for process in self._born if not process.wait_gone(end_s)]
        for process in orphans:
            os.kill(process.pid, signal.SIGKILL)
        # The pipe was open in every child, so it ends with the last of them.
        self._hearing.join(STOP_S)
        assert not orphans, f"{len(orphans)} children have outlived their supervisor"


@contextmanager
def running(data_dir: Path, sockets_dir: Path, **environ: str) -> Iterator[Server]:
    """A server on `data_dir`; at the end of the block all its processes are gone."""
    port_file = data_dir.with_name(data_dir.name + ".port")
    port_file.unlink(missing_ok=True)
    process = start(
        {
            "TOPICS_DATA_DIR": str(data_dir),
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(port_file),
            "TOPICS_WAL_SHARDS": str(SHARDS),
            # Records are sealed and the log is shortened all the time.
            "TOPICS_WAL_FILE_BYTES": "1MiB",
            "TOPICS_CHECKPOINT_BYTES": "1MiB",
            "TOPICS_CACHE_BYTES": "1MiB",
            # What a killed server leaves behind goes with the test.
            "TMPDIR": str(sockets_dir),
            **environ,
        }
    )
    with process:
        server = Server(process, port_file, data_dir)
        try:
            yield server
        finally:
            server.end()


def start(environ: dict[str, str]) -> "subprocess.Popen[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    return subprocess.Popen(
        [sys.executable, "-m", "topics", "serve"],
        cwd=ROOT,
        env=inherited | environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_gone(processes: Mapping[str, ProcessId], within_s: float) -> float:
    """Wait until none of them runs any more; how long it took."""
    began_s = time.monotonic()
    for name, process in processes.items():
        assert process.wait_gone(began_s + within_s), f"{name} still lives {within_s} s later"
    return time.monotonic() - began_s
