"""Calls the gateway's handlers directly, over fake shards: no HTTP server in between."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import trio

from gateway.context import Gateway
from gateway.door import answer
from gateway.http import Headers, Request, Response
from shards.client import ShardLink, ShardPool
from tests.fakes.fake_shard import FakeShard
from topics.engine.limits import Limits

JSON = {"content-type": "application/json"}
# Small, so that a test can go over it.
LIMIT = 10_000


class Chunks:
    """A body that arrives in pieces; counts what was read of it."""

    def __init__(self, *chunks: bytes, endless: bool = False) -> None:
        self._chunks = list(chunks)
        self._endless = endless
        self.read_bytes = 0

    def __aiter__(self) -> "Chunks":
        return self

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        if self._endless:
            chunk = self._chunks[0]
        elif self._chunks:
            chunk = self._chunks.pop(0)
        else:
            raise StopAsyncIteration
        self.read_bytes += len(chunk)
        return chunk


class Client:
    """Calls the handlers directly."""

    def __init__(self, gateway: Gateway, shards: list[FakeShard]) -> None:
        self.gateway = gateway
        self.shards = shards

    async def __call__(
        self,
        method: str,
        target: str,
        body: bytes | Chunks = b"",
        headers: dict[str, str] | None = None,
    ) -> Response:
        path, _, query = target.encode().partition(b"?")
        chunks = body if isinstance(body, Chunks) else Chunks(body)
        pairs = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        request = Request(method, path, query, Headers(pairs), time.monotonic_ns())
        with trio.fail_after(10):
            return await answer(self.gateway, request, chunks)

    async def error(self, *args: Any, **kwargs: Any) -> tuple[int, str, object]:
        """Status, code and the field it names."""
        response = await self(*args, **kwargs)
        error = json.loads(response.body)["error"]
        return response.status, error["code"], error.get("detail", {}).get("field")


@asynccontextmanager
async def gateway_over(shards: list[FakeShard]) -> AsyncIterator[Client]:
    links = [ShardLink(shard.path, shard=shard.index) for shard in shards]
    gateway = Gateway(
        pool=ShardPool(links),
        limits=replace(Limits(), body_bytes=LIMIT),
        version="1.2.3",
        started_ns=time.monotonic_ns(),
    )
    async with trio.open_nursery() as nursery:
        for shard, link in zip(shards, links, strict=True):
            await nursery.start(shard.run)
            await nursery.start(link.run)
            await link.wait_connected()
        yield Client(gateway, shards)
        nursery.cancel_scope.cancel()


def header(response: Response, name: str) -> str | None:
    values = [value for known, value in response.headers if known.lower() == name]
    assert len(values) <= 1, f"{name} twice"
    return values[0] if values else None
