"""One task that sleeps on an epoll inside trio and serves every descriptor that is ready in one sweep.

A task per connection costs a task switch per message; here many messages share one. What a sweep
collects for a peer leaves at its end, in one send. Sweeps are bounded in time, so that the other tasks
of the process have their turns; what was not served stays ready and comes first in the next sweep.
"""

import os
import select
import time
from collections.abc import Callable
from typing import Final

import trio

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT
PEER_CLOSED: Final = select.EPOLLRDHUP
BROKEN: Final = select.EPOLLERR | select.EPOLLHUP

EVENTS_PER_SWEEP: Final = 64
# What is collected for a peer leaves after so many events, so that the peer works while the rest is served.
# How 8 was chosen, and how roughly: docs/adr/0005.
EVENTS_PER_SEND: Final = 8
TURN_S: Final = 0.005

OnEvent = Callable[[int], None]
Act = Callable[[], None]


class Poller:
    """Handlers by descriptor. They run in the task of `run`, must not block, and must not raise."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, OnEvent] = {}
        self._soon: list[Act] = []
        self._at_end: list[Act] = []
        # Nobody has to be woken: a sweep is under way, or there will be none.
        self._awake = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._wake_fd, READABLE, self._woken)

    def watch(self, fd: int, interest: int, on_event: OnEvent) -> None:
        self._handlers[fd] = on_event
        self._epoll.register(fd, interest)

    def change(self, fd: int, interest: int) -> None:
        if fd in self._handlers:
            self._epoll.modify(fd, interest)

    def forget(self, fd: int) -> None:
        """To be called before the descriptor is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def soon(self, act: Act) -> None:
        """Do this in the next sweep, after others have had their turn."""
        self._soon.append(act)
        if not self._awake:
            os.eventfd_write(self._wake_fd, 1)

    def at_end(self, act: Act) -> None:
        """Do this once, when the sweep under way has served some more; without one, in a sweep of its own."""
        self._at_end.append(act)
        if not self._awake:
            os.eventfd_write(self._wake_fd, 1)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        try:
            while True:
                if self._soon:
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                end = time.monotonic() + TURN_S
                while self._sweep(end) and time.monotonic() < end:
                    pass  # looking again costs far less than falling asleep and being woken
        finally:
            # Whoever is cancelled after this may still let go of its descriptor.
            self._handlers.clear()
            self._awake = True
            self._epoll.close()
            os.close(self._wake_fd)

    def _sweep(self, end: float) -> bool:
        """Serve what is ready; whether anything was."""
        soon, self._soon = self._soon, []
        self._awake = True
        try:
            for act in soon:
                act()
            events = self._epoll.poll(0, EVENTS_PER_SWEEP)
            handlers = self._handlers
            for served, (fd, event) in enumerate(events, 1):
                on_event = handlers.get(fd)
                if on_event is not None:
                    on_event(event)
                if served % EVENTS_PER_SEND == 0:
                    self._end_part()
                    if time.monotonic() > end:
                        break
            # What is done at the end may itself leave something to be done.
            while self._at_end:
                self._end_part()
        finally:
            self._awake = False
        return bool(events)

    def _end_part(self) -> None:
        acts, self._at_end = self._at_end, []
        for act in acts:
            act()

    def _woken(self, event: int) -> None:
        os.eventfd_read(self._wake_fd)
