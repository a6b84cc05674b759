"""HTTP/1.1 requests out of a byte stream: where a head ends, what it says, how its body is framed.

No sockets. Strict, because everything that two parsers may read differently is how requests are smuggled:
  * A head ends at an empty line; a bare LF anywhere in it is refused at once. llhttp judges its lines:
    folded ones, spaces before a colon, repeated lengths, Content-Length beside Transfer-Encoding.
  * The only transfer coding is `chunked`. Chunk sizes, extensions and trailers are bounded.
  * One head is looked at at a time; what follows stays in the caller's hands, so every boundary is exact.
"""

import re
from typing import Final, Protocol

import httptools

from gateway.http import add_header

HEAD_BYTES_MAX: Final = 16 * 1024
HEADERS_MAX: Final = 100
CHUNK_LINE_BYTES_MAX: Final = 1024
# Pieces of a body that are kept apart; tiny packets must not cost an object each.
_PARTS_MAX: Final = 1024

H2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_EMPTY_LINES: Final = re.compile(rb"(?:\r\n)+")
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\r\n]*)?")
# llhttp knows a fixed list of methods; one that it does not know is judged under this name.
_ANY_METHOD: Final = b"PATCH"


class BadRequest(Exception):
    """The bytes are not an HTTP/1.1 request that we take; the connection cannot go on."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Head:
    """What a request's head says. Header names are in lower case; values of one name are joined."""

    __slots__ = (
        "chunked",
        "headers",
        "keep_alive",
        "length",
        "method",
        "repeated",
        "target",
        "upgrade",
        "version",
    )

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.version = ""
        self.headers: dict[bytes, bytes] = {}
        self.repeated: list[bytes] = []
        self.keep_alive = False
        self.upgrade = False
        self.length = 0
        self.chunked = False

    # -- called by httptools

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in self.headers:
            self.repeated.append(name)
            add_header(self.headers, name, value)
        else:
            self.headers[name] = value

    # -- for those who have one

    def check(self) -> None:
        """What llhttp leaves to its caller."""
        if self.version not in ("1.1", "1.0"):
            raise BadRequest(f"HTTP/{self.version} is not spoken here", status=505)
        if len(self.headers) + len(self.repeated) > HEADERS_MAX:
            raise BadRequest(f"more than {HEADERS_MAX} headers", status=431)
        headers = self.headers
        self.keep_alive = self.version == "1.1" and (
            b"connection" not in headers
            or b"close" not in {token.strip().lower() for token in headers[b"connection"].split(b",")}
        )
        if (b"host" not in headers and self.version == "1.1") or b"host" in self.repeated:
            raise BadRequest("a request needs exactly one Host header")
        if b"content-length" in headers:
            self.length = int(headers[b"content-length"])
        if b"transfer-encoding" in headers:
            self.chunked = headers[b"transfer-encoding"].lower() == b"chunked"
            if not self.chunked:
                raise BadRequest("the only transfer coding here is chunked", status=501)

    def expects_continue(self) -> bool:
        expected = self.headers.get(b"expect", b"").lower().split(b", ")
        return self.version == "1.1" and b"100-continue" in expected

    def body(self) -> "Body":
        return ChunkedBody() if self.chunked else LengthBody(self.length)


def without_empty_lines(data: bytes) -> bytes:
    """What begins a request may follow empty lines, which some clients send behind a body."""
    if data[:1] != b"\r":
        return data
    lines = _EMPTY_LINES.match(data)
    return data[lines.end() :] if lines else data


def head_end(data: bytes, start: int = 0) -> int:
    """Where the head that begins at `start` ends; -1 if it is not complete yet. Raises BadRequest."""
    end = data.find(b"\r\n\r\n", start)
    stop = len(data) if end < 0 else end + 4
    if stop - start > HEAD_BYTES_MAX:
        raise BadRequest(f"the request head is larger than {HEAD_BYTES_MAX} bytes", status=431)
    if end < 0 and data.count(b"\n", start) != data.count(b"\r\n", start):
        # llhttp judges whole heads; this one might never be whole.
        raise BadRequest("lines end in CR LF")
    return -1 if end < 0 else stop


def parse_head(data: bytes) -> Head:
    """The head that these bytes are, from its first line to its empty line. Raises BadRequest."""
    method, _, rest = data.partition(b" ")
    head = Head()
    try:
        _run(head, data)
    except httptools.HttpParserInvalidMethodError:
        if not _TOKEN.fullmatch(method):
            raise BadRequest("the method is not a token") from None
        head = Head()
        _run_checked(head, _ANY_METHOD + b" " + rest)
    except httptools.HttpParserError as error:
        raise BadRequest(str(error)) from None
    head.method = method
    # llhttp also calls CONNECT an upgrade; here it is a method like any other.
    head.upgrade = head.upgrade and b"upgrade" in head.headers
    head.check()
    return head


def _run_checked(head: Head, data: bytes) -> None:
    try:
        _run(head, data)
    except httptools.HttpParserError as error:
        raise BadRequest(str(error)) from None


def _run(head: Head, data: bytes) -> None:
    parser = httptools.HttpRequestParser(head)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        head.upgrade = True
    head.version = parser.get_http_version()


class Body(Protocol):
    """A request's body as it arrives."""

    complete: bool
    received_bytes: int

    def feed(self, data: bytes) -> bytes:
        """Take what belongs to the body; returns what follows it. Raises BadRequest."""
        ...

    def whole(self) -> bytes: ...

    def forget(self) -> None:
        """Drop what has arrived; only the end matters."""
        ...


class LengthBody:
    """A body of a known length."""

    __slots__ = ("_parts", "complete", "length", "received_bytes")

    def __init__(self, length: int) -> None:
        self.length = length
        self.received_bytes = 0
        self.complete = length == 0
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        left = self.length - self.received_bytes
        part, rest = (data, b"") if len(data) <= left else (data[:left], data[left:])
        self._parts.append(part)
        if len(self._parts) == _PARTS_MAX:
            self._parts = [b"".join(self._parts)]
        self.received_bytes += len(part)
        self.complete = self.received_bytes == self.length
        return rest

    def whole(self) -> bytes:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def forget(self) -> None:
        self._parts.clear()


class ChunkedBody:
    """A body in chunks. Trailers are read and dropped."""

    __slots__ = ("_data", "_held", "_left", "_trailer_bytes", "complete", "received_bytes")

    def __init__(self) -> None:
        self._data = bytearray()
        self._held = b""
        # Bytes of the chunk that are still to come, with its CR LF; None: a size line or trailers come.
        self._left: int | None = None
        self._trailer_bytes = -1
        self.received_bytes = 0
        self.complete = False

    def feed(self, data: bytes) -> bytes:
        data, self._held = self._held + data, b""
        at = 0
        while at < len(data) and not self.complete:
            take = self._take_line_at if self._left is None else self._take_chunk
            following = take(data, at)
            if following == at:
                self._held = data[at:]
                return b""
            at = following
        return data[at:]

    def _take_chunk(self, data: bytes, at: int) -> int:
        """Take what is there of a chunk and its CR LF; where it goes on (`at`: more is needed first)."""
        assert self._left is not None
        if self._left > 2:
            part = data[at : at + self._left - 2]
            self._data += part
            self.received_bytes += len(part)
            self._left -= len(part)
            return at + len(part)
        if len(data) < at + 2:
            return at
        if data[at : at + 2] != b"\r\n":
            raise BadRequest("a chunk is longer than its size says")
        self._left = None
        return at + 2

    def _take_line_at(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n", at, at + CHUNK_LINE_BYTES_MAX + 2)
        line = data[at : end if end >= 0 else at + CHUNK_LINE_BYTES_MAX + 1]
        if b"\n" in line or len(line) > CHUNK_LINE_BYTES_MAX:
            raise BadRequest("a broken or overlong line in a chunked body")
        if end < 0:
            return at
        self._take_line(line)
        return end + 2

    def _take_line(self, line: bytes) -> None:
        if self._trailer_bytes >= 0:
            self._trailer_bytes += len(line) + 2
            if line[:1] in (b" ", b"\t") or b"\r" in line or b"\0" in line:
                raise BadRequest("a broken trailer")
            if self._trailer_bytes > HEAD_BYTES_MAX:
                raise BadRequest(f"trailers are larger than {HEAD_BYTES_MAX} bytes", status=431)
            self.complete = not line
            return
        size = _CHUNK_SIZE.fullmatch(line)
        if size is None:
            raise BadRequest("a chunk size is not a hexadecimal number")
        length = int(size[1], 16)
        if length:
            self._left = length + 2
        else:
            self._trailer_bytes = 0

    def whole(self) -> bytes:
        return bytes(self._data)

    def forget(self) -> None:
        self._data.clear()
