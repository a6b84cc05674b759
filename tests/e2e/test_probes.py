"""Liveness and readiness (sections 8.1 and 8.2)."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.e2e.server import Server, Topic

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("path", ["/v0/health", "/healthz", "/health"])
def test_health_tells_status_version_and_uptime(server: Server, path: str) -> None:
    body = server.get(path).ok()
    assert body["status"] == "ok"
    assert re.fullmatch(r"\d+\.\d+\.\d+", body["version"])
    assert isinstance(body["uptime_ms"], int)
    assert body["uptime_ms"] >= 0


def test_uptime_grows(topic: Topic) -> None:
    first = topic.server.get("/v0/health").ok()["uptime_ms"]
    topic.put()
    topic.diff(wait_ms=50)
    assert first + 50 <= topic.server.get("/v0/health").ok()["uptime_ms"] < first + 20_000


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz", "/ready"])
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


def _pid_of_started_child(server: Server, child: str) -> int | None:
    for line in server.stderr().splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("event") == "child.started" and event.get("child") == child:
            return int(event["child_pid"])
    return None


def test_while_a_log_is_replayed_probes_answer_and_data_routes_are_503(tmp_path: Path) -> None:
    server = Server(tmp_path)
    paused: int | None = None
    try:
        server.launch()
        # A replay is over too soon to be watched, so one shard is held before it begins.
        paused = server.wait_for("the start of shard-1", lambda: _pid_of_started_child(server, "shard-1"))
        assert paused is not None
        os.kill(paused, signal.SIGSTOP)
        server.wait_for_port()

        assert server.get("/v0/health").ok()["status"] == "ok"
        for path in ("/v0/ready", "/readyz"):
            answer = server.get(path)
            assert 0 <= answer.failed(503, "not_ready")["replay_progress"] <= 1
            assert int(answer.headers["retry-after"]) >= 1
        metrics = server.get("/v0/metrics", headers={"Accept": "application/json"}).ok()
        assert metrics["topics_ready"] == 0
        assert 0 <= metrics["topics_recovery_progress"] < 1
        answers = [
            server.get("/v0/topics"),
            *[server.put(f"/v0/topics/topic-{number}", {}) for number in range(8)],
        ]
        for answer in answers:
            if answer.status != 201:
                answer.failed(503, "not_ready")
                assert int(answer.headers["retry-after"]) >= 1
        assert {answer.status for answer in answers} >= {503}, "the held shard owns some of these names"

        os.kill(paused, signal.SIGCONT)
        paused = None
        server.wait_until_ready()
        for number in range(8):
            assert server.put(f"/v0/topics/topic-{number}", {}).status in (200, 201)
        assert server.stop() == 0
    finally:
        if paused is not None:
            os.kill(paused, signal.SIGCONT)
        server.end()
