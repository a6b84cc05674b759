"""What this shard may use of a cap over all shards, and the commands that wait for more of it.

Synchronous. A command claims what it needs; if that is not there it waits with its topic, and whoever
speaks with the owner (quota.py) sets aside what was lent, or marks the command as refused, and lets the
topic go. The command then runs again and finds out.

`used` is read only between two groups, when memory is what the log says: what is given back here must
not come back with the log after a failed write or a killed process.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shards.command import Command
from topics.engine.metering import growth
from topics.engine.quota import Holding, Statement
from topics.engine.run import Run
from topics.engine.topic import TopicLog
from topics.errors import LimitReached, TopicsError


class NeedsQuota(Exception):
    """The command must be run again when there is this much room, or when it was refused; nothing changed."""

    def __init__(self, allowance: "Allowance", amount: int) -> None:
        super().__init__(amount)
        self.allowance = allowance
        self.amount = amount


class Allowance:
    """`limit` is the name of the cap in answers, and its variable's without `TOPICS_`."""

    def __init__(self, limit: str, maximum: int, holding: Holding, *, alone: bool = False) -> None:
        self.limit = limit
        self.maximum = maximum
        self.holding = holding
        self.waiting: dict[Command, int] = {}
        self.on_waiting: Callable[[], None] = lambda: None
        self._alone = alone
        self.reclaim: Callable[[], None] = lambda: None  # frees what is over but still counted
        self._used: Callable[[], int] | None = None
        self._refused: dict[Command, TopicsError] = {}

    # -- the shard it belongs to

    @property
    def attached(self) -> bool:
        return self._used is not None

    def attach(self, used: Callable[[], int], reclaim: Callable[[], None]) -> None:
        """Count in a shard that has just been loaded."""
        self._used, self.reclaim = used, reclaim
        self.on_waiting()

    def detach(self) -> None:
        """The shard is given up; its commands will come again."""
        self._used = None
        self.waiting.clear()
        self._refused.clear()
        self.holding.release_all()

    @property
    def used(self) -> int:
        assert self._used is not None, "no shard is loaded"
        return self._used()

    # -- commands

    def fits(self, command: Command, amount: int) -> bool:
        return amount <= 0 or amount <= self.holding.room(self.used, command)

    def claim(self, command: Command, amount: int) -> None:
        """Return if the command may use this much now. Raises NeedsQuota, or why there is no more."""
        if self.fits(command, amount):
            self.forget(command)
            return
        refused = self._refused.pop(command, None)
        if refused is None and (self._alone or amount > self.maximum):
            refused = self.reached()
        raise refused or NeedsQuota(self, amount)

    def keep(self, command: Command, amount: int) -> None:
        """The command will use this much when it runs again."""
        self.holding.set_aside(command, amount)

    def wait(self, command: Command, amount: int) -> None:
        self.waiting[command] = amount
        self.on_waiting()

    def forget(self, command: Command) -> None:
        """Nothing is kept for this command any more."""
        self.holding.release(command)
        self._refused.pop(command, None)

    def reached(self) -> LimitReached:
        return LimitReached(self.limit, self.maximum, "the server has no room for more")

    # -- whoever speaks with the owner

    def missing(self) -> int:
        """What must be lent so that the least of the waiting commands can go on; without any, some stock."""
        self.reclaim()
        amounts = [amount for command, amount in self.waiting.items() if not command.cancelled]
        return min(amounts, default=1) - self.holding.room(self.used)

    def statement(self, *, give_back: bool = False) -> Statement:
        if give_back:
            self.reclaim()
            self.holding.give_back(self.used)
        return self.holding.statement(self.used)

    def hand_out(self, commands: Iterable[Command]) -> list[str]:
        """Set aside for these what there is, the smallest first; their topics may go on."""
        waiting = [(self.waiting.pop(command), command) for command in commands if command in self.waiting]
        for amount, command in sorted(waiting, key=lambda entry: entry[0]):
            if not command.cancelled and amount <= self.holding.room(self.used):
                self.keep(command, amount)
        return [command.topic for _, command in waiting]

    def refuse(self, commands: Iterable[Command], error: Callable[[], TopicsError]) -> list[str]:
        """These are answered with an error unless there is room by then; their topics may go on."""
        refused = [command for command in commands if self.waiting.pop(command, None) is not None]
        for command in refused:
            if not command.cancelled:
                self._refused[command] = error()
        return [command.topic for command in refused]


@dataclass(frozen=True, slots=True)
class Allowances:
    """What a shard may use of every cap; None is without bound."""

    topics: Allowance | None = None
    bytes: Allowance | None = None

    def all(self) -> list[Allowance]:
        return [allowance for allowance in (self.topics, self.bytes) if allowance is not None]

    def forget(self, command: Command) -> None:
        for allowance in self.all():
            allowance.forget(command)

    def detach(self) -> None:
        for allowance in self.all():
            allowance.detach()


def claim_bytes(allowance: Allowance, command: Command, log: TopicLog, run: Run) -> int:
    """Claim what a write adds to the live bytes; returns what was claimed."""
    amount = run.payload_bytes()
    if not allowance.fits(command, amount):
        allowance.reclaim()
        amount = growth(log, run)
    allowance.claim(command, amount)
    return amount


def claim_for_creation(allowed: Allowances, command: Command, log: TopicLog, run: Run) -> None:
    """Claim a topic and the bytes that it is created for: a refused write must leave no topic behind.

    The bytes are kept until the write itself runs, and the place of the topic while it waits for them.
    """
    if allowed.topics is not None:
        allowed.topics.claim(command, 1)
    if allowed.bytes is None:
        return
    if allowed.topics is not None:
        allowed.topics.keep(command, 1)
    allowed.bytes.keep(command, claim_bytes(allowed.bytes, command, log, run))
    if allowed.topics is not None:
        allowed.topics.forget(command)
