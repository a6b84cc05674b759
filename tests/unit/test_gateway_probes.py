"""Health and readiness: what a load balancer may rely on."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from gateway.context import Gateway
from shards.client import ShardLink, ShardPool
from tests.fakes.direct_client import Client, gateway_over, header
from tests.fakes.fake_shard import Answer, FakeShard, by_op, never, status_answer
from topics.engine.limits import Limits
from topics.protocol.messages import Op, Request


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Client]:
    async with gateway_over([FakeShard(tmp_path / "0")]) as client:
        yield client


def saying(status: Answer) -> Callable[[Request], Awaitable[Answer]]:
    return by_op({Op.STATUS: lambda _: status})


async def test_health_is_always_200_with_version_and_uptime(call: Client) -> None:
    call.gateway.draining = True
    for path in ("/v0/health", "/healthz", "/health"):
        response = await call("GET", path)
        fields = json.loads(response.body)
        assert response.status == 200
        assert (fields["status"], fields["version"]) == ("ok", "1.2.3")
        assert fields["uptime_ms"] >= 0
        assert fields["performance"]["server_total_ms"] > 0


async def test_ready_counts_the_topics_of_all_shards(tmp_path: Path) -> None:
    shards = [FakeShard(tmp_path / str(n), n, saying(status_answer(topics=14))) for n in range(3)]
    async with gateway_over(shards) as call:
        for path in ("/v0/ready", "/readyz", "/ready"):
            fields = json.loads((await call("GET", path)).body)
            del fields["performance"]
            assert fields == {"status": "ready", "wal_replay_complete": True, "topics": 42}


async def test_ready_names_the_shards_that_are_not(tmp_path: Path) -> None:
    answers = [
        status_answer(),
        status_answer("recovering", progress=0.5),
        status_answer("read_only", detail="fdatasync: EIO"),
        Answer(200, b"\xff garbage"),
    ]
    shards = [FakeShard(tmp_path / str(n), n, saying(answer)) for n, answer in enumerate(answers)]
    async with gateway_over(shards) as call:
        response = await call("GET", "/v0/ready")
    error = json.loads(response.body)["error"]
    assert (response.status, error["code"], header(response, "retry-after")) == (503, "not_ready", "1")
    assert error["detail"] == {
        "replay_progress": 0.625,
        "shards": [
            {"shard": 1, "state": "recovering", "progress": 0.5},
            {"shard": 2, "state": "read_only", "progress": 1.0, "detail": "fdatasync: EIO"},
            {"shard": 3, "state": "unreachable", "progress": 0.0},
        ],
    }
    assert "read-only" in error["message"]


async def test_ready_answers_within_its_bound_when_a_shard_hangs(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    shard = FakeShard(tmp_path / "0", answer=never)
    links = [ShardLink(shard.path, shard=0), ShardLink(tmp_path / "nobody", shard=1)]
    gateway = Gateway(pool=ShardPool(links), limits=Limits(), version="1", started_ns=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        await nursery.start(links[0].run)
        await links[0].wait_connected()
        began = trio.current_time()
        response = await Client(gateway, [shard])("GET", "/v0/ready")
        assert trio.current_time() - began < 1.1
        nursery.cancel_scope.cancel()
    detail = json.loads(response.body)["error"]["detail"]
    assert response.status == 503
    assert [shown["state"] for shown in detail["shards"]] == ["unreachable", "unreachable"]
