"""What a handler may wait for. Handlers know no event loop: they await these, and a front door performs them.

A handler is a coroutine that yields effects and is sent their results. The Quart app performs them as
trio calls; the fast lane performs the common ones without a task or a task switch.
"""

from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import trio

from shards.client import OnDone, ShardLink, Ticket
from topics.errors import TopicsError
from topics.protocol.codec import encode_params
from topics.protocol.messages import Op, Reply

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Effect(Generic[T_co]):
    """Awaiting an effect hands it to the front door; the result comes back."""

    __slots__ = ()

    def __await__(self) -> Generator["Effect[Any]", Any, T_co]:
        result: T_co = yield self
        return result


@dataclass(slots=True)
class Ask(Effect[Reply]):
    """A request to a shard. Raises NotReady or Throttled when there is no answer."""

    link: ShardLink
    op: Op
    topic: str
    params: Mapping[str, object] | None
    body: bytes
    arrived_ns: int

    async def perform(self) -> Reply:
        return await self.link.request(
            self.op, self.topic, self.params, self.body, arrived_ns=self.arrived_ns
        )

    def submit(self, on_done: OnDone) -> Ticket:
        """The same without waiting, for a body that fits one message."""
        params = encode_params(self.params or {})
        return self.link.submit(self.op, self.topic.encode(), params, self.body, self.arrived_ns, on_done)


@dataclass(slots=True)
class AskEach(Effect[list[Reply | TopicsError]]):
    """Several requests at once; an answer or the reason for none, in order, within `timeout_s`."""

    asks: list[Ask]
    timeout_s: float
    otherwise: TopicsError

    async def perform(self) -> list[Reply | TopicsError]:
        answers: list[Reply | TopicsError] = [self.otherwise] * len(self.asks)

        async def ask(index: int, one: Ask) -> None:
            try:
                answers[index] = await one.perform()
            except TopicsError as error:
                answers[index] = error

        with trio.move_on_after(self.timeout_s):
            async with trio.open_nursery() as nursery:
                for index, one in enumerate(self.asks):
                    nursery.start_soon(ask, index, one)
        return answers


@dataclass(slots=True)
class InThread(Effect[T]):
    """Work that would hold up other requests."""

    work: Callable[[], T]
    limiter: trio.CapacityLimiter

    async def perform(self) -> T:
        return await trio.to_thread.run_sync(self.work, limiter=self.limiter)


@dataclass(slots=True)
class ReadBody(Effect[bytes]):
    """The whole body. Raises PayloadTooLarge beyond `limit_bytes`, InvalidRequest if it stops arriving."""

    limit_bytes: int


Handling: TypeAlias = Coroutine[Effect[Any], Any, T]


class Performer(Protocol):
    async def __call__(self, effect: Effect[Any]) -> Any: ...


async def drive(handling: Handling[T], perform: Performer) -> T:
    """Run a handler under trio; `perform` does what it asks for."""
    value: Any = None
    error: Exception | None = None
    try:
        while True:
            try:
                effect = handling.throw(error) if error is not None else handling.send(value)
            except StopIteration as done:
                result: T = done.value
                return result
            value = error = None
            try:
                value = await perform(effect)
            except Exception as failed:
                error = failed
    finally:
        handling.close()
