"""Connections that the lane does not speak, given to Hypercorn with the bytes already read.

Hypercorn's `TCPServer` is an internal class: it takes any stream with `receive_some`, `send_all`,
`send_eof`, `aclose` and `.socket`. The pinned version and the tests of this module hold it in place.
"""

import logging
import re
import socket
import time
from collections import deque
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
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
from gateway.lane.connection import HALF_CLOSED_S, WRITE_STALL_S
from gateway.lane.parsing import H2_PREFACE, BadRequest, Body, head_end, parse_head, without_empty_lines
from topics.errors import InvalidRequest

log = logging.getLogger(__name__)

_CONTENT_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
RECEIVE_BYTES: Final = 64 * 1024
SEND_BYTES: Final = 64 * 1024
# How long a refusal waits for the answers of requests before it: longer than the longest long-poll.
ANSWERS_S: Final = 40.0
# What Hypercorn gets to end a connection whose client has left.
GONE_S: Final = 0.1


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
        owned = trio.socket.from_stdlib_socket(sock)
        guarded = _GuardedStream(trio.SocketStream(owned), data)
        # It asks a stream for what a plain one does not have, and copes.
        stream = cast("trio.SSLStream[trio.SocketStream]", guarded)
        state = ConnectionState(self._state.copy())
        try:
            with guarded.life:
                await TCPServer(self._app, self._config, self._context, state, stream)
        except Exception:
            # One broken connection must not end the others.
            log.exception("connection.failed")
        finally:
            owned.close()


class _Guard:
    """Follows an HTTP/1.1 stream on its way to somebody else, and judges its heads and framing."""

    def __init__(self) -> None:
        self.heads = 0
        self.methods: deque[bytes] = deque()  # of requests whose answer has not begun
        # The other side speaks something else by now, which is not ours to judge.
        self.over = False
        self._held = b""
        self._body: Body | None = None
        self._untouched = True

    @property
    def in_body(self) -> bool:
        return self._body is not None and not self._body.complete

    def check(self, data: bytes) -> tuple[int, BadRequest | None]:
        """How many of these bytes may pass, and what is wrong with those behind them."""
        if self.over:
            return len(data), None
        whole, self._held = self._held + data, b""
        if self._untouched and H2_PREFACE.startswith(whole[: len(H2_PREFACE)]):
            self._held = whole
            self.over = len(whole) >= len(H2_PREFACE)
            return len(data), None
        self._untouched = False
        rest = whole
        try:
            while rest:
                rest = self._follow(rest)
        except BadRequest as error:
            return max(0, len(data) - len(rest)), error
        return len(data), None

    def _follow(self, data: bytes) -> bytes:
        """One step through the stream; what is left of it."""
        if self._body is not None and not self._body.complete:
            following = self._body.feed(data)
            self._body.forget()
            return following
        data = without_empty_lines(data)
        end = head_end(data)
        if end < 0:
            self._held = data
            return b""
        head = parse_head(data[:end])
        self.heads += 1
        self.methods.append(head.method)
        self._body = head.body()
        return data[end:]


class _GuardedStream:
    """A connection whose first bytes were read already, and whose HTTP/1.1 heads are checked on the way."""

    def __init__(self, stream: trio.SocketStream, data: bytes) -> None:
        self._stream = stream
        self._data = data
        self._guard = _Guard()
        self._answers = 0
        self._body_left = 0  # of the answer that is being sent
        self._answered = trio.lowlevel.ParkingLot()
        self._sending = trio.Lock()
        self._refusal: BadRequest | None = None
        self.socket = stream.socket
        self.life = trio.CancelScope()

    async def receive_some(self, max_bytes: int = RECEIVE_BYTES) -> bytes:
        if self._refusal is None:
            data, self._data = self._data, b""
            if not data:
                data = await self._received(max_bytes)
            if not data:
                # It may only have said that it sends no more; Hypercorn would drop the answers it waits for.
                await self._all_answered(HALF_CLOSED_S)
                # Hypercorn would keep the connection until its idle time is over.
                self.life.deadline = trio.current_time() + GONE_S
            passing, self._refusal = self._guard.check(data)
            if self._refusal is None or passing:
                return data[:passing]
        await self._all_answered(ANSWERS_S)
        await self._refuse(self._refusal)
        raise trio.ClosedResourceError

    async def _received(self, max_bytes: int) -> bytes:
        try:
            return bytes(await self._stream.receive_some(max_bytes))
        except trio.BrokenResourceError:
            self.life.deadline = trio.current_time() + GONE_S
            raise

    async def _all_answered(self, timeout_s: float) -> None:
        """Wait until every request that was passed on whole has its answer."""
        with trio.move_on_after(timeout_s):
            while self._answers < self._guard.heads - self._guard.in_body:
                await self._answered.park()

    async def _refuse(self, error: BadRequest) -> None:
        refused = InvalidRequest(f"not a valid HTTP request: {error}", field="request")
        body = error_response(refused, time.monotonic_ns()).body
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
            f"date: {formatdate(usegmt=True)}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        with suppress(trio.BrokenResourceError, trio.BusyResourceError):
            async with self._sending:
                await self._send_slices(head.encode() + body)
                await self._stream.send_eof()
        # Hypercorn would wait for the connection to be idle long enough.
        await self._stream.aclose()

    async def send_all(self, data: bytes) -> None:
        if not data:
            return
        async with self._sending:
            await self._send_slices(data)
        if not self._guard.over:
            self._count(data)

    async def _send_slices(self, data: bytes) -> None:
        """A client that does not read is let go, also while Hypercorn does not look at it."""
        view = memoryview(data)
        while view:
            with trio.move_on_after(WRITE_STALL_S) as patience:
                await self._stream.send_all(view[:SEND_BYTES])
            if patience.cancelled_caught:
                self.life.cancel()
                raise trio.BrokenResourceError("the client does not read its answers")
            view = view[SEND_BYTES:]

    def _count(self, data: bytes) -> None:
        """Follow our own answers: Hypercorn sends the head of one by itself, and then its body."""
        if self._body_left == 0:
            if data.startswith(b"HTTP/1.1 101"):
                self._guard.over = True
            if not data.startswith(b"HTTP/1.1 ") or data.startswith(b"HTTP/1.1 1"):
                return
            head, _, data = data.partition(b"\r\n\r\n")
            length = _CONTENT_LENGTH.search(head)
            method = self._guard.methods.popleft() if self._guard.methods else b""
            self._body_left = int(length[1]) if length and method != b"HEAD" else 0
        self._body_left -= min(len(data), self._body_left)
        if self._body_left == 0:
            self._answers += 1
            self._answered.unpark_all()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
