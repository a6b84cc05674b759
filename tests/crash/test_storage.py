"""Sealed records through real processes: read back, deleted, evicted, and not replayed at a start.

The servers here seal after every MiB of log and keep one MiB of sealed records in memory.
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.client import Connection
from tests.crash.conftest import Start
from tests.crash.ledger import topic_on
from tests.crash.processes import SHARDS, Server, eventually

RECORDS = 30_000
BATCH = 1_000
FILLER = "x" * 200
TOPIC = topic_on(0, SHARDS, "large")


def fill(connection: Connection, topic: str, count: int = RECORDS) -> None:
    for first in range(0, count, BATCH):
        records = [{"data": [n, FILLER], "tag": f"t{n % 50}"} for n in range(first, first + BATCH)]
        reply = connection.ask("POST", f"/v0/topics/{topic}?return_seqs=false", {"records": records})
        assert reply.status in (200, 201), reply


def numbers(connection: Connection, topic: str) -> Iterator[int]:
    """What a reader from the start gets; a tombstone is a failure."""
    cursor = 0
    while True:
        page = connection.ask("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000}).body
        assert page["tombstone"] is None
        yield from (record["data"][0] for record in page["records"])
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return


def files(server: Server, kind: str) -> list[Path]:
    return sorted((server.data_dir / "shard-00").glob(f"{kind}/*"))


def sealed_all(server: Server, topic: str) -> None:
    """Wait until a checkpoint has come by after the last write."""
    before = len(server.lines)
    server.ask("POST", f"/v0/topics/{topic}", {"records": [{"data": [-1, "y" * 900_000]}]})
    server.ask("POST", f"/v0/topics/{topic}", {"records": [{"data": [-1, "y" * 900_000]}]})
    server.wait_event("checkpoint.done", since=before)


def metrics(connection: Connection) -> dict[str, Any]:
    return connection.ask("GET", "/v0/metrics", accept="application/json").body


def state(connection: Connection, topic: str) -> dict[str, Any]:
    return connection.ask("GET", f"/v0/topics/{topic}").body


@pytest.mark.timeout(120)
def test_a_topic_larger_than_the_cache_is_read_back_whole_before_and_after_restarts(start: Start) -> None:
    kept = [n for n in range(RECORDS) if n % 50 != 7]
    with start() as server:
        server.wait_ready()
        with Connection(server.address) as connection:
            fill(connection, TOPIC)
            assert list(numbers(connection, TOPIC)) == list(range(RECORDS))
            deleted = connection.ask("POST", f"/v0/topics/{TOPIC}/delete", {"match": "t7"})
            assert deleted.body["deleted"] == RECORDS // 50
            assert list(numbers(connection, TOPIC)) == kept
            before = state(connection, TOPIC)
            figures = metrics(connection)
        assert figures["topics_checkpoints_total"] > 0
        assert figures["topics_checkpoint_failures_total"] == figures["topics_damaged_files"] == 0
        assert figures["topics_segment_files"] >= len(files(server, "segments")) > 0
        assert figures["topics_cache_bytes"] < 2 * 1024**2 + 32 * 1024**2
        server.kill_child("shard-0")
        server.wait_ready()
        with Connection(server.address) as connection:
            assert list(numbers(connection, TOPIC)) == kept
            after = state(connection, TOPIC)
        for figure in ("count", "bytes", "head_seq", "earliest_seq"):
            assert after[figure] == before[figure], figure
        assert server.stop() == 0
    with start() as server:
        server.wait_ready()
        with Connection(server.address) as connection:
            assert list(numbers(connection, TOPIC)) == kept
        assert server.stop() == 0


@pytest.mark.timeout(120)
def test_a_start_replays_the_tail_and_not_what_was_sealed(start: Start) -> None:
    with start() as server:
        server.wait_ready()
        with Connection(server.address) as connection:
            fill(connection, TOPIC)
        sealed_all(server, TOPIC)
        server.kill()
    with start() as server:
        server.wait_ready()
        replayed = server.wait_event("log.replayed", role="shard-0")
        assert replayed["records"] >= RECORDS
        # Twice what is sealed at a time: the older of two snapshots is kept, and the log that it needs.
        log_bytes = sum(path.stat().st_size for path in files(server, "wal"))
        assert log_bytes < 12 * 1024**2, "the log was not shortened"
        assert server.stop() == 0


@pytest.mark.timeout(120)
def test_a_cap_gives_files_back_and_counts_stay_exact(start: Start) -> None:
    with start() as server:
        server.wait_ready()
        with Connection(server.address) as connection:
            connection.ask("PUT", f"/v0/topics/{TOPIC}", {"cap_records": 2500})
            most = 0
            for turn in range(4):
                fill(connection, TOPIC, RECORDS // 2)
                found = state(connection, TOPIC)
                assert found["count"] == 2500
                assert found["earliest_seq"] == found["head_seq"] - 2499
                if turn == 0:
                    most = len(files(server, "segments"))
            eventually("fewer files", lambda: len(files(server, "segments")) <= most + 3 or None, 20)
        assert server.stop() == 0


@pytest.mark.timeout(120)
def test_a_shard_killed_in_the_middle_of_checkpoints_loses_nothing(start: Start) -> None:
    """Kills a moment after each checkpoint begins or ends, at different distances from it."""
    with start() as server:
        server.wait_ready()
        topics = [topic_on(0, SHARDS, f"turn{turn}") for turn in range(5)]
        for turn, topic in enumerate(topics):
            before = len(server.lines)
            with Connection(server.address) as connection:
                fill(connection, topic, 6 * BATCH)
            if turn % 2:
                server.wait_event("checkpoint.done", since=before, role="shard-0")
            time.sleep(0.007 * turn)
            server.signal_child("shard-0", signal.SIGKILL)
            server.wait_event("child.state", since=before, child="shard-0", state="ready")
            server.wait_ready()
        with Connection(server.address) as connection:
            for topic in topics:
                assert list(numbers(connection, topic)) == list(range(6 * BATCH))
        assert server.stop() == 0
