"""Commands waiting to be run: one queue per topic, served by effective priority.

Commands of one topic run in the order in which they came. Between topics the higher priority goes
first; waiting raises it, so that nothing starves. A topic that waits for a sync is passed over.
"""

from collections import deque
from collections.abc import Callable, Iterator

from shards.command import Command

# Commands that a topic may run in one turn before the next topic gets its own.
TURN_COMMANDS = 32


class Mailbox:
    def __init__(self) -> None:
        self._queues: dict[str, deque[Command]] = {}
        self._waiting: set[str] = set()
        self.commands = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self.commands

    def put(self, command: Command) -> None:
        queue = self._queues.get(command.topic)
        if queue is None:
            queue = self._queues[command.topic] = deque()
        queue.append(command)
        self.commands += 1
        self.bytes += command.size_bytes

    @property
    def runnable(self) -> bool:
        return len(self._queues) > len(self._waiting)

    def hold(self, topic: str) -> None:
        """Pass this topic over until it is let go; its first command stays first."""
        self._waiting.add(topic)

    def let_go(self, topic: str) -> None:
        self._waiting.discard(topic)

    def let_go_all(self) -> None:
        self._waiting.clear()

    def turns(self, priority: Callable[[str, Command], float]) -> Iterator[tuple[str, deque[Command]]]:
        """The topics that may run now, the most urgent first. Take commands with `take`."""
        names = [name for name in self._queues if name not in self._waiting]
        if len(names) > 1:
            names.sort(key=lambda name: priority(name, self._queues[name][0]), reverse=True)
        for name in names:
            yield name, self._queues[name]

    def take(self, topic: str, count: int = 1) -> None:
        """So many of the topic's commands have been run, from the first on."""
        queue = self._queues[topic]
        for _ in range(count):
            self.bytes -= queue.popleft().size_bytes
        self.commands -= count
        if not queue:
            del self._queues[topic]
