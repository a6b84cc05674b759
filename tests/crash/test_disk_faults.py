"""Disks fail: a failed sync is never acked and never forgotten, a full disk refuses and recovers.

Faults are injected into running shards; each test checks that its fault has really happened.
"""

import signal
from pathlib import Path

import pytest

from tests.crash.client import Connection, Reply
from tests.crash.conftest import Start
from tests.crash.faults import injected, small_disk, times_fired
from tests.crash.ledger import read_all, topic_on
from tests.crash.processes import SHARDS, Server, eventually, running

MIB = 1024 * 1024
RECORD = "x" * 10_000
BATCH = 50


def write(server: Server, topic: str, *data: str, key: str | None = None, **more: object) -> Reply:
    body: dict[str, object] = {"records": [{"data": one} for one in data], **more}
    if key is not None:
        body["idempotency_key"] = key
    return server.ask("POST", f"/v0/topics/{topic}", body)


def create(server: Server, topic: str, durability: str) -> None:
    assert server.ask("PUT", f"/v0/topics/{topic}", {"durability": durability}).status == 201


def content(server: Server, topic: str) -> list[str]:
    """All records; a gap or a tombstone fails."""
    with Connection(server.address) as connection:
        reading = read_all(connection, topic)
    assert not reading.gaps
    assert not reading.holes
    return list(reading.records.values())


def check_refused(reply: Reply, *, outcome: str | None = None) -> None:
    assert (reply.status, reply.code) == (503, "not_ready"), reply
    assert reply.retry_after_s >= 1
    if outcome is not None:
        assert reply.detail["outcome"] == outcome, reply


def wait_read_only(server: Server) -> None:
    """Wait until shard 0, and it alone, says that it can only be read."""

    def read_only() -> bool:
        ready = server.ask("GET", "/v0/ready")
        if ready.status == 200:
            return False
        check_refused(ready)
        shards = [(shard["shard"], shard["state"]) for shard in ready.detail["shards"]]
        return shards == [(0, "read_only")] and "read-only" in ready.body["error"]["message"]

    eventually("a read-only shard", read_only)


# -- syncs that fail


def test_failed_sync_is_never_acked_and_makes_the_shard_read_only(start: Start, tmp_path: Path) -> None:
    synced, lazy = topic_on(0, SHARDS, "synced"), topic_on(0, SHARDS, "lazy")
    other = topic_on(1, SHARDS, "other")
    trace = tmp_path / "trace"
    with start() as server:
        server.wait_ready()
        for topic, durability in ((synced, "fsync"), (lazy, "disk"), (other, "fsync")):
            create(server, topic, durability)
            assert write(server, topic, "before").status == 200
        with injected(server.pid_of("shard-0"), "fdatasync", "error=EIO:when=1", trace):
            check_refused(write(server, synced, "failed", key="once"), outcome="unknown")
        assert times_fired(trace) == 1
        # The disk works again, and that changes nothing: what a failed sync has dropped is not known.
        wait_read_only(server)
        for topic in (synced, lazy):
            check_refused(write(server, topic, "after"), outcome="not_applied")
            assert content(server, topic)[0] == "before"
        assert write(server, other, "meanwhile").status == 200
        assert content(server, other) == ["before", "meanwhile"]
        server.stop()
    with start() as server:
        server.wait_ready()
        assert content(server, lazy) == ["before"]
        assert content(server, other) == ["before", "meanwhile"]
        assert content(server, synced) in (["before"], ["before", "failed"])
        assert write(server, synced, "failed", key="once").status == 200
        assert write(server, synced, "last").status == 200
        assert content(server, synced) == ["before", "failed", "last"]
        assert server.stop() == 0


def test_failed_periodic_sync_makes_the_shard_read_only_too(start: Start, tmp_path: Path) -> None:
    lazy = topic_on(0, SHARDS, "lazy")
    trace = tmp_path / "trace"
    with start() as server:
        server.wait_ready()
        create(server, lazy, "disk")
        assert write(server, lazy, "first").status == 200
        with injected(server.pid_of("shard-0"), "fdatasync", "error=EIO", trace):
            acked = write(server, lazy, "acked").status == 200
            wait_read_only(server)
        assert times_fired(trace) > 0
        check_refused(write(server, lazy, "after"), outcome="not_applied")
        assert ("acked" in content(server, lazy)) >= acked
        server.kill()
    with start() as server:
        server.wait_ready()
        assert ("acked" in content(server, lazy)) >= acked
        assert "after" not in content(server, lazy)


def test_retry_after_a_kill_between_write_and_ack_is_recognised(start: Start, tmp_path: Path) -> None:
    topic = topic_on(0, SHARDS, "synced")
    trace = tmp_path / "trace"
    rounds = 5
    with start() as server:
        server.wait_ready()
        create(server, topic, "fsync")
        for n in range(rounds):
            # A first write would be held back by a sync of its own; the fault is meant for the second.
            assert write(server, topic, f"before {n}").status == 200
            pid = server.pid_of("shard-0")
            with injected(pid, "fdatasync", "signal=SIGKILL:when=1", trace):
                check_refused(write(server, topic, f"kept {n}", key=f"key {n}"), outcome="unknown")
            death = server.wait_event("child.exited", child="shard-0", child_pid=pid)
            assert death["exit_code"] == -signal.SIGKILL
            server.wait_event("child.state", since=server.lines.index(death), child="shard-0", state="ready")
            server.wait_ready()
            retry = write(server, topic, f"kept {n}", key=f"key {n}")
            assert (retry.status, retry.body["deduped"], retry.body["seqs"]) == (200, True, [2 * n + 2])
        assert content(server, topic) == [f"{what} {n}" for n in range(rounds) for what in ("before", "kept")]


# -- disks that are full


@pytest.fixture
def disk_and_sockets(tmp_path: Path, sockets_dir: Path) -> tuple[Path, Path]:
    return tmp_path / "disk", sockets_dir


def fill_up(server: Server, topic: str) -> list[str]:
    """Write until not even the smallest record is taken; what was acked."""
    acked: list[str] = []
    for batch in ([RECORD] * BATCH, [RECORD], ["x" * 100], [""]):
        for _ in range(1000):
            reply = write(server, topic, *batch)
            if reply.status != 200:
                check_refused(reply, outcome="not_applied")
                assert reply.detail["reason"] == "no_space"
                break
            acked += batch
            assert reply.body["last_seq"] == len(acked)
        else:
            raise AssertionError("the disk does not fill up")
    return acked


def test_full_disk_refuses_writes_and_takes_them_again_when_it_has_grown(
    disk_and_sockets: tuple[Path, Path],
) -> None:
    path, sockets_dir = disk_and_sockets
    big, small = topic_on(0, SHARDS, "big"), topic_on(0, SHARDS, "small")
    other = topic_on(1, SHARDS, "other")
    with small_disk(path, "40m") as disk:
        with running(path / "data", sockets_dir) as server:
            server.wait_ready()
            create(server, big, "disk")
            assert write(server, small, "kept", "to delete").status == 201
            assert write(server, other, "kept").status == 201
            acked = fill_up(server, big)
            assert len(acked) > BATCH
            # Nothing of the refused batches is there, and what was there is readable.
            assert content(server, big) == acked
            assert content(server, small) == ["kept", "to delete"]
            deleted = server.ask("POST", f"/v0/topics/{big}/delete", {"before_seq": 11})
            assert (deleted.status, deleted.body["deleted"]) == (200, 10)
            check_refused(write(server, big, *([RECORD] * BATCH)), outcome="not_applied")
            disk.grow("80m")
            grown = eventually(
                "room for a write", lambda: taken(write(server, big, *([RECORD] * BATCH), key="late"))
            )
            assert grown.body["first_seq"] == len(acked) + 1
            server.wait_ready()
            assert write(server, other, "after").status == 200
            server.kill()
        with running(path / "data", sockets_dir) as server:
            server.wait_ready()
            with Connection(server.address) as connection:
                reply = connection.ask("POST", f"/v0/topics/{big}/diff", {"from_seq": 0, "limit": 1})
                assert (reply.body["records"][0]["$seq"], reply.body["tombstone"]) == (11, None)
                state = connection.ask("GET", f"/v0/topics/{big}").body
            head = len(acked) + BATCH
            assert (state["head_seq"], state["count"]) == (head, head - 10)
            assert content(server, small) == ["kept", "to delete"]
            assert content(server, other) == ["kept", "after"]
            assert server.stop() == 0


def taken(reply: Reply) -> Reply | None:
    if reply.status == 200:
        return reply
    check_refused(reply)
    return None


def test_shard_that_starts_on_a_full_disk_can_be_read_and_heals_when_there_is_room(
    disk_and_sockets: tuple[Path, Path],
) -> None:
    path, sockets_dir = disk_and_sockets
    topic = topic_on(0, SHARDS, "kept")
    with small_disk(path, "40m") as disk, running(path / "data", sockets_dir) as server:
        server.wait_ready()
        assert write(server, topic, "before").status == 201
        ballast = disk.fill()
        server.kill_child("shard-0")
        eventually("a shard that can be read", lambda: server.ask("GET", f"/v0/topics/{topic}").status == 200)
        assert content(server, topic) == ["before"]
        check_refused(write(server, topic, "refused"), outcome="not_applied")
        check_refused(server.ask("GET", "/v0/ready"))
        ballast.unlink()
        server.wait_ready()
        assert write(server, topic, "after").status == 200
        assert content(server, topic) == ["before", "after"]
        server.kill_child("shard-0")
        server.wait_ready()
        assert content(server, topic) == ["before", "after"]
