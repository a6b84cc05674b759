"""The gateway process: links to all shards, two doors behind the inherited socket, and an orderly end.

The fast lane accepts every connection and serves HTTP/1.1; HTTP/2 and upgrades go to the Quart app under
Hypercorn, and with TOPICS_FAST_LANE=0 everything does.

At SIGTERM, in this order: no new connection is accepted, new requests and /v0/ready answer 503
shutting_down, the shards answer parked long-polls at once, and requests under way may finish within
TOPICS_DRAIN_TIMEOUT_MS. Idle connections do not hold up the end. Exit status 0.
"""

import logging
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final

import trio
from hypercorn.config import Config

from gateway.app import GatewayApp
from gateway.context import Gateway
from gateway.keys import KeyStore
from gateway.lane.handover import HypercornDoor
from gateway.lane.reactor import Reactor
from gateway.origin import LOOPBACK_NAMES, OriginPolicy
from gateway.slots import Slots
from shards.client import ShardLink, ShardPool
from topics import __version__
from topics.child import LISTENING, READY, Boot, boot
from topics.polling import Poller
from topics.settings import Settings

log = logging.getLogger(__name__)

# Also the time a request head may take. Longer than the 60 s after which common proxies close idle
# connections, so that they close them and never send into one that we have just closed.
KEEP_ALIVE_TIMEOUT_S: Final = 75
# No byte from a client for this long ends its connection, also while it waits for an answer: longer
# than the longest long-poll (30 s) and than the longest silence inside a body (30 s).
READ_TIMEOUT_S: Final = 90
KEEP_ALIVE_REQUESTS_MAX: Final = 2**31
LISTEN_BACKLOG: Final = 1024
HEAD_BYTES_MAX: Final = 16 * 1024
# Requests that were on their way when the first DRAIN was sent may park after it.
DRAIN_REPEAT_S: Final = 0.05
DRAIN_QUIET_ROUNDS: Final = 2


def hypercorn_config(drain_timeout_ms: int) -> Config:
    config = Config()
    config.include_server_header = False
    config.keep_alive_timeout = KEEP_ALIVE_TIMEOUT_S
    config.keep_alive_max_requests = KEEP_ALIVE_REQUESTS_MAX
    config.read_timeout = READ_TIMEOUT_S
    config.h11_max_incomplete_size = HEAD_BYTES_MAX
    config.graceful_timeout = drain_timeout_ms / 1000
    # Our handler formats it; what Hypercorn says at INFO is for people at a terminal.
    config.errorlog = logging.getLogger("hypercorn.error")
    config.errorlog.setLevel(logging.WARNING)
    return config


async def run(told: Boot) -> None:
    """Serves until SIGTERM, then drains."""
    if told.listen_fd is None:
        raise ValueError("a gateway needs a listening socket")
    listener = socket.socket(fileno=told.listen_fd)
    listener.listen(LISTEN_BACKLOG)
    poller = Poller()
    links = [
        ShardLink(told.shard_socket(index), shard=index, epoch=told.epoch, poller=poller)
        for index in range(told.shard_count)
    ]
    gateway = Gateway(
        pool=ShardPool(links),
        limits=told.settings.limits,
        version=__version__,
        started_ns=time.monotonic_ns(),
        epoch=told.epoch,
        slots=Slots(inflight_per_key=told.settings.max_inflight_per_key),
        origins=_origins(told.settings),
        keys=KeyStore(told.keys, probe_auth=told.settings.probe_auth),
    )
    door = HypercornDoor(GatewayApp(gateway), hypercorn_config(told.settings.drain_timeout_ms))
    reactor = Reactor(gateway, listener, door.take, poller, serve_here=told.settings.fast_lane)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(poller.run)
            for link in links:
                await nursery.start(link.run)
            await nursery.start(door.run)
            await nursery.start(reactor.run)
            nursery.start_soon(_say_state, told, links)
            await anext(signals)
            log.info("gateway.draining")
            gateway.draining = True
            reactor.stop_accepting()
            await door.stop()
            with trio.move_on_after(told.settings.drain_timeout_ms / 1000):
                await _drained(gateway)
            log.info("gateway.stopped", extra={"requests_left": gateway.under_way})
            nursery.cancel_scope.cancel()


def _origins(settings: Settings) -> OriginPolicy:
    return OriginPolicy(
        own_names=LOOPBACK_NAMES | {settings.host.lower(), *settings.allowed_hosts},
        cors_origins=frozenset(settings.cors_origins),
    )


async def _say_state(told: Boot, links: Sequence[ShardLink]) -> None:
    """The gateway does its whole work once it has reached every shard."""
    told.say(LISTENING)
    for link in links:
        await link.wait_connected()
    told.say(READY)


async def _drained(gateway: Gateway) -> None:
    """Have long-polls answered; returns when nothing has been under way for a while.

    Hypercorn can be left waiting for a connection that it has closed itself (a request that was read at
    the moment of the stop), so it is not asked whether it is done.
    """
    quiet = 0
    while quiet < DRAIN_QUIET_ROUNDS:
        for link in gateway.pool.all():
            await link.drain()
        await trio.sleep(DRAIN_REPEAT_S)
        quiet = quiet + 1 if gateway.under_way == 0 else 0


def main(argv: Sequence[str] | None = None) -> int:
    trio.run(run, boot(argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
