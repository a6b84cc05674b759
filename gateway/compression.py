"""gzip in both directions, with a bound on what a small body may become.

Anything that could take long runs in a thread, so that one large body never holds up other requests.
"""

import gzip
import re
import zlib
from functools import partial
from typing import Final

from gateway.context import Gateway
from gateway.effects import InThread
from gateway.http import Request, Response
from topics.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType

KIB = 1024
# Below this, the header that says "gzip" eats what the compression saves.
COMPRESS_BYTES_MIN: Final = 128
# Some 0.3 ms of work at level 1: cheaper than a thread.
INLINE_BYTES_MAX: Final = 64 * KIB
# What a small body may inflate to before the rest of it is worth a thread.
INLINE_INFLATED_BYTES_MAX: Final = 512 * KIB
# The bottleneck is CPU, not bandwidth; higher levels cost several times the time for some percent.
COMPRESS_LEVEL: Final = 1
_GZIP_ONLY_WBITS: Final = 31
_GZIP_MAGIC: Final = b"\x1f\x8b"

_WEIGHT: Final = re.compile(r"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)


async def decoded_body(gateway: Gateway, request: Request, body: bytes) -> bytes:
    """The body without its Content-Encoding."""
    encoding = (request.headers.get("content-encoding") or "identity").lower()
    if encoding == "identity":
        return body
    if encoding not in ("gzip", "x-gzip"):
        raise UnsupportedMediaType(
            f"Content-Encoding {encoding[:100]!r} is not supported; send gzip or none",
            detail={"field": "Content-Encoding", "value": encoding[:100]},
        )
    return await _gunzip(gateway, body) if body else b""


async def _gunzip(gateway: Gateway, body: bytes) -> bytes:
    limit = gateway.limits.body_bytes
    inflater = _Inflater(limit)
    inline = len(body) <= INLINE_BYTES_MAX
    if inline and inflater.feed(body, INLINE_INFLATED_BYTES_MAX):
        return inflater.whole()
    rest = b"" if inline else body
    await InThread(partial(inflater.feed, rest, limit + 1), gateway.zlib_threads)
    return inflater.whole()


class _Inflater:
    """One gzip member after another, nothing before and nothing behind them."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._zlib = zlib.decompressobj(_GZIP_ONLY_WBITS)
        self._rest = b""
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes, inflated_bytes_max: int) -> bool:
        """Goes on inflating up to so many bytes; whether there is nothing left to inflate."""
        data = self._rest + data
        room = inflated_bytes_max
        while True:
            try:
                piece = self._zlib.decompress(data, room)
            except zlib.error as error:
                raise InvalidRequest(f"the body is not valid gzip: {error}", field="body") from None
            self._pieces.append(piece)
            self._size += len(piece)
            room -= len(piece)
            if self._size > self._limit_bytes:
                self._pieces.clear()
                raise PayloadTooLarge(self._limit_bytes)
            if not self._zlib.unused_data.startswith(_GZIP_MAGIC):
                self._rest = self._zlib.unconsumed_tail
                return self._zlib.eof or not self._rest
            data = self._rest = self._zlib.unused_data
            self._zlib = zlib.decompressobj(_GZIP_ONLY_WBITS)
            if room <= 0:
                return False

    def whole(self) -> bytes:
        if not self._zlib.eof:
            raise InvalidRequest("the gzip body ends too early", field="body")
        if self._zlib.unused_data:
            raise InvalidRequest("the gzip body is followed by other bytes", field="body")
        return b"".join(self._pieces)


async def compressed(gateway: Gateway, request: Request, response: Response) -> Response:
    """The response as this client may have it: gzip if that is worth it and accepted."""
    if len(response.body) < COMPRESS_BYTES_MIN or response.has_header("content-encoding"):
        return response
    response.headers.append(("vary", "Accept-Encoding"))
    if not accepts_gzip(request.headers.get("accept-encoding")):
        return response
    compress = partial(gzip.compress, response.body, COMPRESS_LEVEL, mtime=0)
    if len(response.body) > INLINE_BYTES_MAX:
        response.body = await InThread(compress, gateway.zlib_threads)
    else:
        response.body = compress()
    response.headers.append(("content-encoding", "gzip"))
    return response


def accepts_gzip(header: str | None) -> bool:
    """Whether gzip is acceptable and not less wanted than an uncompressed answer."""
    weights: dict[str, float] = {}
    for item in (header or "").split(","):
        coding, *parameters = (part.strip() for part in item.split(";"))
        weight = 1.0
        for parameter in parameters:
            match = _WEIGHT.fullmatch(parameter.replace(" ", ""))
            # A weight nobody can read is not a wish for gzip.
            weight = float(match[1]) if match else 0.0
        weights[coding.lower()] = weight
    gzip_weight = weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0)))
    return gzip_weight > 0 and gzip_weight >= weights.get("identity", 0.0)
