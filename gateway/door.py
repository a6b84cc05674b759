"""Answering a request under trio: the way in for Quart, and for tests without a server.

The body arrives as chunks. One that is refused is still read away for a while: an answer before the
end of a body breaks HTTP/2 connections, and an HTTP/1.1 client that is still sending might never see it.
"""

from collections.abc import AsyncIterator
from typing import Any, Final

import trio

from gateway.context import Gateway
from gateway.effects import Ask, AskEach, Effect, InThread, ReadBody, drive
from gateway.http import Request, Response
from gateway.routes import dispatch
from gateway.slots import BodyHold
from topics.errors import InvalidRequest, PayloadTooLarge

MIB = 1024 * 1024
# The longest silence in the middle of a body. Large bodies over slow lines are fine.
BODY_IDLE_S: Final = 30.0
# How much of an unwanted body is read away, and for how long, before the connection has to go.
DRAIN_BYTES_MAX: Final = 16 * MIB
DRAIN_S: Final = 2.0


async def answer(gateway: Gateway, request: Request, chunks: AsyncIterator[bytes]) -> Response:
    hold = gateway.bodies.open()

    async def perform(effect: Effect[Any]) -> Any:
        if isinstance(effect, ReadBody):
            return await _read(chunks, effect.limit_bytes, hold)
        assert isinstance(effect, Ask | AskEach | InThread), effect
        return await effect.perform()

    try:
        response = await drive(dispatch(gateway, request), perform)
    finally:
        hold.close()
    await _drain(chunks)
    return response


async def _read(chunks: AsyncIterator[bytes], limit_bytes: int, hold: BodyHold) -> bytes:
    parts: list[bytes] = []
    size = 0
    with trio.move_on_after(BODY_IDLE_S) as patience:
        async for chunk in chunks:
            patience.deadline = trio.current_time() + BODY_IDLE_S
            size += len(chunk)
            if size > limit_bytes:
                raise PayloadTooLarge(limit_bytes)
            hold.add(len(chunk))
            parts.append(chunk)
    if patience.cancelled_caught:
        raise InvalidRequest(f"the body stopped arriving for {BODY_IDLE_S:.0f} s", field="body")
    return b"".join(parts)


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Reads away what is left of the body, within bounds. Does nothing if it was read to its end."""
    left = DRAIN_BYTES_MAX
    with trio.move_on_after(DRAIN_S):
        async for chunk in chunks:
            left -= len(chunk)
            if left < 0:
                return
