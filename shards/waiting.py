"""Long-polls that wait for their topic: found by topic when it changes, and by deadline when it does not."""

import heapq
from collections.abc import Callable

from shards.command import Command

# Answered ones leave the list of deadlines together, after this many have entered it.
_COMPACT_EVERY = 4096


class LongPolls:
    def __init__(self) -> None:
        self._by_topic: dict[str, list[Command]] = {}
        self._deadlines: list[tuple[int, int, Command]] = []
        self._entered = 0

    def add(self, command: Command) -> None:
        self._by_topic.setdefault(command.topic, []).append(command)
        if command.scheduled:
            return
        command.scheduled = True
        self._entered += 1
        heapq.heappush(self._deadlines, (command.deadline_ns, self._entered, command))
        if self._entered % _COMPACT_EVERY == 0:
            self._deadlines = [entry for entry in self._deadlines if not _is_over(entry[2])]
            heapq.heapify(self._deadlines)

    def take(self, topic: str) -> list[Command]:
        """Those of one topic."""
        return self._by_topic.pop(topic, [])

    def take_where(self, wanted: Callable[[Command], bool]) -> list[Command]:
        taken = [command for commands in self._by_topic.values() for command in commands if wanted(command)]
        for command in taken:
            self._remove(command)
        return taken

    def take_expired(self, now_ns: int) -> list[Command]:
        """Those whose time is over."""
        expired = []
        while self._deadlines and (self._deadlines[0][0] <= now_ns or _is_over(self._deadlines[0][2])):
            command = heapq.heappop(self._deadlines)[2]
            # One that was woken and has more to look at is on its way already.
            if not _is_over(command) and command in self._by_topic.get(command.topic, ()):
                self._remove(command)
                expired.append(command)
        return expired

    def forget(self, command: Command) -> None:
        """Nobody waits for this answer any more."""
        command.cancelled = True
        if command in self._by_topic.get(command.topic, ()):
            self._remove(command)

    @property
    def next_deadline_ns(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def _remove(self, command: Command) -> None:
        waiting = self._by_topic[command.topic]
        waiting.remove(command)
        if not waiting:
            del self._by_topic[command.topic]


def _is_over(command: Command) -> bool:
    return command.cancelled or command.answer is not None
