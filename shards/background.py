"""Work beside the loop: jobs run in threads, their ends are taken up in the loop.

A job touches files and values of its own, never the state of the shard. What it leads to is said by
`on_done`, which is called in the loop, when the loop looks.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, TypeAlias

Job: TypeAlias = Callable[[], None]
OnDone: TypeAlias = Callable[[Exception | None], None]


class Background(Protocol):
    def submit(self, job: Job, on_done: OnDone) -> None: ...

    def take_done(self) -> None:
        """Call `on_done` of every job that has ended."""
        ...

    @property
    def busy(self) -> bool: ...


class InlineBackground:
    """Runs a job at once; its end is taken up when the loop looks. For simulations."""

    def __init__(self) -> None:
        self._ended: deque[tuple[OnDone, Exception | None]] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._ended)

    def submit(self, job: Job, on_done: OnDone) -> None:
        self._ended.append((on_done, _run(job)))

    def take_done(self) -> None:
        while self._ended:
            on_done, error = self._ended.popleft()
            on_done(error)


class ThreadBackground:
    """A few threads; `event_fd` becomes readable when a job has ended."""

    def __init__(self, name: str, *, threads: int = 1) -> None:
        self._jobs: SimpleQueue[tuple[Job, OnDone] | None] = SimpleQueue()
        self._ended: SimpleQueue[tuple[OnDone, Exception | None]] = SimpleQueue()
        self._under_way = 0
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> bool:
        return self._under_way > 0

    def submit(self, job: Job, on_done: OnDone) -> None:
        self._under_way += 1
        self._jobs.put((job, on_done))

    def take_done(self) -> None:
        try:
            os.eventfd_read(self.event_fd)
        except BlockingIOError:
            return
        while not self._ended.empty():
            on_done, error = self._ended.get()
            self._under_way -= 1
            on_done(error)

    def stop(self) -> None:
        """End the threads; jobs that were submitted are waited for."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        os.close(self.event_fd)

    def _work(self) -> None:
        while (work := self._jobs.get()) is not None:
            job, on_done = work
            self._ended.put((on_done, _run(job)))
            os.eventfd_write(self.event_fd, 1)


def _run(job: Job) -> Exception | None:
    try:
        job()
    except Exception as error:
        return error
    return None
