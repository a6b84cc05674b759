"""The lane's parser: strict, bounded, and blind to where the network cuts the bytes."""

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.lane.parsing import HEAD_BYTES_MAX, HEADERS_MAX, BadRequest, RequestParser, UnknownMethod

GET = b"GET /v0/health HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /v0/topics/a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /v0/topics/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2;extension=1\r\nlo\r\n0\r\nX-Trailer: t\r\n\r\n"
)
OLD = b"GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
UPGRADE = b"GET /v0/ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
CLOSE = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
BROKEN = [
    b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n folded\r\n\r\n",
    b"GET / HTTP/1.1\nHost: a\n\n",
    b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/3.0\r\nHost: a\r\n\r\n",
    b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    b"GET /\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\nhel\n0\n\n",
]
STREAMS = [GET, POST, CHUNKED, OLD, UPGRADE, CLOSE, *BROKEN]


@dataclass
class Seen:
    """Everything a parser made of a stream."""

    requests: list[tuple[bytes, bytes, str, list[tuple[bytes, bytes]], bytes, bool, bool]]
    refused: int | None
    upgrade: bool


def parse(*pieces: bytes) -> Seen:
    parser, refused = RequestParser(), None
    try:
        for piece in pieces:
            parser.feed(piece)
            if parser.upgrade:
                break
    except BadRequest as error:
        refused = error.status
    requests = [
        (
            head.method,
            head.target,
            head.version,
            head.headers,
            b"".join(head.parts),
            head.complete,
            head.keep_alive,
        )
        for head in parser.heads
    ]
    return Seen(requests, refused, parser.upgrade)


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    places = sorted({place % (len(stream) + 1) for place in at} | {0, len(stream)})
    return [stream[start:end] for start, end in itertools.pairwise(places)]


@pytest.mark.parametrize("stream", STREAMS)
def test_a_request_fed_byte_by_byte_is_the_same_request(stream: bytes) -> None:
    assert parse(*(bytes([byte]) for byte in stream)) == parse(stream)


@given(
    st.lists(st.sampled_from([GET, POST, CHUNKED, OLD]), max_size=5),
    st.sampled_from(STREAMS),
    st.lists(st.integers(0)),
)
@example([GET, POST], BROKEN[0], [1, 50])
def test_requests_are_the_same_wherever_the_network_cuts_them(
    good: list[bytes], last: bytes, at: list[int]
) -> None:
    stream = b"".join([*good, last])
    whole = parse(stream)
    assert len(whole.requests) >= len(good)
    assert parse(*cut(stream, at)) == whole


@pytest.mark.parametrize("stream", BROKEN)
def test_what_smuggling_is_made_of_is_refused(stream: bytes) -> None:
    assert parse(stream).refused is not None


@given(st.binary(max_size=200), st.lists(st.integers(0), max_size=4))
def test_any_bytes_are_parsed_or_refused_and_nothing_else(noise: bytes, at: list[int]) -> None:
    parse(*cut(noise, at))
    parse(GET[:-2], noise)
    parse(CHUNKED[:-7], noise)


@pytest.mark.parametrize("method", [b"FOO", b"get", b"PROPFOO", b"PATCHES"])
def test_a_method_that_llhttp_does_not_know_is_told_apart(method: bytes) -> None:
    with pytest.raises(UnknownMethod):
        RequestParser().feed(method + GET[3:])


def head_with(header: bytes) -> bytes:
    return GET[:-2] + header + b"\r\n\r\n"


@pytest.mark.parametrize(
    "stream",
    [
        head_with(b"X: " + b"a" * HEAD_BYTES_MAX),
        head_with(b"X" * HEAD_BYTES_MAX + b": a"),
        b"GET /" + b"a" * HEAD_BYTES_MAX + GET[4:],
        head_with(b"\r\n".join(b"X: " + b"a" * 1000 for _ in range(20))),
        head_with(b"\r\n".join(b"X: a" for _ in range(HEADERS_MAX))),
    ],
    ids=["value", "name", "target", "together", "number"],
)
@pytest.mark.parametrize("before", [b"", GET, POST])
def test_a_head_over_the_bounds_is_431_however_it_arrives(stream: bytes, before: bytes) -> None:
    assert parse(before + stream).refused == 431
    assert parse(before, *(stream[at : at + 100] for at in range(0, len(stream), 100))).refused == 431


def fed_until_refused(begun: bytes, more: bytes) -> int:
    """How many bytes of `more`, again and again, the parser takes before it refuses."""
    parser = RequestParser()
    parser.feed(begun)
    for times in range(10 * HEAD_BYTES_MAX // len(more)):
        try:
            parser.feed(more)
        except BadRequest:
            return times * len(more)
    raise AssertionError("never refused")


def test_a_head_that_never_ends_is_refused_at_the_bound() -> None:
    assert fed_until_refused(GET[:-2] + b"X: ", b"a" * 100) <= HEAD_BYTES_MAX


@pytest.mark.parametrize(
    ("begun", "more"), [(b"", b"X-Trailer: a\r\n"), (b"X: ", b"a" * 100)], ids=["many", "one"]
)
def test_trailers_that_never_end_are_refused_at_the_bound(begun: bytes, more: bytes) -> None:
    before_trailers = CHUNKED[: CHUNKED.index(b"X-Trailer")]
    assert fed_until_refused(before_trailers + begun, more) <= 2 * HEAD_BYTES_MAX


def test_a_body_that_looks_like_a_request_stays_a_body() -> None:
    inner = b"DELETE /v0/topics/a HTTP/1.1\r\nHost: a\r\n\r\n"
    for stream in (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(inner), inner),
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
        % (len(inner), inner),
    ):
        assert [(request[0], request[4]) for request in parse(stream).requests] == [(b"POST", inner)]


def test_the_parser_says_that_a_request_has_begun_as_soon_as_one_byte_of_it_is_there() -> None:
    for before in (b"", GET, POST, CHUNKED):
        parser = RequestParser()
        parser.feed(before + GET[:1])
        assert parser.in_request, before
        parser.feed(GET[1:])
        assert not parser.in_request, before
