"""The router-worker greets every shard before it is ready, and again after a shard's restart."""

import logging
import os
import socket
from pathlib import Path

import pytest
import trio

from topics import settings
from topics.protocol import codec
from topics.protocol.codec import Decoder
from topics.protocol.messages import PROTOCOL_VERSION, Hello
from topics.supervisor.children import Child, Ground


async def greeted(listener: trio.SocketListener, shard: int) -> tuple[trio.SocketStream, Hello]:
    """Accept one link as shard `shard`; the client's hello."""
    stream = await listener.accept()
    await stream.send_all(codec.encode(Hello(PROTOCOL_VERSION, "shard", shard, 1)))
    decoder = Decoder()
    while True:
        for message in decoder.feed(await stream.receive_some()):
            assert isinstance(message, Hello)
            return stream, message


async def listen(path: Path) -> trio.SocketListener:
    sock = trio.socket.socket(socket.AF_UNIX)
    await sock.bind(str(path))
    sock.listen()
    return trio.SocketListener(sock)


async def test_the_router_worker_is_ready_when_every_shard_has_greeted_it_and_ends_with_zero(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ground = Ground(
        data_dir=tmp_path,
        socket_dir=tmp_path,
        shard_count=2,
        settings=settings.load({})[0],
        environ=dict(os.environ),
    )
    ready = trio.Event()
    router = Child("router", 0, "shards.router", ground, on_state=ready.set)
    with trio.fail_after(30):
        async with (
            await listen(tmp_path / "shard-00.sock") as first,
            await listen(tmp_path / "shard-01.sock") as second,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(router.run)
            link, hello = await greeted(first, 0)
            assert hello == Hello(PROTOCOL_VERSION, "router", 0, 1)
            assert not ready.is_set()
            async with (await greeted(second, 1))[0]:
                await ready.wait()
                # A shard that restarts is greeted again.
                await link.aclose()
                async with (await greeted(first, 0))[0]:
                    assert await router.stop(10)
    ends = [vars(line)["exit_code"] for line in caplog.records if line.getMessage() == "child.exited"]
    assert ends == [0]
