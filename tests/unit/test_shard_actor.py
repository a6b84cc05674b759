"""The actor loop with real sockets, a real disk and the real client, inside one trio run."""

import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import cbor2
import pytest
import trio
import trio.testing

from shards import actor as actor_module
from shards.actor import Actor
from shards.client import ShardLink
from shards.clock import RealClock
from shards.disk import Disk, RealDisk
from shards.load import load
from shards.shard import Shard
from shards.wal.sync import ThreadSyncer
from shards.wal.writer import WalOptions
from tests.fakes.count_disk import CountDisk
from topics.engine.limits import MIB, Limits
from topics.protocol.messages import INLINE_BYTES_MAX, Op, Reply


class Served:
    """An actor and a link to it."""

    def __init__(self, actor: Actor, link: ShardLink) -> None:
        self.actor = actor
        self.link = link

    async def ask(
        self, op: Op, topic: str, body: object = None, **params: object
    ) -> tuple[int, dict[str, object]]:
        reply = await self.raw(op, topic, b"{}" if body is None else json.dumps(body).encode(), **params)
        answer = json.loads(reply.body)
        assert isinstance(answer, dict)
        return reply.status, answer

    async def raw(self, op: Op, topic: str, body: bytes, **params: object) -> Reply:
        return await self.link.request(op, topic, params, body, arrived_ns=0)


@asynccontextmanager
async def serving(directory: Path, disk: Disk | None = None) -> AsyncIterator[Served]:
    disk = disk or RealDisk(directory)
    clock, syncer = RealClock(), ThreadSyncer(disk)
    path = directory / "s.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.setblocking(False)
    actor = Actor(listener, syncer, clock, index=0, epoch=1, body_bytes_max=64 * MIB)
    loaded, wal = load(disk, WalOptions(), clock)
    link = ShardLink(path, shard=0)
    async with trio.open_nursery() as nursery:
        actor.shard = Shard(loaded, wal, syncer, clock, Limits(), sync_interval_ms=50)
        actor.status.state = "ready"
        nursery.start_soon(actor.run)
        await nursery.start(link.run)
        await link.wait_connected()
        yield Served(actor, link)
        await actor.threads_idle()
        nursery.cancel_scope.cancel()
    syncer.stop()
    listener.close()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as served:
        yield served


async def gathered(*calls: Callable[[], Awaitable[object]]) -> None:
    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(call)


async def test_a_write_is_read_back(served: Served) -> None:
    status, written = await served.ask(Op.WRITE, "a", {"records": [{"data": 1}, {"data": 2}]})
    assert (status, written["seqs"], written["created"]) == (201, [1, 2], True)
    _, diff = await served.ask(Op.DIFF, "a")
    assert diff["records"] == [
        {"$seq": 1, "$ts": written_ts(diff), "data": 1},
        {"$seq": 2, "$ts": written_ts(diff), "data": 2},
    ]


def written_ts(diff: dict[str, object]) -> object:
    records = diff["records"]
    assert isinstance(records, list)
    return records[0]["$ts"]


async def test_a_sweep_without_time_still_runs_a_command(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at the queue may take longer than a sweep is meant to."""
    await served.ask(Op.PUT_TOPIC, "a")
    monkeypatch.setattr("shards.actor.SWEEP_NS", -1)

    async def write() -> None:
        await served.ask(Op.WRITE, "a", {"records": [{"data": 1, "tag": "t"}]})

    with trio.fail_after(10):
        await gathered(*[write] * 5)
    _, diff = await served.ask(Op.DIFF, "a")
    assert diff["head_seq"] == 5


async def test_a_body_and_an_answer_larger_than_a_message_travel_in_parts(served: Served) -> None:
    payload = "x" * (MIB - 100)
    records = [{"data": payload} for _ in range(5)]
    status, _ = await served.ask(Op.WRITE, "big", {"records": records})
    assert status == 201
    reply = await served.raw(Op.DIFF, "big", b'{"max_batch_bytes": 8388608}')
    assert len(reply.body) > 4 * INLINE_BYTES_MAX
    assert [record["data"] for record in json.loads(reply.body)["records"]] == [payload] * 5


async def test_a_long_poll_is_answered_by_the_write_and_not_by_its_deadline(served: Served) -> None:
    await served.ask(Op.PUT_TOPIC, "a")
    got: list[dict[str, object]] = []

    async def poll() -> None:
        got.append((await served.ask(Op.DIFF, "a", {"wait_ms": 30_000}))[1])

    async def write() -> None:
        await until_waiting(served, "a")
        await served.ask(Op.WRITE, "a", {"records": [{"data": "now"}]})

    with trio.fail_after(10):
        await gathered(poll, write)
    assert got[0]["next_from_seq"] == 1


async def until_waiting(served: Served, topic: str) -> None:
    """The poll is parked once a later command of the same topic has been answered."""
    await served.ask(Op.GET_TOPIC, topic)


async def test_a_long_poll_ends_empty_when_its_time_is_over(served: Served) -> None:
    await served.ask(Op.PUT_TOPIC, "a")
    started = trio.current_time()
    _, diff = await served.ask(Op.DIFF, "a", {"wait_ms": 120})
    assert (diff["records"], diff["caught_up"]) == ([], True)
    assert trio.current_time() - started >= 0.119


async def test_a_cancelled_long_poll_leaves_nothing_behind(served: Served) -> None:
    await served.ask(Op.PUT_TOPIC, "a")
    with trio.move_on_after(0.05):
        await served.ask(Op.DIFF, "a", {"wait_ms": 30_000})
    await served.ask(Op.GET_TOPIC, "a")
    assert served.actor.shard is not None
    assert served.actor.shard.polls.take_where(lambda _: True) == []


async def test_drain_answers_parked_long_polls_at_once(served: Served) -> None:
    await served.ask(Op.PUT_TOPIC, "a")
    got: list[int] = []

    async def poll() -> None:
        got.append((await served.ask(Op.DIFF, "a", {"wait_ms": 30_000}))[0])

    async def drain() -> None:
        await until_waiting(served, "a")
        await served.link.drain()

    with trio.fail_after(10):
        await gathered(poll, drain)
    assert got == [200]


async def test_deleting_a_topic_answers_its_long_polls(served: Served) -> None:
    await served.ask(Op.PUT_TOPIC, "a")
    got: list[object] = []

    async def poll() -> None:
        status, answer = await served.ask(Op.DIFF, "a", {"wait_ms": 30_000})
        error = answer["error"]
        assert isinstance(error, dict)
        got.append((status, error["code"]))

    async def drop() -> None:
        await until_waiting(served, "a")
        await served.ask(Op.DELETE_TOPIC, "a")

    with trio.fail_after(10):
        await gathered(poll, drop)
    assert got == [(404, "topic_not_found")]


async def test_what_arrives_together_is_one_write_and_one_sync(tmp_path: Path) -> None:
    disk = CountDisk(RealDisk(tmp_path))
    async with serving(tmp_path, disk) as served:
        await served.ask(Op.PUT_TOPIC, "a", {"durability": "fsync"})
        await served.ask(Op.WRITE, "a", {"records": [{"data": 0}]})
        disk.reset()

        async def write() -> None:
            status, answer = await served.ask(Op.WRITE, "a", {"records": [{"data": 1}]})
            assert status == 200, answer

        await gathered(*[write] * 64)
        # The link sends what was queued in one tick together, so the shard sees at most a few groups.
        assert disk.calls["pwrite"] <= 4
        assert disk.calls["fdatasync"] <= 4


async def test_a_link_of_another_user_is_closed_before_it_is_greeted(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_module, "peer_uid", lambda _: os.getuid() + 1)
    stream = await trio.open_unix_socket(str(tmp_path / "s.sock"))
    async with stream:
        with trio.fail_after(5):
            assert await stream.receive_some() == b""
    # Who was there before is not concerned.
    assert (await served.ask(Op.WRITE, "a", {"records": [{"data": 1}]}))[0] == 201


async def test_status_tells_state_and_topics(served: Served) -> None:
    await served.ask(Op.PUT_TOPIC, "a")
    status = cbor2.loads((await served.raw(Op.STATUS, "", b"")).body)
    assert status == {"state": "ready", "progress": 0.0, "topics": 1, "epoch": 1, "detail": ""}


async def test_a_recovering_or_stopping_shard_refuses_with_its_reason(served: Served) -> None:
    served.actor.status.state, served.actor.status.progress = "recovering", 0.25
    status, answer = await served.ask(Op.GET_TOPIC, "a")
    assert status == 503
    assert answer["error"]["detail"]["replay_progress"] == 0.25  # type: ignore[index]
    served.actor.status.state = "stopping"
    status, answer = await served.ask(Op.GET_TOPIC, "a")
    assert (status, answer["error"]["code"]) == (503, "shutting_down")  # type: ignore[index]


async def test_under_pressure_writes_are_refused_unless_they_ask_to_be_queued(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shards.admission.PRESSURE_COMMANDS", 3)
    await served.ask(Op.PUT_TOPIC, "a")
    shard, served.actor.shard = served.actor.shard, None
    statuses: list[int] = []

    async def write(**fields: object) -> None:
        status, answer = await served.ask(Op.WRITE, "a", {"records": [{"data": 1}], **fields})
        statuses.append(status)
        if status == 429:
            error = answer["error"]
            assert isinstance(error, dict)
            assert error["detail"]["retry_after_ms"] == 1000

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(write)
        with trio.fail_after(10):
            while len(statuses) < 2:
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert statuses == [429, 429]
        nursery.start_soon(lambda: write(disable_backpressure=True))
        nursery.start_soon(lambda: write(disable_backpressure=False))
        with trio.fail_after(10):
            while len(statuses) < 3:
                await trio.testing.wait_all_tasks_blocked(0.01)
        served.actor.shard = shard
        await served.raw(Op.STATUS, "", b"")
    assert sorted(statuses) == [200, 200, 200, 200, 429, 429, 429]
