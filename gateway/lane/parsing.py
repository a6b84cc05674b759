"""One HTTP/1.1 request after another out of a byte stream. Strict, and without sockets.

llhttp refuses what request smuggling is made of: Content-Length beside Transfer-Encoding, repeated
lengths, folded lines, bare LF, spaces before a colon. Added here: bounds on the head, the two versions
that we speak, and one Host.
"""

from collections import deque
from typing import Final

import httptools

HEAD_BYTES_MAX: Final = 16 * 1024
HEADERS_MAX: Final = 100
# Requests that a client may send ahead of its answers before we stop listening to it.
PIPELINE_MAX: Final = 32

H2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class BadRequest(Exception):
    """The bytes are not an HTTP/1.1 request that we take; the connection cannot go on."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class UnknownMethod(BadRequest):
    """Not one of llhttp's methods. It may still be a good request, and then its answer is 405."""


class Head:
    """A request as it arrives: complete when `complete` is set, its body so far in `parts`."""

    __slots__ = (
        "complete",
        "discard",
        "headers",
        "keep_alive",
        "method",
        "parts",
        "received_bytes",
        "target",
        "version",
    )

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.version = ""
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = False
        self.complete = False
        self.parts: list[bytes] = []
        self.received_bytes = 0
        # Nobody wants the rest of the body.
        self.discard = False

    def header(self, name: bytes) -> bytes | None:
        """The first header of this lower-case name."""
        for known, value in self.headers:
            if known.lower() == name:
                return value
        return None


class RequestParser:
    """Feed it bytes; take requests from `heads` as their heads are complete."""

    def __init__(self) -> None:
        self.heads: deque[Head] = deque()
        self.upgrade = False
        self._parser = httptools.HttpRequestParser(self)
        self._current = Head()
        self._head_bytes = 0
        self._in_head = True

    @property
    def in_request(self) -> bool:
        """Whether a request has begun that is not complete."""
        return self._head_bytes > 0 or not self._in_head

    def feed(self, data: bytes) -> None:
        """Raises BadRequest. After `upgrade` is set the rest of the stream is not ours to parse."""
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.upgrade = True
        except httptools.HttpParserInvalidMethodError:
            raise UnknownMethod("a method that this parser does not know") from None
        except httptools.HttpParserError as error:
            cause = error.__context__
            raise (cause if isinstance(cause, BadRequest) else BadRequest(str(error))) from None
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            raise BadRequest(f"the request head is larger than {HEAD_BYTES_MAX} bytes", status=431)

    # -- called by httptools

    def on_message_begin(self) -> None:
        self._current = Head()

    def on_url(self, url: bytes) -> None:
        self._current.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._current.headers.append((name, value))
            if len(self._current.headers) > HEADERS_MAX:
                raise BadRequest(f"more than {HEADERS_MAX} headers", status=431)

    def on_headers_complete(self) -> None:
        head = self._current
        head.method = self._parser.get_method()
        head.version = self._parser.get_http_version()
        head.keep_alive = self._parser.should_keep_alive()
        if head.version not in ("1.1", "1.0"):
            raise BadRequest(f"HTTP/{head.version} is not spoken here", status=505)
        hosts = sum(name.lower() == b"host" for name, _ in head.headers)
        if hosts > 1 or (hosts == 0 and head.version == "1.1"):
            raise BadRequest("a request needs exactly one Host header")
        self._in_head = False
        self._head_bytes = 0
        self.heads.append(head)

    def on_body(self, body: bytes) -> None:
        head = self._current
        head.received_bytes += len(body)
        if not head.discard:
            head.parts.append(body)

    def on_message_complete(self) -> None:
        self._current.complete = True
        self._in_head = True
        self._head_bytes = 0
