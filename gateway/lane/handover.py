"""Connections that the lane does not speak, given to Hypercorn with the bytes already read.

Hypercorn's `TCPServer` is an internal class: it takes any stream with `receive_some`, `send_all`,
`send_eof`, `aclose` and `.socket`. The pinned version and the tests of this module hold it in place.
"""

import logging
import socket
import time
from contextlib import suppress
from typing import Final, cast

import trio
from hypercorn.config import Config
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState
from hypercorn.utils import wrap_app

from gateway.app import GatewayApp
from gateway.http import error_response
from gateway.lane.parsing import H2_PREFACE, BadRequest, RequestParser, UnknownMethod
from topics.errors import InvalidRequest

log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 64 * 1024


class HypercornDoor:
    """The Quart app under Hypercorn, for connections that somebody else has accepted."""

    def __init__(self, app: GatewayApp, config: Config) -> None:
        self._app = wrap_app(app, config.wsgi_max_body_size, "asgi")
        self._config = config
        self._context = WorkerContext(None)
        self._state: LifespanState = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        lifespan = Lifespan(self._app, self._config, self._state)
        async with trio.open_nursery() as lifespan_nursery:
            await lifespan_nursery.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                await trio.sleep_forever()

    async def stop(self) -> None:
        """Idle connections end now, the others with their request."""
        await self._context.terminated.set()

    def take(self, sock: socket.socket, data: bytes) -> None:
        """Serve this connection, whose first bytes are `data`."""
        assert self._nursery is not None
        self._nursery.start_soon(self._serve, sock, data)

    async def _serve(self, sock: socket.socket, data: bytes) -> None:
        guarded = _GuardedStream(trio.SocketStream(trio.socket.from_stdlib_socket(sock)), data)
        # It asks a stream for what a plain one does not have, and copes.
        stream = cast("trio.SSLStream[trio.SocketStream]", guarded)
        state = ConnectionState(self._state.copy())
        try:
            await TCPServer(self._app, self._config, self._context, state, stream)
        except Exception:
            # One broken connection must not end the others.
            log.exception("connection.failed")


class _GuardedStream:
    """A connection whose first bytes were read already, and whose HTTP/1.1 heads are checked on the way."""

    def __init__(self, stream: trio.SocketStream, data: bytes) -> None:
        self._stream = stream
        self._data = data
        self._seen = b""
        self._parser: RequestParser | None = RequestParser()
        self.socket = stream.socket

    async def receive_some(self, max_bytes: int = RECEIVE_BYTES) -> bytes:
        data, self._data = self._data, b""
        if not data:
            data = bytes(await self._stream.receive_some(max_bytes))
        if data and self._parser is not None:
            try:
                self._check(self._parser, data)
            except BadRequest as error:
                await self._refuse(error)
                raise trio.ClosedResourceError from error
        return data

    def _check(self, parser: RequestParser, data: bytes) -> None:
        if len(self._seen) < len(H2_PREFACE):
            self._seen += data[: len(H2_PREFACE)]
            if H2_PREFACE.startswith(self._seen[: len(H2_PREFACE)]):
                # HTTP/2 has a framing of its own; what comes is not ours to judge.
                if len(self._seen) >= len(H2_PREFACE):
                    self._parser = None
                return
            data = self._seen if len(self._seen) > len(data) else data
        try:
            parser.feed(data)
        except UnknownMethod:
            # Hypercorn knows it, and the route table refuses it.
            self._parser = None
        for head in parser.heads:
            head.discard = True
            head.parts.clear()
        parser.heads.clear()
        if parser.upgrade:
            self._parser = None

    async def _refuse(self, error: BadRequest) -> None:
        refused = InvalidRequest(f"not a valid HTTP request: {error}", field="request")
        response = error_response(refused, time.monotonic_ns())
        head = (
            f"HTTP/1.1 {error.status} Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(response.body)}\r\nconnection: close\r\n\r\n"
        )
        with suppress(trio.BrokenResourceError):
            await self.send_all(head.encode() + response.body)
            await self._stream.send_eof()
        # Hypercorn would wait for the connection to be idle long enough.
        await self._stream.aclose()

    async def send_all(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
