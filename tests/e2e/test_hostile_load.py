"""Clients that ask for too much: of requests, of connections. Memory stays bounded, others are served.

Servers of their own, so that nobody else's work is counted in what is measured.
"""

from __future__ import annotations

import resource
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hostile import (
    DOORS,
    MIB,
    Others,
    answers,
    child_pid,
    chunked_post,
    connect,
    gateway_pid,
    get,
    needs_proof,
    open_files,
    poll,
    post,
    resident_bytes,
)
from tests.e2e.server import Server, Topic, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

both_doors = pytest.mark.parametrize("door", DOORS)


@pytest.fixture(scope="module")
def servers(start_server: Callable[..., Server]) -> dict[str, Server]:
    """A server per door that only the tests of this file use, one after another."""
    return {door: start_server(settings) for door, settings in DOORS.items()}


@pytest.fixture
def loaded(servers: dict[str, Server], door: str, name: str) -> Topic:
    topic = Topic(servers[door], name)
    topic.put()
    return topic


# -- requests ---------------------------------------------------------------------------------------------


def flood(topic: Topic, *, bursts: int) -> list[int]:
    """Bursts of 500 tiny requests on one connection, every tenth a write; the seqs of the writes in order."""
    burst = (post(topic.path) + get("/v0/health") * 9) * 50
    with topic.server.connect() as wire:
        sender = threading.Thread(target=wire.send, args=(burst * bursts,))
        sender.start()
        got = answers(wire, 500 * bursts)
        sender.join(10)
    assert [answer for answer in got if answer.status != 200][:3] == []
    return [seq for answer in got[::10] for seq in answer.json["seqs"]]


def check_flood(topic: Topic, *, bursts: int) -> None:
    pid = gateway_pid(topic.server)
    topic.put(durability="ephemeral", cap_records=100)
    flood(topic, bursts=1)  # buffers reach their working size
    before = resident_bytes(pid)
    assert flood(topic, bursts=bursts) == list(range(51, 51 + 50 * bursts))
    assert resident_bytes(pid) - before < 16 * MIB
    assert gateway_pid(topic.server) == pid, "the gateway was restarted"


@both_doors
def test_a_flood_on_one_connection_is_answered_in_order_in_bounded_memory(loaded: Topic, door: str) -> None:
    check_flood(loaded, bursts=200 if door == "lane" else 6)


@needs_proof
@pytest.mark.parametrize("door", ["quart"])
@pytest.mark.timeout(300)
def test_a_hundred_thousand_requests_on_one_connection_through_quart(loaded: Topic, door: str) -> None:
    check_flood(loaded, bursts=200)


@both_doors
@pytest.mark.parametrize("path", ["/v0/health", "/nowhere"])
def test_a_burst_that_needs_no_shard_is_answered_whole(loaded: Topic, path: str, door: str) -> None:
    pid, count = gateway_pid(loaded.server), 20_000 if door == "lane" else 2000
    request = get(path)
    with loaded.server.connect() as wire:
        sender = threading.Thread(target=wire.send, args=(request * count,))
        sender.start()
        statuses = {answer.status for answer in answers(wire, count)}
        sender.join(10)
    assert len(statuses) == 1
    assert gateway_pid(loaded.server) == pid, "the gateway was restarted"


@both_doors
def test_what_is_sent_behind_a_waiting_request_is_not_collected(loaded: Topic, door: str) -> None:
    """A long-poll, and behind it on the same connection a body without end, or requests without end."""
    pid = gateway_pid(loaded.server)
    before = resident_bytes(pid)
    parts = [chunked_post(loaded.path, b""), b"100000\r\n" + b"x" * MIB + b"\r\n"]
    with loaded.server.connect() as endless, loaded.server.connect() as many:
        for wire in (endless, many):
            wire.send(poll(loaded.path, 3000))
            wire.sock.settimeout(0.3)
        with suppress(OSError):
            endless.send(parts[0])
            for _ in range(64):
                endless.send(parts[1])
        with suppress(OSError):
            for _ in range(64):
                many.send(get("/v0/health") * 25_000)
        # What the kernel holds is not the gateway's.
        assert resident_bytes(pid) - before < 24 * MIB
    loaded.write("x")


# -- connections ------------------------------------------------------------------------------------------


@contextmanager
def many_descriptors(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count:
        pytest.skip(f"this process may open {hard} files; the test needs {count}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@both_doors
def test_slow_heads_and_bodies_of_many_clients_hold_up_nobody_and_are_all_answered(
    loaded: Topic, door: str
) -> None:
    """A hundred requests, each in pieces of a few bytes, all in progress at the same time."""
    request = post(loaded.path)
    with ExitStack() as stack:
        wires = [stack.enter_context(loaded.server.connect()) for _ in range(100)]
        others = stack.enter_context(Others(loaded))
        for at in range(0, len(request), 5):
            for wire in wires:
                wire.send(request[at : at + 5])
            so_far = others.answered
            eventually(lambda so_far=so_far: others.answered > so_far)  # type: ignore[misc]
        seqs = [wire.answer("POST").ok()["seqs"] for wire in wires]
    assert others.failures == []
    assert sorted(seqs) == [[seq] for seq in range(1, 101)]


@both_doors
def test_thousands_of_connections_opened_and_abandoned_are_forgotten(loaded: Topic, door: str) -> None:
    server, pid = loaded.server, gateway_pid(loaded.server)
    files = open_files(pid)
    count = 2000
    begun = [
        b"",
        b"P",
        b"GET /v0/health HT",
        post(loaded.path)[:-3],
        get("/v0/health"),
        poll(loaded.path, 20_000),
    ]
    with many_descriptors(count + 500), ExitStack() as stack:
        for number in range(count):
            sock = stack.enter_context(connect(server))
            sock.sendall(begun[number % len(begun)])
            if number % 2:
                # Gone without a farewell: a reset.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        eventually(lambda: open_files(pid) >= files + count * 0.9)
        assert loaded.write("while they are open")["seqs"] == [1]
    eventually(lambda: open_files(pid) <= files + 10, within_seconds=20)
    started = time.monotonic()
    assert loaded.write("and after")["seqs"] == [2]
    assert time.monotonic() - started < 5


def test_without_descriptors_the_server_waits_and_goes_on(
    start_server: Callable[..., Server], name: str
) -> None:
    server = start_server({})
    topic = Topic(server, name)
    topic.put()
    pid = gateway_pid(server)
    limit = open_files(pid) + 20
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    with ExitStack() as stack:
        waiting = [stack.enter_context(connect(server)) for _ in range(100)]
        eventually(lambda: open_files(pid) >= limit - 1)
        # Those it has go on; those beyond wait in the backlog.
        waiting[0].sendall(get("/v0/health"))
        assert waiting[0].recv(100).startswith(b"HTTP/1.1 200")
        assert topic.write("held connection")["seqs"] == [1]
        waiting[-1].sendall(get("/v0/health"))
        for sock in waiting[:-1]:
            sock.close()
        assert waiting[-1].recv(100).startswith(b"HTTP/1.1 200")
    topic.write("after")
    assert gateway_pid(server) == pid
    assert "gateway.accept_paused" in server.complaints()


@both_doors
def test_long_polls_of_clients_that_vanish_leave_nothing_in_the_shard(loaded: Topic, door: str) -> None:
    shard, gateway = child_pid(loaded.server, "shards"), gateway_pid(loaded.server)
    for _ in range(2):  # the first round brings everything to its working size
        before = resident_bytes(shard), resident_bytes(gateway)
        for _ in range(10 if door == "lane" else 3):
            with ExitStack() as stack:
                for _ in range(100):
                    stack.enter_context(connect(loaded.server)).sendall(poll(loaded.path, 30_000))
        # One that came later is woken, and at once: nobody stands in its way.
        assert loaded.write("x")["count"] == 1
    assert resident_bytes(shard) - before[0] < 8 * MIB
    assert resident_bytes(gateway) - before[1] < 16 * MIB
