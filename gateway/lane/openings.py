"""Heads of requests, and everything that follows from a head alone: the route, the shard, the question.

Clients say the same again and again: a head that came before, byte for byte, is not parsed again.
Remembered is only what holds no secret: heads of questions to a shard, with harmless headers and no query.
"""

from typing import Final

from gateway.context import Gateway
from gateway.http import Headers, Request, path_of
from gateway.lane.parsing import Head, parse_head
from gateway.routes import Short, short_way

# Whatever else a header may be, these are neither keys nor cookies, and clients do not vary them at will.
_HARMLESS: Final = frozenset(
    {b"accept", b"accept-language", b"connection", b"content-length", b"content-type", b"host", b"user-agent"}
)
REMEMBERED_BYTES_MAX: Final = 1024
REMEMBERED_MAX: Final = 4096


class Opening:
    """A head and what was concluded from it; shared by all requests that begin with the same bytes."""

    __slots__ = ("head", "headers", "method", "path", "query", "short")

    def __init__(self, gateway: Gateway, head: Head) -> None:
        self.head = head
        self.method = head.method.decode("ascii")
        self.path, _, self.query = path_of(head.target).partition(b"?")
        self.headers = Headers.of_lower(head.headers)
        self.short: Short | None = None
        if not head.chunked and not head.upgrade:
            self.short = short_way(gateway, self.request(0))

    def request(self, arrived_ns: int) -> Request:
        return Request(self.method, self.path, self.query, self.headers, arrived_ns)

    @property
    def harmless(self) -> bool:
        return self.short is not None and not self.query and self.head.headers.keys() <= _HARMLESS


class Openings:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.known: dict[bytes, Opening] = {}

    def of(self, data: bytes) -> Opening:
        """What these bytes open, from a request's first line to its empty line. Raises BadRequest."""
        opening = self.known.get(data)
        if opening is None:
            opening = Opening(self._gateway, parse_head(data))
            if len(data) <= REMEMBERED_BYTES_MAX and opening.harmless:
                if len(self.known) >= REMEMBERED_MAX:
                    self.known.clear()
                self.known[data] = opening
        return opening
