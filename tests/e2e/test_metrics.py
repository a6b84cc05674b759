"""`GET /v0/metrics`: every name of the contract, true numbers, bounded and filtered."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.crash.faults import cannot
from tests.e2e.hostile import child_pid
from tests.e2e.server import Topic, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.server import Answer, Server

# Every name of the contract, by its type; a name with labels has a sample per value of them.
CONTRACT = {
    "gauge": [
        *("topics_topics", "topics_topics_by_class{class}", "topics_routers", "topics_records_live"),
        *("topics_bytes_live", "topics_queue_topics", "topics_queue_leases_in_flight"),
        *("topics_sse_connections", "topics_watch_sessions", "topics_ready", "topics_recovery_progress"),
        *("topics_uptime_ms", "topics_topic_head_seq{topic}", "topics_topic_earliest_seq{topic}"),
        *("topics_topic_records_live{topic}", "topics_topic_bytes_live{topic}"),
        *("topics_topic_queue_ready{topic}", "topics_topic_queue_in_flight{topic}"),
        *("topics_topic_metrics_truncated", "topics_wal_queue_depth", "topics_wal_queue_depth_peak"),
        "topics_wal_read_only",
    ],
    "counter": [
        *("topics_wal_frames_total", "topics_wal_batches_total", "topics_wal_fsyncs_total"),
        *("topics_wal_bytes_written_total", "topics_wal_rotations_total", "topics_wal_submit_full_total"),
    ],
    "histogram": ["topics_wal_fsync_latency_us"],
}
# What operators need beyond it.
OURS = {
    "gauge": [
        *("topics_wal_bytes_on_disk", "topics_shard_queue_depth{shard}", "topics_requests_under_way"),
        *(
            "topics_segment_files",
            "topics_segment_bytes_on_disk",
            "topics_cache_bytes",
            "topics_damaged_files",
        ),
    ],
    "counter": [
        *("topics_shard_busy_seconds_total{shard}", "topics_process_starts_total{role,index}"),
        *("topics_checkpoints_total", "topics_checkpoint_failures_total"),
    ],
    "histogram": ["topics_request_duration_seconds{route}"],
}
FAMILIES = [
    pytest.param(kind, name, id=name)
    for table in (CONTRACT, OURS)
    for kind, names in table.items()
    for name in names
]
SERIES = re.compile(r"([a-z_]+)(?:\{(.*)\})?")
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


def parts(family: str) -> tuple[str, set[str]]:
    """The name and the labels of a row of the tables."""
    name, _, labels = family.rstrip("}").partition("{")
    return name, set(filter(None, labels.split(",")))


@pytest.fixture(scope="module")
def filled(start_server: Callable[..., Server]) -> Server:
    """A server in which everything that is counted has happened, in both of its shards."""
    server = start_server({})
    for number in range(8):
        Topic(server, f"t{number}").put(durability="fsync", type="queue" if number == 0 else "log")
        Topic(server, f"t{number}").write("x")
    return server


@pytest.mark.parametrize(("kind", "family"), FAMILIES)
def test_every_metric_is_there_with_its_type_and_labels_as_text_and_as_json(
    filled: Server, kind: str, family: str
) -> None:
    name, labels = parts(family)
    text = filled.get("/v0/metrics")
    assert f"# TYPE {name} {kind}" in text.body.decode().splitlines()
    snapshot = filled.get("/v0/metrics", headers={"Accept": "application/json"}).json
    suffixes = {"_bucket": {"le"}, "_sum": set(), "_count": set()} if kind == "histogram" else {"": set()}
    for suffix, more in suffixes.items():
        lines = [
            match for line in samples(text) if (match := SERIES.fullmatch(line)) and match[1] == name + suffix
        ]
        assert lines, f"no sample of {name}{suffix}"
        for line in lines:
            assert set(re.findall(r'([a-z_]+)="', line[2] or "")) == labels | more
        values = snapshot[name + suffix]
        if labels | more:
            assert all(set(row["labels"]) == labels | more for row in values)
            values = [row["value"] for row in values]
            assert len(values) == len(lines)
        else:
            assert isinstance(values, int | float)


def test_what_the_shards_count_is_added_up(filled: Server) -> None:
    found = samples(filled.get("/v0/metrics"))
    for name in ("topics_topics", "topics_records_live", 'topics_topics_by_class{class="fsync"}'):
        assert found[name] == 8
    assert found["topics_bytes_live"] == 8 * len('"x"')
    assert found["topics_queue_topics"] == 1
    assert found["topics_ready"] == found["topics_recovery_progress"] == 1
    assert found["topics_wal_fsyncs_total"] == found["topics_wal_fsync_latency_us_count"] >= 8
    assert (
        found['topics_wal_fsync_latency_us_bucket{le="+Inf"}'] == found["topics_wal_fsync_latency_us_count"]
    )
    for shard in ("0", "1"):
        assert found[f'topics_shard_busy_seconds_total{{shard="{shard}"}}'] > 0
    assert found["topics_wal_bytes_on_disk"] >= found["topics_wal_bytes_written_total"] > 0


def test_promtool_finds_nothing_but_the_units_that_the_contract_abbreviates(filled: Server) -> None:
    if shutil.which("promtool") is None:
        cannot("promtool (Debian: prometheus) is not installed")
    page = filled.get("/v0/metrics").body
    judged = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=60)
    # 1 is a page that cannot be parsed, 3 is advice.
    assert judged.returncode in (0, 3), judged
    abbreviated = ("topics_uptime_ms ", "topics_wal_fsync_latency_us ")
    advice = judged.stderr.decode().splitlines()
    assert [line for line in advice if not (line.startswith(abbreviated) and "abbreviated" in line)] == []


@pytest.mark.parametrize(
    ("role", "module"),
    [("gateway", "gateway.serve"), ("router", "shards.router"), ("shard", "shards.worker")],
)
def test_a_restart_is_counted_for_its_role(own_server: Server, role: str, module: str) -> None:
    def starts() -> dict[str, float]:
        found = samples(own_server.get("/v0/metrics"))
        return {
            name: value for name, value in found.items() if name.startswith("topics_process_starts_total{")
        }

    def restarted() -> dict[str, float] | None:
        try:
            now = starts()
        except httpx.TransportError:
            return None
        return now if len(now) == len(before) and sum(now.values()) > len(before) else None

    # A router that has just begun may not have greeted the shards yet.
    before = eventually(lambda: now if len(now := starts()) == 4 else None)
    assert set(before.values()) == {1}
    os.kill(child_pid(own_server, module), signal.SIGKILL)
    after = eventually(restarted)
    (changed,) = [name for name in after if after[name] != 1]
    assert (f'role="{role}"' in changed, after[changed]) == (True, 2)


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
