"""The short way of the lane, for what is one question to a shard: nobody can tell it from the long one."""

import re
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from gateway import routes
from gateway.context import Gateway
from gateway.effects import Handling
from gateway.http import Request, Response
from gateway.keys import KeyStore
from gateway.lane import openings as lane_openings
from gateway.lane import reactor as lane_reactor
from gateway.lane.reactor import Reactor
from gateway.slots import Slots
from tests.fakes.direct_client import gateway_over
from tests.fakes.fake_shard import Answer, FakeShard, echo, never
from topics.keys import parse_keys
from topics.polling import Poller
from topics.protocol.messages import Op
from topics.protocol.messages import Request as ShardRequest

KEYS = parse_keys("full,reader:read,own::a")
JSON = "Content-Type: application/json\r\n"
# It asks for what it would get anyway, and for the long way.
THE_LONG_WAY = "Accept-Encoding: identity\r\n"

REQUESTS = [
    ("POST /v0/topics/a", JSON, "{}"),
    ("POST /v0/topics/a?return_seqs=false", JSON, "{}"),
    ("POST /v0/topics/a?return_seqs=perhaps", JSON, "{}"),
    ("POST /v0/topics/a", JSON + "Idempotency-Key: k\r\n", "{}"),
    ("POST /v0/topics/a", JSON + "Idempotency-Key:\r\n", "{}"),
    ("POST /v0/topics/a", JSON, ""),
    ("POST /v0/topics/a", "", "{}"),
    ("POST /v0/topics/a", "Content-Type: text/plain\r\n", "{}"),
    ("POST /v0/topics/a", "content-type: APPLICATION/JSON; charset=utf8\r\n", "{}"),
    ("POST /v0/topics/a", JSON, "x" * 20_000),
    ("POST /v0/topics/b%20c", JSON, "{}"),
    ("POST /v0/topics/%zz", JSON, "{}"),
    ("POST /v0/topics/b", JSON, "{}"),
    ("POST /v0/topics/a/diff", "", ""),
    ("POST /v0/topics/a/diff", JSON, '{"limit":1}'),
    ("POST /v0/topics/a/delete", JSON, "{}"),
    ("PUT /v0/topics/a", JSON, '{"dead_letter":"b"}'),
    ("PUT /v0/topics/a", "", ""),
    ("GET /v0/topics/a", "", ""),
    ("GET /v0/topics/a?touch=0", "", ""),
    ("HEAD /v0/topics/a", "", ""),
    ("DELETE /v0/topics/a", "", ""),
    ("PATCH /v0/topics/a", "", ""),
    ("GET /v0/topics/a/", "", ""),
    ("GET /v0/nothing", "", ""),
    ("GET /v0/topics/down", "", ""),
    ("GET /v0/topics/busy", "", ""),
    ("GET /v0/health", "", ""),
]


async def odd(request: ShardRequest) -> Answer:
    """Answers of many kinds: small and large, refusals with and without a time to wait."""
    if request.topic == b"down":
        return Answer(503, b'{"error":{}}', retry_after_s=0)
    if request.topic == b"busy":
        return Answer(429, b'{"error":{}}', retry_after_s=7)
    if request.op is Op.DIFF:
        return Answer(200, b"x" * 50_000)
    return await echo(request)


class Lane:
    def __init__(self, port: int, reactor: Reactor, shard: FakeShard) -> None:
        self.port, self.reactor, self.shard = port, reactor, shard
        self.gateway = reactor.gateway
        self.handled = 0

    async def ask(self, line: str, headers: str, body: str) -> bytes:
        """The whole answer, but for its times."""
        text = f"{line} HTTP/1.1\r\nHost: a\r\n{headers}"
        text += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
        answer = b""
        with trio.fail_after(10):
            async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
                await stream.send_all(text.encode())
                while part := await stream.receive_some():
                    answer += part
        head, _, content = answer.partition(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        assert b"content-length: %d" % len(content) in lines or line.startswith("HEAD")
        lines = sorted(kept for kept in lines if not kept.startswith((b"date:", b"content-length:")))
        times = re.compile(rb'(?:server_total|uptime)_ms":[0-9.]*')
        return b"\r\n".join([status, *lines, b"", times.sub(b"", content)])


@pytest.fixture
async def lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lane]:
    shard = FakeShard(tmp_path / "0", answer=odd)
    listener = socket.create_server(("127.0.0.1", 0))
    async with gateway_over([shard]) as client, trio.open_nursery() as nursery:
        poller = Poller()
        await nursery.start(poller.run)
        reactor = Reactor(client.gateway, listener, lambda *_: None, poller)
        await nursery.start(reactor.run)
        lane = Lane(listener.getsockname()[1], reactor, shard)

        def counted(gateway: Gateway, request: Request) -> Handling[Response]:
            lane.handled += 1
            return routes.dispatch(gateway, request)

        monkeypatch.setattr(lane_reactor, "dispatch", counted)
        yield lane
        nursery.cancel_scope.cancel()
    listener.close()


@pytest.mark.parametrize("key", ["", "full", "reader", "own", "unknown"])
async def test_both_ways_ask_the_same_and_answer_the_same(lane: Lane, key: str) -> None:
    if key:
        lane.gateway.keys = KeyStore(KEYS)
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    for line, headers, body in REQUESTS:
        asked = []
        answers = []
        for way in ("", THE_LONG_WAY):
            lane.shard.requests.clear()
            answers.append(await lane.ask(line, headers + authorization + way, body))
            asked.append([replace_times(request) for request in lane.shard.requests])
        assert answers[0] == answers[1], line
        assert asked[0] == asked[1], line
    assert lane.gateway.under_way == 0


def replace_times(request: ShardRequest) -> tuple[Op, bytes, bytes, bytes]:
    return request.op, request.topic, request.params, request.body


async def test_a_plain_question_takes_the_short_way(lane: Lane) -> None:
    await lane.ask("POST /v0/topics/a", JSON, "{}")
    await lane.ask("POST /v0/topics/a/diff", JSON, "{}")
    await lane.ask("GET /v0/topics/a", "", "")
    assert lane.handled == 0
    await lane.ask("GET /v0/topics/a", THE_LONG_WAY, "")
    assert lane.handled == 1


async def test_the_short_way_counts_the_requests_of_a_key_and_gives_their_places_back(lane: Lane) -> None:
    lane.gateway.keys = KeyStore(KEYS)
    lane.gateway.slots = Slots(inflight_per_key=1)
    gate = trio.Event()

    async def waits(request: ShardRequest) -> Answer:
        await gate.wait()
        return Answer()

    lane.shard.answer = waits
    asking = ("GET /v0/topics/a", "Authorization: Bearer full\r\n", "")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.ask, *asking)
        await lane.shard.wait_until(lambda: len(lane.shard.requests) == 1)
        assert b'"max_inflight_per_key"' in await lane.ask(*asking)
        gate.set()
    for _ in range(3):
        assert (await lane.ask(*asking)).startswith(b"HTTP/1.1 200")
    # A client that leaves before its answer gives its place back too.
    lane.shard.answer = never
    async with await trio.open_tcp_stream("127.0.0.1", lane.port) as leaving:
        await leaving.send_all(b"GET /v0/topics/a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer full\r\n\r\n")
        await lane.shard.wait_until(lambda: len(lane.shard.requests) == 5)
    lane.shard.answer = echo
    with trio.fail_after(5):
        while not (await lane.ask(*asking)).startswith(b"HTTP/1.1 200"):  # noqa: ASYNC110
            await trio.sleep(0.05)


async def test_a_draining_server_refuses_on_both_ways(lane: Lane) -> None:
    lane.gateway.draining = True
    for way in ("", THE_LONG_WAY):
        assert b'"shutting_down"' in await lane.ask("GET /v0/topics/a", way, "")


async def test_a_lost_shard_is_told_on_both_ways(lane: Lane) -> None:
    gateway = replace(lane.gateway)
    (link,) = gateway.pool.all()
    link._connection = None
    for way in ("", THE_LONG_WAY):
        assert b'"not_applied"' in await lane.ask("GET /v0/topics/a", way, "")


async def test_a_head_that_came_before_means_the_same_again(lane: Lane) -> None:
    for line, headers, body in REQUESTS:
        first, again = [await lane.ask(line, headers, body) for _ in range(2)]
        assert first == again, line
    assert lane.reactor.openings.known


async def test_a_known_head_with_its_body_in_pieces_is_the_same_request(lane: Lane) -> None:
    text = f"POST /v0/topics/a HTTP/1.1\r\nHost: a\r\n{JSON}Content-Length: 2\r\n\r\n{{}}".encode()
    async with await trio.open_tcp_stream("127.0.0.1", lane.port) as stream:
        for cut in (len(text), *range(1, len(text)), len(text)):
            lane.shard.requests.clear()
            await stream.send_all(text[:cut])
            await trio.testing.wait_all_tasks_blocked(0.001)
            await stream.send_all(text[cut:])
            with trio.fail_after(5):
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
            assert [request.body for request in lane.shard.requests] == [b"{}"]
        # Two at once, the second with a body that is none of the first one's business.
        await stream.send_all(text + text)
        await lane.shard.wait_until(lambda: len(lane.shard.requests) == 3)


@pytest.mark.parametrize(
    "headers", ["Authorization: Bearer k", "Cookie: k", "X-Api-Key: k", "Proxy-Authorization: k", "X: k"]
)
async def test_a_head_that_may_hold_a_secret_is_not_remembered(lane: Lane, headers: str) -> None:
    await lane.ask("GET /v0/topics/a", headers + "\r\n", "")
    await lane.ask("GET /v0/topics/a?token=k", "", "")
    assert not lane.reactor.openings.known


async def test_remembered_heads_are_bounded(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_openings, "REMEMBERED_MAX", 4)
    for number in range(10):
        await lane.ask(f"GET /v0/topics/{number}", "", "")
        await lane.ask(f"GET /v0/topics/{'n' * 1000}{number}", "", "")
    assert 0 < len(lane.reactor.openings.known) <= 4


async def test_a_known_head_is_refused_when_its_caller_is(lane: Lane) -> None:
    """What is remembered of a head is not who may use it."""
    assert (await lane.ask("GET /v0/topics/a", "", "")).startswith(b"HTTP/1.1 200")
    lane.gateway.keys = KeyStore(KEYS)
    assert (await lane.ask("GET /v0/topics/a", "", "")).startswith(b"HTTP/1.1 401")
    lane.gateway.keys = KeyStore()
    lane.gateway.draining = True
    assert (await lane.ask("GET /v0/topics/a", "", "")).startswith(b"HTTP/1.1 503")
