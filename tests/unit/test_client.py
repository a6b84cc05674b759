"""The link to a shard: many requests at once, bounded, and honest about what a lost link means."""

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from shards import client, exchange
from shards.client import ShardLink, ShardPool
from tests.fakes.fake_shard import Answer, FakeShard, never
from topics import errors
from topics.engine.placement import shard_of
from topics.protocol import codec
from topics.protocol.messages import INLINE_BYTES_MAX, PART_BYTES, PART_CREDITS, Hello, Op, Reply, Request


@asynccontextmanager
async def linked(shard: FakeShard, *, link_index: int = 0) -> AsyncIterator[ShardLink]:
    link = ShardLink(shard.path, shard=link_index)
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        await nursery.start(link.run)
        with trio.fail_after(5):
            await link.wait_connected()
        yield link
        nursery.cancel_scope.cancel()


@pytest.fixture
def shard(tmp_path: Path) -> FakeShard:
    return FakeShard(tmp_path / "shard-00.sock")


async def ask(link: ShardLink, body: bytes = b"{}", *, topic: str = "jobs", op: Op = Op.WRITE) -> Reply:
    with trio.fail_after(10):
        return await link.request(op, topic, {"return_seqs": False}, body, arrived_ns=17)


async def test_a_request_arrives_whole_and_its_reply_comes_back(shard: FakeShard) -> None:
    async with linked(shard) as link:
        reply = await ask(link, b'{"records":[]}')
    assert (reply.status, json.loads(reply.body)["body"]) == (200, '{"records":[]}')
    (request,) = shard.requests
    assert (request.op, request.topic, request.arrived_ns) == (Op.WRITE, b"jobs", 17)
    assert codec.decode_params(request.params) == {"return_seqs": False}
    assert shard.hellos == [Hello(1, "gateway", 0, 0)]


async def test_requests_of_one_tick_leave_in_one_send(shard: FakeShard) -> None:
    async with linked(shard) as link:
        await shard.wait_until(lambda: len(shard.hellos) == 1)
        shard.received.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask, link)
    assert len(shard.requests) == 50
    assert len(shard.received) == 1


async def test_replies_may_come_in_another_order(shard: FakeShard) -> None:
    gate = trio.Event()

    async def answer(request: Request) -> Answer:
        if request.topic == b"first":
            await gate.wait()
        return Answer(body=request.topic)

    shard.answer = answer
    got: list[bytes] = []

    async def note(link: ShardLink, topic: str) -> None:
        got.append((await ask(link, topic=topic)).body)
        gate.set()

    async with linked(shard) as link, trio.open_nursery() as nursery:
        nursery.start_soon(note, link, "first")
        nursery.start_soon(note, link, "second")
    assert got == [b"second", b"first"]


async def test_large_bodies_and_replies_travel_in_parts_with_credits(shard: FakeShard) -> None:
    body = os.urandom(INLINE_BYTES_MAX * 9 + 5)

    async def answer(request: Request) -> Answer:
        return Answer(201, request.body[::-1], 3)

    shard.answer = answer
    async with linked(shard) as link:
        replies: list[Reply] = []

        async def one(size: int) -> None:
            reply = await ask(link, body[:size])
            assert reply.body == body[:size][::-1]
            replies.append(reply)

        async with trio.open_nursery() as nursery:
            for size in (len(body), INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 10, PART_BYTES * 4):
                nursery.start_soon(one, size)
    assert {(reply.status, reply.retry_after_s) for reply in replies} == {(201, 3)}
    assert len(replies) == 5


async def test_an_upload_stands_still_without_credits_and_small_requests_pass_it(shard: FakeShard) -> None:
    shard.credit_parts = False
    async with linked(shard) as link:
        await shard.wait_until(lambda: len(shard.hellos) == 1)
        shard.received.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, link, bytes(PART_BYTES * 8))
            await shard.wait_until(lambda: sum(map(len, shard.received)) > PART_BYTES * PART_CREDITS)
            assert (await ask(link, b"small")).status == 200
            assert sum(map(len, shard.received)) < PART_BYTES * PART_CREDITS + 1000
            nursery.cancel_scope.cancel()
        await shard.wait_until(lambda: len(shard.cancelled) == 1)
        shard.credit_parts = True
        assert (await ask(link, bytes(PART_BYTES * 8))).status == 200


async def test_a_cancelled_caller_tells_the_shard_and_the_late_reply_is_dropped(shard: FakeShard) -> None:
    shard.answer = never
    async with linked(shard) as link:
        with trio.move_on_after(0.05):
            await link.request(Op.DIFF, "jobs", None, b"{}", arrived_ns=1)
        await shard.wait_until(lambda: bool(shard.cancelled))
        assert shard.cancelled == [shard.requests[0].id]

        async def answer_twice(request: Request) -> Answer:
            return Answer(body=b"second")

        shard.answer = answer_twice
        assert (await ask(link)).body == b"second"


async def test_a_caller_cancelled_before_anything_was_sent_leaves_no_trace(shard: FakeShard) -> None:
    shard.credit_parts = False
    async with linked(shard) as link:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, link, bytes(PART_BYTES * 8))
            await shard.wait_until(lambda: sum(map(len, shard.received)) > PART_BYTES * PART_CREDITS)
            with trio.move_on_after(0.05):
                await link.request(Op.WRITE, "gone", None, bytes(PART_BYTES * 2), arrived_ns=1)
            assert (await ask(link)).status == 200
            assert shard.cancelled == []
            nursery.cancel_scope.cancel()
        await shard.wait_until(lambda: shard.cancelled == [0])
    assert [request.topic for request in shard.requests] == [b"jobs"]


async def test_a_queued_request_that_is_cancelled_is_never_sent(tmp_path: Path) -> None:
    """The peer does not read, so that what comes after the first send waits in the queue."""
    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(str(tmp_path / "sock"))
    listening.listen()
    link = ShardLink(tmp_path / "sock", shard=0)
    seen: list[object] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(link.run)
        peer, _ = await listening.accept()
        await peer.send(codec.encode(Hello(1, "shard", 0, 1)))
        await link.wait_connected()
        for _ in range(60):
            nursery.start_soon(ask, link, bytes(200_000))
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as leaving:
            nursery.start_soon(_after_all_blocked, leaving.cancel)
            await link.request(Op.WRITE, "gone", None, b"{}", arrived_ns=1)
        nursery.start_soon(partial(ask, link, topic="kept"))
        decoder = codec.Decoder()
        with trio.fail_after(5):
            while b"kept" not in seen:
                messages = decoder.feed(await peer.recv(1 << 20))
                seen += [message.topic if isinstance(message, Request) else message for message in messages]
        nursery.cancel_scope.cancel()
    peer.close()
    listening.close()
    assert seen == [Hello(1, "gateway", 0, 0), *[b"jobs"] * 60, b"kept"]


async def _after_all_blocked(act: Callable[[], None]) -> None:
    await trio.testing.wait_all_tasks_blocked()
    act()


async def test_a_lost_link_says_that_the_outcome_of_sent_requests_is_unknown(shard: FakeShard) -> None:
    shard.answer = never
    async with linked(shard) as link:
        refused: list[errors.NotReady] = []

        async def one() -> None:
            with pytest.raises(errors.NotReady) as caught:
                await ask(link)
            refused.append(caught.value)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
            await shard.wait_until(lambda: len(shard.requests) == 3)
            await shard.drop_links()
    assert [error.detail for error in refused] == [{"shard": 0, "outcome": "unknown"}] * 3
    assert all(error.retry_after_s >= 1 for error in refused)


async def test_an_upload_waiting_for_its_turn_was_not_applied_when_the_link_is_lost(shard: FakeShard) -> None:
    shard.credit_parts = False
    outcomes: list[object] = []

    async def upload(link: ShardLink) -> None:
        with pytest.raises(errors.NotReady) as caught:
            await ask(link, bytes(PART_BYTES * 8))
        outcomes.append(caught.value.detail["outcome"])

    async with linked(shard) as link, trio.open_nursery() as nursery:
        nursery.start_soon(upload, link)
        await shard.wait_until(lambda: sum(map(len, shard.received)) > PART_BYTES * PART_CREDITS)
        nursery.start_soon(upload, link)
        await trio.testing.wait_all_tasks_blocked()
        await shard.drop_links()
    assert sorted(map(str, outcomes)) == ["not_applied", "unknown"]


async def test_an_early_answer_ends_an_upload_and_the_next_one_may_begin(shard: FakeShard) -> None:
    """The shard may refuse before it has read the body."""
    shard.credit_parts = False
    async with linked(shard) as link:
        async with trio.open_nursery() as nursery:
            replies: list[Reply] = []

            async def upload() -> None:
                replies.append(await ask(link, bytes(PART_BYTES * 8)))

            nursery.start_soon(upload)
            await shard.wait_until(lambda: sum(map(len, shard.received)) > PART_BYTES * PART_CREDITS)
            head = codec.reply_head(0, 503, 1, 2)
            await shard._streams[0].send_all(head + b"{}")
        assert [reply.status for reply in replies] == [503]
        await shard.wait_until(lambda: shard.cancelled == [0])
        shard.credit_parts = True
        assert (await ask(link, bytes(PART_BYTES * 8))).status == 200


async def test_without_a_link_a_request_fails_at_once_and_was_not_applied(tmp_path: Path) -> None:
    link = ShardLink(tmp_path / "nobody.sock", shard=3)
    with pytest.raises(errors.NotReady) as caught:
        await ask(link)
    assert caught.value.detail == {"shard": 3, "outcome": "not_applied"}


async def test_the_link_comes_back_by_itself(shard: FakeShard) -> None:
    async with linked(shard) as link:
        for _ in range(5):
            assert (await ask(link)).status == 200
            await shard.drop_links()
            with trio.fail_after(5):
                while link.connected:
                    await trio.testing.wait_all_tasks_blocked()
                await link.wait_connected()
        assert (await ask(link)).status == 200


async def test_a_link_waits_for_a_shard_that_starts_later(shard: FakeShard) -> None:
    link = ShardLink(shard.path, shard=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(link.run)
        await trio.testing.wait_all_tasks_blocked()
        assert not link.connected
        await nursery.start(shard.run)
        with trio.fail_after(5):
            await link.wait_connected()
        assert (await ask(link)).status == 200
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "hello",
    [
        bytes.fromhex((Path(__file__).parent.parent / "golden" / "ipc-v2-hello.hex").read_text()),
        Hello(1, "shard", 5, 1),
        Hello(1, "gateway", 0, 1),
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
)
async def test_a_peer_that_is_not_our_shard_is_refused(
    shard: FakeShard, hello: Hello | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    shard.hello = hello
    link = ShardLink(shard.path, shard=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        await nursery.start(link.run)
        await shard.wait_until(lambda: shard.links >= 3)
        assert not link.connected
        nursery.cancel_scope.cancel()
    assert shard.hellos == []
    assert [record.message for record in caplog.records] == ["link.unreachable"]


async def test_a_peer_of_another_user_is_refused(
    shard: FakeShard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    link = ShardLink(shard.path, shard=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        await nursery.start(link.run)
        await shard.wait_until(lambda: shard.links >= 2)
        nursery.cancel_scope.cancel()
    assert "uid" in str(vars(caplog.records[0])["reason"])


async def test_a_silent_peer_is_given_up_after_the_hello_timeout(
    shard: FakeShard, autojump_clock: trio.testing.MockClock
) -> None:
    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(str(shard.path))
    listening.listen()
    link = ShardLink(shard.path, shard=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(link.run)
        for _ in range(3):
            peer, _ = await listening.accept()
            with peer:
                began = trio.current_time()
                assert await peer.recv(1) == b""
                assert trio.current_time() - began == pytest.approx(client.HELLO_TIMEOUT_S)
        nursery.cancel_scope.cancel()
    listening.close()


async def test_too_many_requests_in_flight_are_throttled(
    shard: FakeShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "REQUESTS_IN_FLIGHT_MAX", 5)
    shard.answer = never
    async with linked(shard) as link, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask, link)
        await shard.wait_until(lambda: len(shard.requests) == 5)
        with pytest.raises(errors.Throttled) as caught:
            await ask(link)
        assert caught.value.retry_after_s == 1
        assert caught.value.detail["retry_after_ms"] == 1000
        nursery.cancel_scope.cancel()


async def test_queued_bytes_are_bounded_while_the_shard_does_not_read(
    shard: FakeShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "SEND_QUEUE_BYTES_MAX", 1_010_000)
    async with linked(shard) as link:
        throttled = 0

        async def one() -> None:
            nonlocal throttled
            try:
                await ask(link, bytes(200_000))
            except errors.Throttled:
                throttled += 1

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one)
        assert throttled == 15
        assert len(shard.requests) == 5


async def test_garbage_from_the_shard_drops_the_link(shard: FakeShard) -> None:
    shard.answer = never
    async with linked(shard) as link, trio.open_nursery() as nursery:

        async def one() -> None:
            with pytest.raises(errors.NotReady):
                await ask(link)

        nursery.start_soon(one)
        await shard.wait_until(lambda: len(shard.requests) == 1)
        await shard._streams[0].send_all(b"\x00\x00\x00\x02\x81\x0a")


async def test_drain_reaches_the_shard(shard: FakeShard) -> None:
    async with linked(shard) as link:
        await link.drain()
        await shard.wait_until(lambda: shard.drains == 1)


def test_a_pool_sends_a_topic_to_the_shard_that_owns_it(tmp_path: Path) -> None:
    pool = ShardPool([ShardLink(tmp_path / str(index), shard=index) for index in range(4)])
    for n in range(50):
        assert pool.link_for(f"topic-{n}").shard == shard_of(f"topic-{n}", 4)
    assert [link.shard for link in pool.all()] == [0, 1, 2, 3]
