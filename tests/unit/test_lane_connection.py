"""One connection of the lane over a socket pair, without a loop: its handler echoes, its lane takes notes."""

import itertools
import json
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.context import Gateway
from gateway.effects import Effect, Handling, InThread, ReadBody
from gateway.http import Request, Response, error_response
from gateway.lane import connection as lane_connection
from gateway.lane.connection import RECEIVE_BYTES, Connection
from gateway.lane.openings import Openings
from gateway.lane.parsing import H2_PREFACE
from shards.client import ShardPool
from topics.engine.limits import Limits
from topics.errors import TopicsError

BODY_BYTES_MAX = 1000
GET = b"GET /now HTTP/1.1\r\nHost: a\r\n\r\n"
WAIT = b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /now HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
PUT = b"PUT /now HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
CHUNKED_HEAD = b"POST /now HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = CHUNKED_HEAD + b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nT: t\r\n\r\n"
# It never ends, so the connection cannot go on after the answer.
TOO_LARGE = b"POST /now HTTP/1.1\r\nHost: a\r\nContent-Length: 3000\r\n\r\n" + b"x" * 2000
FOLDED = b"GET /now HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n"
BAD_CHUNK = CHUNKED_HEAD + b"3\r\nhel\r\nzz\r\nlo\r\n"
CLOSE = b"GET /now HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
UPGRADE = b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
H2 = H2_PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@dataclass
class NotesLane:
    """Stands where the reactor would; answers `/now` at once and `/wait` when told to."""

    gateway: Gateway
    requests: list[tuple[str, bytes, bytes]] = field(default_factory=list)
    waiting: list[Connection] = field(default_factory=list)
    handed_over: bytes | None = None
    dropped: bool = False
    unfinished: list[Connection] = field(default_factory=list)
    reading: bool = True  # what the reactor's epoll would wait for; it only learns that by `rearm`

    def __post_init__(self) -> None:
        self.openings = Openings(self.gateway)

    def handle(self, request: Request) -> Handling[Response]:
        return self._answer(request)

    async def _answer(self, request: Request) -> Response:
        try:
            body = await ReadBody(BODY_BYTES_MAX)
            if request.raw_path == b"/wait":
                await InThread(lambda: None, self.gateway.zlib_threads)
        except TopicsError as error:
            response = error_response(error, request.arrived_ns)
        else:
            self.requests.append((request.method, request.raw_path, body))
            response = Response(200, json.dumps([request.method, len(self.requests)]).encode())
        response.headers.append(("content-length", str(len(response.body))))
        return response

    def in_task(self, connection: Connection, effect: Effect[Any]) -> None:
        self.waiting.append(connection)

    def hand_over(self, connection: Connection, data: bytes) -> None:
        connection.release()
        self.handed_over = data

    def resume(self, connection: Connection, result: Any, error: Exception | None) -> None:
        connection.resume(result, error)

    def come_back(self, connection: Connection) -> None:
        self.unfinished.append(connection)

    def rearm(self, connection: Connection) -> None:
        self.reading = connection.wants_read

    def drop(self, connection: Connection) -> None:
        self.dropped = True
        connection.sock.close()


@dataclass
class Pair:
    lane: NotesLane
    connection: Connection
    client: socket.socket

    def send(self, data: bytes) -> None:
        """These bytes arrive as one packet; after a hand-over whoever took the socket reads them."""
        if self.lane.handed_over is not None:
            self.lane.handed_over += data
        elif not self.connection.closed and self.lane.reading:
            self.client.sendall(data)
            self.connection.on_readable()
            self.work_off()

    def has_gone(self) -> bool:
        return self.lane.dropped

    def work_off(self) -> None:
        """The turns after the first one, for a connection that has more to do."""
        while self.lane.unfinished:
            self.lane.unfinished.pop().proceed()

    def finish_waiting(self) -> None:
        self.lane.waiting.pop(0).resume(None, None)
        self.work_off()

    def received(self) -> bytes:
        data = b""
        self.client.setblocking(False)
        try:
            while part := self.client.recv(1 << 20):
                data += part
        except (BlockingIOError, ConnectionResetError):
            pass
        return data

    def statuses(self) -> list[int]:
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", self.received())]

    def close(self) -> None:
        self.connection.close()
        self.connection.sock.close()
        self.client.close()


def open_pair() -> Pair:
    gateway = Gateway(pool=ShardPool([]), limits=Limits(), version="", started_ns=time.monotonic_ns())
    client, server = socket.socketpair()
    server.setblocking(False)
    lane = NotesLane(gateway)
    return Pair(lane, Connection(lane, server), client)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = open_pair()
    yield pair
    pair.close()


# -- where the bytes are cut ------------------------------------------------------------------------------


@dataclass
class Outcome:
    requests: list[tuple[str, bytes, bytes]]
    statuses: list[int]
    handed_over: bytes | None
    ended: bool


def outcome(pieces: list[bytes]) -> Outcome:
    pair = open_pair()
    try:
        for piece in pieces:
            pair.send(piece)
        ended = pair.connection.closed or pair.connection._lingering
        return Outcome(pair.lane.requests, pair.statuses(), pair.lane.handed_over, ended)
    finally:
        pair.close()


KINDS = {
    "get": GET,
    "post": POST,
    "put": PUT,
    "chunked": CHUNKED,
    "too-large": TOO_LARGE,
    "folded": FOLDED,
    "bad-chunk": BAD_CHUNK,
    "close": CLOSE,
    "upgrade": UPGRADE,
    "h2": H2,
    "unknown-method": b"FOO /now HTTP/1.1\r\nHost: a\r\n\r\n",
    "almost-a-method": b"PROPFOO /now HTTP/1.1\r\nHost: a\r\n\r\n",
    "pri": b"PRI /now HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("stream", KINDS.values(), ids=KINDS)
def test_a_request_sent_byte_by_byte_ends_like_one_sent_whole(stream: bytes) -> None:
    assert outcome([bytes([byte]) for byte in stream]) == outcome([stream])


@pytest.mark.parametrize("stream", KINDS.values(), ids=KINDS)
def test_a_request_in_two_packets_ends_like_one_in_one(stream: bytes) -> None:
    whole = outcome([stream])
    for at in range(1, min(len(stream), 120)):
        assert outcome([stream[:at], stream[at:]]) == whole, at


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([GET, POST, PUT, CHUNKED]), max_size=6),
    st.sampled_from([GET, CHUNKED, TOO_LARGE, FOLDED, BAD_CHUNK, CLOSE]),
    st.lists(st.integers(0), max_size=30),
)
def test_answers_do_not_depend_on_where_the_network_cuts(
    good: list[bytes], last: bytes, at: list[int]
) -> None:
    stream = b"".join([*good, last])
    places = sorted({place % (len(stream) + 1) for place in at} | {0, len(stream)})
    pieces = [stream[start:end] for start, end in itertools.pairwise(places)]
    whole = outcome([stream])
    assert len(whole.statuses) == len(good) + 1
    assert outcome(pieces) == whole


# -- handing over -----------------------------------------------------------------------------------------


def test_the_h2_preface_is_recognised_wherever_it_is_cut_and_every_byte_is_kept() -> None:
    for at in range(len(H2) + 1):
        pair = open_pair()
        pair.send(H2[:at])
        pair.send(H2[at:])
        assert pair.lane.handed_over == H2, at
        assert pair.received() == b"", at
        pair.close()


PROPFOO = b"PROPFOO /now HTTP/1.1\r\nHost: a\r\n\r\n"


def check_second_request(pair: Pair, second: bytes, at: int) -> None:
    """Handed over whole, refused, or answered here; the first request is not executed again."""
    if pair.lane.handed_over is not None:
        assert pair.lane.handed_over == second, at
        assert len(pair.lane.requests) == 1, at
    else:
        assert len(pair.lane.requests) in (1, 2), at
        assert pair.statuses()[1:] in ([], [200], [400], [405], [501]), at


@pytest.mark.parametrize("second", [UPGRADE, PROPFOO], ids=["upgrade", "unknown-method"])
def test_what_begins_in_the_packet_of_an_answered_request_is_handed_over_whole_or_not(second: bytes) -> None:
    for at in range(1, len(second)):
        pair = open_pair()
        pair.send(POST + second[:at])
        pair.send(second[at:])
        check_second_request(pair, second, at)
        pair.close()


@pytest.mark.parametrize("second", [UPGRADE, PROPFOO], ids=["upgrade", "unknown-method"])
def test_a_request_under_way_is_never_handed_over_to_be_executed_again(second: bytes) -> None:
    for at in range(1, len(second)):
        pair = open_pair()
        pair.send(WAIT)
        pair.send(second[:at])
        pair.finish_waiting()
        pair.send(second[at:])
        check_second_request(pair, second, at)
        pair.close()


def test_an_upgrade_behind_a_request_under_way_is_not_handed_over_before_the_answer(pair: Pair) -> None:
    pair.send(WAIT)
    pair.send(UPGRADE)
    assert pair.lane.handed_over is None
    pair.finish_waiting()
    assert pair.statuses()[0] == 200


def test_a_body_in_its_own_packet_reaches_a_request_that_would_like_to_upgrade(pair: Pair) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    pair.send(POST[:-7] + upgrade + b"\r\n")
    pair.send(b"hello")
    if pair.lane.handed_over is not None:
        assert pair.lane.handed_over.endswith(b"\r\n\r\nhello")
    else:
        assert pair.lane.requests == [("POST", b"/now", b"hello")]
        assert pair.statuses() == [200]


# -- pipelining -------------------------------------------------------------------------------------------


def test_thousands_of_requests_in_one_packet_are_all_answered_in_order(pair: Pair) -> None:
    pair.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    pair.send(GET * 2000)
    numbers = [int(number) for number in re.findall(rb'\["GET", (\d+)\]', pair.received())]
    assert numbers == list(range(1, 2001))


def test_requests_behind_one_that_waits_are_answered_after_it_in_order(pair: Pair) -> None:
    pair.send(WAIT + POST + GET)
    assert pair.received() == b""
    pair.finish_waiting()
    assert [method for method, _, _ in pair.lane.requests] == ["GET", "POST", "GET"]
    assert pair.statuses() == [200, 200, 200]


@pytest.mark.parametrize(
    "more", [GET * 100, CHUNKED_HEAD + b"186a0\r\n" + b"x" * 50_000], ids=["requests", "body"]
)
def test_what_is_sent_ahead_of_an_answer_waits_in_the_kernel_apart_from_one_receive(
    pair: Pair, more: bytes
) -> None:
    pair.send(WAIT)
    packets = 0
    while pair.lane.reading:
        pair.send(more)
        packets += 1
        assert packets <= 2
    assert len(pair.connection._buffer) <= RECEIVE_BYTES
    pair.finish_waiting()
    assert pair.connection.wants_read
    assert pair.statuses()[:2] == ([200, 200] if more.startswith(GET) else [200, 413])


def test_a_broken_request_is_refused_after_the_answers_before_it(pair: Pair) -> None:
    pair.send(WAIT + GET + FOLDED + POST)
    assert pair.received() == b""
    pair.finish_waiting()
    assert pair.statuses() == [200, 200, 400]
    assert ("POST", b"/now", b"hello") not in pair.lane.requests


def test_nothing_behind_connection_close_is_executed(pair: Pair) -> None:
    pair.send(CLOSE + POST)
    pair.send(POST)
    assert pair.statuses() == [200]
    assert len(pair.lane.requests) == 1
    pair.connection.on_deadline()
    assert pair.has_gone()


# -- bodies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tail", [b"zz\r\n", b"-3\r\n", b"0x3\r\n", b"f" * 17 + b"\r\n", b"3\nhel\n", b"3\r\nhello\r\n"]
)
@pytest.mark.parametrize("together", [True, False])
def test_a_broken_chunk_is_refused_at_once(pair: Pair, tail: bytes, together: bool) -> None:
    head = CHUNKED_HEAD + b"3\r\nhel\r\n"
    for piece in [head + tail] if together else [head, tail]:
        pair.send(piece)
    assert pair.statuses() == [400]
    assert pair.lane.requests == []


def test_continue_is_said_once_and_not_to_who_is_refused(pair: Pair) -> None:
    asking = b"POST /now HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
    pair.send(asking)
    assert pair.statuses() == [100]
    for byte in b"5\r\nhello\r\n0\r\n\r\n":
        pair.send(bytes([byte]))
    assert pair.statuses() == [200]


def test_a_body_over_the_limit_is_413_as_soon_as_that_is_known_and_the_rest_is_not_kept(pair: Pair) -> None:
    pair.send(CHUNKED_HEAD)
    pair.send(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
    assert pair.received() == b""
    pair.send(b"1\r\nx\r\n")
    assert pair.statuses() == [413]
    for _ in range(10):
        pair.send(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
    assert pair.connection._incoming is None
    assert pair.connection._buffer == b""


def test_a_refused_connection_is_read_away_for_a_moment_so_that_the_answer_arrives() -> None:
    for refused in (TOO_LARGE[:-500], FOLDED + b"more", BAD_CHUNK):
        pair = open_pair()
        pair.send(refused)
        pair.send(b"and more")
        assert not pair.has_gone()
        assert pair.lane.reading
        assert pair.connection.deadline <= time.monotonic() + lane_connection.LINGER_S
        assert pair.statuses() in ([413], [400])
        pair.connection.on_deadline()
        assert pair.has_gone()
        pair.close()


# -- peers that leave, stall or half-close ----------------------------------------------------------------


def half_close(pair: Pair) -> None:
    pair.client.shutdown(socket.SHUT_WR)
    pair.connection.on_readable()


def test_a_client_that_sends_no_more_still_gets_every_answer(pair: Pair) -> None:
    pair.send(WAIT + POST + WAIT + GET)
    half_close(pair)
    pair.finish_waiting()
    pair.finish_waiting()
    assert pair.statuses() == [200, 200, 200, 200]
    assert pair.has_gone()


def test_a_client_that_leaves_while_idle_or_inside_a_head_or_a_body_is_let_go() -> None:
    for begun in (b"", b"P", b"PRI * HT", GET[:10], POST[:-2], GET):
        pair = open_pair()
        if begun:
            pair.send(begun)
        half_close(pair)
        assert pair.has_gone(), begun
        assert pair.lane.gateway.under_way == 0
        pair.close()


def test_a_request_whose_client_has_left_is_given_up_after_a_moment(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_connection, "HALF_CLOSED_S", 0.0)
    pair.send(WAIT)
    assert pair.connection.deadline == float("inf")
    half_close(pair)
    assert pair.connection.deadline <= time.monotonic()
    pair.connection.on_deadline()
    assert pair.has_gone()
    assert pair.lane.gateway.under_way == 0
    pair.finish_waiting()  # its answer comes too late and hurts nobody


def test_the_time_for_a_head_runs_from_its_first_byte_whatever_follows() -> None:
    for stream in (GET, POST, b"PRI * HTTP/1.1\r\nHost: a\r\n\r\n"):
        pair = open_pair()
        pair.send(stream[:1])
        deadline = pair.connection.deadline
        assert deadline <= time.monotonic() + lane_connection.HEAD_S
        for byte in stream[1:20]:
            pair.send(bytes([byte]))
            assert pair.connection.deadline == deadline, stream
        pair.close()


@pytest.mark.parametrize("before", [GET, POST, GET + POST])
def test_a_head_begun_behind_an_answer_has_the_time_of_a_head(pair: Pair, before: bytes) -> None:
    pair.send(before + GET[:5])
    assert pair.connection.deadline <= time.monotonic() + lane_connection.HEAD_S
    assert not pair.connection.idle


def test_a_body_that_stops_arriving_is_told_so(pair: Pair) -> None:
    pair.send(POST[:-1])
    assert pair.connection.deadline <= time.monotonic() + lane_connection.BODY_IDLE_S
    pair.connection.on_deadline()
    assert pair.statuses() == [400]
    assert pair.lane.gateway.under_way == 0


def test_a_client_that_does_not_read_is_not_read_from_and_goes_when_its_time_is_over(pair: Pair) -> None:
    pair.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    rounds = 0
    while pair.lane.reading:
        pair.send(GET * 10)
        rounds += 1
        assert rounds < 1000
    assert pair.connection.wants_write
    assert pair.connection.deadline <= time.monotonic() + lane_connection.WRITE_STALL_S
    pair.connection.on_deadline()
    assert pair.has_gone()
    assert pair.lane.gateway.under_way == 0


def test_a_slow_reader_gets_every_byte_in_order(pair: Pair) -> None:
    pair.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    data = b""
    for _ in range(50):
        pair.send(GET * 20)
        while pair.connection.wants_write:
            data += pair.client.recv(100)
            pair.connection.on_writable()
    data += pair.received()
    numbers = [int(number) for number in re.findall(rb'\["GET", (\d+)\]', data)]
    assert numbers == list(range(1, 1001))
