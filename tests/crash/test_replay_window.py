"""While a log is replayed the port is open: probes answer, data routes say 503, and then all is there."""

import signal
import time

import pytest

from tests.crash.client import Connection, Reply
from tests.crash.conftest import Start
from tests.crash.ledger import topic_on
from tests.crash.processes import SHARDS, Server

RECORDS = 300_000
BATCH = 5_000


def check_not_ready(reply: Reply) -> None:
    assert (reply.status, reply.code) == (503, "not_ready")
    assert reply.retry_after_s >= 1


def write_a_long_log(server: Server, topic: str) -> None:
    with Connection(server.address) as connection:
        for first in range(0, RECORDS, BATCH):
            body = {"records": [{"data": n, "tag": f"t{n % 100}"} for n in range(first, first + BATCH)]}
            reply = connection.ask("POST", f"/v0/topics/{topic}?return_seqs=false", body)
            assert reply.body["last_seq"] == first + BATCH


@pytest.mark.timeout(170)
def test_port_is_open_during_replay_and_progress_is_told(start: Start) -> None:
    topic = topic_on(0, SHARDS, "long")
    with start(TOPICS_CHECKPOINT_BYTES="1GiB") as server:
        server.wait_ready()
        write_a_long_log(server, topic)
        server.kill()
    told: list[float] = []
    with start() as server:
        # The gateway may take longer to start than the shard to replay: so the shard is held at its start.
        server.wait_event("child.state", child="shard-0", state="listening")
        server.signal_child("shard-0", signal.SIGSTOP)
        server.wait_event("child.state", child="gateway", state="listening")
        server.signal_child("shard-0", signal.SIGCONT)
        with Connection(server.address) as connection:
            while True:
                assert connection.ask("GET", "/v0/health").status == 200
                began_s = time.monotonic()
                ready = connection.ask("GET", "/v0/ready")
                assert time.monotonic() - began_s < 3
                if ready.status == 200:
                    break
                check_not_ready(ready)
                told.append(ready.detail["replay_progress"])
            read = connection.ask("POST", f"/v0/topics/{topic}/diff", {"from_seq": RECORDS - 2})
            assert [record["data"] for record in read.body["records"]] == [RECORDS - 2, RECORDS - 1]
            state = connection.ask("GET", f"/v0/topics/{topic}").body
        assert (state["head_seq"], state["earliest_seq"], state["count"]) == (RECORDS, 1, RECORDS)
        assert server.stop() == 0
    assert all(0 <= share <= 1 for share in told)
    assert told == sorted(told), "the progress went back"
    # Two shards share it, and one of them has nothing to do: strictly between means that it moved.
    assert any(0.5 < share < 1 for share in told), told


def test_data_routes_wait_for_the_shard_that_is_not_back_and_only_for_it(start: Start) -> None:
    late, early = topic_on(0, SHARDS, "late"), topic_on(1, SHARDS, "early")
    with start() as server:
        server.wait_ready()
        for topic in (late, early):
            assert server.ask("POST", f"/v0/topics/{topic}", {"records": [{"data": topic}]}).status == 201
        server.kill()
    with start() as server:
        server.wait_event("child.started", child="shard-0")
        server.signal_child("shard-0", signal.SIGSTOP)
        server.wait_event("child.state", child="gateway", state="listening")
        server.wait_event("child.state", child="shard-1", state="ready")
        with Connection(server.address) as connection:
            assert connection.ask("GET", "/v0/health").status == 200
            ready = connection.ask("GET", "/v0/ready")
            check_not_ready(ready)
            assert 0 <= ready.detail["replay_progress"] < 1
            for method, path, body in (
                ("POST", f"/v0/topics/{late}", {"records": [{"data": "too early"}]}),
                ("POST", f"/v0/topics/{late}/diff", {}),
                ("POST", f"/v0/topics/{late}/delete", {"before_seq": 2}),
                ("GET", f"/v0/topics/{late}", None),
                ("PUT", f"/v0/topics/{late}", {}),
                ("DELETE", f"/v0/topics/{late}", None),
                ("GET", "/v0/topics", None),
            ):
                reply = connection.ask(method, path, body)
                check_not_ready(reply)
                assert reply.detail["outcome"] == "not_applied", (method, path)
            read = connection.ask("POST", f"/v0/topics/{early}/diff", {})
            assert [record["data"] for record in read.body["records"]] == [early]
            server.signal_child("shard-0", signal.SIGCONT)
            server.wait_ready()
            read = connection.ask("POST", f"/v0/topics/{late}/diff", {})
            assert [record["data"] for record in read.body["records"]] == [late]
        assert server.stop() == 0
