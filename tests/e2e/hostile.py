"""What the tests of hostile clients share: raw requests, a look into the server's processes, HTTP/2 by hand.

A process is only looked at through /proc, and only when it is a child of the server under test.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h2.config
import h2.connection
import h2.events
import pytest

from tests.e2e.server import Answer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from io import BufferedReader

    from tests.e2e.server import Server, Topic, Wire

KIB = 1024
MIB = 1024 * KIB
WRITE = b'{"records":[{"data":1}]}'
DOORS = {"lane": {}, "quart": {"TOPICS_FAST_LANE": "0"}}
# Through the lane and through Quart; HTTP/2 has its own tests.
BOTH_DOORS = pytest.mark.parametrize("server", ["lane", "quart"], indirect=True, scope="session")
LANE = pytest.mark.parametrize("server", ["lane"], indirect=True, scope="session")
needs_proof = pytest.mark.skipif(
    os.environ.get("TOPICS_PROOF") != "1", reason="takes long; set TOPICS_PROOF=1 to run it"
)


# -- requests ---------------------------------------------------------------------------------------------


def post(path: str, body: bytes = WRITE, *headers: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunked_post(path: str, framed_body: bytes, *headers: str) -> bytes:
    """A POST whose body is given with its chunk framing, good or bad."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + framed_body


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode("latin-1")


def poll(path: str, wait_ms: int) -> bytes:
    """A diff that waits."""
    return post(f"{path}/diff", json.dumps({"wait_ms": wait_ms}).encode())


@dataclass
class Ending:
    """Everything that a connection still brought, and how it ended."""

    data: bytes
    closed: bool

    @property
    def statuses(self) -> list[int]:
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", self.data)]


def rest_of(wire: Wire, *, within_s: float = 3.0) -> Ending:
    """Read until the server ends the connection, or has been silent for so long."""
    data = b""
    while select.select([wire.sock], [], [], within_s)[0]:
        try:
            part = wire.sock.recv(MIB)
        except ConnectionResetError:
            return Ending(data, closed=True)
        if not part:
            return Ending(data, closed=True)
        data += part
    return Ending(data, closed=False)


def answers(wire: Wire, count: int) -> list[Answer]:
    """So many answers to pipelined requests, in order (`Wire.answer` would read too far)."""
    stream = wire.sock.makefile("rb")
    return [_answer(stream) for _ in range(count)]


def _answer(stream: BufferedReader) -> Answer:
    status_line = stream.readline()
    assert status_line.startswith(b"HTTP/1.1 "), status_line
    headers: dict[str, str] = {}
    while line := stream.readline().strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    body = stream.read(int(headers.get("content-length", "0")))
    return Answer(int(status_line.split(b" ")[1]), headers, body)


def send_apart(wire: Wire, pieces: Iterable[bytes], *, apart_s: float = 0.02) -> None:
    """Each piece as a packet of its own; a server that has ended the connection is not an error here."""
    wire.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for piece in pieces:
        try:
            wire.sock.sendall(piece)
        except OSError:
            return
        # A moment, so that the kernel does not join it with the next one; sooner if there is an answer.
        select.select([], [], [], apart_s)


def refused_and_ended(server: Server, pieces: list[bytes], *, allowed: tuple[int, ...] = (400,)) -> None:
    with server.connect() as wire:
        send_apart(wire, pieces, apart_s=0.001)
        ending = rest_of(wire)
    assert len(ending.statuses) == 1, ending
    assert ending.statuses[0] in allowed, ending
    assert ending.closed, ending


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


# -- the server's processes -------------------------------------------------------------------------------


def child_pid(server: Server, module: str) -> int:
    """The child of this server that runs this module."""
    assert server.process is not None
    parent = server.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in children:
        if module.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError(f"no child of {parent} runs {module}")


def gateway_pid(server: Server) -> int:
    return child_pid(server, "gateway.serve")


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * KIB


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


# -- HTTP/2 -----------------------------------------------------------------------------------------------


@dataclass
class Http2:
    """One HTTP/2 connection by prior knowledge, spoken frame by frame."""

    wire: Wire
    statuses: dict[int, int] = field(default_factory=dict)
    bodies: dict[int, bytes] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    reset: set[int] = field(default_factory=set)
    closed: bool = False

    def __post_init__(self) -> None:
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.wire.send(self.h2.data_to_send())

    def begin(
        self, method: str, path: str, headers: dict[str, str] | None = None, *, end: bool = True
    ) -> int:
        stream = self.h2.get_next_available_stream_id()
        fields = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "127.0.0.1")]
        self.h2.send_headers(stream, [*fields, *(headers or {}).items()], end_stream=end)
        self.bodies[stream] = b""
        self.flush()
        return stream

    def post(self, path: str, body: bytes) -> int:
        stream = self.begin("POST", path, {"content-type": "application/json"}, end=False)
        self.send_body(stream, body)
        return stream

    def send_body(self, stream: int, body: bytes) -> None:
        """Within the window the server grants; ends early when the server has answered and reset it."""
        left = memoryview(body)
        while left and stream not in self.reset:
            room = min(len(left), self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            if room == 0:
                self.receive()
                continue
            self.h2.send_data(stream, bytes(left[:room]))
            self.flush()
            left = left[room:]
        if stream not in self.reset:
            self.h2.end_stream(stream)
            self.flush()

    def receive(self) -> None:
        """Take what the server sends next; fails when it says nothing for too long."""
        data = self.wire.sock.recv(MIB)
        if not data:
            self.closed = True
            raise AssertionError(f"the server ended the connection; answered so far: {self.statuses}")
        for event in self.h2.receive_data(data):
            self._take(event)
        self.flush()

    def _take(self, event: Any) -> None:
        match event:
            case h2.events.ResponseReceived():
                assert event.headers is not None
                self.statuses[event.stream_id] = int(dict(event.headers)[b":status"])
            case h2.events.DataReceived():
                assert event.data is not None
                assert event.flow_controlled_length is not None
                self.bodies[event.stream_id] += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                self.ended.add(event.stream_id)
            case h2.events.StreamReset():
                self.reset.add(event.stream_id)
                self.ended.add(event.stream_id)
            case h2.events.ConnectionTerminated():
                self.closed = True

    def wait(self, *streams: int, within_s: float = 20.0) -> list[int]:
        """The statuses of these streams, when all have ended."""
        deadline = time.monotonic() + within_s
        while not set(streams) <= self.ended:
            assert time.monotonic() < deadline, f"not answered: {set(streams) - self.ended}"
            self.receive()
        return [self.statuses[stream] for stream in streams]


# -- clients that are not hostile ------------------------------------------------------------------------


class Others:
    """A client that asks for small things all the time, and counts its answers."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.answered = 0
        self.failures: list[object] = []

    def _ask(self) -> None:
        request = get(self._topic.path)
        with self._topic.server.connect() as wire:
            while not self._over.is_set():
                wire.send(request)
                answer = wire.answer()
                if answer.status == 200:
                    self.answered += 1
                else:
                    self.failures.append(answer)

    def __enter__(self) -> Others:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)
