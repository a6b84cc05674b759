"""Our server in a process of its own, on a data directory of its own, with one shard."""

import http.client
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from benchmarks.payloads import Extras, no_extras, write_body
from benchmarks.processes import Child

SHARDS = 1  # every row has one topic, or two that shall share a shard
_LOAD_BATCH = 1000
_ANSWER_SECONDS_MAX = 60.0


class TopicsServer:
    """Ready on entry; killed at exit unless it was stopped before."""

    def __init__(
        self,
        directory: Path,
        cores: frozenset[int],
        *,
        start_number: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.port = 0
        self._directory = directory
        self._port_file = directory / f"port-{start_number}"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        environ |= {
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(self._port_file),
            "TOPICS_DATA_DIR": str(directory / "data"),
            "TOPICS_WAL_SHARDS": str(SHARDS),
            **(settings or {}),
        }
        self._child = Child(
            [sys.executable, "-m", "topics", "serve"],
            output=directory / f"server-{start_number}.log",
            cores=cores,
            environ=environ,
        )

    def __enter__(self) -> Self:
        try:
            self.port = self._child.wait_for("the port file", self._bound_port)
            self._child.wait_for("GET /v0/ready to be 200", self._ready)
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

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of this event."""
        return log_events(self._child.output(), name)

    def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_SECONDS_MAX)
        try:
            connection.request(method, path, body or None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: bytes = b"") -> Any:
        """The JSON of a success; anything else is an error."""
        status, text = self.request(method, path, body)
        if status not in (200, 201):
            raise RuntimeError(f"{method} {path} answered {status}: {text[:500]!r}")
        return json.loads(text)

    def create(self, topic: str, config: Mapping[str, Any]) -> None:
        self.ask("PUT", f"/v0/topics/{topic}", json.dumps(config).encode())

    def head(self, topic: str) -> int:
        return int(self.ask("GET", f"/v0/topics/{topic}?touch=false")["head_seq"])

    def fill(self, topic: str, records: int, extras: Extras = no_extras) -> None:
        """Write this many records, in batches."""
        path = f"/v0/topics/{topic}?return_seqs=false"
        for first in range(0, records, _LOAD_BATCH):
            count = min(_LOAD_BATCH, records - first)
            self.ask("POST", path, write_body(count, first=first, extras=extras))

    def _bound_port(self) -> int | None:
        try:
            return int(self._port_file.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _ready(self) -> bool | None:
        try:
            status, _ = self.request("GET", "/v0/ready")
        except OSError:
            return None
        return status == 200 or None


def log_events(output: str, name: str) -> list[dict[str, Any]]:
    """The JSON lines of the event `name` in what a server wrote to stderr; other lines are passed over."""
    found = []
    for line in output.splitlines():
        if line.startswith("{"):
            event = json.loads(line)
            if event.get("event") == name:
                found.append(event)
    return found
