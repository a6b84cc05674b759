"""A real server in its own process group, and the answers it gives.

Promises: a server started here is always ended by its own pid, nothing leaves loopback, every wait is
bounded, and what the server wrote to stderr is shown when it does not behave.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 15.0
ANSWER_SECONDS_MAX = 40.0
PROJECT_ROOT = Path(__file__).resolve().parents[2]
JSON_TYPE = {"Content-Type": "application/json"}
# Every route of a topic that takes a body, with one that is good.
BODIES = [
    ("PUT", "", b"{}"),
    ("POST", "", b'{"records":[{"data":1}]}'),
    ("POST", "/diff", b"{}"),
    ("POST", "/delete", b'{"before_seq":1}'),
]


@dataclass(frozen=True)
class Answer:
    """One response, with short names for what the tests ask most."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])

    @property
    def detail(self) -> dict[str, Any]:
        return dict(self.json["error"].get("detail") or {})

    @property
    def field(self) -> object:
        return self.detail.get("field")

    def ok(self, status: int = 200) -> Any:
        """The body of a success with exactly this status."""
        assert self.status == status, f"expected {status}, got {self.status}: {self.body[:2000]!r}"
        assert "error" not in self.json
        return self.json

    def failed(self, status: int, code: str, field: str | None = None) -> dict[str, Any]:
        """The error's detail, after the envelope, the status, the code and the field were checked."""
        assert self.status == status, f"expected {status} {code}, got {self.status}: {self.body[:2000]!r}"
        assert self.headers["content-type"].startswith("application/json")
        assert set(self.json) <= {"error", "performance"}, self.body
        error = self.json["error"]
        assert set(error) <= {"code", "message", "detail"}, error
        assert isinstance(error["message"], str)
        assert error["message"]
        assert error["code"] == code, error
        if field is not None:
            assert self.field == field, error
        return self.detail


@dataclass
class Server:
    """One server process on one data directory; it can be stopped and started again on it."""

    directory: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    starts: int = 0
    thread_clients: dict[int, httpx.Client] = field(default_factory=dict)
    http2: bool = False  # requests go over HTTP/2 without TLS, by prior knowledge
    http: httpx.Client | None = None

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.launch()
        self.wait_for_port()
        self.wait_until_ready()

    def launch(self) -> None:
        self.starts += 1
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        environ |= {
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(self._port_file),
            "TOPICS_DATA_DIR": str(self.directory / "data"),
            "TOPICS_WAL_SHARDS": "2",
            **self.settings,
        }
        with self._stderr_file.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "topics", "serve"],
                cwd=PROJECT_ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )

    def wait_for_port(self) -> None:
        self.port = int(self.wait_for("the port file", lambda: _text(self._port_file)))
        self.http = self._new_client()

    def _new_client(self) -> httpx.Client:
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            timeout=ANSWER_SECONDS_MAX,
            trust_env=False,
            http1=not self.http2,
            http2=self.http2,
        )

    def _client(self) -> httpx.Client:
        """The shared client; over HTTP/2 one per thread, since httpx mixes up the frames of several."""
        assert self.http is not None
        thread = threading.get_ident()
        if not self.http2 or thread == threading.main_thread().ident:
            return self.http
        if thread not in self.thread_clients:
            self.thread_clients[thread] = self._new_client()
        return self.thread_clients[thread]

    def wait_until_ready(self) -> None:
        self.wait_for("GET /v0/ready to be 200", self._is_ready)

    def stop(self) -> int:
        """Ask the server to end; its exit code. One that does not end is killed and is a failure."""
        assert self.process is not None
        for client in (self.http, *self.thread_clients.values()):
            if client is not None:
                client.close()
        self.thread_clients.clear()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._kill()
            raise AssertionError(f"SIGTERM did not end the server in time\n{self.stderr()}") from None
        finally:
            self.process = None

    def end(self) -> None:
        """For fixtures: leave nothing running, whatever happened before."""
        if self.process is not None:
            if self.process.poll() is None:
                self.stop()
            else:
                self._kill()  # the supervisor is gone: whatever of its group is left goes too
                self.process = None

    def restart(self) -> None:
        assert self.stop() == 0, self.stderr()
        self.start()

    def stderr(self) -> str:
        return self._stderr_file.read_text(errors="replace")[-20_000:]

    def complaints(self) -> str:
        """What stands on stderr apart from lines that only inform."""
        return "\n".join(line for line in self.stderr().splitlines() if '"level": "info"' not in line)

    @property
    def _port_file(self) -> Path:
        return self.directory / f"port-{self.starts}"

    @property
    def _stderr_file(self) -> Path:
        return self.directory / "stderr"

    def _kill(self) -> None:
        assert self.process is not None
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            self.process.wait(STOP_SECONDS_MAX)

    def _is_ready(self) -> bool:
        assert self.http is not None
        try:
            return self.http.get("/v0/ready").status_code == 200
        except httpx.TransportError:
            return False

    def wait_for(self, what: str, look: Callable[[], Any]) -> Any:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if found := look():
                return found
            try:
                exit_code = self.process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(f"the server ended with {exit_code} before {what}\n{self.stderr()}")
        raise AssertionError(f"no sign of {what} within {START_SECONDS_MAX} s\n{self.stderr()}")

    # -- requests -----------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Answer:
        """`body` is sent as JSON with its content type; `raw` goes out as it is, with `headers` alone."""
        assert self.http is not None
        sent = {"Accept-Encoding": "identity"}
        if body is not None:
            raw = json.dumps(body).encode()
            sent |= JSON_TYPE
        response = self._client().request(
            method, path, content=raw, headers={**sent, **(headers or {})}, params=params
        )
        return Answer(
            response.status_code, {k.lower(): v for k, v in response.headers.items()}, response.content
        )

    def post(self, path: str, body: Any = None, **more: Any) -> Answer:
        return self.request("POST", path, body, **more)

    def get(self, path: str, **more: Any) -> Answer:
        return self.request("GET", path, **more)

    def put(self, path: str, body: Any = None, **more: Any) -> Answer:
        return self.request("PUT", path, body, **more)

    def delete(self, path: str, **more: Any) -> Answer:
        return self.request("DELETE", path, **more)

    # -- raw bytes, for what a client library would tidy up -------------------------------------------------

    @contextmanager
    def connect(self) -> Iterator[Wire]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_SECONDS_MAX) as sock:
            yield Wire(sock)

    def raw(self, head: str, body: bytes = b"") -> Answer:
        """Send these lines (CRLF is added) and this body on a new connection; the one answer to them."""
        with self.connect() as wire:
            wire.send(request_bytes(head, body))
            return wire.answer(head.split(" ", 1)[0])


def request_bytes(head: str, body: bytes = b"") -> bytes:
    lines = [line.strip() for line in head.strip().splitlines()]
    if not any(line.lower().startswith("host:") for line in lines):
        lines.append("Host: 127.0.0.1")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@dataclass
class Wire:
    """One connection, spoken by hand."""

    sock: socket.socket

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def is_silent_for(self, seconds: float) -> bool:
        """True when the server has sent nothing in this time."""
        return not select.select([self.sock], [], [], seconds)[0]

    def answer(self, method: str = "GET") -> Answer:
        response = http.client.HTTPResponse(self.sock, method=method)
        try:
            response.begin()
            body = response.read()
        finally:
            response.close()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, body)

    def is_closed_by_server(self) -> bool:
        """True when the server ends the connection (an unread rest may make that a reset)."""
        if self.is_silent_for(3):
            return False
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True


@dataclass
class Topic:
    """One topic's routes."""

    server: Server
    name: str

    @property
    def path(self) -> str:
        return f"/v0/topics/{self.name}"

    def put(self, **config: Any) -> Any:
        answer = self.server.put(self.path, config)
        assert answer.status in (200, 201), answer.body
        return answer.json

    def write(self, *datas: Any, **fields: Any) -> Any:
        """Records with these data; what the server said."""
        answer = self.write_records([{"data": data} for data in datas], **fields)
        assert answer.status in (200, 201), answer.body
        return answer.json

    def write_records(self, records: Any, **fields: Any) -> Answer:
        return self.server.post(self.path, {"records": records, **fields})

    def diff(self, from_seq: int = 0, **fields: Any) -> Any:
        return self.try_diff({"from_seq": from_seq, **fields}).ok()

    def try_diff(self, body: Any) -> Answer:
        return self.server.post(f"{self.path}/diff", body)

    def delete_records(self, **fields: Any) -> Any:
        return self.try_delete_records(fields).ok()

    def try_delete_records(self, body: Any) -> Answer:
        return self.server.post(f"{self.path}/delete", body)

    def state(self) -> Any:
        """The topic's state, without making it look read."""
        return self.server.get(self.path, params={"touch": "false"}).ok()

    def drop(self) -> Any:
        return self.server.delete(self.path).ok()

    def seqs(self, from_seq: int = 0, **fields: Any) -> list[int]:
        return [record["$seq"] for record in self.diff(from_seq, **fields)["records"]]


def eventually(look: Callable[[], Any], *, within_seconds: float = 10.0) -> Any:
    """Ask again and again until the answer is true: for what only the passing of time brings about."""
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
    raise AssertionError(f"not true within {within_seconds} s")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
