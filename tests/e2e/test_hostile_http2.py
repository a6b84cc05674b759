"""HTTP/2 by prior knowledge, spoken frame by frame: streams reset, flooded or refused harm no others."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import h2.errors
import h2.exceptions
import pytest

from tests.e2e.hostile import LANE, MIB, WRITE, Http2, gateway_pid, resident_bytes
from tests.e2e.server import Server, Topic, Wire, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT = json.dumps({"wait_ms": 30_000}).encode()
JSON = {"content-type": "application/json"}


@pytest.fixture
def http2(server: Server) -> Iterator[Http2]:
    with server.connect() as wire:
        yield Http2(wire)


@LANE
def test_a_long_poll_that_is_reset_ends_alone(topic: Topic, http2: Http2) -> None:
    topic.put()
    polls = [http2.post(f"{topic.path}/diff", WAIT) for _ in range(10)]
    health = http2.begin("GET", "/v0/health")
    assert http2.wait(health) == [200]
    for stream in polls[:5]:
        http2.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
    http2.flush()
    assert http2.wait(http2.post(topic.path, WRITE)) == [200]
    assert http2.wait(*polls[5:]) == [200] * 5
    assert all(b'"$seq":1' in http2.bodies[stream] for stream in polls[5:])


@LANE
def test_a_hundred_streams_at_once_are_all_answered(topic: Topic, http2: Http2) -> None:
    topic.put()
    streams = [http2.post(topic.path, WRITE) for _ in range(90)]
    assert http2.wait(*streams) == [200] * 90
    assert sorted(seq for stream in streams for seq in json.loads(http2.bodies[stream])["seqs"]) == list(
        range(1, 91)
    )


@LANE
def test_a_stream_that_is_refused_early_harms_no_other(topic: Topic, http2: Http2) -> None:
    topic.put()
    poll = http2.post(f"{topic.path}/diff", WAIT)
    refused = http2.begin("POST", topic.path, {**JSON, "content-length": str(80 * MIB)}, end=False)
    for _ in range(10):
        http2.h2.send_data(refused, b" " * 4096)
    http2.flush()
    assert http2.wait(http2.post(topic.path, WRITE)) == [200]
    assert http2.wait(poll) == [200]
    # The refused one may still be read away for a moment before its answer.
    assert http2.wait(refused) == [413]
    assert http2.wait(http2.begin("GET", "/v0/health")) == [200]


def test_streams_opened_and_reset_at_once_are_forgotten(
    start_server: Callable[..., Server], name: str
) -> None:
    """The shape of a rapid reset: requests that cost the client nothing."""
    server = start_server({})
    topic = Topic(server, name)
    topic.put()
    pid = gateway_pid(server)
    before = resident_bytes(pid)
    for _ in range(5):
        with server.connect() as wire:
            http2 = Http2(wire)
            try:
                for _ in range(400):
                    stream = http2.post(f"{topic.path}/diff", WAIT)
                    http2.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
                    http2.flush()
            except OSError:
                pass  # it may end a connection that does only this
    topic.write("still there")
    assert topic.seqs() == [1]
    eventually(lambda: resident_bytes(pid) - before < 50 * MIB)


@LANE
def test_a_connection_that_vanishes_with_streams_open_is_forgotten(topic: Topic, server: Server) -> None:
    topic.put()
    for _ in range(10):
        with server.connect() as wire:
            http2 = Http2(wire)
            for _ in range(20):
                http2.post(f"{topic.path}/diff", WAIT)
    assert topic.write("x")["seqs"] == [1]


def ends(http2: Http2) -> bool:
    """Whether the server ends this connection, with or without a farewell."""
    for _ in range(20):
        try:
            http2.receive()
        except TimeoutError:
            return False
        except (AssertionError, OSError, h2.exceptions.ProtocolError):
            return True
        if http2.closed:
            return True
    return False


@LANE
@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x40\x01\x00\x00\x00\x00\x00\x01" + b"x" * 0x4001,  # DATA longer than a frame may be
        b"GET /v0/health HTTP/1.1\r\nHost: a\r\n\r\n" + b"x" * 0x474554,  # the other protocol
        b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00",  # WINDOW_UPDATE of nothing
        b"\x00\x00\x05\x00\x00\x00\x00\x00\x01hello",  # DATA on a stream that nobody opened
        b"\x00\x00\x04\x01\x04\x00\x00\x00\x01\xff\xff\xff\xff",  # headers that are no headers
        b"\x00\x00\x00\x09\x04\x00\x00\x00\x01",  # a continuation of nothing
    ],
    ids=["too-long", "http1", "empty-window", "no-stream", "bad-headers", "lone-continuation"],
)
def test_broken_frames_end_their_connection_alone(server: Server, http2: Http2, garbage: bytes) -> None:
    with server.connect() as wire:
        broken = Http2(wire)
        with suppress(ConnectionError):
            wire.send(garbage)
        wire.sock.settimeout(5)
        assert ends(broken)
    assert http2.wait(http2.begin("GET", "/v0/health")) == [200]


@LANE
def test_a_preface_in_pieces_is_a_preface(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def bytewise(self: Wire, data: bytes) -> None:
        for byte in data:
            self.sock.sendall(bytes([byte]))

    with server.connect() as wire:
        monkeypatch.setattr(Wire, "send", bytewise)
        http2 = Http2(wire)
        monkeypatch.undo()
        assert http2.wait(http2.begin("GET", "/v0/health")) == [200]


@LANE
def test_request_headers_that_http2_forbids_are_refused(server: Server, http2: Http2) -> None:
    """What would be framing in HTTP/1.1 must not become so here."""
    stream = http2.begin("POST", "/v0/topics/a", {**JSON, "content-length": "5"}, end=False)
    http2.h2.send_data(stream, b"hello, and much more than five", end_stream=True)
    http2.flush()
    # A stream error or the end of the connection; the end may meet our own last frames.
    with pytest.raises((AssertionError, KeyError, BrokenPipeError, ConnectionResetError)):
        assert http2.wait(stream) == [200]
    server.get("/v0/topics/a").failed(404, "topic_not_found")
