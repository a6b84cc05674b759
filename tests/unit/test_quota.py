"""Commands that wait for quota: who is let go, who is refused, and that nothing stays set aside."""

import pytest
import trio
import trio.testing

from shards.allowance import Allowance, NeedsQuota
from shards.command import Command
from shards.quota import Asker, Owner
from topics.engine.quota import Holding, Statement
from topics.errors import NotReady, Throttled
from topics.protocol.messages import Op, ProtocolError
from topics.protocol.quota import QuotaAsk, QuotaLoan, QuotaState, as_body, as_params, from_body, from_params

MAXIMUM = 10


def command(topic: str = "a") -> Command:
    return Command(None, 1, Op.PUT_TOPIC, topic, {}, b"", 0)


class Shard:
    """An allowance with its asker, and an owner who answers when the test says so."""

    def __init__(self) -> None:
        self.used = 0
        self.gone: list[str] = []
        self.wanted: list[int] = []
        self.answers, self._answers = trio.open_memory_channel[int | NotReady](10)
        self.allowance = Allowance("max_topics", MAXIMUM, Holding(1))
        self.asker = Asker(self.allowance, self._ask, self.gone.extend)
        self.allowance.attach(lambda: self.used, lambda: None)

    async def _ask(self, statement: Statement, wanted: int) -> int:
        self.wanted.append(wanted)
        answer = await self._answers.receive()
        if isinstance(answer, NotReady):
            raise answer
        return answer

    def claim_or_wait(self, one: Command, amount: int = 1) -> None:
        with pytest.raises(NeedsQuota) as need:
            self.allowance.claim(one, amount)
        self.allowance.wait(one, need.value.amount)

    async def say(self, answer: int | NotReady) -> None:
        await trio.testing.wait_all_tasks_blocked()
        await self.answers.send(answer)
        await trio.testing.wait_all_tasks_blocked()

    def set_aside(self) -> int:
        return self.allowance.holding.granted - self.allowance.holding.room(0)


@pytest.fixture
async def shard(nursery: trio.Nursery) -> Shard:
    shard = Shard()
    nursery.start_soon(shard.asker.run)
    return shard


async def test_what_was_lent_is_kept_for_who_waited(shard: Shard) -> None:
    one, other = command("one"), command("other")
    shard.claim_or_wait(one)
    await shard.say(1)
    assert shard.gone == ["one"]
    with pytest.raises(NeedsQuota):
        shard.allowance.claim(other, 1)
    shard.allowance.claim(one, 1)
    assert shard.set_aside() == 0


async def test_one_question_serves_all_who_wait_and_the_smallest_first(shard: Shard) -> None:
    small, large = command("small"), command("large")
    shard.claim_or_wait(large, 5)
    shard.claim_or_wait(small, 2)
    await shard.say(5)
    assert shard.wanted == [2]
    assert sorted(shard.gone) == ["large", "small"]
    shard.allowance.claim(small, 2)
    shard.used += 2
    shard.claim_or_wait(large, 5)
    await shard.say(2)
    assert shard.wanted == [2, 2]
    shard.allowance.claim(large, 5)


async def test_a_refusal_is_for_those_who_waited_when_it_was_asked_for(shard: Shard) -> None:
    early, late = command("early"), command("late")
    shard.claim_or_wait(early)
    await trio.testing.wait_all_tasks_blocked()
    shard.claim_or_wait(late)
    await shard.say(0)
    assert shard.gone == ["early"]
    with pytest.raises(Throttled) as refused:
        shard.allowance.claim(early, 1)
    assert refused.value.detail == {"limit": "max_topics", "max": MAXIMUM}
    await shard.say(1)
    assert shard.gone == ["early", "late"]
    shard.allowance.claim(late, 1)


async def test_who_was_refused_may_use_what_became_free_meanwhile(shard: Shard) -> None:
    shard.allowance.holding.granted = shard.used = 3
    one = command()
    shard.claim_or_wait(one)
    await shard.say(0)
    shard.used -= 1
    shard.allowance.claim(one, 1)


async def test_without_an_answer_everybody_who_waits_is_told(
    shard: Shard, autojump_clock: trio.testing.MockClock
) -> None:
    early, late = command("early"), command("late")
    shard.claim_or_wait(early)
    await trio.sleep(1)
    shard.claim_or_wait(late)
    await trio.sleep(1)
    assert shard.gone == ["early", "late"]
    for one in (early, late):
        with pytest.raises(NotReady) as unanswered:
            shard.allowance.claim(one, 1)
        assert unanswered.value.detail["outcome"] == "not_applied"


async def test_a_departed_client_leaves_nothing_set_aside_and_its_topic_goes_on(shard: Shard) -> None:
    early, late = command("early"), command("late")
    shard.claim_or_wait(early)
    shard.claim_or_wait(late)
    early.cancelled = True
    await shard.say(2)
    assert sorted(shard.gone) == ["early", "late"]
    assert shard.set_aside() == 1
    shard.allowance.forget(late)
    assert shard.set_aside() == 0


async def test_a_shard_that_is_loaded_again_begins_with_nobody_waiting(shard: Shard) -> None:
    one = command()
    shard.claim_or_wait(one)
    await trio.testing.wait_all_tasks_blocked()
    shard.allowance.detach()
    await shard.say(1)
    assert shard.gone == []
    shard.allowance.attach(lambda: shard.used, lambda: None)
    assert shard.allowance.holding.granted == 1, "what was lent meanwhile is not lost"
    shard.allowance.claim(one, 1)


async def test_a_stock_is_asked_for_until_the_owner_answers(
    shard: Shard, autojump_clock: trio.testing.MockClock
) -> None:
    shard.asker.stock_up()
    await shard.say(NotReady("not yet"))
    await trio.sleep(1)
    await shard.say(5)
    assert shard.allowance.holding.granted == 5
    assert shard.wanted == [1, 1]


# -- the owner


async def test_an_owner_asks_for_what_it_does_not_know_and_says_no_only_when_all_have_spoken() -> None:
    holders = {0: Holding(1), 1: Holding(1)}
    used = {0: 0, 1: 0}
    silent: set[int] = set()

    async def ask_state(shard: int, state: QuotaState) -> Statement:
        await trio.lowlevel.checkpoint()
        if shard in silent:
            raise NotReady("not now")
        if state.give_back:
            holders[shard].give_back(used[shard])
        return holders[shard].statement(used[shard])

    async def ask(shard: int, wanted: int) -> int:
        lent = 0
        try:
            lent = await owner.lend(
                QuotaAsk("max_topics", shard, wanted, holders[shard].statement(used[shard]))
            )
        finally:
            holders[shard].settle(lent)
        return lent

    owner = Owner({"max_topics": MAXIMUM}, 2, ask_state)
    silent.add(1)
    with pytest.raises(NotReady):
        await ask(0, 1)
    silent.clear()
    assert await ask(0, 6) >= 6
    used[0] = 6
    assert await ask(1, 4) == 4
    silent.add(1)
    with pytest.raises(NotReady):
        await ask(0, 4)
    silent.clear()
    used[1] = 4
    assert await ask(0, 4 - holders[0].room(used[0])) == 0
    used[1] = 0
    assert await ask(0, 4 - holders[0].room(used[0])) == 4


# -- messages


def test_messages_between_shards_arrive_as_they_were_sent() -> None:
    statement = Statement(1, 2, 3, 4, 5)
    ask = QuotaAsk("max_topics", 1, 7, statement)
    assert from_params(as_params(ask), QuotaAsk) == ask
    assert from_body(as_body(statement), Statement) == statement
    assert from_body(as_body(QuotaLoan(3)), QuotaLoan) == QuotaLoan(3)


@pytest.mark.parametrize(
    "change",
    [{"wanted": 0}, {"wanted": -1}, {"wanted": "1"}, {"limit": 1}, {"statement": {}}, {"shard": None}],
)
def test_another_message_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        from_params(as_params(QuotaAsk("max_topics", 1, 7, Statement(1, 2, 3, 4, 5))) | change, QuotaAsk)
    with pytest.raises(ProtocolError):
        from_body(b"\xff", QuotaLoan)
