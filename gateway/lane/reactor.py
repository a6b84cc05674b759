"""The reactor inside trio: one task that waits on an epoll and serves every ready connection in a sweep.

What was parsed in one sweep leaves in one send per shard link, because a link sends what was queued
since its last turn. Sweeps are bounded, so that nobody else in this process waits long.
"""

import errno
import logging
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import trio

from gateway.context import Gateway
from gateway.effects import Ask, AskEach, Effect, Handling, InThread
from gateway.http import Request, Response
from gateway.lane.connection import Connection
from gateway.routes import dispatch

log = logging.getLogger(__name__)

EVENTS_PER_SWEEP: Final = 256
ACCEPTS_PER_SWEEP: Final = 64
# How often deadlines are looked at; none of them is exact.
DEADLINES_EVERY_S: Final = 1.0
# Without file descriptors nothing can be accepted; connections that end give some back.
NO_DESCRIPTORS_PAUSE_S: Final = 0.1

HandOver = Callable[[socket.socket, bytes], None]


class Reactor:
    """Serves `listener` until it is cancelled. `hand_over` takes what is not HTTP/1.1."""

    def __init__(
        self, gateway: Gateway, listener: socket.socket, hand_over: HandOver, *, serve_here: bool = True
    ) -> None:
        self.gateway = gateway
        self._listener = listener
        self._give_away = hand_over
        self._serve_here = serve_here
        self._connections: dict[int, Connection] = {}
        self._epoll = select.epoll()
        self._nursery: trio.Nursery | None = None
        self._accepting = False
        self._unfinished: list[Connection] = []
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._listener.setblocking(False)
        self._accept_on()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._watch_deadlines)
                task_status.started()
                while True:
                    if self._unfinished:
                        await trio.lowlevel.checkpoint()
                    else:
                        await trio.lowlevel.wait_readable(self._epoll.fileno())
                    self._sweep()
        finally:
            for connection in list(self._connections.values()):
                connection.close()
            self._epoll.close()
            os.close(self._wake_fd)

    def stop_accepting(self) -> None:
        """The listener is closed and idle connections end; those under way finish."""
        if self._accepting:
            self._epoll.unregister(self._listener.fileno())
            self._accepting = False
        self._listener.close()
        for connection in [c for c in self._connections.values() if c.idle]:
            connection.close()

    def _accept_on(self) -> None:
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._accepting = True

    # -- sweeps

    def _sweep(self) -> None:
        unfinished, self._unfinished = self._unfinished, []
        for waiting in unfinished:
            self._guard(waiting, waiting.proceed)
        for fd, event in self._epoll.poll(0, EVENTS_PER_SWEEP):
            connection = self._connections.get(fd)
            if fd == self._wake_fd:
                os.eventfd_read(fd)
            elif connection is None:
                self._accept()
            else:
                self._guard(connection, self._serve, connection, event)

    def _serve(self, connection: Connection, event: int) -> None:
        if event & (select.EPOLLERR | select.EPOLLHUP):
            connection.close()
            return
        if event & select.EPOLLOUT:
            connection.on_writable()
        if event & select.EPOLLIN and not connection.closed:
            connection.on_readable()
        if event & select.EPOLLRDHUP and not connection.closed and not connection.half_closed:
            connection.on_half_closed()

    def _guard(self, connection: Connection, act: Callable[..., None], *args: object) -> None:
        """Nothing that one connection does may end the others."""
        try:
            act(*args)
        except Exception:
            log.exception("connection.failed")
            connection.close()

    def _accept(self) -> None:
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
            connection.interest = select.EPOLLIN | select.EPOLLRDHUP
            self._epoll.register(connection.fd, connection.interest)

    def _pause_accepting(self, error: OSError) -> None:
        log.warning("gateway.accept_paused", extra={"reason": str(error)})
        self._epoll.unregister(self._listener.fileno())
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
        self._unfinished.append(connection)
        # Whoever calls may be another task, while ours sleeps.
        os.eventfd_write(self._wake_fd, 1)

    def hand_over(self, connection: Connection, data: bytes) -> None:
        self._forget(connection)
        self._give_away(connection.release(), data)

    def rearm(self, connection: Connection) -> None:
        interest = select.EPOLLIN if connection.wants_read else 0
        if not connection.half_closed:
            interest |= select.EPOLLRDHUP
        if connection.wants_write:
            interest |= select.EPOLLOUT
        if interest != connection.interest and not connection.closed:
            connection.interest = interest
            self._epoll.modify(connection.fd, interest)

    def drop(self, connection: Connection) -> None:
        self._forget(connection)
        connection.sock.close()

    def _forget(self, connection: Connection) -> None:
        if self._connections.pop(connection.fd, None) is not None:
            self._epoll.unregister(connection.fd)
