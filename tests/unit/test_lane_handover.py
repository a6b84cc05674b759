"""Connections given to Hypercorn: every byte arrives, every head was judged, and the end comes in order."""

import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import h2.connection
import h2.errors
import h2.events
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from gateway.app import GatewayApp
from gateway.lane import handover
from gateway.lane.handover import HypercornDoor, _Guard
from gateway.lane.parsing import H2_PREFACE
from gateway.lane.reactor import Reactor
from gateway.serve import hypercorn_config
from tests.fakes.direct_client import gateway_over
from tests.fakes.fake_shard import Answer, FakeShard, echo
from topics.polling import Poller
from topics.protocol.messages import Op, Request

GET = b"GET /v0/topics/a HTTP/1.1\r\nHost: a\r\n\r\n"
HEALTH = b"GET /v0/health HTTP/1.1\r\nHost: a\r\n\r\n"
DIFF = b"POST /v0/topics/a/diff HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
POST = (
    b"POST /v0/topics/a HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
)
CHUNKED_HEAD = (
    b"POST /v0/topics/a HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
CHUNKED = CHUNKED_HEAD + b"1;x\r\n{\r\n1\r\n}\r\n0\r\nT: t\r\n\r\n"
UNKNOWN = b"FOO /v0/health HTTP/1.1\r\nHost: a\r\n\r\n"
UPGRADE = b"GET /v0/health HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n"
H2 = H2_PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
FOLDED = b"GET /v0/health HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n"
BROKEN = [
    FOLDED,
    b"GET / HTTP/1.1\nHost: a\n\n",
    CHUNKED_HEAD + b"zz\r\n",
    b"GET / HTTP/3.0\r\nHost: a\r\n\r\n",
]
GOOD = [GET, HEALTH, DIFF, POST, CHUNKED, UNKNOWN, UPGRADE]


# -- the guard --------------------------------------------------------------------------------------------


def passed_and_refused(pieces: list[bytes]) -> tuple[bytes, bool]:
    """What a guard lets through before it refuses, if it does."""
    guard, through = _Guard(), b""
    for piece in pieces:
        passing, error = guard.check(piece)
        through += piece[:passing]
        if error is not None:
            return through, True
        assert passing == len(piece)
    return through, False


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    places = sorted({place % (len(stream) + 1) for place in at} | {0, len(stream)})
    return [stream[start:end] for start, end in itertools.pairwise(places)]


@given(st.lists(st.sampled_from(GOOD), max_size=5), st.lists(st.integers(0), max_size=40))
def test_good_requests_pass_unchanged_wherever_they_are_cut(good: list[bytes], at: list[int]) -> None:
    stream = b"".join(good)
    assert passed_and_refused(cut(stream, at)) == (stream, False)


@given(
    st.lists(st.sampled_from(GOOD), max_size=4),
    st.sampled_from(BROKEN),
    st.sampled_from([b"", POST]),
    st.lists(st.integers(0), max_size=40),
)
def test_a_broken_request_is_refused_wherever_it_is_cut_and_nothing_behind_it_passes(
    good: list[bytes], broken: bytes, behind: bytes, at: list[int]
) -> None:
    before = b"".join(good)
    through, refused = passed_and_refused(cut(before + broken + behind, at))
    assert refused
    assert through.startswith(before)
    # Of the broken one a part may have passed that was good so far; never its end.
    assert len(through) < len(before + broken)


@given(st.lists(st.integers(0), max_size=40))
def test_http2_passes_unchanged_and_unjudged(at: list[int]) -> None:
    stream = H2 + FOLDED
    assert passed_and_refused(cut(stream, at)) == (stream, False)


# -- the door ---------------------------------------------------------------------------------------------


@dataclass
class Running:
    shard: FakeShard
    port: int

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)


async def slow_diff(request: Request) -> Answer:
    if request.op is Op.DIFF:
        await trio.sleep(0.2)
    return await echo(request)


@asynccontextmanager
async def running(tmp_path: Path, *, serve_here: bool, keep_alive_s: int = 75) -> AsyncIterator[Running]:
    shard = FakeShard(tmp_path / "0", answer=slow_diff)
    listener = socket.create_server(("127.0.0.1", 0))
    async with gateway_over([shard]) as client, trio.open_nursery() as nursery:
        nursery.start_soon(closed_at_the_end, listener)
        config = hypercorn_config(1000)
        config.keep_alive_timeout = keep_alive_s
        door = HypercornDoor(GatewayApp(client.gateway), config)
        await nursery.start(door.run)
        poller = Poller()
        await nursery.start(poller.run)
        reactor = Reactor(client.gateway, listener, door.take, poller, serve_here=serve_here)
        await nursery.start(reactor.run)
        yield Running(shard, listener.getsockname()[1])
        nursery.cancel_scope.cancel()


async def closed_at_the_end(listener: socket.socket) -> None:
    with listener:
        await trio.sleep_forever()


@pytest.fixture
async def quart(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, serve_here=False) as run:
        yield run


@pytest.fixture
async def lane(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, serve_here=True) as run:
        yield run


async def everything(stream: trio.SocketStream) -> bytes:
    data = b""
    with trio.fail_after(10):
        while part := await stream.receive_some(1 << 20):
            data += part
    return data


def parsed(data: bytes) -> list[tuple[int, bytes]]:
    """Status and body of one answer after another; fails on anything in between."""
    found = []
    while data:
        assert data.startswith(b"HTTP/1.1 "), data[:200]
        head, _, rest = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        assert len(rest) >= length, "an answer was cut short"
        found.append((int(head.split(b" ")[1]), rest[:length]))
        data = rest[length:]
    return found


async def test_a_refusal_comes_behind_the_whole_answers_of_good_requests(quart: Running) -> None:
    async with await quart.connect() as stream:
        await stream.send_all(DIFF + GET + POST + FOLDED + POST)
        got = parsed(await everything(stream))
    assert [status for status, _ in got] == [200, 200, 200, 400]
    assert [request.op for request in quart.shard.requests] == [Op.DIFF, Op.GET_TOPIC, Op.WRITE]


async def test_a_half_closed_client_gets_its_whole_answers(quart: Running) -> None:
    async with await quart.connect() as stream:
        await stream.send_all(DIFF + GET)
        await stream.send_eof()
        assert [status for status, _ in parsed(await everything(stream))] == [200, 200]


async def test_a_broken_body_is_refused_at_once(quart: Running) -> None:
    for pieces in ([CHUNKED_HEAD + b"zz\r\n"], [CHUNKED_HEAD, b"1\r\n{\r\nzz\r\n"]):
        async with await quart.connect() as stream:
            for piece in pieces:
                await stream.send_all(piece)
                await trio.sleep(0.05)
            assert [status for status, _ in parsed(await everything(stream))] == [400]
    assert quart.shard.requests == []


@pytest.mark.parametrize("sent", [b"", b"P", HEALTH[:20], HEALTH])
async def test_a_head_that_does_not_come_ends_the_connection(tmp_path: Path, sent: bytes) -> None:
    """Hypercorn counts its seconds whole, so one is the shortest."""
    async with (
        running(tmp_path, serve_here=False, keep_alive_s=1) as run,
        await run.connect() as stream,
        trio.open_nursery() as nursery,
    ):

        async def drip() -> None:
            with suppress(trio.BrokenResourceError):
                for byte in b"X: " + b"a" * 1000:
                    await stream.send_all(bytes([byte]))
                    await trio.sleep(0.02)

        await stream.send_all(sent)
        if sent and sent != HEALTH:
            nursery.start_soon(drip)
        with trio.fail_after(5), suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass
        nursery.cancel_scope.cancel()


async def test_a_client_that_never_reads_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "WRITE_STALL_S", 0.3)

    async def large(request: Request) -> Answer:
        return Answer(body=b"x" * (8 << 20)) if request.op is Op.DIFF else await echo(request)

    async with running(tmp_path, serve_here=False) as run, await run.connect() as stream:
        run.shard.answer = large
        await stream.send_all(DIFF * 20)
        await run.shard.wait_until(lambda: len(run.shard.requests) >= 1)
        async with await run.connect() as other:
            await other.send_all(GET)
            assert (await other.receive_some()).startswith(b"HTTP/1.1 200")
        # It is not asked for the second answer before the first has left.
        assert sum(request.op is Op.DIFF for request in run.shard.requests) <= 2
        await trio.sleep(1)
        # Too late: what the kernel held is there, and then the end.
        data = b""
        with trio.fail_after(5), suppress(trio.BrokenResourceError):
            while part := await stream.receive_some(1 << 20):
                data += part
        assert data.count(b"HTTP/1.1 200") <= 2


@pytest.mark.parametrize("farewell", ["close", "reset"])
@pytest.mark.parametrize("sent", [b"", b"P", HEALTH, DIFF, POST[:-1], H2])
async def test_a_client_that_has_left_is_let_go(
    quart: Running, monkeypatch: pytest.MonkeyPatch, sent: bytes, farewell: str
) -> None:
    served = trio.Event()
    served_sockets: list[int] = []
    serve = HypercornDoor._serve

    async def noted(self: HypercornDoor, sock: socket.socket, data: bytes) -> None:
        await serve(self, sock, data)
        served_sockets.append(sock.fileno())
        sock.close()
        served.set()

    monkeypatch.setattr(HypercornDoor, "_serve", noted)
    stream = await quart.connect()
    await stream.send_all(sent)
    await trio.sleep(0.05)
    if farewell == "reset":
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    await stream.aclose()
    with trio.fail_after(5):
        await served.wait()
    assert served_sockets == [-1], "its socket was left to the garbage collector"


async def parked_diff(request: Request) -> Answer:
    """A diff waits for ever, like a long-poll; everything else is echoed."""
    if request.op is Op.DIFF:
        await trio.sleep_forever()
    return await echo(request)


async def test_a_client_that_leaves_cancels_its_long_poll_in_the_shard(quart: Running) -> None:
    quart.shard.answer = parked_diff
    stream = await quart.connect()
    await stream.send_all(DIFF)
    await quart.shard.wait_until(lambda: len(quart.shard.requests) == 1)
    await stream.aclose()
    await quart.shard.wait_until(lambda: len(quart.shard.cancelled) == 1)


async def test_a_stream_that_is_reset_cancels_its_long_poll_in_the_shard_and_no_other(lane: Running) -> None:
    lane.shard.answer = parked_diff
    connection = h2.connection.H2Connection()
    connection.initiate_connection()
    fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a")]
    async with await lane.connect() as stream:
        for number in (1, 3):
            connection.send_headers(number, [*fields, (":path", "/v0/topics/a/diff")], end_stream=True)
        await stream.send_all(connection.data_to_send())
        await lane.shard.wait_until(lambda: len(lane.shard.requests) == 2)
        connection.reset_stream(1, h2.errors.ErrorCodes.CANCEL)
        await stream.send_all(connection.data_to_send())
        await lane.shard.wait_until(lambda: len(lane.shard.cancelled) == 1)
    await lane.shard.wait_until(lambda: len(lane.shard.cancelled) == 2)


async def test_a_failure_inside_one_connection_ends_that_connection_alone(
    quart: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check = _Guard.check

    def fails_on_demand(self: _Guard, data: bytes) -> object:
        if b"/fail" in data:
            raise RuntimeError("a bug")
        return check(self, data)

    monkeypatch.setattr(handover._Guard, "check", fails_on_demand)
    async with await quart.connect() as unlucky, await quart.connect() as other:
        await unlucky.send_all(b"GET /fail HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await everything(unlucky) == b""
        await other.send_all(HEALTH)
        assert (await other.receive_some()).startswith(b"HTTP/1.1 200")
    assert [record.exc_info for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("size", [1, 5, 24, 1000])
async def test_http2_begun_in_pieces_of_any_size_is_handed_over_and_served(lane: Running, size: int) -> None:
    connection = h2.connection.H2Connection()
    connection.initiate_connection()
    fields = [(":method", "GET"), (":path", "/v0/health"), (":scheme", "http"), (":authority", "a")]
    connection.send_headers(1, fields, end_stream=True)
    data = connection.data_to_send()
    status = None
    async with await lane.connect() as stream:
        for at in range(0, len(data), size):
            await stream.send_all(data[at : at + size])
            await trio.lowlevel.checkpoint()
        with trio.fail_after(5):
            while status is None:
                for event in connection.receive_data(await stream.receive_some()):
                    if isinstance(event, h2.events.ResponseReceived):
                        assert event.headers is not None
                        status = dict(event.headers)[b":status"]
    assert status == b"200"


async def test_an_upgrade_behind_other_requests_is_handed_over_after_their_answers(lane: Running) -> None:
    async with await lane.connect() as stream:
        await stream.send_all(DIFF + GET + UPGRADE[:30])
        await trio.sleep(0.05)
        await stream.send_all(UPGRADE[30:] + HEALTH)
        await stream.send_eof()
        assert [status for status, _ in parsed(await everything(stream))] == [200, 200, 200, 200]
    assert [request.op for request in lane.shard.requests] == [Op.DIFF, Op.GET_TOPIC]
