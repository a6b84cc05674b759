"""The reactor in this process, over a fake shard: clocks made short, clients that stall, leave or flood."""

import errno
import json
import logging
import select
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import trio

from gateway import slots
from gateway.context import Gateway
from gateway.lane import connection as lane_connection
from gateway.lane import reactor as lane_reactor
from gateway.lane.connection import RECEIVE_BYTES, Connection
from gateway.lane.reactor import Reactor
from tests.fakes.direct_client import gateway_over
from tests.fakes.fake_shard import Answer, FakeShard, echo
from topics.polling import READABLE, Poller
from topics.protocol.messages import Op, Request

MIB = 1 << 20
HEALTH = b"GET /v0/health HTTP/1.1\r\nHost: a\r\n\r\n"
STATE = b"GET /v0/topics/a HTTP/1.1\r\nHost: a\r\n\r\n"
DIFF = b"POST /v0/topics/a/diff HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"


@dataclass
class Running:
    reactor: Reactor
    gateway: Gateway
    shard: FakeShard
    port: int
    handed_over: list[tuple[socket.socket, bytes]] = field(default_factory=list)

    @property
    def connections(self) -> list[Connection]:
        return list(self.reactor._connections.values())

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)


async def parked_diff(request: Request) -> Answer:
    """A diff waits for ever, like a long-poll; everything else is echoed."""
    if request.op is Op.DIFF:
        await trio.sleep_forever()
    return await echo(request)


@asynccontextmanager
async def running(tmp_path: Path, *, listener: socket.socket | None = None) -> AsyncIterator[Running]:
    shard = FakeShard(tmp_path / "0", answer=parked_diff)
    listener = listener or socket.create_server(("127.0.0.1", 0), backlog=1000)
    async with gateway_over([shard]) as client, trio.open_nursery() as nursery:
        handed: list[tuple[socket.socket, bytes]] = []
        poller = Poller()
        await nursery.start(poller.run)
        reactor = Reactor(client.gateway, listener, lambda sock, data: handed.append((sock, data)), poller)
        await nursery.start(reactor.run)
        yield Running(reactor, client.gateway, shard, listener.getsockname()[1], handed)
        nursery.cancel_scope.cancel()
    for sock, _ in handed:
        sock.close()
    listener.close()


@pytest.fixture
async def lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setattr(lane_reactor, "DEADLINES_EVERY_S", 0.01)
    async with running(tmp_path) as run:
        yield run


async def until(condition: Callable[[], bool]) -> None:
    """For what no event announces."""
    with trio.fail_after(5):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.005)


async def answers(stream: trio.SocketStream, count: int) -> list[tuple[int, bytes]]:
    """So many answers of one connection, in order: status and body."""
    found: list[tuple[int, bytes]] = []
    data = b""
    with trio.fail_after(20):
        while len(found) < count:
            head, end, rest = data.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0) if end else 0
            if end and len(rest) >= length:
                found.append((int(head.split(b" ")[1]), rest[:length]))
                data = rest[length:]
                continue
            part = await stream.receive_some(MIB)
            assert part, f"the connection ended after {len(found)} answers"
            data += part
    return found


async def ended(stream: trio.SocketStream) -> bytes:
    """What still comes until the server ends the connection."""
    data = b""
    with trio.fail_after(5), suppress(trio.BrokenResourceError):
        while part := await stream.receive_some(MIB):
            data += part
    return data


# -- clocks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_bytes", [HEALTH, DIFF], ids=["get", "post"])
async def test_a_head_sent_byte_by_byte_ends_with_its_time(
    lane: Running, monkeypatch: pytest.MonkeyPatch, request_bytes: bytes
) -> None:
    monkeypatch.setattr(lane_connection, "HEAD_S", 0.2)
    async with await lane.connect() as slow:
        # Headers without end; far below the size limit when the time is over.
        sent = 0
        with trio.fail_after(5), suppress(trio.BrokenResourceError):
            for byte in request_bytes[:-2] + b"X: a\r\n" * 1000:
                await slow.send_all(bytes([byte]))
                sent += 1
                await trio.sleep(0.005)
        assert sent < 500
        async with await lane.connect() as other:
            await other.send_all(HEALTH)
            assert [status for status, _ in await answers(other, 1)] == [200]


async def test_a_connection_that_says_nothing_ends(lane: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_connection, "HEAD_S", 0.05)
    monkeypatch.setattr(lane_connection, "IDLE_S", 0.05)
    async with await lane.connect() as silent, await lane.connect() as idle:
        await idle.send_all(HEALTH)
        await answers(idle, 1)
        assert await ended(silent) == b""
        assert await ended(idle) == b""
    assert lane.connections == []


async def test_a_body_that_stops_is_told_so_and_one_that_drips_is_taken(
    lane: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_connection, "BODY_IDLE_S", 0.2)
    head = b"PUT /v0/topics/a HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 40\r\n\r\n"
    async with await lane.connect() as stopping, await lane.connect() as dripping:
        await stopping.send_all(head + b"{")
        await dripping.send_all(head)
        for byte in b"{}" + b" " * 38:
            await dripping.send_all(bytes([byte]))
            await trio.sleep(0.01)
        assert [status for status, _ in await answers(dripping, 1)] == [200]
        [(status, body)] = await answers(stopping, 1)
        assert status == 400
        assert json.loads(body)["error"]["detail"]["field"] == "body"
        await ended(stopping)
    await until(lambda: lane.gateway.under_way == 0)


async def test_a_client_that_never_reads_holds_one_answer_and_goes_when_its_time_is_over(
    lane: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_connection, "WRITE_STALL_S", 0.3)
    answer_bytes = 8 * MIB

    async def large(request: Request) -> Answer:
        return Answer(body=b"x" * answer_bytes) if request.op is Op.DIFF else await echo(request)

    lane.shard.answer = large
    async with await lane.connect() as greedy, await lane.connect() as other:
        await greedy.send_all(DIFF * 100)
        await until(lambda: any(connection.wants_write for connection in lane.connections))
        for _ in range(20):
            await other.send_all(STATE)
            assert [status for status, _ in await answers(other, 1)] == [200]
        # One answer at a time, and the next is not even asked for.
        assert sum(request.op is Op.DIFF for request in lane.shard.requests) <= 3
        held = [connection._outlet.pending_bytes for connection in lane.connections if connection.wants_write]
        assert sum(held) <= answer_bytes + 1000
        await until(lambda: len(lane.connections) == 1)
        assert lane.gateway.under_way == 0
        await other.send_all(STATE)
        await answers(other, 1)


# -- clients that leave -----------------------------------------------------------------------------------


async def test_long_polls_of_clients_that_vanish_are_cancelled_in_the_shard(
    lane: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_connection, "HALF_CLOSED_S", 0.05)
    streams = [await lane.connect() for _ in range(100)]
    for stream in streams:
        await stream.send_all(DIFF)
    await lane.shard.wait_until(lambda: len(lane.shard.requests) == 100)
    for number, stream in enumerate(streams):
        if number % 2:
            # Not a farewell but a reset, as from a machine that has lost its memory of the connection.
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        await stream.aclose()
    await lane.shard.wait_until(lambda: len(lane.shard.cancelled) == 100)
    assert lane.gateway.under_way == 0
    assert lane.connections == []


async def test_a_client_that_vanishes_with_requests_sent_ahead_is_noticed_too(
    lane: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_connection, "HALF_CLOSED_S", 0.05)
    stream = await lane.connect()
    await stream.send_all(DIFF + STATE * 50)
    await lane.shard.wait_until(lambda: len(lane.shard.requests) == 1)
    await stream.aclose()
    await lane.shard.wait_until(lambda: len(lane.shard.cancelled) == 1)
    await until(lambda: lane.connections == [])


# -- floods -----------------------------------------------------------------------------------------------


class SpawnedHere(trio.abc.Instrument):
    """Counts the tasks that the gateway starts."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        if task.name.startswith(("gateway.", "shards.")):
            self.names.append(task.name)


async def test_a_request_costs_no_task(lane: Running) -> None:
    async with await lane.connect() as one, await lane.connect() as two:
        for stream in (one, two):
            await stream.send_all(STATE)
            await answers(stream, 1)
        spawned = SpawnedHere()
        trio.lowlevel.add_instrument(spawned)
        try:
            for _ in range(50):
                for stream in (one, two):
                    await stream.send_all(STATE * 10)
                for stream in (one, two):
                    assert [status for status, _ in await answers(stream, 10)] == [200] * 10
        finally:
            trio.lowlevel.remove_instrument(spawned)
    assert spawned.names == []
    assert len(lane.shard.requests) == 1002


@pytest.mark.parametrize("request_bytes", [HEALTH, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", STATE])
async def test_a_burst_on_one_connection_is_answered_whole_and_in_order(
    lane: Running, request_bytes: bytes
) -> None:
    async with await lane.connect() as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, request_bytes * 2000)
        statuses = {status for status, _ in await answers(stream, 2000)}
    assert len(statuses) == 1


async def test_a_burst_behind_a_request_that_waits_is_answered_whole(lane: Running) -> None:
    """Its turns begin when the shard answers, and nothing else happens then that would wake the reactor."""
    async with await lane.connect() as stream:
        await stream.send_all(STATE + HEALTH * 300 + STATE + HEALTH * 300)
        assert len(await answers(stream, 602)) == 602


async def test_others_have_their_turn_during_a_burst(lane: Running) -> None:
    async with await lane.connect() as greedy, await lane.connect() as other:
        await greedy.send_all(HEALTH * 1500)
        await other.send_all(HEALTH)
        await answers(other, 1)
        assert any(connection._buffer for connection in lane.connections), "the burst was served first"
        await answers(greedy, 1500)


async def test_what_is_sent_ahead_of_an_answer_is_read_within_bounds(lane: Running) -> None:
    async with await lane.connect() as stream:
        await stream.send_all(DIFF)
        await lane.shard.wait_until(lambda: len(lane.shard.requests) == 1)
        with trio.move_on_after(0.5) as patience:
            for _ in range(100):
                await stream.send_all(HEALTH * 10_000)
                patience.deadline = trio.current_time() + 0.5
        assert patience.cancelled_caught, "36 MB of requests were read while the first one waited"
        [connection] = lane.connections
        assert len(connection._buffer) <= RECEIVE_BYTES


@pytest.mark.parametrize("where", ["proceed", "_send", "on_deadline"])
async def test_a_failure_inside_one_connection_ends_that_connection_alone(
    lane: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    monkeypatch.setattr(lane_connection, "HEAD_S", 0.1)
    unlucky_ones: list[Connection] = []
    original = getattr(Connection, where)

    def fails(self: Connection, *args: object) -> None:
        if self in unlucky_ones:
            raise RuntimeError("a bug")
        original(self, *args)

    monkeypatch.setattr(Connection, where, fails)
    async with await lane.connect() as unlucky:
        await until(lambda: len(lane.connections) == 1)
        unlucky_ones += lane.connections
        with caplog.at_level(logging.ERROR):
            await unlucky.send_all(b"GET" if where == "on_deadline" else STATE)
            assert await ended(unlucky) == b""
        async with await lane.connect() as other:
            await other.send_all(STATE)
            assert [status for status, _ in await answers(other, 1)] == [200]
    assert [record.exc_info for record in caplog.records if record.exc_info]
    assert lane.gateway.under_way == 0


class Exhausted:
    """A listener whose process has no descriptor left for a while."""

    def __init__(self, failures: int) -> None:
        self._sock = socket.create_server(("127.0.0.1", 0))
        self._failures = failures
        self.tries = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.tries += 1
        # A listener that nobody waits at must not be asked.
        if select.select([self._sock], [], [], 0)[0] and self._failures > 0:
            self._failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._sock.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


async def test_without_descriptors_accepting_pauses_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_reactor, "NO_DESCRIPTORS_PAUSE_S", 0.05)
    exhausted = Exhausted(failures=3)
    async with running(tmp_path, listener=cast("socket.socket", exhausted)) as run:
        started = time.monotonic()
        async with await run.connect() as stream:
            await stream.send_all(HEALTH)
            assert [status for status, _ in await answers(stream, 1)] == [200]
        assert time.monotonic() - started >= 3 * 0.05
        assert exhausted.tries <= 3 + 2, "it asked again and again"


async def test_bodies_of_all_connections_share_bounded_room_and_give_it_back(
    lane: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "BODY_FREE_BYTES", 100)
    bodies = lane.gateway.bodies
    bodies.bytes_max = 5000
    head = b"PUT /v0/topics/a HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 4000\r\n\r\n"
    async with await lane.connect() as first, await lane.connect() as second:
        await first.send_all(head + b" " * 3000)
        await until(lambda: bodies.bytes_held == 2900)
        await second.send_all(head + b" " * 3000)
        [(status, answer)] = await answers(second, 1)
        assert status == 429
        assert json.loads(answer)["error"]["detail"] == {"retry_after_ms": 1000}
        assert bodies.bytes_held == 2900
        await first.send_all(b" " * 1000)
        assert [status for status, _ in await answers(first, 1)] == [200]
        assert bodies.bytes_held == 0
        await first.send_all(head + b" " * 3000)
        await until(lambda: bodies.bytes_held == 2900)
    # A client that leaves in the middle gives its room back too.
    await until(lambda: bodies.bytes_held == 0)


async def test_what_follows_the_last_request_is_read_away_so_that_its_answer_arrives(lane: Running) -> None:
    """Something was sent ahead, so the connection was not listened to while it waited for its answer."""
    gate = trio.Event()

    async def waits(request: Request) -> Answer:
        await gate.wait()
        return await echo(request)

    lane.shard.answer = waits
    async with await lane.connect() as stream:
        last = STATE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        await stream.send_all(last + b"x" * 100)
        await until(lambda: [bool(one.interest & READABLE) for one in lane.connections] == [False])
        gate.set()
        assert [status for status, _ in await answers(stream, 1)] == [200]
        await until(lambda: [bool(one.interest & READABLE) for one in lane.connections] == [True])
        await stream.send_all(b"x" * 100_000)
