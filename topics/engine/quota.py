"""Caps over all shards, exact although every shard decides alone: one owner lends, holders use.

The owner lends parts of a maximum to holders, one per shard. A holder uses what it was lent without
asking anybody, and what it frees stays with it until the owner takes it back. At every moment

    what a shard has (the larger of `granted` and `used`)  <=  what the owner thinks it has
    what the owner thinks all shards have  <=  the maximum, or what was there before the owner

so that no place is given twice, whatever message is late or lost and whoever dies:
  * A holder is the truth about itself. Each message of it carries a numbered `Statement`; an older one
    never replaces a newer one.
  * A holder asks one question at a time. What was lent in answer counts until a statement says that the
    holder has settled that question: it has added the loan, or it has given the question up.
  * An owner that knows nothing of a shard lends nothing: the shard may hold everything.
A new life of a holder has been granted nothing; what it finds in use counts, and may only shrink until
the owner has lent as much and more. So a lowered maximum takes nothing away and lets nothing be added.
"""

from collections.abc import Hashable
from dataclasses import dataclass

import msgspec

# A loan goes beyond what was asked for by this part of a shard's share of what is then left: few questions
# while there is plenty, and none but exact loans near the maximum.
_BLOCK_PART = 4


class Statement(msgspec.Struct, frozen=True):
    """What a holder says of itself. `life` counts its processes, `number` its statements in this life."""

    life: int
    number: int
    granted: int
    used: int
    settled: int  # questions of this life that are over; the next one is `settled` + 1

    def newer_than(self, other: "Statement") -> bool:
        return (self.life, self.number) > (other.life, other.number)


class Holding:
    """The holder's side: what one shard may use of one kind, and what it has set aside for whom."""

    def __init__(self, life: int = 0, *, granted: int = 0) -> None:
        self.granted = granted
        self._life = life
        self._number = 0
        self._settled = 0
        self._set_aside: dict[Hashable, int] = {}
        self._set_aside_total = 0

    def room(self, used: int, whose: Hashable = None) -> int:
        """What may be used now, by somebody for whom something may be set aside."""
        return self.granted - used - self._set_aside_total + self._set_aside.get(whose, 0)

    def set_aside(self, whose: Hashable, amount: int) -> None:
        """Keep this much for one user until it is released."""
        self.release(whose)
        self._set_aside[whose] = amount
        self._set_aside_total += amount

    def release(self, whose: Hashable) -> None:
        self._set_aside_total -= self._set_aside.pop(whose, 0)

    def release_all(self) -> None:
        self._set_aside.clear()
        self._set_aside_total = 0

    def give_back(self, used: int) -> None:
        """Part with everything that is neither used nor set aside."""
        self.granted = min(self.granted, used + self._set_aside_total)

    def statement(self, used: int) -> Statement:
        self._number += 1
        return Statement(self._life, self._number, self.granted, used, self._settled)

    def settle(self, lent: int) -> None:
        """The question is over: this much was lent, 0 if nothing was or nobody answered."""
        self.granted += lent
        self._settled += 1


@dataclass(slots=True)
class _Account:
    """What the owner knows of one holder."""

    said: Statement
    lent: int = 0  # in answer to question number `question`, and not yet known to have arrived
    question: int = 0

    @property
    def held(self) -> int:
        return max(self.said.granted + self.lent, self.said.used)


class Pool:
    """The owner's side: the whole of one kind, and what is lent of it."""

    def __init__(self, maximum: int, shards: int) -> None:
        self.maximum = maximum
        self._shards = shards
        self._accounts: dict[int, _Account] = {}

    @property
    def unheard(self) -> list[int]:
        """Shards of which nothing is known: while there are any, nothing can be lent."""
        return [shard for shard in range(self._shards) if shard not in self._accounts]

    @property
    def free(self) -> int:
        return self.maximum - sum(account.held for account in self._accounts.values())

    def held(self, shard: int) -> int:
        """What this shard may have at most."""
        return self._accounts[shard].held

    def hear(self, shard: int, said: Statement) -> None:
        account = self._accounts.get(shard)
        if account is None:
            self._accounts[shard] = _Account(said)
        elif said.newer_than(account.said):
            if said.life > account.said.life or said.settled >= account.question:
                account.lent = account.question = 0
            account.said = said

    def awaits(self, shard: int, asked: Statement) -> bool:
        """Whether the shard still waits for an answer to the question that came with `asked`."""
        said = self._accounts[shard].said
        return asked.life == said.life and asked.settled == said.settled

    def lend(self, shard: int, asked: Statement, wanted: int) -> int:
        """Answer the question that came with `asked`: at least `wanted`, or 0.

        A 0 is not a refusal yet: the others may hold what they do not use, and must be heard first.
        """
        assert wanted > 0, wanted
        account = self._accounts[shard]
        if self.unheard or not self.awaits(shard, asked):
            return 0
        left = self.free - max(0, account.said.granted + wanted - account.held)
        if left < 0:
            return 0
        account.lent = wanted + left // (_BLOCK_PART * self._shards)
        account.question = asked.settled + 1
        return account.lent
