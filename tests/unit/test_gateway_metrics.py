"""The metrics page when not everything is well: it is 200 always, and says what is wrong."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.context import Gateway
from shards.client import ShardLink, ShardPool
from tests.fakes.direct_client import Client, gateway_over
from tests.fakes.fake_shard import Answer, FakeShard, by_op
from topics.engine.limits import Limits
from topics.protocol.messages import Op, Request
from topics.protocol.strict_cbor import encode_value

READY = {
    **{"state": "ready", "progress": 1.0, "epoch": 1, "router_epoch": 1, "queue_depth": 2, "busy_ns": 10},
    **{"topics": 3, "queue_depth_peak": 5, "wal_read_only": False, "wal_frames": 7},
    **{"fsync_us": [[10, 20], [1, 2, 3], 99], "rows": [["a", 1, 1, 1, 1, None]], "rows_truncated": False},
}
RECOVERING = {"state": "recovering", "progress": 0.5, "epoch": 2, "router_epoch": 1}


def saying(figures: dict[str, Any] | bytes) -> Callable[[Request], Awaitable[Answer]]:
    body = figures if isinstance(figures, bytes) else encode_value(figures)
    return by_op({Op.METRICS: lambda _: Answer(200, body)})


async def page(call: Client) -> dict[str, Any]:
    response = await call("GET", "/v0/metrics", b"", {"accept": "application/json"})
    assert response.status == 200
    assert (await call("GET", "/v0/metrics")).status == 200
    snapshot = json.loads(response.body)
    assert isinstance(snapshot, dict)
    return snapshot


async def page_of(tmp_path: Path, *shards: dict[str, Any] | bytes) -> dict[str, Any]:
    fakes = [FakeShard(tmp_path / str(n), n, saying(figures)) for n, figures in enumerate(shards)]
    async with gateway_over(fakes) as call:
        return await page(call)


async def test_a_replay_shows_its_progress_beside_what_the_others_count(tmp_path: Path) -> None:
    shown = await page_of(tmp_path, READY, RECOVERING)
    assert (shown["topics_ready"], shown["topics_recovery_progress"]) == (0, 0.75)
    assert (shown["topics_topics"], shown["topics_wal_fsyncs_total"]) == (3, 6)
    starts = {tuple(row["labels"].values()): row["value"] for row in shown["topics_process_starts_total"]}
    assert starts == {("gateway", "0"): 1, ("router", "0"): 1, ("shard", "0"): 1, ("shard", "1"): 2}


async def test_a_shard_that_cannot_write_is_counted_and_is_not_ready(tmp_path: Path) -> None:
    shown = await page_of(tmp_path, READY, {**READY, "state": "read_only", "wal_read_only": True})
    assert (shown["topics_ready"], shown["topics_wal_read_only"]) == (0, 1)


@pytest.mark.parametrize("nonsense", [b"\xff", b"", encode_value([1, 2])])
async def test_a_shard_that_talks_nonsense_is_left_out(tmp_path: Path, nonsense: bytes) -> None:
    shown = await page_of(tmp_path, nonsense, READY)
    assert (shown["topics_ready"], shown["topics_topics"]) == (0, 3)


async def test_without_any_shard_the_page_still_has_every_figure_of_the_gateway(tmp_path: Path) -> None:
    pool = ShardPool([ShardLink(tmp_path / "nobody", shard=0)])
    shown = await page(Client(Gateway(pool=pool, limits=Limits(), version="1", started_ns=0), []))
    assert (shown["topics_ready"], shown["topics_recovery_progress"], shown["topics_topics"]) == (0, 0, 0)
    assert shown["topics_wal_fsync_latency_us_count"] == 0
    assert shown["topics_uptime_ms"] > 0


async def test_while_draining_the_page_is_there_and_says_not_ready(tmp_path: Path) -> None:
    async with gateway_over([FakeShard(tmp_path / "0", 0, saying(READY))]) as call:
        assert (await page(call))["topics_ready"] == 1
        call.gateway.draining = True
        assert (await page(call))["topics_ready"] == 0
