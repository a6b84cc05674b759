"""`GET /v0/metrics`: every name of the contract, true numbers, bounded and filtered."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.e2e.server import Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.server import Answer, Server

NAMES = [
    *("topics_topics", "topics_routers", "topics_records_live", "topics_bytes_live", "topics_queue_topics"),
    *("topics_queue_leases_in_flight", "topics_sse_connections", "topics_watch_sessions", "topics_ready"),
    *("topics_recovery_progress", "topics_uptime_ms", "topics_topic_metrics_truncated"),
    *("topics_wal_frames_total", "topics_wal_batches_total", "topics_wal_fsyncs_total"),
    *("topics_wal_bytes_written_total", "topics_wal_rotations_total", "topics_wal_queue_depth"),
    *("topics_wal_queue_depth_peak", "topics_wal_submit_full_total", "topics_wal_read_only"),
    *("topics_wal_fsync_latency_us_sum", "topics_wal_fsync_latency_us_count"),
]
LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? ([-+0-9.eE]+)')


def samples(answer: Answer) -> dict[str, float]:
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for line in answer.body.decode().splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match, line
            found[line.rsplit(" ", 1)[0]] = float(match[3])
    return found


def first_in_line(server: Server, name: str) -> Topic:
    """A topic that is shown however many there are: series are cut at the end of the alphabet."""
    return Topic(server, f"0-{name}")


def test_every_name_of_the_contract_is_there(server: Server) -> None:
    found = samples(server.get("/v0/metrics"))
    assert [name for name in NAMES if name not in found] == []
    for kind in ("ephemeral", "memory", "disk", "fsync"):
        assert f'topics_topics_by_class{{class="{kind}"}}' in found
    assert found["topics_ready"] == 1
    assert found["topics_recovery_progress"] == 1
    assert (
        found['topics_wal_fsync_latency_us_bucket{le="+Inf"}'] == found["topics_wal_fsync_latency_us_count"]
    )


def test_each_family_has_help_and_type_once_and_before_its_samples(server: Server) -> None:
    seen: set[str] = set()
    current = ""
    for line in server.get("/v0/metrics").body.decode().splitlines():
        if line.startswith("# TYPE "):
            current = line.split()[2]
            assert current not in seen
            seen.add(current)
        elif not line.startswith("#"):
            assert line.startswith(current), line


def test_numbers_follow_what_happens(server: Server, name: str) -> None:
    topic = first_in_line(server, name)
    before = samples(server.get("/v0/metrics"))
    topic.put(durability="fsync")
    topic.write(1, 2, 3)
    topic.delete_records(before_seq=2)
    after = samples(server.get("/v0/metrics"))
    label = f'{{topic="{topic.name}"}}'
    assert after[f"topics_topic_head_seq{label}"] == 3
    assert after[f"topics_topic_earliest_seq{label}"] == 2
    assert after[f"topics_topic_records_live{label}"] == 2
    assert after[f"topics_topic_bytes_live{label}"] == 2
    assert f"topics_topic_queue_ready{label}" not in after
    assert after["topics_topics"] == before["topics_topics"] + 1
    for counter in ("frames", "batches", "fsyncs", "bytes_written"):
        assert after[f"topics_wal_{counter}_total"] > before[f"topics_wal_{counter}_total"]
    write = 'topics_request_duration_seconds_count{route="POST /v0/topics/:topic"}'
    assert after[write] == before.get(write, 0) + 1


def test_accept_json_gives_a_snapshot(server: Server, name: str) -> None:
    topic = first_in_line(server, name)
    topic.put(type="queue")
    topic.write(1)
    snapshot = server.get("/v0/metrics", headers={"Accept": "application/json"}).json
    assert snapshot["topics_topics"] >= 1
    ready = {row["labels"]["topic"]: row["value"] for row in snapshot["topics_topic_queue_ready"]}
    assert ready[topic.name] == 1


def test_with_keys_it_needs_read_and_shows_only_topics_of_the_keys_prefixes(
    start_server: Callable[..., Server],
) -> None:
    server = start_server({"TOPICS_API_KEYS": "full,mine:read:mine.,writer:write"})
    full = {"Authorization": "Bearer full"}
    for name in ("mine.a", "other.b"):
        server.put(f"/v0/topics/{name}", {}, headers=full).ok(201)
    server.get("/v0/metrics").failed(401, "unauthorized")
    server.get("/v0/metrics", headers={"Authorization": "Bearer writer"}).failed(403, "forbidden")
    everything = samples(server.get("/v0/metrics", headers=full))
    own = samples(server.get("/v0/metrics", headers={"Authorization": "Bearer mine"}))
    assert 'topics_topic_head_seq{topic="other.b"}' in everything
    assert 'topics_topic_head_seq{topic="mine.a"}' in own
    assert 'topics_topic_head_seq{topic="other.b"}' not in own


def test_more_topics_than_are_shown_are_said_to_be_left_out(own_server: Server) -> None:
    for number in range(1001):
        own_server.put(f"/v0/topics/t{number}", {}).ok(201)
    found = samples(own_server.get("/v0/metrics"))
    assert found["topics_topic_metrics_truncated"] == 1
    assert sum(name.startswith("topics_topic_head_seq{") for name in found) == 1000
    assert found["topics_topics"] == 1001
