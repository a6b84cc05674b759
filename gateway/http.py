"""A request and a response, free of any server: what handlers take and give.

A front door builds a `Request`, drives `routes.dispatch` and sends the `Response`. Nothing here knows
Quart, Hypercorn or sockets. The body is not part of a request: handlers ask for it (effects.py).
"""

import re
import time
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from topics import errors

_BROKEN_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_RETRY_STATUSES: Final = frozenset({429, 503})


class Headers:
    """Request headers: names without regard to case, repeated ones joined by a comma."""

    __slots__ = ("_values",)

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        values: dict[bytes, bytes] = {}
        for name, value in pairs:
            add_header(values, name.lower(), value)
        self._values = values

    @classmethod
    def of_lower(cls, values: dict[bytes, bytes]) -> "Headers":
        """Of names that are in lower case already, and values that are joined."""
        headers = cls.__new__(cls)
        headers._values = values
        return headers

    def raw(self, name: bytes) -> bytes | None:
        """The bytes of the header with this lower-case name."""
        return self._values.get(name)

    def get(self, name: str) -> str | None:
        """The value of the header with this lower-case name."""
        value = self._values.get(name.encode())
        return None if value is None else value.decode("latin-1").strip()

    def any_of(self, names: frozenset[bytes]) -> bool:
        return not names.isdisjoint(self._values)


def add_header(values: dict[bytes, bytes], name: bytes, value: bytes) -> None:
    known = values.get(name)
    values[name] = value if known is None else known + b", " + value


class Request(msgspec.Struct, gc=False):
    method: str
    # Before percent-decoding, without the query.
    raw_path: bytes
    query_string: bytes
    headers: Headers
    # CLOCK_MONOTONIC when the request was first seen.
    arrived_ns: int
    # Method and pattern of the route, once it is known.
    route: str = ""

    @property
    def shown_path(self) -> str:
        """For messages and logs: bounded, and never the query, which may hold a secret."""
        return self.raw_path[:200].decode("utf-8", "replace")


class Response(msgspec.Struct):
    status: int
    body: bytes
    headers: list[tuple[str, str]] = []

    def has_header(self, name: str) -> bool:
        return name in (known.lower() for known, _ in self.headers)


def path_of(target: bytes) -> bytes:
    """The path of a request target, which may be a whole URL when the client believes us a proxy."""
    if target[:1] == b"/" or b"://" not in target:
        return target
    _, slash, path = target.split(b"://", 1)[1].partition(b"/")
    return slash + path


class BadEscape(ValueError):
    """Not a percent-encoded UTF-8 text."""


def percent_decode(raw: bytes) -> str:
    """Strict: a broken escape or bytes that are not UTF-8 raise BadEscape."""
    if _BROKEN_ESCAPE.search(raw):
        raise BadEscape("a % that is not followed by two hex digits")
    try:
        return unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise BadEscape("not valid UTF-8") from None


def elapsed_ms(arrived_ns: int) -> float:
    return round((time.monotonic_ns() - arrived_ns) / 1_000_000, 3)


def performance_block(arrived_ns: int) -> bytes:
    """`"performance":{…}` and the closing brace of the object it ends."""
    return b'"performance":{"server_total_ms":%s}}' % str(elapsed_ms(arrived_ns)).encode()


def json_response(status: int, fields: Mapping[str, object], arrived_ns: int) -> Response:
    """An answer of the gateway's own, with its performance block. `fields` is not empty."""
    return json_bytes(status, msgspec.json.encode(fields)[:-1] + b"," + performance_block(arrived_ns))


def json_bytes(status: int, body: bytes, *, retry_after_s: int = 0) -> Response:
    """An answer whose JSON is complete already."""
    headers = [("content-type", "application/json")]
    if seconds := retry_after(status, retry_after_s):
        headers.append(("retry-after", str(seconds)))
    return Response(status, body, headers)


def retry_after(status: int, seconds: int) -> int:
    """What `Retry-After` says, in whole seconds; 0 if it is not sent."""
    return max(1, seconds) if seconds or status in _RETRY_STATUSES else 0


def with_length(response: Response) -> Response:
    response.headers.append(("content-length", str(len(response.body))))
    return response


def error_response(error: errors.TopicsError, arrived_ns: int) -> Response:
    body = error.body() + b"," + performance_block(arrived_ns)
    response = json_bytes(error.http_status, body, retry_after_s=error.retry_after_s)
    if isinstance(error, errors.MethodNotAllowed):
        response.headers.append(("allow", error.allowed))
    return response
