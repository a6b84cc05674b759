"""Responses as the bytes of HTTP/1.1."""

import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from gateway.compression import COMPRESS_BYTES_MIN
from gateway.http import Response
from topics.protocol.messages import Reply

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_CLOSE: Final = b"connection: close\r\n"
# Larger bodies go to the kernel beside their head; joining smaller ones is cheaper than a second buffer.
JOIN_BYTES_MAX: Final = 16 * 1024


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    return f"date: {formatdate(second, usegmt=True)}\r\n".encode()


@lru_cache(maxsize=4096)
def _header_line(name: str, value: str) -> bytes:
    return f"{name}: {value}\r\n".encode("latin-1")


def render(response: Response, *, close: bool) -> list[bytes]:
    """Head and body of any response, which says its own length."""
    lines = [_STATUS_LINES[response.status], _date_line(int(time.time()))]
    lines += [_header_line(name, value) for name, value in response.headers]
    if close:
        lines.append(_CLOSE)
    lines.append(b"\r\n")
    return _joined(b"".join(lines), response.body)


@lru_cache(maxsize=64)
def _relayed_head(status: int, second: int, retry_after_s: int, *, compressible: bool, close: bool) -> bytes:
    """Everything but the length: the same for all answers of a second."""
    return b"".join(
        (
            _STATUS_LINES[status],
            _date_line(second),
            b"content-type: application/json\r\n",
            b"retry-after: %d\r\n" % retry_after_s if retry_after_s else b"",
            b"vary: Accept-Encoding\r\n" if compressible else b"",
            _CLOSE if close else b"",
            b"content-length: ",
        )
    )


def render_reply(reply: Reply, retry_after_s: int, *, close: bool) -> list[bytes]:
    """Head and body of what a shard has answered to a client that takes no compression."""
    body = reply.body
    head = _relayed_head(
        reply.status,
        int(time.time()),
        retry_after_s,
        compressible=len(body) >= COMPRESS_BYTES_MIN,
        close=close,
    )
    return _joined(b"%b%d\r\n\r\n" % (head, len(body)), body)


def _joined(head: bytes, body: bytes) -> list[bytes]:
    return [head + body] if len(body) <= JOIN_BYTES_MAX else [head, body]
