"""The fast lane: accepts connections and serves them in the sweeps of a poller inside trio.

What was parsed in one sweep leaves in one send per shard link, because the links are served by the
same poller and send what was queued when the sweep ends.
"""

import errno
import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio

from gateway.context import Gateway
from gateway.effects import Ask, AskEach, Effect, Handling, InThread
from gateway.http import Request, Response
from gateway.lane.connection import Connection
from gateway.lane.openings import Openings
from gateway.routes import dispatch
from topics.polling import PEER_CLOSED, READABLE, WRITABLE, Poller

log = logging.getLogger(__name__)

ACCEPTS_PER_SWEEP: Final = 64
# How often deadlines are looked at; none of them is exact.
DEADLINES_EVERY_S: Final = 1.0
# Without file descriptors nothing can be accepted; connections that end give some back.
NO_DESCRIPTORS_PAUSE_S: Final = 0.1

HandOver = Callable[[socket.socket, bytes], None]


class Reactor:
    """Serves `listener` until it is cancelled. `hand_over` takes what is not HTTP/1.1."""

    def __init__(
        self,
        gateway: Gateway,
        listener: socket.socket,
        hand_over: HandOver,
        poller: Poller,
        *,
        serve_here: bool = True,
    ) -> None:
        self.gateway = gateway
        self.openings = Openings(gateway)
        self._listener = listener
        self._give_away = hand_over
        self._poller = poller
        self._serve_here = serve_here
        self._connections: dict[int, Connection] = {}
        self._nursery: trio.Nursery | None = None
        self._accepting = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._listener.setblocking(False)
        self._accept_on()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                await self._watch_deadlines()
        finally:
            for connection in list(self._connections.values()):
                connection.close()

    def stop_accepting(self) -> None:
        """The listener is closed and idle connections end; those under way finish."""
        if self._accepting:
            self._poller.forget(self._listener.fileno())
            self._accepting = False
        self._listener.close()
        for connection in [c for c in self._connections.values() if c.idle]:
            connection.close()

    def _accept_on(self) -> None:
        self._poller.watch(self._listener.fileno(), READABLE, self._accept)
        self._accepting = True

    def _guard(self, connection: Connection, act: Callable[..., None], *args: object) -> None:
        """Nothing that one connection does may end the others."""
        try:
            act(*args)
        except Exception:
            log.exception("connection.failed")
            connection.close()

    def _accept(self, event: int) -> None:
        for _ in range(ACCEPTS_PER_SWEEP):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause_accepting(error)
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._serve_here:
                self._give_away(sock, b"")
                continue
            connection = Connection(self, sock)
            self._connections[connection.fd] = connection
            connection.interest = READABLE | PEER_CLOSED
            self._poller.watch(connection.fd, connection.interest, connection.on_event)

    def _pause_accepting(self, error: OSError) -> None:
        log.warning("gateway.accept_paused", extra={"reason": str(error)})
        self._poller.forget(self._listener.fileno())
        self._accepting = False
        assert self._nursery is not None
        self._nursery.start_soon(self._resume_accepting)

    async def _resume_accepting(self) -> None:
        await trio.sleep(NO_DESCRIPTORS_PAUSE_S)
        if self._listener.fileno() >= 0 and not self._accepting:
            self._accept_on()

    async def _watch_deadlines(self) -> None:
        while True:
            await trio.sleep(DEADLINES_EVERY_S)
            now = time.monotonic()
            for connection in [c for c in self._connections.values() if c.deadline < now]:
                self._guard(connection, connection.on_deadline)

    # -- what connections ask for

    def handle(self, request: Request) -> Handling[Response]:
        return dispatch(self.gateway, request)

    def in_task(self, connection: Connection, effect: Effect[Any]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._perform, connection, effect)

    async def _perform(self, connection: Connection, effect: Effect[Any]) -> None:
        assert isinstance(effect, Ask | AskEach | InThread), effect
        try:
            result = await effect.perform()
        except Exception as error:
            self.resume(connection, None, error)
        else:
            self.resume(connection, result, None)

    def resume(self, connection: Connection, result: Any, error: Exception | None) -> None:
        self._guard(connection, connection.resume, result, error)

    def come_back(self, connection: Connection) -> None:
        """There is more to do for this connection than its turn allows."""
        self._poller.soon(partial(self._guard, connection, connection.proceed))

    def hand_over(self, connection: Connection, data: bytes) -> None:
        self._forget(connection)
        self._give_away(connection.release(), data)

    def rearm(self, connection: Connection) -> None:
        interest = READABLE if connection.wants_read else 0
        if not connection.half_closed:
            interest |= PEER_CLOSED
        if connection.wants_write:
            interest |= WRITABLE
        if interest != connection.interest and not connection.closed:
            connection.interest = interest
            self._poller.change(connection.fd, interest)

    def drop(self, connection: Connection) -> None:
        self._forget(connection)
        connection.sock.close()

    def _forget(self, connection: Connection) -> None:
        if self._connections.pop(connection.fd, None) is not None:
            self._poller.forget(connection.fd)
