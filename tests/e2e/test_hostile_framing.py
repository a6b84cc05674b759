"""Requests that two parsers might read differently, through both HTTP/1.1 doors: refused, never guessed.

Every case looks for what would be the damage: a request executed that nobody sent, or executed twice.
"""

from __future__ import annotations

import itertools
import socket
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hostile import (
    BOTH_DOORS,
    WRITE,
    answers,
    chunked_post,
    get,
    post,
    refused_and_ended,
    rest_of,
    send_apart,
)

if TYPE_CHECKING:
    from tests.e2e.server import Server, Topic

pytestmark = BOTH_DOORS

ONE_CHUNK = b"%x\r\n%s\r\n" % (len(WRITE), WRITE)
GOOD_BODY = ONE_CHUNK + b"0\r\n\r\n"
# The first byte alone, some bytes, all: a check must not depend on where the network cuts.
CUTS = {"whole": None, "first-byte": [1], "second-byte": [2], "in-pieces": list(range(0, 4000, 7))}


def cut(data: bytes, places: list[int] | None) -> list[bytes]:
    edges = [0, *(place for place in places or [] if 0 < place < len(data)), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


BROKEN_HEADERS = {
    "space-before-colon": "X : a",
    "nul": "X: a\0b",
    "bare-cr": "X: a\rb",
    "control-character": "X: a\x0bb",
    "folded": "X: a\r\n b",
    "folded-with-tab": "X: a\r\n\tb",
    "no-name": ": a",
    "control-in-name": "X\x01: a",
    "two-hosts": "Host: elsewhere.example",
    "same-host-twice": "Host: 127.0.0.1",
    "lf-inside": "X: a\nY: b",
}


@pytest.mark.parametrize("where", CUTS)
@pytest.mark.parametrize("header", BROKEN_HEADERS.values(), ids=BROKEN_HEADERS)
def test_a_broken_header_is_refused_wherever_the_bytes_are_cut(topic: Topic, header: str, where: str) -> None:
    refused_and_ended(topic.server, cut(post(topic.path, WRITE, header), CUTS[where]))
    topic.server.get(topic.path).failed(404, "topic_not_found")


@pytest.mark.parametrize("method", ["FOO", "P", "PRI", "PATCHES"])
@pytest.mark.parametrize("header", ["X: a\r\n b", "X : a", "Content-Length: 5\r\nTransfer-Encoding: chunked"])
def test_an_unknown_method_is_no_way_around_the_checks(server: Server, method: str, header: str) -> None:
    good = get("/v0/health").replace(b"GET", method.encode())
    broken = get("/v0/health", header).replace(b"GET", method.encode())
    refused_and_ended(server, [broken])
    with server.connect() as wire:
        send_apart(wire, [good, get("/v0/health", header)])
        ending = rest_of(wire)
    assert ending.closed
    assert 200 not in ending.statuses, ending


@pytest.mark.parametrize("upgrade", ["nonsense", "h2c"])
def test_an_upgrade_that_does_not_happen_is_no_way_around_the_checks(topic: Topic, upgrade: str) -> None:
    offer = post(topic.path, WRITE, "Connection: Upgrade", f"Upgrade: {upgrade}")
    with topic.server.connect() as wire:
        send_apart(wire, [offer, get("/v0/health", "X: a\r\n folded")], apart_s=0.2)
        ending = rest_of(wire)
    assert ending.closed
    assert ending.statuses in ([201], [201, 400], [400]), ending


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n\n", b"\n\r\n"])
def test_line_ends_that_are_not_crlf_are_refused(topic: Topic, line_end: bytes) -> None:
    head = post(topic.path, b"").replace(b"\r\n", line_end)
    refused_and_ended(topic.server, [head])
    topic.server.get(topic.path).failed(404, "topic_not_found")


@pytest.mark.parametrize("version", ["0.9", "1.2", "1.10", "2.0", "3.0", "9.9", "1", "11", "x"])
def test_other_versions_of_http_are_refused(server: Server, version: str) -> None:
    data = get("/v0/health").replace(b"HTTP/1.1", f"HTTP/{version}".encode())
    refused_and_ended(server, [data], allowed=(400, 505))


def test_a_request_of_the_time_before_versions_is_refused(server: Server) -> None:
    refused_and_ended(server, [b"GET /v0/health\r\n\r\n"], allowed=(400, 505))


@pytest.mark.parametrize(
    "lengths",
    [
        "24\r\nContent-Length: 24",
        "24, 24",
        "+24",
        "0x18",
        "2_4",
        "2 4",
        "24;",
        "",
        "-24",
        "18446744073709551616",
        "9" * 30,
        "\x0b24",
    ],
)
def test_a_length_that_is_not_one_plain_number_is_refused(topic: Topic, lengths: str) -> None:
    data = post(topic.path).replace(b"Content-Length: 24", f"Content-Length: {lengths}".encode())
    refused_and_ended(topic.server, [data])
    topic.server.get(topic.path).failed(404, "topic_not_found")


@pytest.mark.parametrize(
    "coding",
    [
        "gzip, chunked",
        "xchunked",
        "chunked, chunked",
        "chunked, gzip",
        "gzip",
        "identity",
        "chunked;a=b",
        "\x0bchunked",
        "",
        "chunked\r\nTransfer-Encoding: chunked",
        "identity\r\nTransfer-Encoding: chunked",
        "chunked\r\nTransfer-Encoding: identity",
    ],
)
def test_a_transfer_coding_other_than_chunked_is_refused(topic: Topic, coding: str) -> None:
    data = chunked_post(topic.path, GOOD_BODY).replace(b"Encoding: chunked", b"Encoding: " + coding.encode())
    refused_and_ended(topic.server, [data], allowed=(400, 501))
    topic.server.get(topic.path).failed(404, "topic_not_found")


@pytest.mark.parametrize("order", ["length-first", "length-last"])
@pytest.mark.parametrize("coding", ["chunked", "identity", "x"])
def test_a_length_beside_a_transfer_coding_is_refused(topic: Topic, order: str, coding: str) -> None:
    pair = ["Content-Length: 6", f"Transfer-Encoding: {coding}"]
    smuggled = get("/v0/health")
    lines = [
        f"POST {topic.path} HTTP/1.1",
        "Host: a",
        *(pair if order == "length-first" else pair[::-1]),
        "",
        "",
    ]
    refused_and_ended(
        topic.server, ["\r\n".join(lines).encode() + b"0\r\n\r\n" + smuggled], allowed=(400, 501)
    )


BAD_CHUNKS = {
    "not-hex": b"zz\r\n",
    "negative": b"-5\r\n",
    "with-0x": b"0x18\r\n" + WRITE + b"\r\n0\r\n\r\n",
    "too-large-a-number": b"f" * 17 + b"\r\n",
    "space-behind": b"18 \r\n" + WRITE + b"\r\n0\r\n\r\n",
    "lf-only": b"18\n" + WRITE + b"\n0\n\n",
    "lf-behind-extension": b"18;a\n" + WRITE + b"\r\n0\r\n\r\n",
    "longer-than-said": b"17\r\n" + WRITE + b"\r\n0\r\n\r\n",
    "no-line-end": b"18\r\n" + WRITE + b"0\r\n\r\n",
    "no-size": b"\r\n" + WRITE,
    "bad-last": ONE_CHUNK + b"zz\r\n\r\n",
}


@pytest.mark.parametrize("body", BAD_CHUNKS.values(), ids=BAD_CHUNKS)
@pytest.mark.parametrize("apart", [False, True], ids=["with-head", "behind-head"])
def test_broken_chunks_are_refused_at_once_and_write_nothing(topic: Topic, body: bytes, apart: bool) -> None:
    head = chunked_post(topic.path, b"")
    refused_and_ended(topic.server, [head, body] if apart else [head + body])
    topic.server.get(topic.path).failed(404, "topic_not_found")


def test_chunk_extensions_and_trailers_change_nothing(topic: Topic) -> None:
    body = b"18;name=value;other\r\n" + WRITE + b"\r\n0;last\r\nX-Trailer: a\r\nX-Other: b\r\n\r\n"
    with topic.server.connect() as wire:
        wire.send(chunked_post(topic.path, body) + get(topic.path))
        written, state = answers(wire, 2)
    assert written.ok(201)["count"] == 1
    assert state.ok()["head_seq"] == 1


def test_trailers_do_not_become_headers(topic: Topic) -> None:
    """A trailer that would be refused, or would matter, as a header."""
    body = b"2\r\n{}\r\n0\r\nOrigin: http://elsewhere.example\r\nIdempotency-Key: k\r\n\r\n"
    head = b"PUT" + chunked_post(topic.path, b"")[4:]
    with topic.server.connect() as wire:
        wire.send(head + body)
        wire.answer("PUT").ok(201)


@pytest.mark.parametrize("begun", [b"0\r\nX: ", b"18;"], ids=["trailer", "extension"])
def test_a_trailer_or_an_extension_without_end_is_refused(topic: Topic, begun: bytes) -> None:
    with topic.server.connect() as wire:
        send_apart(wire, [chunked_post(topic.path, begun), *[b"a" * 10_000] * 20], apart_s=0.001)
        ending = rest_of(wire)
    assert ending.closed
    assert ending.statuses in ([400], [431], [])
    topic.server.get(topic.path).failed(404, "topic_not_found")


# -- a request inside a request ---------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_body_that_looks_like_a_request_is_not_executed(topic: Topic, framing: str) -> None:
    topic.put()
    inner = f"DELETE {topic.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    if framing == "length":
        data = post(topic.path, inner)
    else:
        data = chunked_post(topic.path, b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner))
    with topic.server.connect() as wire:
        wire.send(data + get(topic.path))
        refused, state = answers(wire, 2)
        assert wire.is_silent_for(0.05)
    refused.failed(400, "invalid_request")
    state.ok()


def test_a_body_of_a_request_that_wants_none_is_not_executed(topic: Topic) -> None:
    topic.put()
    inner = f"DELETE {topic.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    with topic.server.connect() as wire:
        wire.send(get("/v0/health", f"Content-Length: {len(inner)}") + inner + get(topic.path))
        assert [answer.status for answer in answers(wire, 2)] == [200, 200]


def test_what_is_longer_than_its_length_ends_the_connection(topic: Topic) -> None:
    data = post(topic.path).replace(b"Content-Length: 24", b"Content-Length: 20")
    with topic.server.connect() as wire:
        wire.send(data + b"\r\n\r\n")
        ending = rest_of(wire)
    assert set(ending.statuses) == {400}
    assert ending.closed
    topic.server.get(topic.path).failed(404, "topic_not_found")


def test_a_body_that_is_shorter_than_its_length_writes_nothing(topic: Topic) -> None:
    data = post(topic.path).replace(b"Content-Length: 24", b"Content-Length: 25")
    with topic.server.connect() as wire:
        wire.send(data)
        wire.sock.shutdown(socket.SHUT_WR)
        assert 201 not in rest_of(wire).statuses
    topic.server.get(topic.path).failed(404, "topic_not_found")


# -- sizes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["whole", "in-pieces"])
@pytest.mark.parametrize(
    "data",
    [
        get("/v0/health", "X: " + "a" * 20_000),
        get("/v0/health", "X: " + "a" * 200_000),
        get("/v0/health", "X" * 20_000 + ": a"),
        get("/v0/health?" + "a" * 20_000),
        get("/v0/health", *["X: " + "a" * 1000] * 20),
        get("/v0/health", *["X: a"] * 1000),
    ],
    ids=["value", "huge-value", "name", "target", "together", "number"],
)
def test_a_head_beyond_the_bounds_is_431(server: Server, data: bytes, where: str) -> None:
    pieces = [data] if where == "whole" else [data[at : at + 1000] for at in range(0, len(data), 1000)]
    refused_and_ended(server, pieces, allowed=(400, 431))


def test_a_head_without_end_is_refused(server: Server) -> None:
    with server.connect() as wire:
        send_apart(wire, [get("/v0/health")[:-2], *[b"X: aaaaaaaaaaaaaaaa\r\n" * 100] * 50], apart_s=0.001)
        ending = rest_of(wire)
    assert ending.closed
    assert ending.statuses in ([431], [400], [])
