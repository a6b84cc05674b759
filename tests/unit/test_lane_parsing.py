"""The lane's parser: strict, bounded, and blind to where the network cuts the bytes."""

import itertools
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.lane.parsing import (
    CHUNK_LINE_BYTES_MAX,
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    BadRequest,
    Body,
    ChunkedBody,
    Head,
    LengthBody,
    head_end,
    parse_head,
    without_empty_lines,
)

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
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: a\rb\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: a\r\n folded\r\n\r\n",
    b"FOO / HTTP/1.1\r\nHost: a\r\nX: 1\r\n folded\r\n\r\n",
    b"FOO / HTTP/1.1\nHost: a\n\n",
    b"F@O / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
]
UNKNOWN = b"FOO / HTTP/1.1\r\nHost: a\r\n\r\n"
STREAMS = [GET, POST, CHUNKED, OLD, UPGRADE, CLOSE, UNKNOWN, *BROKEN]


@dataclass
class Reader:
    """Reads a stream as a connection does: a head, its body, the next head."""

    requests: list[tuple[Head, Body]] = field(default_factory=list)
    refused: int | None = None
    buffer: bytes = b""

    def feed(self, data: bytes) -> None:
        if self.refused is None:
            try:
                self._feed(self.buffer + data)
            except BadRequest as error:
                self.refused = error.status

    def _feed(self, data: bytes) -> None:
        self.buffer = data
        while self.buffer:
            if self.requests and not self.requests[-1][1].complete:
                self.buffer = self.requests[-1][1].feed(self.buffer)
                continue
            self.buffer = without_empty_lines(self.buffer)
            end = head_end(self.buffer)
            if end < 0:
                return
            head = parse_head(self.buffer[:end])
            self.buffer = self.buffer[end:]
            self.requests.append((head, head.body()))

    def seen(self) -> tuple[list[tuple[object, ...]], int | None]:
        return [
            (
                head.method,
                head.target,
                head.version,
                head.headers,
                head.keep_alive,
                head.upgrade,
                body.whole(),
            )
            for head, body in self.requests
            if body.complete
        ], self.refused


def read(*pieces: bytes) -> Reader:
    reader = Reader()
    for piece in pieces:
        reader.feed(piece)
    return reader


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    places = sorted({place % (len(stream) + 1) for place in at} | {0, len(stream)})
    return [stream[start:end] for start, end in itertools.pairwise(places)]


@pytest.mark.parametrize("stream", STREAMS)
def test_a_request_fed_byte_by_byte_is_the_same_request(stream: bytes) -> None:
    assert read(*(bytes([byte]) for byte in stream)).seen() == read(stream).seen()


@given(
    st.lists(st.sampled_from([GET, POST, CHUNKED, OLD, UNKNOWN]), max_size=5),
    st.sampled_from(STREAMS),
    st.lists(st.integers(0)),
)
@example([GET, POST], BROKEN[0], [1, 50])
def test_requests_are_the_same_wherever_the_network_cuts_them(
    good: list[bytes], last: bytes, at: list[int]
) -> None:
    stream = b"".join([*good, last])
    whole = read(stream).seen()
    assert len(whole[0]) >= len(good)
    assert read(*cut(stream, at)).seen() == whole


@pytest.mark.parametrize("stream", BROKEN)
def test_what_smuggling_is_made_of_is_refused(stream: bytes) -> None:
    assert read(stream).refused in (400, 501, 505)


@given(st.binary(max_size=200), st.lists(st.integers(0), max_size=4))
def test_any_bytes_are_parsed_or_refused_and_nothing_else(noise: bytes, at: list[int]) -> None:
    read(*cut(noise, at))
    read(GET[:-2], noise)
    read(b"FOO /", noise + b"\r\n\r\n")
    read(CHUNKED[: CHUNKED.index(b"3\r\n")], noise)
    read(CHUNKED[:-2], noise)


@given(
    st.sampled_from([b"Content-Length", b"Transfer-Encoding", b"Host", b"Connection", b"Upgrade", b"Expect"]),
    st.text("0123456789+-_,;x \t\u00b2", max_size=12),
    st.sampled_from([b"POST", b"CONNECT", b"FOO", b"HEAD"]),
)
def test_any_value_of_a_header_that_matters_is_taken_or_refused(
    name: bytes, value: str, method: bytes
) -> None:
    text = value.encode("latin-1")
    reader = read(b"%s /a HTTP/1.1\r\nHost: a\r\n%s: %s\r\n\r\n" % (method, name, text))
    if reader.requests and name == b"Content-Length":
        assert text.strip().isdigit()
        assert isinstance(reader.requests[0][1], LengthBody)
        assert reader.requests[0][1].length == int(text)


@pytest.mark.parametrize("method", [b"FOO", b"get", b"PROPFOO", b"PATCHES", b"M-X.Y"])
def test_a_method_that_llhttp_does_not_know_is_a_method(method: bytes) -> None:
    reader = read(method + GET[3:] + method + POST[4:])
    assert [head.method for head, _ in reader.requests] == [method, method]
    assert reader.requests[1][1].whole() == b"hello"


def test_only_a_request_for_another_protocol_is_an_upgrade() -> None:
    heads = [head for head, _ in read(UPGRADE + GET + b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n").requests]
    assert [head.upgrade for head in heads] == [True, False, False]


@pytest.mark.parametrize(
    ("connection", "kept"),
    [(b"close", False), (b"Close", False), (b"x, close", False), (b"keep-alive", True), (b"closed", True)],
)
def test_a_connection_is_kept_unless_the_client_says_close(connection: bytes, kept: bool) -> None:
    for stream in (GET, POST, CHUNKED):
        at = stream.index(b"\r\nHost")
        [(head, _)] = read(stream[:at] + b"\r\nConnection: " + connection + stream[at:]).requests
        assert head.keep_alive is kept
    assert not read(OLD).requests[0][0].keep_alive


def test_empty_lines_ahead_of_a_request_are_skipped() -> None:
    assert [head.method for head, _ in read(b"\r\n", b"\r\n\r\n" + GET + b"\r\n" + GET).requests] == [
        b"GET",
        b"GET",
    ]


# -- bounds -----------------------------------------------------------------------------------------------


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
    assert read(before + stream).refused == 431
    assert read(before, *(stream[at : at + 100] for at in range(0, len(stream), 100))).refused == 431


def test_a_head_at_the_bound_is_taken() -> None:
    filling = b"a" * (HEAD_BYTES_MAX - len(head_with(b"X: ")))
    assert len(read(head_with(b"X: " + filling)).requests) == 1
    assert read(head_with(b"X: a" + filling)).refused == 431
    assert len(read(head_with(b"\r\n".join([b"X: a"] * (HEADERS_MAX - 1)))).requests) == 1


def fed_until_refused(begun: bytes, more: bytes) -> int:
    """How many bytes of `more`, again and again, are taken before they are refused."""
    reader = read(begun)
    for times in range(10 * HEAD_BYTES_MAX // len(more)):
        reader.feed(more)
        if reader.refused is not None:
            return times * len(more)
    raise AssertionError("never refused")


def test_a_head_that_never_ends_is_refused_at_the_bound() -> None:
    assert fed_until_refused(GET[:-2] + b"X: ", b"a" * 100) <= HEAD_BYTES_MAX
    assert fed_until_refused(b"", b"a" * 100) <= HEAD_BYTES_MAX


@pytest.mark.parametrize(
    ("begun", "more"), [(b"", b"X-Trailer: a\r\n"), (b"X: ", b"a" * 100)], ids=["many", "one"]
)
def test_trailers_that_never_end_are_refused_at_the_bound(begun: bytes, more: bytes) -> None:
    before_trailers = CHUNKED[: CHUNKED.index(b"X-Trailer")]
    assert fed_until_refused(before_trailers + begun, more) <= HEAD_BYTES_MAX


@pytest.mark.parametrize("begun", [b"", b"3;"], ids=["size", "extension"])
def test_a_chunk_line_that_never_ends_is_refused_at_the_bound(begun: bytes) -> None:
    head = CHUNKED[: CHUNKED.index(b"3\r\n")]
    assert fed_until_refused(head + begun, b"0" * 10) <= CHUNK_LINE_BYTES_MAX


def test_the_work_for_tiny_chunks_grows_with_their_number_and_no_faster() -> None:
    def seconds(chunks: int) -> float:
        body, data = ChunkedBody(), b"2\r\nxx\r\n" * chunks
        started = time.perf_counter()
        body.feed(data)
        assert body.received_bytes == 2 * chunks
        return time.perf_counter() - started

    seconds(1000)
    # Sixteen times the chunks: 16 times the work, and 256 times if each one copied the rest.
    assert min(seconds(64_000) for _ in range(3)) < 80 * max(min(seconds(4000) for _ in range(3)), 0.0005)


def test_a_body_in_tiny_packets_does_not_cost_an_object_each() -> None:
    body = LengthBody(200_000)
    for _ in range(100_000):
        body.feed(b"xx")
    assert body.complete
    assert len(body._parts) < 5000
    assert body.whole() == b"x" * 200_000


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.lists(st.integers(0), max_size=30))
def test_a_chunked_body_is_its_chunks_joined_however_it_arrives(chunks: list[bytes], at: list[int]) -> None:
    framed = b"".join(b"%x;e=1\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"000\r\nT: t\r\n\r\n"
    body, rest = ChunkedBody(), b""
    for piece in cut(framed + GET, at):
        rest = rest + piece if body.complete else body.feed(piece)
    assert body.complete
    assert body.whole() == b"".join(chunks)
    assert body.received_bytes == len(b"".join(chunks))
    assert rest == GET


def test_a_body_that_looks_like_a_request_stays_a_body() -> None:
    inner = b"DELETE /v0/topics/a HTTP/1.1\r\nHost: a\r\n\r\n"
    post = b"POST / HTTP/1.1\r\nHost: a\r\n"
    for stream in (
        post + b"Content-Length: %d\r\n\r\n%s" % (len(inner), inner),
        post + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner),
    ):
        [(head, body)] = read(stream).requests
        assert (head.method, body.whole()) == (b"POST", inner)
