"""redis-server in a process of its own, with an append-only file in a directory of its own.

Snapshots and rewrites of the file are off: neither is part of the work that is compared.
"""

import re
import shutil
import socket
from pathlib import Path
from typing import Literal, Self

from benchmarks.payloads import resp
from benchmarks.processes import Child

Fsync = Literal["everysec", "always"]
_ANSWER_SECONDS_MAX = 60.0
_REPLAYED = re.compile(r"DB loaded from append only file: ([0-9.]+) seconds")


def missing_tools() -> list[str]:
    return [name for name in ("redis-server", "redis-benchmark") if shutil.which(name) is None]


def replay_seconds(output: str) -> float:
    """What the log says of the load at the start."""
    found = _REPLAYED.findall(output)
    if len(found) != 1:
        raise ValueError(f"redis-server spoke {len(found)} times of its load: {output[-1000:]!r}")
    return float(found[0])


class RedisServer:
    """Ready on entry, also after a long load; killed at exit unless it was stopped before."""

    def __init__(
        self, directory: Path, cores: frozenset[int], fsync: Fsync = "everysec", *, start_number: int = 0
    ) -> None:
        data = directory / "data"
        data.mkdir(exist_ok=True)
        self.port = _free_port()
        argv = [
            "redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(data),
            "--save", "", "--appendonly", "yes", "--appendfsync", fsync, "--auto-aof-rewrite-percentage", "0",
        ]  # fmt: skip
        self._child = Child(argv, output=directory / f"redis-{start_number}.log", cores=cores)

    def __enter__(self) -> Self:
        try:
            self._child.wait_for("an answer to PING", self._ready)
        except BaseException:
            self._child.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()

    def stop(self) -> None:
        self._child.stop()

    def kill(self) -> None:
        self._child.kill()

    def output(self) -> str:
        return self._child.output()

    def ask_number(self, *words: bytes) -> int:
        """A command that answers with an integer."""
        with self._connect() as connection:
            connection.sendall(resp(*words))
            reply = connection.makefile("rb").readline()
        if not reply.startswith(b":"):
            raise RuntimeError(f"{words[0]!r} answered {reply!r}")
        return int(reply[1:])

    def feed(self, commands: list[bytes], *, lines_per_reply: int) -> None:
        """Send commands as one pipeline and wait for all replies."""
        with self._connect() as connection:
            connection.sendall(b"".join(commands))
            replies = connection.makefile("rb")
            for _ in range(lines_per_reply * len(commands)):
                line = replies.readline()
                if not line or line.startswith(b"-"):
                    raise RuntimeError(f"redis-server answered {line!r}")

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=_ANSWER_SECONDS_MAX)

    def _ready(self) -> bool | None:
        try:
            with self._connect() as connection:
                connection.sendall(resp(b"PING"))
                return connection.recv(100) == b"+PONG\r\n" or None
        except OSError:
            return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
