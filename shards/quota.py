"""Caps over all shards between the processes: shard 0 owns and lends, every shard asks for itself.

    shard i   Asker ── QUOTA_ASK: lend me so much ──────────────► Owner (shard 0)
              Allowance ◄── QUOTA_STATE: what do you have? ────── before it says no, or knows nothing

The arithmetic is topics.engine.quota; what a command sees of it is allowance.py. Here is who asks whom,
and for how long. With one shard nobody asks: it may use everything.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from shards.actor import Actor
from shards.allowance import Allowance, Allowances
from shards.client import ShardLink
from shards.command import Answer, Command
from topics import child
from topics.engine.metering import Meter
from topics.engine.quota import Holding, Pool, Statement
from topics.errors import NotReady, TopicsError
from topics.protocol.messages import Op, ProtocolError
from topics.protocol.quota import QuotaAsk, QuotaLoan, QuotaState, as_body, as_params, from_body, from_params

log = logging.getLogger("shard")

OWNER = 0
# A killed shard is back within some 100 ms, so that waiting this long for it hides most restarts.
ASK_S = 1.5
# Less, so that an owner who waits in vain for one shard can still answer the others.
STATE_S = 0.75
# A shard that waits for nothing tries to get a stock again after this long.
STOCK_RETRY_S = 0.25


def not_certain(message: str) -> NotReady:
    return NotReady(message, detail={"reason": "quota", "outcome": "not_applied"})


class Owner:
    """Lends to all shards. `ask_state` gets the statement of one of them, or raises NotReady."""

    def __init__(
        self,
        maxima: dict[str, int],
        shards: int,
        ask_state: Callable[[int, QuotaState], Awaitable[Statement]],
    ) -> None:
        self._pools = {limit: Pool(maximum, shards) for limit, maximum in maxima.items()}
        self._turns = {limit: trio.Lock() for limit in maxima}
        self._shards = shards
        self._ask_state = ask_state

    def knows(self, ask: QuotaAsk) -> bool:
        return ask.limit in self._pools and 0 <= ask.shard < self._shards

    async def lend(self, ask: QuotaAsk) -> int:
        """What is lent; 0 if everything is used. Raises NotReady if that is not certain."""
        pool = self._pools[ask.limit]
        pool.hear(ask.shard, ask.statement)
        # One question at a time: what one shard gives back for another must not go to a third.
        async with self._turns[ask.limit]:
            if not pool.awaits(ask.shard, ask.statement):
                return 0
            silent = await self._hear(pool, pool.unheard, QuotaState(ask.limit, give_back=False))
            lent = pool.lend(ask.shard, ask.statement, ask.wanted)
            if not lent and not silent:
                others = [shard for shard in range(self._shards) if shard != ask.shard]
                silent = await self._hear(pool, others, QuotaState(ask.limit, give_back=True))
                lent = pool.lend(ask.shard, ask.statement, ask.wanted)
        if not lent and silent:
            raise not_certain(f"shard {silent[0]} cannot be asked what it uses of {ask.limit}")
        return lent

    async def _hear(self, pool: Pool, shards: Sequence[int], state: QuotaState) -> list[int]:
        """Take the statements of these shards; returns those that made none."""
        silent: list[int] = []

        async def hear(shard: int) -> None:
            try:
                with trio.fail_after(STATE_S):
                    pool.hear(shard, await self._ask_state(shard, state))
            except (trio.TooSlowError, TopicsError, ProtocolError):
                silent.append(shard)

        async with trio.open_nursery() as nursery:
            for shard in shards:
                nursery.start_soon(hear, shard)
        return silent


class Asker:
    """Asks the owner whenever commands wait for one allowance, and once for a stock after a load."""

    def __init__(
        self,
        allowance: Allowance,
        ask: Callable[[Statement, int], Awaitable[int]],
        let_go: Callable[[list[str]], None],
    ) -> None:
        self._allowance = allowance
        self._ask = ask
        self._let_go = let_go
        self._due = trio.Event()
        self._wants_stock = False
        allowance.on_waiting = lambda: self._due.set()

    def stock_up(self) -> None:
        """Ask also without need: so the owner soon knows this shard, and may be away for a while."""
        self._wants_stock = True
        self._due.set()

    async def run(self) -> None:
        allowance = self._allowance
        while True:
            await self._due.wait()
            self._due = trio.Event()
            while allowance.attached and (allowance.waiting or self._wants_stock):
                if not await self._round() and not allowance.waiting:
                    await trio.sleep(STOCK_RETRY_S)

    async def _round(self) -> bool:
        """One question, for all who wait when it is asked; False if there was no answer."""
        allowance = self._allowance
        waiting = list(allowance.waiting)
        missing = allowance.missing()
        lent = 0
        if missing > 0:
            try:
                with trio.fail_after(ASK_S):
                    lent = await self._ask(allowance.statement(), missing)
            except (trio.TooSlowError, TopicsError, ProtocolError) as error:
                if waiting:
                    log.warning("quota.unanswered", extra={"limit": allowance.limit, "reason": repr(error)})
                self._let_go(allowance.refuse(list(allowance.waiting), self._unanswered))
                return False
            finally:
                allowance.holding.settle(lent)
        self._wants_stock = False
        if missing <= 0 or lent:
            self._let_go(allowance.hand_out(waiting))
        else:
            # Who came while the question was under way may know of room that was made meanwhile.
            self._let_go(allowance.refuse(waiting, allowance.reached))
        return True

    def _unanswered(self) -> NotReady:
        return not_certain(f"it is not certain whether there is room within {self._allowance.limit}")


class ShardQuota:
    """Everything one shard process has to do with caps over all shards."""

    def __init__(self, boot: child.Boot, actor: Actor) -> None:
        settings = boot.settings
        self._index, self._alone = boot.index, boot.shard_count == 1
        self._actor = actor
        given = {"max_topics": settings.max_topics, "max_total_bytes": settings.max_total_bytes}
        maxima = {limit: maximum for limit, maximum in given.items() if maximum}
        self._by_limit = {limit: self._allowance(limit, maximum, boot) for limit, maximum in maxima.items()}
        self.allowed = Allowances(self._by_limit.get("max_topics"), self._by_limit.get("max_total_bytes"))
        self._links: dict[int, ShardLink] = {}
        self._askers: list[Asker] = []
        self._owner: Owner | None = None
        self._nursery: trio.Nursery | None = None
        if not maxima or self._alone:
            return
        others = range(1, boot.shard_count) if boot.index == OWNER else [OWNER]
        for shard in others:
            path = boot.shard_socket(shard)
            self._links[shard] = ShardLink(path, shard=shard, role="shard", epoch=boot.epoch)
        if boot.index == OWNER:
            self._owner = Owner(maxima, boot.shard_count, self._state_of)
        self._askers = [self._asker(allowance) for allowance in self.allowed.all()]
        actor.on_quota = self._on_quota

    def _allowance(self, limit: str, maximum: int, boot: child.Boot) -> Allowance:
        holding = Holding(boot.epoch, granted=maximum if self._alone else 0)
        return Allowance(limit, maximum, holding, alone=self._alone)

    def _asker(self, allowance: Allowance) -> Asker:
        async def ask(statement: Statement, wanted: int) -> int:
            return await self._ask(QuotaAsk(allowance.limit, self._index, wanted, statement))

        return Asker(allowance, ask, self._actor.let_go)

    def new_meter(self) -> Meter | None:
        """For the next load: it counts bytes if they are bounded."""
        return Meter() if self.allowed.bytes is not None else None

    def loaded(self) -> None:
        """The shard counts again."""
        for asker in self._askers:
            asker.stock_up()

    async def run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            for link in self._links.values():
                self._nursery.start_soon(link.run)
            for asker in self._askers:
                self._nursery.start_soon(asker.run)

    # -- what this shard asks

    async def _ask(self, ask: QuotaAsk) -> int:
        if self._owner is not None:
            return await self._owner.lend(ask)
        body = await self._request(OWNER, Op.QUOTA_ASK, as_params(ask))
        return from_body(body, QuotaLoan).lent

    async def _state_of(self, shard: int, state: QuotaState) -> Statement:
        if shard == self._index:
            return self._state(state)
        return from_body(await self._request(shard, Op.QUOTA_STATE, as_params(state)), Statement)

    async def _request(self, shard: int, op: Op, params: dict[str, object]) -> bytes:
        link = self._links[shard]
        await link.wait_connected()
        reply = await link.request(op, "", params, b"", arrived_ns=0)
        if reply.status != 200:
            raise not_certain(f"shard {shard} is not ready")
        return reply.body

    # -- what it is asked

    def _on_quota(self, command: Command) -> Answer | None:
        if command.op == Op.QUOTA_STATE:
            state = from_params(command.params, QuotaState)
            try:
                return Answer(200, [as_body(self._state(state))], raw=True)
            except NotReady as error:
                return Answer.of_error(error)
        ask = from_params(command.params, QuotaAsk)
        if self._owner is None or not self._owner.knows(ask):
            raise ProtocolError(f"shard {self._index} does not own {ask.limit} for shard {ask.shard}")
        assert self._nursery is not None, "links are served before this side runs"
        self._nursery.start_soon(self._answer_ask, self._owner, ask, command)
        return None

    async def _answer_ask(self, owner: Owner, ask: QuotaAsk, command: Command) -> None:
        try:
            answer = Answer(200, [as_body(QuotaLoan(await owner.lend(ask)))], raw=True)
        except NotReady as error:
            answer = Answer.of_error(error)
        self._actor.answer_quota(command, answer)

    def _state(self, state: QuotaState) -> Statement:
        allowance = self._by_limit.get(state.limit)
        if allowance is None or not allowance.attached:
            raise not_certain("the log is being replayed")
        return allowance.statement(give_back=state.give_back)
