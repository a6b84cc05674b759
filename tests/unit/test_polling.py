"""The poller: everyone who is ready is served, what was collected leaves, and nobody waits for ever."""

import os
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
import trio
import trio.testing

from topics import polling
from topics.polling import EVENTS_PER_SEND, READABLE, Poller


@pytest.fixture
async def poller() -> AsyncIterator[Poller]:
    poller = Poller()
    async with trio.open_nursery() as nursery:
        await nursery.start(poller.run)
        yield poller
        nursery.cancel_scope.cancel()


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    pairs = [socket.socketpair() for _ in range(2 * EVENTS_PER_SEND + 1)]
    yield pairs
    for pair in pairs:
        for sock in pair:
            sock.close()


Pairs = list[tuple[socket.socket, socket.socket]]


async def test_everyone_who_is_ready_is_served_and_parts_are_sent_on_the_way(
    poller: Poller, pairs: Pairs
) -> None:
    served: list[int] = []
    sent: list[int] = []
    for here, there in pairs:

        def on_event(event: int, here: socket.socket = here) -> None:
            served.append(here.fileno())
            here.recv(10)
            if len(served) % EVENTS_PER_SEND == 1:
                poller.at_end(lambda: sent.append(len(served)))

        poller.watch(here.fileno(), READABLE, on_event)
        there.send(b"x")
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(served) == sorted(here.fileno() for here, _ in pairs)
    assert sent == [EVENTS_PER_SEND, 2 * EVENTS_PER_SEND, 2 * EVENTS_PER_SEND + 1]
    for here, _ in pairs:
        poller.forget(here.fileno())


async def test_what_the_end_of_a_sweep_leaves_behind_is_done_too(
    poller: Poller, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is no second sweep in this turn that would do it by chance.
    monkeypatch.setattr(polling, "TURN_S", -1.0)
    done: list[str] = []

    def first() -> None:
        done.append("first")
        poller.at_end(lambda: done.append("second"))

    poller.at_end(first)
    with trio.fail_after(5):
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert done == ["first", "second"]


async def test_one_with_more_to_do_comes_after_the_others(poller: Poller, pairs: Pairs) -> None:
    order: list[str] = []
    here, there = pairs[0]

    def again(left: int) -> None:
        order.append("greedy")
        if left:
            poller.soon(lambda: again(left - 1))

    def on_event(event: int) -> None:
        here.recv(1)
        order.append("other")

    poller.watch(here.fileno(), READABLE, on_event)
    poller.soon(lambda: again(3))
    there.send(b"x")
    await trio.testing.wait_all_tasks_blocked()
    assert order == ["greedy", "other", "greedy", "greedy", "greedy"]
    poller.forget(here.fileno())


async def test_one_that_was_let_go_in_the_same_sweep_is_not_called(poller: Poller, pairs: Pairs) -> None:
    called: list[int] = []

    def let_all_go(event: int) -> None:
        called.append(event)
        for here, _ in pairs:
            poller.forget(here.fileno())

    for here, there in pairs:
        poller.watch(here.fileno(), READABLE, let_all_go)
        there.send(b"x")
    await trio.testing.wait_all_tasks_blocked()
    assert len(called) == 1


async def test_a_sweep_that_takes_long_gives_other_tasks_their_turn(
    poller: Poller, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "TURN_S", 0.0)
    turns: list[str] = []
    here, there = pairs[0]
    there.send(b"x" * 20)

    def on_event(event: int) -> None:
        here.recv(1)
        turns.append("poller")

    poller.watch(here.fileno(), READABLE, on_event)
    for _ in range(10):
        await trio.lowlevel.checkpoint()
        turns.append("task")
    assert "poller" in turns
    # Never two sweeps in a row while somebody else could run.
    assert "poller poller poller" not in " ".join(turns)
    poller.forget(here.fileno())


async def test_letting_go_after_the_end_is_harmless() -> None:
    poller = Poller()
    reading, writing = os.pipe()
    async with trio.open_nursery() as nursery:
        await nursery.start(poller.run)
        poller.watch(reading, READABLE, lambda event: None)
        nursery.cancel_scope.cancel()
    poller.change(reading, READABLE)
    poller.forget(reading)
    poller.at_end(lambda: None)
    poller.soon(lambda: None)
    os.close(reading)
    os.close(writing)
