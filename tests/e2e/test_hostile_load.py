"""Clients that ask for too much: of requests, connections, bytes. Memory stays bounded, others are served.

Servers of their own, so that nobody else's work is counted in what is measured.
"""

from __future__ import annotations

import gzip
import io
import resource
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hostile import (
    BOTH_DOORS,
    MIB,
    WRITE,
    answers,
    child_pid,
    chunked_post,
    gateway_pid,
    get,
    needs_proof,
    open_files,
    peak_resident_bytes,
    poll,
    post,
    resident_bytes,
    rest_of,
)
from tests.e2e.server import JSON_TYPE, Server, Topic, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL_BODY_BYTES = 8 * MIB
DOORS = {"lane": {}, "quart": {"TOPICS_FAST_LANE": "0"}}
both_doors = pytest.mark.parametrize("door", DOORS)


@pytest.fixture(scope="module")
def servers(start_server: Callable[..., Server]) -> dict[str, Server]:
    """A server per door that only the tests of this file use, one after another."""
    return {door: start_server(settings) for door, settings in DOORS.items()}


@pytest.fixture(scope="module")
def small_servers(start_server: Callable[..., Server]) -> dict[str, Server]:
    """With a limit on bodies that is reached quickly, again and again."""
    limit = {"TOPICS_MAX_BODY_BYTES": str(SMALL_BODY_BYTES)}
    return {door: start_server({**settings, **limit}) for door, settings in DOORS.items()}


@pytest.fixture
def small(small_servers: dict[str, Server], door: str, name: str) -> Topic:
    topic = Topic(small_servers[door], name)
    topic.put()
    return topic


@pytest.fixture
def loaded(servers: dict[str, Server], door: str, name: str) -> Topic:
    topic = Topic(servers[door], name)
    topic.put()
    return topic


class Others:
    """A client that asks for small things all the time, and counts its answers."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.answered = 0
        self.failures: list[object] = []

    def _ask(self) -> None:
        request = get(self._topic.path)
        with self._topic.server.connect() as wire:
            while not self._over.is_set():
                wire.send(request)
                answer = wire.answer()
                if answer.status == 200:
                    self.answered += 1
                else:
                    self.failures.append(answer)

    def __enter__(self) -> Others:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)


# -- requests ---------------------------------------------------------------------------------------------


def flood(topic: Topic, *, bursts: int) -> list[int]:
    """Bursts of 500 tiny requests on one connection, every tenth a write; the seqs of the writes in order."""
    burst = (post(topic.path) + get("/v0/health") * 9) * 50
    seqs: list[int] = []
    with topic.server.connect() as wire:

        def read() -> None:
            for number, answer in enumerate(answers(wire, 500 * bursts)):
                assert answer.status == 200
                if number % 10 == 0:
                    seqs.extend(answer.json["seqs"])

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(bursts):
            wire.send(burst)
        reader.join(100)
        assert not reader.is_alive()
    return seqs


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


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


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


# -- bytes ------------------------------------------------------------------------------------------------


@both_doors
def test_a_client_that_never_reads_costs_bounded_memory_and_no_one_else_waits(
    loaded: Topic, door: str
) -> None:
    loaded.write(*["x" * 500_000] * 12)
    gateway, shard = gateway_pid(loaded.server), child_pid(loaded.server, "shards")
    loaded.diff()
    before = resident_bytes(gateway) + resident_bytes(shard)
    request = post(f"{loaded.path}/diff", b'{"limit":1000}')
    with ExitStack() as stack:
        for _ in range(3):
            sock = stack.enter_context(connect(loaded.server))
            sock.settimeout(0.5)
            with suppress(OSError):
                for _ in range(50):
                    sock.sendall(request * 20)
        with Others(loaded) as others:
            eventually(lambda: others.answered >= 50)
        assert others.failures == []
        # Three answers of 6 MB, each perhaps in two forms on its way; not the thousands that were asked for.
        assert resident_bytes(gateway) + resident_bytes(shard) - before < 100 * MIB


@both_doors
def test_a_body_at_the_limit_does_not_keep_others_from_their_answers(loaded: Topic, door: str) -> None:
    limit = 64 * MIB
    filling = b" " * (limit - len(WRITE))
    with loaded.server.connect() as large, Others(loaded) as others:
        eventually(lambda: others.answered > 0)
        large.send(post(loaded.path, b"").replace(b"Length: 0", b"Length: %d" % limit) + WRITE)
        before = others.answered
        for at in range(0, len(filling), 4 * MIB):
            large.send(filling[at : at + 4 * MIB])
        large.answer("POST").ok()
        # While it was uploaded, decoded and written.
        assert others.answered - before >= 10
    assert others.failures == []
    assert loaded.seqs(limit=1) == [1]


def grows(pid: int, act: Callable[[], None], *, times: int = 6) -> int:
    """By how many bytes a process grows over so many acts, when the first ones have set its size."""
    for _ in range(3):
        act()
    before = resident_bytes(pid)
    for _ in range(times):
        act()
    return resident_bytes(pid) - before


@both_doors
def test_a_body_over_the_limit_by_its_length_is_413_without_being_sent(small: Topic, door: str) -> None:
    with small.server.connect() as wire:
        wire.send(post(small.path, b"").replace(b"Length: 0", b"Length: %d" % (SMALL_BODY_BYTES + 1)))
        ending = rest_of(wire, within_s=5)
    assert ending.statuses == [413]
    assert ending.closed
    assert small.seqs() == []


@both_doors
def test_a_body_over_the_limit_by_its_chunks_is_413_and_not_kept(small: Topic, door: str) -> None:
    def overstep() -> None:
        with small.server.connect() as wire:
            wire.send(chunked_post(small.path, b""))
            for _ in range(9):
                wire.send(b"100000\r\n" + b" " * MIB + b"\r\n")
            wire.send(b"0\r\n\r\n")
            assert answers(wire, 1)[0].status == 413

    assert grows(gateway_pid(small.server), overstep) < 2 * SMALL_BODY_BYTES
    assert small.seqs() == []


@both_doors
def test_a_body_that_is_broken_off_is_not_kept(small: Topic, door: str) -> None:
    def break_off() -> None:
        with small.server.connect() as wire:
            wire.send(post(small.path, b" " * SMALL_BODY_BYTES)[:-1])

    assert grows(gateway_pid(small.server), break_off) < 2 * SMALL_BODY_BYTES
    assert small.seqs() == []


@both_doors
def test_a_body_of_tiny_chunks_costs_what_it_weighs(loaded: Topic, door: str) -> None:
    pid = gateway_pid(loaded.server)
    before = resident_bytes(pid)
    # Through Quart every chunk is an event of its own, so there are fewer.
    spaces = 2 * MIB if door == "lane" else 64 * 1024
    chunks = b"2\r\n  \r\n" * (spaces // 2)
    with loaded.server.connect() as wire, Others(loaded) as others:
        wire.send(chunked_post(loaded.path, b"%x\r\n%s\r\n" % (len(WRITE), WRITE) + chunks + b"0\r\n\r\n"))
        wire.answer("POST").ok()
    assert others.failures == []
    assert others.answered >= 3
    assert peak_resident_bytes(pid) - before < 160 * MIB
    assert resident_bytes(pid) - before < 32 * MIB


def bomb(inflated_bytes: int) -> bytes:
    """Spaces, packed a thousandfold."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        for _ in range(inflated_bytes // MIB):
            file.write(b" " * MIB)
    return packed.getvalue()


@both_doors
@pytest.mark.parametrize("members", [1, 2])
def test_a_gzip_bomb_is_413_and_not_kept(small: Topic, door: str, members: int) -> None:
    body = bomb(64 * MIB // members) * members
    assert len(body) < MIB // 8
    headers = {**JSON_TYPE, "Content-Encoding": "gzip"}

    def explode() -> None:
        small.server.post(small.path, raw=body, headers=headers).failed(413, "payload_too_large")

    with Others(small) as others:
        assert grows(gateway_pid(small.server), explode) < 2 * SMALL_BODY_BYTES
        eventually(lambda: others.answered >= 10)
    assert others.failures == []
    assert small.seqs() == []


@both_doors
def test_a_gzip_bomb_that_is_broken_too_is_400_and_not_kept(small: Topic, door: str) -> None:
    body = bomb(7 * MIB)
    headers = {**JSON_TYPE, "Content-Encoding": "gzip"}

    def explode() -> None:
        for broken in (body + b"x", body[:-1], body[:-8] + b"12345678"):
            small.server.post(small.path, raw=broken, headers=headers).failed(400, "invalid_request")

    assert grows(gateway_pid(small.server), explode) < 2 * SMALL_BODY_BYTES


@both_doors
def test_gzip_followed_by_anything_else_is_400(loaded: Topic, door: str) -> None:
    good = gzip.compress(WRITE, mtime=0)
    headers = {**JSON_TYPE, "Content-Encoding": "gzip"}
    for tail in (b"x", b"\0", b"\x1f\x8b", WRITE, good[:-1]):
        loaded.server.post(loaded.path, raw=good + tail, headers=headers).failed(400, "invalid_request")
    assert loaded.seqs() == []


@BOTH_DOORS
def test_a_slow_client_is_answered_like_a_fast_one(topic: Topic) -> None:
    """Byte by byte, with the others as they are."""
    with topic.server.connect() as wire:
        wire.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in post(topic.path):
            wire.send(bytes([byte]))
        wire.answer("POST").ok(201)
    assert topic.seqs() == [1]
