"""The gateway behind real Hypercorn on loopback: what the transport could spoil."""

import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import h2.connection
import h2.events
import httpx
import trio
import trio.testing

from gateway import serve
from gateway.app import GatewayApp
from gateway.context import Gateway
from shards.client import ShardLink, ShardPool
from tests.fakes.fake_shard import Answer, FakeShard, by_op, echo, status_answer
from topics.child import Boot, encode_boot, socket_name
from topics.engine.limits import Limits
from topics.protocol.messages import Op, Request
from topics.settings import load

JSON = {"content-type": "application/json"}
DRAIN_TIMEOUT_MS = 3000


@dataclass
class Running:
    url: str
    port: int
    shard: FakeShard
    process: trio.Process
    told: list[str]
    changed: trio.Condition

    async def says(self, word: str) -> None:
        async with self.changed:
            with trio.fail_after(20):
                while word not in self.told:
                    await self.changed.wait()

    async def exit_status(self, within_s: float) -> int:
        with trio.fail_after(within_s):
            return await self.process.wait()


async def parked_or_echo(shard: FakeShard, request: Request) -> Answer:
    """A diff waits until it is drained, as a long-poll does; STATUS is ready; the rest is echoed."""
    if request.op is Op.STATUS:
        return status_answer(topics=5)
    if request.op is Op.DIFF:
        await shard.drained.wait()
        return Answer(body=b'{"records":[]}')
    return await echo(request)


@asynccontextmanager
async def running(tmp_path: Path, *, body_bytes: int = 2_000_000) -> AsyncIterator[Running]:
    """A gateway process over one fake shard."""
    shard = FakeShard(tmp_path / socket_name(0))
    shard.answer = lambda request: parked_or_echo(shard, request)
    settings, _ = load({"TOPICS_DRAIN_TIMEOUT_MS": str(DRAIN_TIMEOUT_MS)})
    settings = replace(settings, limits=replace(settings.limits, body_bytes=body_bytes))
    listening = socket.create_server(("127.0.0.1", 0))
    status_read, status_write = os.pipe()
    boot_read, boot_write = os.pipe()
    told = Boot(
        role="gateway",
        index=0,
        parent_pid=os.getpid(),
        data_dir=tmp_path,
        socket_dir=tmp_path,
        shard_count=1,
        settings=settings,
        listen_fd=listening.fileno(),
        status_fd=status_write,
        epoch=1,
    )
    os.write(boot_write, encode_boot(told))
    os.close(boot_write)
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "gateway.serve", "--boot-fd", str(boot_read)],
            pass_fds=(boot_read, status_write, listening.fileno()),
            cwd=Path(__file__).parent.parent.parent,
        )
        os.close(boot_read)
        os.close(status_write)
        port = listening.getsockname()[1]
        listening.close()
        run = Running(f"http://127.0.0.1:{port}", port, shard, process, [], trio.Condition())
        nursery.start_soon(_hear, run, status_read)
        try:
            await run.says("ready")
            yield run
        finally:
            if process.returncode is None:
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
        nursery.cancel_scope.cancel()


async def _hear(run: Running, status_fd: int) -> None:
    async with trio.lowlevel.FdStream(status_fd) as pipe:
        async for part in pipe:
            async with run.changed:
                run.told += part.decode().split()
                run.changed.notify_all()


@asynccontextmanager
async def client(run: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=run.url, timeout=20) as session:
        yield session


async def test_the_whole_way_from_http_to_the_shard_and_back(tmp_path: Path) -> None:
    async with running(tmp_path) as run, client(run) as http:
        assert run.told[0] == "listening"
        written = await http.post("/v0/topics/a%3Ab?return_seqs=0", json={"records": [{"data": 1}]})
        assert written.status_code == 200
        assert written.json()["topic"] == "a:b"
        assert written.json()["params"] == {"return_seqs": False}
        assert "server" not in written.headers
        assert "date" in written.headers
        ready = await http.get("/v0/ready")
        assert (ready.status_code, ready.json()["topics"]) == (200, 5)
        head = await http.head("/v0/topics/jobs")
        got = await http.get("/v0/topics/jobs")
        assert head.headers["content-length"] == got.headers["content-length"] == str(len(got.content))
        assert head.content == b""
        zipped = await http.get("/v0/topics/" + "n" * 200)
        assert zipped.headers["content-encoding"] == "gzip"
        assert zipped.json()["topic"] == "n" * 200
        for method, path, status in (
            ("GET", "/v0/topics/a%2Fb", 400),
            ("GET", "/v0/topics/", 404),
            ("BREW", "/v0/topics/a", 405),
            ("OPTIONS", "/v0/topics/a", 405),
        ):
            assert (await http.request(method, path)).status_code == status


async def test_large_bodies_pass_and_too_large_ones_are_413(tmp_path: Path) -> None:
    async with running(tmp_path, body_bytes=3_000_000) as run, client(run) as http:
        body = b" " * 2_999_998 + b"{}"
        passed = await http.post("/v0/topics/a", content=body, headers=JSON)
        assert (passed.status_code, len(passed.json()["body"])) == (200, 3_000_000)

        async def chunked() -> AsyncIterator[bytes]:
            for _ in range(50):
                yield bytes(65_536)

        for content in (bytes(3_000_001), chunked()):
            refused = await http.post("/v0/topics/a", content=content, headers=JSON)
            assert refused.status_code == 413
            assert refused.json()["error"]["code"] == "payload_too_large"
        assert (await http.get("/v0/health")).status_code == 200


async def test_a_client_that_leaves_cancels_its_long_poll_in_the_shard(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        async with client(run) as http:
            with trio.move_on_after(10) as leaving:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(http.post, "/v0/topics/jobs/diff")
                    await run.shard.wait_until(lambda: len(run.shard.requests) == 1)
                    leaving.cancel()
        await run.shard.wait_until(lambda: run.shard.cancelled == [run.shard.requests[0].id])


async def test_pipelined_requests_and_odd_targets_are_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        stream = await trio.open_tcp_stream("127.0.0.1", run.port)
        async with stream:
            targets = ["/v0/health", f"{run.url}/v0/health", "/v0/health?x=%zz", "*", "/%"]
            for target in targets[:-1]:
                await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: ]bad[host\r\n\r\n".encode())
            await stream.send_all(
                f"GET {targets[-1]} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
            )
            received = b""
            with trio.fail_after(10):
                while chunk := await stream.receive_some():
                    received += chunk
        statuses = [int(head[:3]) for head in received.split(b"HTTP/1.1 ")[1:]]
        assert statuses == [200, 200, 200, 404, 400]


async def test_a_stop_answers_parked_long_polls_and_ignores_idle_connections(tmp_path: Path) -> None:
    async with running(tmp_path) as run, trio.open_nursery() as nursery:
        idle = [await trio.open_tcp_stream("127.0.0.1", run.port) for _ in range(5)]
        kept_alive = [httpx.AsyncClient(base_url=run.url) for _ in range(20)]
        for session in kept_alive:
            for _ in range(3):
                assert (await session.get("/v0/health")).status_code == 200
        answers: list[int] = []

        async def poll() -> None:
            async with client(run) as http:
                answers.append((await http.post("/v0/topics/jobs/diff")).status_code)

        for _ in range(10):
            nursery.start_soon(poll)
        await run.shard.wait_until(lambda: len(run.shard.requests) == 10)
        run.process.send_signal(signal.SIGTERM)
        assert await run.exit_status(within_s=DRAIN_TIMEOUT_MS / 1000 - 1) == 0
        assert run.shard.drains >= 1
        assert answers == [200] * 10
        for session in kept_alive:
            await session.aclose()
        for stream in idle:
            await stream.aclose()


async def test_a_stop_is_bounded_when_a_request_does_not_end(tmp_path: Path) -> None:
    async with running(tmp_path) as run, trio.open_nursery() as nursery:
        run.shard.drained = trio.Event()
        never_drained = trio.Event()

        async def stuck(request: Request) -> Answer:
            await never_drained.wait()
            return Answer()

        run.shard.answer = stuck

        async def poll() -> None:
            # The end of the link may still be told, or the connection just ends.
            async with client(run) as http:
                with suppress(httpx.TransportError):
                    answer = await http.get("/v0/topics/jobs")
                    assert answer.json()["error"]["detail"]["outcome"] == "unknown"

        nursery.start_soon(poll)
        await run.shard.wait_until(lambda: len(run.shard.requests) == 1)
        run.process.send_signal(signal.SIGTERM)
        assert await run.exit_status(within_s=DRAIN_TIMEOUT_MS / 1000 + 3) == 0


async def test_http2_survives_refused_bodies_and_keeps_serving(tmp_path: Path) -> None:
    """An answer before the end of the body must not break the connection for other streams."""
    async with running(tmp_path, body_bytes=100_000) as run:
        stream = await trio.open_tcp_stream("127.0.0.1", run.port)
        connection = h2.connection.H2Connection()
        connection.initiate_connection()
        statuses: dict[int, int] = {}
        ended: set[int] = set()

        async def pump() -> None:
            await stream.send_all(connection.data_to_send())
            for event in connection.receive_data(await stream.receive_some()):
                if isinstance(event, h2.events.ResponseReceived):
                    statuses[event.stream_id] = int(dict(event.headers)[b":status"])
                elif isinstance(event, h2.events.StreamEnded):
                    ended.add(event.stream_id)

        def begin(stream_id: int, method: str, path: str, *, end: bool) -> None:
            fields = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "a")]
            connection.send_headers(stream_id, [*fields, *JSON.items()], end_stream=end)

        async with stream:
            with trio.fail_after(10):
                for stream_id, path in ((1, "/v0/topics/a"), (3, "/nope"), (5, "/v0/topics/!")):
                    begin(stream_id, "POST", path, end=False)
                    left = 200_000
                    while left:
                        room = min(left, connection.local_flow_control_window(stream_id), 16_384)
                        if room == 0:
                            await pump()
                            continue
                        connection.send_data(stream_id, bytes(room))
                        left -= room
                        await stream.send_all(connection.data_to_send())
                    connection.end_stream(stream_id)
                    while stream_id not in ended:
                        await pump()
                begin(7, "GET", "/v0/health", end=True)
                while 7 not in ended:
                    await pump()
        assert statuses == {1: 413, 3: 404, 5: 413, 7: 200}


async def test_the_app_answers_through_quarts_own_client_too(tmp_path: Path) -> None:
    shard = FakeShard(tmp_path / "0", answer=by_op({}))
    link = ShardLink(shard.path, shard=0)
    app = GatewayApp(Gateway(pool=ShardPool([link]), limits=Limits(), version="1", started_ns=0))
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.run)
        await nursery.start(link.run)
        await link.wait_connected()
        quart = app.test_client()
        response = await quart.post("/v0/topics/jobs", data=b'{"records":[]}', headers=JSON)
        assert response.status_code == 200
        assert json.loads(await response.get_data())["body"] == '{"records":[]}'
        assert response.headers["content-type"] == "application/json"
        missing = await quart.get("/nope")
        assert (missing.status_code, (await missing.get_json())["error"]["code"]) == (404, "not_found")
        nursery.cancel_scope.cancel()


def test_a_long_poll_fits_into_every_timeout() -> None:
    config = serve.hypercorn_config(5000)
    assert config.read_timeout is not None
    assert config.read_timeout > 30 + 15
    assert config.graceful_timeout == 5
    assert not config.include_server_header
