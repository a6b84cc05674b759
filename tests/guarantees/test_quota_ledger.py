"""Caps over all shards: no place is ever given twice, and none is refused while one is free.

The owner and its holders, with every message as a thing of its own: it may wait while others pass it, and
it dies with the process it came from or goes to. Holders give questions up, and anybody may be killed.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from topics.engine.quota import Holding, Pool, Statement

SHARDS = 3
MAXIMUM = 12
shards = st.integers(0, SHARDS - 1)
amounts = st.sampled_from([1, 2, 5, 9, MAXIMUM])


@dataclass
class Holder:
    """A shard: what it uses outlives it, what it was lent does not."""

    life: int = 1
    used: int = 0
    holding: Holding = field(default_factory=lambda: Holding(1))
    asking: bool = False

    def dies(self) -> None:
        self.life += 1
        self.holding = Holding(self.life)
        self.asking = False


@dataclass
class Question:
    shard: int
    life: int
    statement: Statement
    wanted: int


@dataclass
class Loan:
    shard: int
    life: int
    number: int
    lent: int


@dataclass
class Heard:
    """A statement on its way to the owner."""

    shard: int
    statement: Statement


class Caps(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.holders = [Holder() for _ in range(SHARDS)]
        self.pool = Pool(MAXIMUM, SHARDS)
        self.questions: list[Question] = []
        self.loans: list[Loan] = []
        self.statements: list[Heard] = []
        self.found = 0

    @initialize(used=st.sampled_from([[0] * SHARDS, [0] * SHARDS, [1, 0, 3], [9, 8, 0]]))
    def recover(self, used: list[int]) -> None:
        """More than the maximum may be there already: it was lowered."""
        for holder, found in zip(self.holders, used, strict=True):
            holder.used = found
        self.found = sum(used)

    # -- what shards do alone

    @rule(shard=shards, amount=amounts)
    def use(self, shard: int, amount: int) -> None:
        holder = self.holders[shard]
        holder.used += max(0, min(amount, holder.holding.room(holder.used)))

    @rule(shard=shards, amount=amounts)
    def free(self, shard: int, amount: int) -> None:
        holder = self.holders[shard]
        holder.used -= min(amount, holder.used)

    @rule(shard=shards, amount=amounts)
    def set_aside(self, shard: int, amount: int) -> None:
        holder = self.holders[shard]
        if amount <= holder.holding.room(holder.used):
            holder.holding.set_aside("somebody", amount)

    @rule(shard=shards)
    def use_what_was_set_aside(self, shard: int) -> None:
        holder = self.holders[shard]
        kept = holder.holding.room(0, "somebody") - holder.holding.room(0)
        holder.holding.release("somebody")
        holder.used += kept

    # -- messages

    @rule(shard=shards, wanted=amounts)
    def ask(self, shard: int, wanted: int) -> None:
        holder = self.holders[shard]
        if not holder.asking:
            holder.asking = True
            self.questions.append(Question(shard, holder.life, holder.holding.statement(holder.used), wanted))

    @rule(shard=shards)
    def give_the_question_up(self, shard: int) -> None:
        holder = self.holders[shard]
        if holder.asking:
            holder.asking = False
            holder.holding.settle(0)

    @precondition(lambda self: self.questions)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self._answer(data.draw(st.sampled_from(self.questions)))

    def _answer(self, question: Question) -> None:
        self.questions.remove(question)
        self.pool.hear(question.shard, question.statement)
        lent = self.pool.lend(question.shard, question.statement, question.wanted)
        assert lent == 0 or lent >= question.wanted
        self.loans.append(Loan(question.shard, question.life, question.statement.settled, lent))

    @precondition(lambda self: self.loans)
    @rule(data=st.data())
    def loan_arrives(self, data: st.DataObject) -> None:
        loan = self.loans.pop(data.draw(st.integers(0, len(self.loans) - 1)))
        self._settle(loan)

    def _is_awaited(self, loan: Loan) -> bool:
        holder = self.holders[loan.shard]
        settled = holder.holding.statement(holder.used).settled
        return holder.asking and (holder.life, settled) == (loan.life, loan.number)

    def _settle(self, loan: Loan) -> None:
        if self._is_awaited(loan):
            self.holders[loan.shard].asking = False
            self.holders[loan.shard].holding.settle(loan.lent)

    @rule(shard=shards, give_back=st.booleans())
    def state(self, shard: int, give_back: bool) -> None:
        """Also for an owner that has died since it asked."""
        holder = self.holders[shard]
        if give_back:
            holder.holding.give_back(holder.used)
        self.statements.append(Heard(shard, holder.holding.statement(holder.used)))

    @precondition(lambda self: self.statements)
    @rule(data=st.data())
    def statement_arrives(self, data: st.DataObject) -> None:
        heard = self.statements.pop(data.draw(st.integers(0, len(self.statements) - 1)))
        self.pool.hear(heard.shard, heard.statement)

    @rule(shard=shards, wanted=amounts)
    def ask_and_get_an_answer(self, shard: int, wanted: int) -> None:
        self.ask(shard, wanted)
        question = next((one for one in self.questions if one.shard == shard), None)
        if question is not None:
            self._answer(question)
            self._settle(self.loans.pop())

    @rule()
    def everybody_is_heard(self) -> None:
        for shard, holder in enumerate(self.holders):
            self.pool.hear(shard, holder.holding.statement(holder.used))

    # -- deaths

    @rule(shard=shards, luck=st.integers(0, 2))
    def holder_dies(self, shard: int, luck: int) -> None:
        """Its questions may still be with the owner."""
        if luck == 2:
            self.holders[shard].dies()

    @rule(luck=st.integers(0, 3))
    def owner_dies(self, luck: int) -> None:
        """Its links go with it: who asked it hears nothing, and what was on its way to it is gone."""
        if luck < 3:
            return
        self.pool = Pool(MAXIMUM, SHARDS)
        self.questions.clear()
        self.loans.clear()
        self.statements.clear()
        for shard in range(SHARDS):
            self.give_the_question_up(shard)

    # -- what must hold

    @rule(shard=shards, wanted=amounts)
    def everybody_is_heard_and_one_asks(self, shard: int, wanted: int) -> None:
        """The protocol in full: then there is room if and only if there is."""
        holder = self.holders[shard]
        if holder.asking:
            return
        need = wanted - holder.holding.room(holder.used)
        if need <= 0:
            return
        question = Question(shard, holder.life, holder.holding.statement(holder.used), need)
        holder.asking = True
        self.pool.hear(shard, question.statement)
        for other in set(range(SHARDS)) - {shard}:
            owner_of = self.holders[other]
            owner_of.holding.give_back(owner_of.used)
            self.pool.hear(other, owner_of.holding.statement(owner_of.used))
        lent = self.pool.lend(shard, question.statement, need)
        taken = sum(max(h.used, h.used + self._set_aside(h)) for h in self.holders)
        if not any(map(self._is_awaited, self.loans)):
            assert (lent > 0) == (taken + wanted <= MAXIMUM)
        self._settle(Loan(shard, holder.life, question.statement.settled, lent))

    def _set_aside(self, holder: Holder) -> int:
        return holder.holding.granted - holder.used - holder.holding.room(holder.used)

    def _has(self, shard: int) -> int:
        holder = self.holders[shard]
        return max(holder.holding.granted, holder.used)

    @invariant()
    def nobody_may_use_what_another_may_use(self) -> None:
        """What was found beyond the maximum may only become less."""
        promised = [self._has(shard) for shard in range(SHARDS)]
        for loan in filter(self._is_awaited, self.loans):
            promised[loan.shard] = max(
                promised[loan.shard], self.holders[loan.shard].holding.granted + loan.lent
            )
        assert sum(promised) <= max(MAXIMUM, self.found)
        self.found = min(self.found, sum(promised))

    @invariant()
    def the_owner_never_thinks_a_shard_has_less_than_it_has(self) -> None:
        for shard in set(range(SHARDS)) - set(self.pool.unheard):
            assert self.pool.held(shard) >= self._has(shard)


Caps.TestCase.settings = settings(max_examples=300, stateful_step_count=60)
TestCapsOverAllShards = Caps.TestCase


# -- examples


def heard(pool: Pool, *used: int) -> list[Holding]:
    """A holder per shard, each using this much, and the owner knows."""
    holdings = [Holding(1) for _ in used]
    for shard, holding in enumerate(holdings):
        pool.hear(shard, holding.statement(used[shard]))
    return holdings


def test_nothing_is_lent_before_every_shard_was_heard() -> None:
    pool, holding = Pool(100, 2), Holding(1)
    asked = holding.statement(0)
    pool.hear(0, asked)
    assert pool.unheard == [1]
    assert pool.lend(0, asked, 1) == 0
    pool.hear(1, Holding(1).statement(0))
    assert pool.lend(0, asked, 1) >= 1


def test_blocks_shrink_towards_the_maximum_and_the_last_place_can_be_had() -> None:
    pool = Pool(1000, 2)
    first, _ = heard(pool, 0, 0)
    loans = []
    while lent := pool.lend(0, first.statement(0), 1):
        first.settle(lent)
        pool.hear(0, first.statement(0))
        loans.append(lent)
    assert loans == sorted(loans, reverse=True)
    assert loans[0] > 100
    assert loans[-1] == 1
    assert sum(loans) == 1000


def test_a_lowered_maximum_lets_nothing_be_added_until_there_is_room_again() -> None:
    pool = Pool(5, 2)
    first, _ = heard(pool, 8, 1)
    assert pool.lend(0, first.statement(8), 1 - first.room(8)) == 0
    asked = first.statement(4)
    pool.hear(0, asked)
    assert pool.lend(0, asked, 1 - first.room(4)) == 0
    asked = first.statement(3)
    pool.hear(0, asked)
    assert pool.lend(0, asked, 1 - first.room(3)) == 4


def test_what_a_holder_did_not_use_returns_with_its_next_life() -> None:
    pool = Pool(10, 2)
    first, _ = heard(pool, 0, 0)
    assert pool.lend(0, first.statement(0), 10) == 10
    assert pool.free == 0
    pool.hear(0, Holding(2).statement(3))
    assert pool.free == 7


def test_a_loan_that_never_arrived_returns_with_the_next_statement() -> None:
    pool = Pool(10, 2)
    first, _ = heard(pool, 0, 0)
    pool.lend(0, first.statement(0), 10)
    pool.hear(0, first.statement(0))
    assert pool.free == 0, "it may still be on its way"
    first.settle(0)
    pool.hear(0, first.statement(0))
    assert pool.free == 10


def test_a_question_that_was_given_up_or_whose_asker_died_takes_nothing() -> None:
    pool = Pool(10, 2)
    first, second = heard(pool, 0, 0)
    given_up, of_the_dead = first.statement(0), second.statement(0)
    first.settle(0)
    pool.hear(0, first.statement(0))
    pool.hear(1, Holding(2).statement(0))
    assert pool.lend(0, given_up, 1) == 0
    assert pool.lend(1, of_the_dead, 1) == 0
    assert pool.free == 10
