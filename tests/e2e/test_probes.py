"""Liveness and readiness (sections 8.1 and 8.2)."""

from __future__ import annotations

import pytest

from tests.e2e.server import Server, Topic


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health_tells_status_version_and_uptime(server: Server, path: str) -> None:
    body = server.get(path).ok()
    assert body["status"] == "ok"
    assert isinstance(body["version"], str)
    assert body["version"]
    assert isinstance(body["uptime_ms"], int)
    assert body["uptime_ms"] >= 0


def test_uptime_grows(topic: Topic) -> None:
    first = topic.server.get("/v0/health").ok()["uptime_ms"]
    topic.put()
    topic.diff(wait_ms=50)
    assert first + 50 <= topic.server.get("/v0/health").ok()["uptime_ms"] < first + 20_000


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_ready_tells_that_the_log_is_replayed(server: Server, path: str) -> None:
    body = server.get(path).ok()
    assert body["status"] == "ready"
    assert body["wal_replay_complete"] is True
    assert isinstance(body["topics"], int)


def test_ready_counts_the_topics_of_all_shards(own_server: Server) -> None:
    assert own_server.get("/v0/ready").ok()["topics"] == 0
    topics = [Topic(own_server, f"topic-{number}") for number in range(6)]
    for count, topic in enumerate(topics, start=1):
        topic.put()
        assert own_server.get("/v0/ready").ok()["topics"] == count
    topics[0].drop()
    topics[0].drop()
    assert own_server.get("/v0/ready").ok()["topics"] == 5
    own_server.restart()
    assert own_server.get("/v0/ready").ok()["topics"] == 5
