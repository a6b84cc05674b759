"""SIGTERM and SIGINT end a server in order: nothing new, everything under way answered, exit code 0.

After it no ack is missing, and no topic but the ephemeral ones has a tombstone.
"""

import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import pytest

from tests.crash.client import Connection, Reply
from tests.crash.conftest import Start
from tests.crash.ledger import CLASSES, read_all, topic_on
from tests.crash.processes import SHARDS, Server, eventually
from tests.crash.workload import Workload

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
# HTTP/1.1 has two front doors, and each has its own way to stop.
DOORS = pytest.mark.parametrize("fast_lane", ["1", "0"])
# Far below the drain timeout of 10 s and the long-poll's 30 s: nobody was waited for in vain.
PROMPT_S = 5.0


def park_long_poll(server: Server, topic: str, replies: list[Reply]) -> threading.Thread:
    """A long-poll of 30 s that is known to wait in the shard."""

    def last_read() -> object:
        return server.ask("GET", f"/v0/topics/{topic}?touch=false").body["last_read_ts"]

    def poll() -> None:
        replies.append(server.ask("POST", f"/v0/topics/{topic}/diff", {"from_seq": 1, "wait_ms": 30_000}))

    assert last_read() is None
    thread = threading.Thread(target=poll)
    thread.start()
    eventually("the long-poll in the shard", lambda: last_read() is not None)
    return thread


def refused(server_port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server_port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


@DOORS
@SIGNALS
def test_stop_answers_long_polls_early_and_waits_for_no_idle_connection(
    start: Start, number: signal.Signals, fast_lane: str
) -> None:
    topic = topic_on(1, SHARDS, "polled")
    replies: list[Reply] = []
    with start(TOPICS_FAST_LANE=fast_lane) as server:
        server.wait_ready()
        assert server.ask("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}).status == 201
        with Connection(server.address) as idle, Connection(server.address) as silent:
            assert idle.ask("GET", "/v0/health").status == 200
            silent.connect()
            polling = park_long_poll(server, topic, replies)
            port = server.address.port
            began_s = time.monotonic()
            assert server.stop(number) == 0
            took_s = time.monotonic() - began_s
            polling.join(PROMPT_S)
        assert took_s < PROMPT_S
        assert refused(port)
    (reply,) = replies
    assert reply.status == 200
    assert reply.body["records"] == []
    assert reply.body["next_from_seq"] == 1
    assert reply.body["tombstone"] is None


@DOORS
def test_request_under_way_is_finished_while_new_ones_are_refused(start: Start, fast_lane: str) -> None:
    topic = topic_on(0, SHARDS, "slow")
    body = json.dumps({"records": [{"data": "x" * 1000}]}).encode()
    head = (
        f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with start(TOPICS_FAST_LANE=fast_lane) as server:
        server.wait_ready()
        address = server.address
        slow = socket.create_connection((address.host, address.port), timeout=30)
        with closing(slow):
            slow.sendall(head.encode() + body[:100])
            # The gateway serves connections in the order in which they come; this one came later.
            assert server.ask("GET", "/v0/health").status == 200
            server.process.send_signal(signal.SIGTERM)
            server.wait_event("gateway.draining")
            eventually("a closed door", lambda: refused(address.port))
            assert server.process.poll() is None
            slow.sendall(body[100:])
            with slow.makefile("rb") as answer:
                status_line, _, rest = answer.read().partition(b"\r\n")
        assert status_line.startswith(b"HTTP/1.1 201"), status_line
        assert json.loads(rest.partition(b"\r\n\r\n")[2])["seqs"] == [1]
        assert server.wait_end() == 0
    with start() as server:
        server.wait_ready()
        with Connection(server.address) as connection:
            assert read_all(connection, topic).records == {1: "x" * 1000}


def test_probes_that_were_begun_before_the_stop_are_told_of_it(start: Start) -> None:
    """Nothing new is accepted, so a prober learns it on a connection that it had begun to use.

    The fast lane alone waits for the rest of a head then; Hypercorn ends such a connection.
    """
    held = b"POST /v0/topics/slow HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with start() as server:
        server.wait_ready()
        where = (server.address.host, server.address.port)
        with ExitStack() as stack:
            slow, *probes = [
                stack.enter_context(socket.create_connection(where, timeout=30)) for _ in range(3)
            ]
            slow.sendall(held + b"Content-Length: 24\r\n\r\n{")
            for probe, path in zip(probes, (b"/v0/ready", b"/v0/health"), strict=True):
                probe.sendall(b"GET " + path + b" HTTP/1.1\r\nHos")
            # Served in the order in which they came; this one came later.
            assert server.ask("GET", "/v0/health").status == 200
            server.process.send_signal(signal.SIGTERM)
            server.wait_event("gateway.draining")
            answers = []
            for probe in probes:
                probe.sendall(b"t: localhost\r\n\r\n")
                with probe.makefile("rb") as answer:
                    answers.append(answer.read())
            slow.sendall(b'"records":[{"data":1}]}')
            with slow.makefile("rb") as answer:
                assert answer.read().startswith(b"HTTP/1.1 201")
        assert answers[0].startswith(b"HTTP/1.1 503"), answers
        assert b'"shutting_down"' in answers[0]
        assert b"retry-after: " in answers[0].lower()
        assert answers[1].startswith(b"HTTP/1.1 200"), answers
        assert server.wait_end() == 0


@DOORS
def test_request_that_never_ends_is_given_up_after_the_drain_timeout(start: Start, fast_lane: str) -> None:
    with start(TOPICS_DRAIN_TIMEOUT_MS="300", TOPICS_FAST_LANE=fast_lane) as server:
        server.wait_ready()
        address = server.address
        with closing(socket.create_connection((address.host, address.port), timeout=30)) as stuck:
            stuck.sendall(
                b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b'Content-Length: 1000\r\n\r\n{"records":'
            )
            assert server.ask("GET", "/v0/health").status == 200
            began_s = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began_s < PROMPT_S


@pytest.mark.parametrize(
    ("number", "fast_lane"), [(signal.SIGTERM, "1"), (signal.SIGINT, "1"), (signal.SIGTERM, "0")]
)
def test_stop_under_load_loses_no_ack_and_leaves_no_tombstone(
    start: Start, number: signal.Signals, fast_lane: str, figures: Callable[[str], None]
) -> None:
    with start(TOPICS_FAST_LANE=fast_lane) as server:
        server.wait_ready()
        with Workload(server.address) as load:
            load.wait_flow()
            load.wait_flow()
            began_s = time.monotonic()
            assert server.stop(number) == 0
            took_s = time.monotonic() - began_s
            stopped = {f.how for f in load.failures_between(0, began_s + took_s)}
            acked = sum(load.acked().values())
            with start() as again:
                again.wait_ready()
                load.address = again.address
                for shard in range(SHARDS):
                    replayed = again.wait_event("log.replayed", shard=shard)
                    assert not replayed["machine_crash"]
                load.audit(died=range(SHARDS))
                load.stop_writing()
                load.wait_followed()
                load.audit(died=())
                assert again.stop() == 0
    # A connection that the server closes while the client sends on it ends in one of the last three.
    assert stopped <= {
        "shutting_down", "not_applied",
        "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "ConnectionError",
    }  # fmt: skip
    assert took_s < PROMPT_S, f"the stop took {took_s:.1f} s"
    figures(
        f"{number.name} under load (fast lane {fast_lane}): ended in {took_s:.2f} s, {acked} acked, 0 lost"
    )


def test_clean_stop_keeps_every_record_but_the_ephemeral_ones(start: Start) -> None:
    names = {durability: topic_on(0, SHARDS, durability) for durability in CLASSES}
    with start() as server:
        server.wait_ready()
        for durability, name in names.items():
            body = {"records": [{"data": text} for text in "abc"], "config": {"durability": durability}}
            assert server.ask("POST", f"/v0/topics/{name}", body).body["seqs"] == [1, 2, 3]
        assert server.stop() == 0
    with start() as server:
        server.wait_ready()
        assert server.wait_event("log.replayed", shard=0)["holes"] <= 1
        with Connection(server.address) as connection:
            for durability, name in names.items():
                reading = read_all(connection, name)
                assert not reading.gaps
                assert connection.ask("GET", f"/v0/topics/{name}").body["config"]["durability"] == durability
                if durability == "ephemeral":
                    assert (reading.records, reading.holes) == ({}, [(1, 3)])
                else:
                    assert (reading.records, reading.holes) == ({1: "a", 2: "b", 3: "c"}, [])
                write = connection.ask("POST", f"/v0/topics/{name}", {"records": [{"data": "next"}]})
                assert write.body["seqs"] == [4]
        assert server.stop() == 0
