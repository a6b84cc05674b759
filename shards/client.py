"""The one door to a shard for other processes: a link that reconnects, and the pool of all links.

A request never waits for a link: without one it fails at once. What happens to requests on a link that
is up, or is lost, is exchange.py's business.
Not here: what a request means, retries, HTTP.
"""

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from shards.exchange import RECEIVE_BYTES, Exchange, OnDone, Ticket, link_lost
from topics.engine.placement import shard_of
from topics.polling import Poller
from topics.protocol import codec
from topics.protocol.codec import Decoder, ProtocolError
from topics.protocol.messages import PROTOCOL_VERSION, Drain, Hello, Message, Op, Reply
from topics.protocol.peer import peer_uid

__all__ = ["OnDone", "ShardLink", "ShardPool", "Ticket"]

log = logging.getLogger(__name__)

HELLO_TIMEOUT_S: Final = 5.0
# A killed shard is back within some 100 ms; one that stays away is not asked more than once a second.
RECONNECT_MIN_S: Final = 0.02
RECONNECT_MAX_S: Final = 1.0


class ShardLink:
    """The link to one shard. `run` keeps it up; `request` uses it."""

    def __init__(
        self,
        path: Path,
        *,
        shard: int,
        role: str = "gateway",
        epoch: int = 0,
        poller: Poller | None = None,
    ) -> None:
        """`poller` serves the link's socket beside others; without one the link runs its own."""
        self.shard = shard
        self._poller = poller
        self._path = path
        self._hello = Hello(PROTOCOL_VERSION, role, shard, epoch)
        self._connection: Exchange | None = None
        self._changed = trio.Event()
        self._was_connected = False

    @property
    def connected(self) -> bool:
        return self._connection is not None

    async def wait_connected(self) -> None:
        while self._connection is None:
            await self._changed.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Connects, and reconnects for ever. Started before the first link is up: a shard may be slow."""
        async with trio.open_nursery() as nursery:
            poller = self._poller
            if poller is None:
                poller = Poller()
                await nursery.start(poller.run)
            task_status.started()
            await self._keep_up(poller)

    async def _keep_up(self, poller: Poller) -> None:
        backoff_s = RECONNECT_MIN_S
        quiet = False
        while True:
            try:
                stream, decoder = await self._open()
            except (OSError, trio.TooSlowError, trio.BrokenResourceError, ProtocolError) as error:
                # One line per outage, not one per attempt. At the start a shard may simply be slower.
                if not quiet:
                    starting = isinstance(error, OSError) and not self._was_connected
                    level = logging.INFO if starting else logging.WARNING
                    log.log(level, "link.unreachable", extra={"shard": self.shard, "reason": str(error)})
                quiet = True
                await trio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, RECONNECT_MAX_S)
                continue
            backoff_s, quiet = RECONNECT_MIN_S, False
            self._was_connected = True
            await self._serve(stream, decoder, poller)
            await trio.sleep(backoff_s)

    async def _serve(self, stream: trio.SocketStream, decoder: Decoder, poller: Poller) -> None:
        sock = socket.socket(fileno=stream.socket.detach())
        connection = Exchange(sock, poller, decoder, self.shard)
        log.info("link.up", extra={"shard": self.shard})
        self._set_connection(connection)
        try:
            await connection.ended.wait()
        finally:
            self._set_connection(None)
            connection.lose("this side is stopping")
            log.info("link.down", extra={"shard": self.shard, "reason": connection.lost})

    def _set_connection(self, connection: Exchange | None) -> None:
        self._connection = connection
        self._changed.set()
        self._changed = trio.Event()

    async def _open(self) -> tuple[trio.SocketStream, Decoder]:
        """A connected socket whose peer is ours, is the right shard and speaks our version."""
        with trio.fail_after(HELLO_TIMEOUT_S):
            stream = await trio.open_unix_socket(os.fspath(self._path))
            try:
                _check_peer_uid(stream)
                decoder = Decoder()
                greeting = await _first_message(stream, decoder)
                if not isinstance(greeting, Hello) or greeting.role != "shard":
                    raise ProtocolError("the peer did not greet as a shard")
                if greeting.shard != self.shard:
                    raise ProtocolError(f"shard {greeting.shard} answers where shard {self.shard} should")
                await stream.send_all(codec.encode(self._hello))
            except BaseException:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(stream)
                raise
        return stream, decoder

    async def request(
        self, op: Op, topic: str, params: Mapping[str, object] | None, body: bytes, *, arrived_ns: int
    ) -> Reply:
        """The shard's answer, of any status. Raises NotReady or Throttled when there is none."""
        connection = self._connection
        if connection is None:
            raise link_lost(self.shard, sent=False)
        return await connection.request(
            op, topic.encode(), codec.encode_params(params or {}), body, arrived_ns
        )

    def submit(
        self, op: Op, topic: bytes, params: bytes, body: bytes, arrived_ns: int, on_done: OnDone
    ) -> Ticket:
        """Like `request`, encoded, and without waiting. For bodies that fit one message."""
        connection = self._connection
        if connection is None:
            raise link_lost(self.shard, sent=False)
        return connection.submit(op, topic, params, body, arrived_ns, on_done)

    async def drain(self) -> None:
        """Asks the shard to answer this link's parked long-polls now."""
        if self._connection is not None:
            self._connection.post(Drain())
        await trio.lowlevel.checkpoint()


class ShardPool:
    """All links, in shard order; a topic's link is decided by its name."""

    def __init__(self, links: Sequence[ShardLink]) -> None:
        self._links = tuple(links)

    def all(self) -> tuple[ShardLink, ...]:
        return self._links

    def link_for(self, topic: str) -> ShardLink:
        return self._links[shard_of(topic, len(self._links))]


def _check_peer_uid(stream: trio.SocketStream) -> None:
    uid = peer_uid(stream.socket)
    if uid != os.geteuid():
        raise ProtocolError(f"the peer runs as uid {uid}, not as {os.geteuid()}")


async def _first_message(stream: trio.SocketStream, decoder: Decoder) -> Message:
    while chunk := await stream.receive_some(RECEIVE_BYTES):
        messages = decoder.feed(chunk)
        if len(messages) > 1:
            raise ProtocolError("the peer did not wait for our hello")
        if messages:
            return messages[0]
    raise ProtocolError("the peer closed the link before its hello")
