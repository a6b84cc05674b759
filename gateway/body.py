"""A request's JSON body, checked in the order the contract gives.

Too large (413) comes before a wrong media type (415), which comes before broken content (400).
"""

from functools import lru_cache
from typing import Final

from gateway.compression import decoded_body
from gateway.context import Gateway
from gateway.effects import ReadBody
from gateway.http import Request
from topics.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType

_CHARSETS: Final = frozenset({"utf-8", "utf8"})


async def read_json(gateway: Gateway, request: Request, *, empty_is_object: bool = False) -> bytes:
    """The JSON bytes of the body, decompressed and not parsed.

    `empty_is_object`: no body means `{}`, and then no content type is needed.
    """
    limit = gateway.limits.body_bytes
    length = request.headers.get("content-length")
    if length is not None and length.isascii() and length.isdigit() and int(length[:20]) > limit:
        raise PayloadTooLarge(limit)
    raw = await ReadBody(limit)
    if empty_is_object and not raw:
        return b"{}"
    check_content_type(request)
    body = await decoded_body(gateway, request, raw)
    if not body:
        if empty_is_object:
            return b"{}"
        raise InvalidRequest("the body is empty; a JSON object is needed", field="body")
    return body


def check_content_type(request: Request) -> None:
    given = request.headers.raw(b"content-type") or b""
    if given != b"application/json" and not _is_json(given):
        raise UnsupportedMediaType(
            "Content-Type must be application/json, in UTF-8",
            detail={"field": "Content-Type", "value": given.decode("latin-1")[:100]},
        )


@lru_cache(maxsize=64)
def _is_json(content_type: bytes) -> bool:
    media_type, *parameters = content_type.decode("latin-1").split(";")
    if media_type.strip().lower() != "application/json":
        return False
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in _CHARSETS:
            return False
    return True
