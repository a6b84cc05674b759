"""The requests of one connected link to a shard: what goes out, what is in flight, what comes back.

Promises:
  * What is queued in one sweep leaves in one send; many requests are in flight at once.
  * When the link is lost, every request on it fails and says whether the shard may have seen it: outcome
    "not_applied" (never sent) or "unknown" (sent, even partly).
  * Nothing grows without bound: requests in flight, queued bytes and waiting uploads are limited, and
    beyond a limit the answer is 429.
  * A caller that is cancelled sends CANCEL and is forgotten; a late reply to it is dropped.
"""

import socket
from collections.abc import Callable
from typing import Final, TypeAlias

import trio

from topics import errors
from topics.polling import BROKEN, READABLE, WRITABLE, Poller
from topics.protocol import codec
from topics.protocol.codec import Decoder, ProtocolError
from topics.protocol.messages import (
    INLINE_BYTES_MAX,
    KIB,
    MIB,
    PART_BYTES,
    PART_CREDITS,
    U32_MAX,
    BodyOpen,
    Cancel,
    Credit,
    Drain,
    Message,
    Op,
    Part,
    Reply,
    ReplyOpen,
)
from topics.protocol.peer import widen

# More callers than this per shard wait for a shard that does not keep up: telling them is kinder.
REQUESTS_IN_FLIGHT_MAX: Final = 10_000
# Whole requests that the socket has not taken yet.
SEND_QUEUE_BYTES_MAX: Final = 16 * MIB
# Bodies that go in parts, the one under way and those behind it. One always fits, whatever its size.
UPLOAD_BYTES_MAX: Final = 128 * MIB
RECEIVE_BYTES: Final = 256 * KIB
RETRY_AFTER_S: Final = 1

# Called once, with the reply or with the reason for none.
OnDone: TypeAlias = Callable[[Reply | None, errors.TopicsError | None], None]


# Shared by all requests whose answer comes by a call: making an event costs as much as packing a request.
_NOBODY_SLEEPS: Final = trio.Event()


class _Bulk:
    """A reply that comes in parts."""

    __slots__ = ("head", "parts", "received_bytes")

    def __init__(self, head: ReplyOpen) -> None:
        self.head = head
        self.parts: list[bytes] = []
        self.received_bytes = 0


class Ticket:
    """One request in flight: what has been sent of it, and what has come back."""

    __slots__ = (
        "_exchange",
        "abandoned",
        "bulk",
        "credits",
        "error",
        "id",
        "on_done",
        "reply",
        "sent",
        "wake",
    )

    def __init__(self, exchange: "Exchange", id: int, on_done: OnDone | None = None) -> None:
        self._exchange = exchange
        self.id = id
        # Either somebody sleeps until there is news, or somebody is called when there is an answer.
        self.wake = trio.Event() if on_done is None else _NOBODY_SLEEPS
        self.on_done = on_done
        self.sent = self.abandoned = False
        self.credits = PART_CREDITS
        self.bulk: _Bulk | None = None
        self.reply: Reply | None = None
        self.error: errors.TopicsError | None = None

    @property
    def done(self) -> bool:
        return self.reply is not None or self.error is not None

    async def news(self) -> None:
        """Returns when there is an answer, an error or a credit since the last call."""
        await self.wake.wait()
        if not self.done:
            self.wake = trio.Event()

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        if not self.done:
            self.on_done = None
            self._exchange.abandon(self)

    def finish(self, reply: Reply) -> None:
        self.reply = reply
        if self.on_done is not None:
            self.on_done(reply, None)
        else:
            self.wake.set()

    def fail(self, error: errors.TopicsError) -> None:
        self.error = error
        if self.on_done is not None:
            self.on_done(None, error)
        else:
            self.wake.set()


class Exchange:
    """One connected socket after its hello: the queue out, the requests in flight, the parts in."""

    def __init__(self, sock: socket.socket, poller: Poller, decoder: Decoder, shard: int) -> None:
        self.shard = shard
        self.lost: str | None = None
        self.ended = trio.Event()
        self._sock = sock
        self._poller = poller
        self._decoder = decoder
        self._waiters: dict[int, Ticket] = {}
        # Bytes to send, and the request they belong to: one that is abandoned before it began is not sent.
        self._queue: list[tuple[bytes, Ticket | None]] = []
        self._queued_bytes = 0
        # What the socket has not taken of an earlier send.
        self._rest = memoryview(b"")
        self._upload_turn = trio.Lock()
        self._upload_bytes = 0
        self._next_id = 0
        sock.setblocking(False)
        widen(sock)
        poller.watch(sock.fileno(), READABLE, self._on_event)

    def _on_event(self, event: int) -> None:
        if event & WRITABLE and self.lost is None:
            self._flush()
        if event & (READABLE | BROKEN) and self.lost is None:
            self._receive()

    def _receive(self) -> None:
        try:
            data = self._sock.recv(RECEIVE_BYTES)
            if not data:
                self.lose("the shard closed the link")
                return
            for message in self._decoder.feed(data):
                self._take(message)
        except BlockingIOError:
            return
        except OSError as error:
            self.lose(f"receiving failed: {error}")
        except ProtocolError as error:
            self.lose(f"protocol error: {error.reason}")

    def _flush(self) -> None:
        """Send whatever has been queued since the last time, as one."""
        if self.lost is not None:
            return
        stuck = bool(self._rest)
        if not stuck:
            self._rest = memoryview(self._take_queue())
        try:
            sent = self._sock.send(self._rest) if self._rest else 0
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.lose(f"sending failed: {error}")
            return
        self._queued_bytes -= sent
        self._rest = self._rest[sent:]
        if self._rest:
            if not stuck:
                self._poller.change(self._sock.fileno(), READABLE | WRITABLE)
        elif stuck:
            self._poller.change(self._sock.fileno(), READABLE)
            if self._queue:
                self._poller.at_end(self._flush)

    def _take_queue(self) -> bytes:
        queue, self._queue = self._queue, []
        chunks: list[bytes] = []
        for data, waiter in queue:
            if waiter is not None:
                if waiter.abandoned and not waiter.sent:
                    self._queued_bytes -= len(data)
                    continue
                waiter.sent = True
            chunks.append(data)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def lose(self, reason: str) -> None:
        """Fails every request on this link. The first reason counts."""
        if self.lost is not None:
            return
        self.lost = reason
        self._poller.forget(self._sock.fileno())
        self._sock.close()
        self.ended.set()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.fail(link_lost(self.shard, sent=waiter.sent))

    def post(self, message: Cancel | Credit | Drain) -> None:
        """Queues a message that nobody waits for."""
        if self.lost is None:
            self._put(codec.encode(message), None)

    def _put(self, data: bytes, waiter: Ticket | None) -> None:
        if not self._queue and not self._rest:
            self._poller.at_end(self._flush)
        self._queue.append((data, waiter))
        self._queued_bytes += len(data)

    async def request(self, op: Op, topic: bytes, params: bytes, body: bytes, arrived_ns: int) -> Reply:
        bulk = len(body) > INLINE_BYTES_MAX
        if self.lost is not None:
            # Those who waited have been told; nobody would tell a latecomer.
            raise link_lost(self.shard, sent=False)
        self._check_room(len(body), bulk=bulk)
        waiter = self._enter()
        try:
            if bulk:
                await self._upload(
                    BodyOpen(waiter.id, op, topic, arrived_ns, params, len(body)), body, waiter
                )
            else:
                self._put(codec.encode_request(waiter.id, op, topic, arrived_ns, params, body), waiter)
            while not waiter.done:
                await waiter.news()
        finally:
            waiter.cancel()
        if waiter.reply is not None:
            return waiter.reply
        raise waiter.error or errors.Internal("a request ended without reply or reason")

    def submit(
        self, op: Op, topic: bytes, params: bytes, body: bytes, arrived_ns: int, on_done: OnDone
    ) -> Ticket:
        """A request with an inline body; `on_done` is called with the reply, or with the reason for none."""
        if self.lost is not None:
            raise link_lost(self.shard, sent=False)
        self._check_room(len(body), bulk=False)
        ticket = self._enter(on_done)
        self._put(codec.encode_request(ticket.id, op, topic, arrived_ns, params, body), ticket)
        return ticket

    def abandon(self, ticket: Ticket) -> None:
        ticket.abandoned = True
        self._waiters.pop(ticket.id, None)
        if ticket.sent:
            self.post(Cancel(ticket.id))

    def _check_room(self, body_bytes: int, *, bulk: bool) -> None:
        if len(self._waiters) >= REQUESTS_IN_FLIGHT_MAX:
            raise throttled(self.shard, "requests in flight", REQUESTS_IN_FLIGHT_MAX)
        used, limit = (
            (self._upload_bytes, UPLOAD_BYTES_MAX) if bulk else (self._queued_bytes, SEND_QUEUE_BYTES_MAX)
        )
        if used and used + body_bytes > limit:
            raise throttled(self.shard, "bytes waiting to be sent", limit)

    def _enter(self, on_done: OnDone | None = None) -> Ticket:
        while self._next_id in self._waiters:
            self._next_id = (self._next_id + 1) & U32_MAX
        id = self._next_id
        self._next_id = (id + 1) & U32_MAX
        ticket = self._waiters[id] = Ticket(self, id, on_done)
        return ticket

    async def _upload(self, head: BodyOpen, body: bytes, waiter: Ticket) -> None:
        """Sends a body in parts as credits allow; ends early when the request is answered or lost."""
        self._upload_bytes += len(body)
        try:
            async with self._upload_turn:
                if waiter.done:
                    return
                self._put(codec.encode(head), waiter)
                view, at = memoryview(body), 0
                while at < len(body) and not waiter.done:
                    if waiter.credits == 0:
                        await waiter.news()
                        continue
                    part = view[at : at + PART_BYTES]
                    waiter.credits -= 1
                    self._put(b"".join((codec.part_head(head.id, len(part)), part)), waiter)
                    at += len(part)
                if at < len(body):
                    # Answered before it was read: this closes the upload in the shard, so the next may open.
                    self.post(Cancel(head.id))
        finally:
            self._upload_bytes -= len(body)

    def _take(self, message: Message) -> None:
        """One message from the shard. An id nobody waits for belongs to a cancelled request: dropped."""
        match message:
            case Reply():
                waiter = self._waiters.pop(message.id, None)
                if waiter is not None:
                    if waiter.bulk is not None:
                        raise ProtocolError(f"a second reply to request {message.id}")
                    waiter.finish(message)
            case ReplyOpen():
                waiter = self._waiters.get(message.id)
                if waiter is not None:
                    if waiter.bulk is not None:
                        raise ProtocolError(f"a second reply to request {message.id}")
                    waiter.bulk = _Bulk(message)
            case Part():
                self._take_part(message)
            case Credit():
                waiter = self._waiters.get(message.id)
                if waiter is not None:
                    waiter.credits += message.parts
                    waiter.wake.set()
            case _:
                raise ProtocolError(f"a {type(message).__name__} from a shard")

    def _take_part(self, part: Part) -> None:
        waiter = self._waiters.get(part.id)
        if waiter is None:
            return
        bulk = waiter.bulk
        if bulk is None or bulk.received_bytes + len(part.data) > bulk.head.length:
            raise ProtocolError(f"a part that belongs to no reply, or runs over it: request {part.id}")
        bulk.parts.append(part.data)
        bulk.received_bytes += len(part.data)
        if bulk.received_bytes < bulk.head.length:
            self.post(Credit(part.id, 1))
            return
        del self._waiters[part.id]
        head = bulk.head
        waiter.finish(Reply(head.id, head.status, head.retry_after_s, b"".join(bulk.parts)))


def link_lost(shard: int, *, sent: bool) -> errors.NotReady:
    if sent:
        message = f"shard {shard} was lost before it answered; the request may or may not have been applied"
    else:
        message = f"shard {shard} is not reachable; the request was not applied"
    detail = {"shard": shard, "outcome": "unknown" if sent else "not_applied"}
    return errors.NotReady(message, retry_after_s=RETRY_AFTER_S, detail=detail)


def throttled(shard: int, what: str, limit: int) -> errors.Throttled:
    return errors.Throttled(
        f"shard {shard} does not keep up: more than {limit} {what}",
        retry_after_s=RETRY_AFTER_S,
        detail={"shard": shard, "retry_after_ms": RETRY_AFTER_S * 1000},
    )
