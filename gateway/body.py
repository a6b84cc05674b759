"""Reading a request's body: bounded in size and time, and checked in the order the contract gives.

Too large (413) comes before a wrong media type (415), which comes before broken content (400). A body
that is refused is still read away for a while: an answer before the end of a body breaks HTTP/2
connections, and an HTTP/1.1 client that is still sending might never see it.
"""

from typing import Final

import trio

from gateway.compression import decoded_body
from gateway.context import Gateway
from gateway.http import Request
from topics.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType

KIB = 1024
MIB = 1024 * KIB
# The longest silence in the middle of a body. Large bodies over slow lines are fine.
BODY_IDLE_S: Final = 30.0
# How much of an unwanted body is read away, and for how long, before the connection has to go.
DRAIN_BYTES_MAX: Final = 16 * MIB
DRAIN_S: Final = 2.0

_CHARSETS: Final = frozenset({"utf-8", "utf8"})


async def read_json(gateway: Gateway, request: Request, *, empty_is_object: bool = False) -> bytes:
    """The JSON bytes of the body, decompressed and not parsed.

    `empty_is_object`: no body means `{}`, and then no content type is needed.
    """
    raw = await _read(request, gateway.limits.body_bytes)
    if empty_is_object and not raw:
        return b"{}"
    _check_content_type(request)
    body = await decoded_body(gateway, request, raw)
    if not body:
        if empty_is_object:
            return b"{}"
        raise InvalidRequest("the body is empty; a JSON object is needed", field="body")
    return body


async def _read(request: Request, limit: int) -> bytes:
    length = request.headers.get("content-length")
    if length is not None and length.isascii() and length.isdigit() and int(length[:20]) > limit:
        raise PayloadTooLarge(limit)
    chunks: list[bytes] = []
    size = 0
    with trio.move_on_after(BODY_IDLE_S) as patience:
        async for chunk in request.body:
            patience.deadline = trio.current_time() + BODY_IDLE_S
            size += len(chunk)
            if size > limit:
                raise PayloadTooLarge(limit)
            chunks.append(chunk)
    if patience.cancelled_caught:
        raise InvalidRequest(f"the body stopped arriving for {BODY_IDLE_S:.0f} s", field="body")
    return b"".join(chunks)


def _check_content_type(request: Request) -> None:
    given = request.headers.get("content-type") or ""
    media_type, *parameters = given.split(";")
    json = media_type.strip().lower() == "application/json"
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in _CHARSETS:
            json = False
    if not json:
        raise UnsupportedMediaType(
            "Content-Type must be application/json, in UTF-8",
            detail={"field": "Content-Type", "value": given[:100]},
        )


async def drain(request: Request) -> None:
    """Reads away what is left of the body, within bounds. Does nothing if it was read to its end."""
    left = DRAIN_BYTES_MAX
    with trio.move_on_after(DRAIN_S):
        async for chunk in request.body:
            left -= len(chunk)
            if left < 0:
                return
