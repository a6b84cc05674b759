"""Bodies and answers that are too large, or packed too well. Memory stays bounded, others are served."""

from __future__ import annotations

import gzip
import io
import select
import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hostile import (
    BOTH_DOORS,
    DOORS,
    MIB,
    WRITE,
    Others,
    answers,
    child_pid,
    chunked_post,
    connect,
    gateway_pid,
    peak_resident_bytes,
    post,
    resident_bytes,
    rest_of,
)
from tests.e2e.server import JSON_TYPE, Server, Topic, Wire, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL_BODY_BYTES = 8 * MIB
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
            so_far = others.answered
            eventually(lambda so_far=so_far: others.answered > so_far)  # type: ignore[misc]
        large.answer("POST").ok()
        # While it was uploaded, decoded and written.
        assert others.answered - before >= 10
    assert others.failures == []
    assert loaded.seqs(limit=1) == [1]


@pytest.mark.parametrize("door", ["lane", "quart"])
def test_large_bodies_together_have_bounded_room_and_small_ones_always_have_some(
    start_server: Callable[..., Server], name: str, door: str
) -> None:
    """Four of the largest fit, all but their last byte, and one more does not, whichever comes last."""
    # Of its own: others look at the most that a server has ever taken.
    loaded = Topic(start_server(DOORS[door]), name)
    loaded.put()
    bodies = [post(loaded.path, WRITE.ljust(size)) for size in [64 * MIB] * 4 + [8 * MIB]]
    with ExitStack() as stack:
        waiting = {stack.enter_context(connect(loaded.server)): body for body in bodies}
        for sock, body in waiting.items():
            sock.sendall(body[:-1])
        (refused,) = select.select(list(waiting), [], [], 20)[0]
        answer = Wire(refused).answer("POST")
        assert answer.failed(429, "throttled") == {"retry_after_ms": 1000}
        assert int(answer.headers["retry-after"]) >= 1
        again = waiting.pop(refused)
        loaded.write("small")
        for sock, body in waiting.items():
            sock.sendall(body[-1:])
            Wire(sock).answer("POST").ok()
    with loaded.server.connect() as wire:
        wire.send(again)
        wire.answer("POST").ok()


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
