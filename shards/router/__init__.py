"""The router-worker: the process that will carry records from shard to shard.

It is a client of the shards like any other: it keeps a link to each of them, however often one
restarts, and is ready once all have greeted it. It holds no data, so it may be killed at any time.
"""

import signal

import trio

from shards.client import ShardLink
from topics.child import READY, Boot


async def run(boot: Boot) -> None:
    """Hold a link to every shard until SIGTERM."""
    links = [
        ShardLink(boot.shard_socket(index), role="router", shard=index, epoch=boot.epoch)
        for index in range(boot.shard_count)
    ]
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            for link in links:
                nursery.start_soon(link.run)
            nursery.start_soon(_say_ready, boot, links)
            await anext(signals)
            nursery.cancel_scope.cancel()


async def _say_ready(boot: Boot, links: list[ShardLink]) -> None:
    for link in links:
        await link.wait_connected()
    boot.say(READY)
