"""A Redis client that only counts what comes back, in a process of its own.

Used where redis-benchmark would be the slower half: it builds an object for each element of a reply,
this client knows how long a reply is and drops it. One request (or one pipeline of them) is under way per
connection. The job comes as JSON in argv, the result goes as JSON to stdout.
"""

import json
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks.payloads import VALUE, resp
from benchmarks.stats import percentile

STREAM = b"bench"
# Ids of a loaded stream all have the same width, so all replies to one kind of read have the same length.
FIRST_ID = 1_000_000
_STALLED_SECONDS = 20.0
_PONG = b"+PONG\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Either writes (`pipeline` > 0) or range reads (`positions`)."""

    port: int
    connections: int
    seconds: float
    stream: str = STREAM.decode()
    pipeline: int = 0
    positions: tuple[int, ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    exchanges: int
    seconds: float
    p50_us: float
    p99_us: float


def xadd(stream: bytes) -> bytes:
    return resp(b"XADD", stream, b"*", b"data", VALUE)


def xrange(stream: bytes, after: int, count: int) -> bytes:
    """Entries behind `after`, counted from the stream's beginning like a cursor of ours."""
    return resp(b"XRANGE", stream, b"%d-0" % (FIRST_ID + after + 1), b"+", b"COUNT", b"%d" % count)


def reply_bytes(connection: socket.socket, command: bytes, count: int) -> int:
    """How long the reply to this read is; it must hold `count` entries."""
    connection.sendall(command + resp(b"PING"))
    reply = bytearray()
    while not reply.endswith(_PONG):
        chunk = connection.recv(1 << 18)
        if not chunk:
            raise ConnectionError("the server closed the connection")
        reply += chunk
    if not reply.startswith(b"*%d\r\n" % count):
        raise ValueError(f"expected {count} entries, got {bytes(reply[:80])!r}")
    return len(reply) - len(_PONG)


def newlines(received: memoryview) -> int:
    return bytes(received).count(b"\n")


def exchange(
    connections: list[socket.socket],
    commands: list[bytes],
    units_per_reply: int,
    units: Callable[[memoryview], int],
    seconds: float,
) -> Result:
    """Send the commands in turn, each connection its next one when the last was answered in full."""
    buffer = memoryview(bytearray(1 << 20))
    poll = select.epoll()
    by_fd = {connection.fileno(): connection for connection in connections}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    missing, sent_at = {}, {}
    latencies: list[float] = []
    turn = 0
    began = time.perf_counter()
    for fd, connection in by_fd.items():
        missing[fd], sent_at[fd] = units_per_reply, time.perf_counter()
        connection.sendall(commands[turn % len(commands)])
        turn += 1
    while (now := time.perf_counter()) - began < seconds:
        ready = poll.poll(_STALLED_SECONDS)
        if not ready:
            raise TimeoutError(f"no answer for {_STALLED_SECONDS} s")
        for fd, _ in ready:
            connection = by_fd[fd]
            received = connection.recv_into(buffer)
            if not received:
                raise ConnectionError("the server closed a connection")
            missing[fd] -= units(buffer[:received])
            if missing[fd] > 0:
                continue
            if missing[fd] < 0:
                raise ValueError(f"a reply was longer than expected: {bytes(buffer[:80])!r}")
            now = time.perf_counter()
            latencies.append(now - sent_at[fd])
            missing[fd], sent_at[fd] = units_per_reply, now
            connection.sendall(commands[turn % len(commands)])
            turn += 1
    poll.close()
    latencies.sort()
    return Result(
        len(latencies), now - began, percentile(latencies, 50) * 1e6, percentile(latencies, 99) * 1e6
    )


def perform(job: Job) -> Result:
    stream = job.stream.encode()
    connections = [socket.create_connection(("127.0.0.1", job.port)) for _ in range(job.connections)]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        if job.pipeline:
            group = xadd(stream) * job.pipeline
            # An id comes back as a length line and a text line; an error would be one line and stall.
            return exchange(connections, [group], 2 * job.pipeline, newlines, job.seconds)
        commands = [xrange(stream, position, job.count) for position in job.positions]
        length = {reply_bytes(connections[0], command, job.count) for command in commands}
        if len(length) != 1:
            raise ValueError(f"replies of different lengths: {sorted(length)}")
        return exchange(connections, commands, length.pop(), len, job.seconds)
    finally:
        for connection in connections:
            connection.close()


def main(argv: list[str]) -> int:
    given = json.loads(argv[1])
    job = Job(**{**given, "positions": tuple(given["positions"])})
    sys.stdout.write(json.dumps(asdict(perform(job))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
