"""A client that writes single records at a steady, low rate, to us or to Redis, in a process of its own.

For the latency of somebody who is not in a hurry while others are. A client that waits for each answer
before it sends again would hardly be there when the server stalls; this one keeps its timetable: a write
that could not go out because the answer before it was missing is counted from when it was due.
The job comes as JSON in argv, the result goes as JSON to stdout.
"""

import json
import re
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

from benchmarks.payloads import write_body
from benchmarks.raw_redis import xadd
from benchmarks.stats import percentile

Reply = Callable[[bytes], bool | None]

_STALLED_SECONDS = 20.0
_HTTP_HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) .*?\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    server: Literal["topics", "redis"]
    port: int
    target: str  # a topic or a stream
    connections: int = 8
    per_second: float = 400.0  # over all connections
    seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    answers: int
    failures: int
    seconds: float
    p50_us: float
    p99_us: float


def http_reply(received: bytes) -> bool | None:
    """Whether the answer is a success; None while it is not complete."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = _HTTP_HEAD.match(received[: end + 2])
    if head is None:
        raise ValueError(f"not an answer with a length: {received[:200]!r}")
    if len(received) < end + 4 + int(head.group(2)):
        return None
    return head.group(1) in (b"200", b"201")


def redis_reply(received: bytes) -> bool | None:
    """The same for the reply to XADD: an id in two lines, or an error in one."""
    if received.startswith(b"-"):
        return False if received.endswith(b"\r\n") else None
    return True if received.count(b"\r\n") == 2 else None


class _Connection:
    def __init__(self, sock: socket.socket, due: float) -> None:
        self.sock = sock
        self.due = due
        self.began = due
        self.waiting = False  # for an answer
        self.late = False  # it was due while the answer before it was missing
        self.received = b""

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, request: bytes) -> None:
        # The clock's own slack before a write that was free to go is not the server's.
        self.began = self.due if self.late else time.perf_counter()
        self.waiting, self.received = True, b""
        self.sock.sendall(request)

    def receive(self) -> bytes:
        chunk = self.sock.recv(1 << 16)
        if not chunk:
            raise ConnectionError("the server closed a connection")
        self.received += chunk
        return self.received

    def answered(self, period: float) -> float:
        """The latency; the next write is due a period after this one was."""
        now = time.perf_counter()
        self.waiting = False
        self.due += period
        self.late = self.due < now
        return now - self.began


def perform(job: Job) -> Result:
    if job.server == "redis":
        request, reply = xadd(job.target.encode()), redis_reply
    else:
        request, reply = _http_request(job.target), http_reply
    period = job.connections / job.per_second
    began = time.perf_counter()
    connections = [
        _Connection(
            socket.create_connection(("127.0.0.1", job.port), timeout=_STALLED_SECONDS),
            began + number * period / job.connections,
        )
        for number in range(job.connections)
    ]
    try:
        latencies, failures = _keep_time(connections, request, reply, period, began + job.seconds)
    finally:
        for connection in connections:
            connection.sock.close()
    seconds = time.perf_counter() - began
    latencies.sort()
    return Result(
        len(latencies), failures, seconds, percentile(latencies, 50) * 1e6, percentile(latencies, 99) * 1e6
    )


def _keep_time(
    connections: list[_Connection], request: bytes, reply: Reply, period: float, end: float
) -> tuple[list[float], int]:
    """Until every write that is due before `end` has its answer."""
    latencies: list[float] = []
    failures = 0
    while True:
        now = time.perf_counter()
        for connection in connections:
            if not connection.waiting and connection.due <= now and connection.due < end:
                connection.send(request)
        waiting = [connection for connection in connections if connection.waiting]
        upcoming = [c.due for c in connections if not c.waiting and c.due < end]
        if not waiting and not upcoming:
            return latencies, failures
        pause = max(min(upcoming) - time.perf_counter(), 0.0) if upcoming else _STALLED_SECONDS
        ready, _, _ = select.select(waiting, [], [], pause)
        if not ready and not upcoming:
            raise TimeoutError(f"no answer for {_STALLED_SECONDS} s")
        for connection in ready:
            success = reply(connection.receive())
            if success is not None:
                latencies.append(connection.answered(period))
                failures += not success


def _http_request(topic: str) -> bytes:
    body = write_body(1)
    head = (
        f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def main(argv: list[str]) -> int:
    sys.stdout.write(json.dumps(asdict(perform(Job(**json.loads(argv[1]))))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
