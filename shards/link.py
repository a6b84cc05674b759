"""One peer of a shard: bytes in, messages out, and answers back in as few sends as possible.

* A large answer leaves in parts, as many as the peer has given credit for, between other answers.
* A peer that does not read its answers is not read from, so its own requests bound what waits here.
"""

import socket
from collections import deque
from typing import NamedTuple

from shards.command import Answer, Command
from topics.protocol.codec import Decoder, encode, part_head, reply_head
from topics.protocol.messages import (
    INLINE_BYTES_MAX,
    PART_BYTES,
    PART_CREDITS,
    BodyOpen,
    Credit,
    Message,
    Part,
    ProtocolError,
    ReplyOpen,
)

RECEIVE_BYTES = 256 * 1024
# Buffers per send: beyond this the kernel would cut the list anyway.
_SEND_BUFFERS = 512
# Copying this much costs less than handing over one more buffer.
_JOIN_BYTES_MAX = 4 * 1024
# A peer that leaves more than this unread is not read from until it has caught up.
OUTGOING_BYTES_MAX = 16 * 1024 * 1024


class Received(NamedTuple):
    messages: list[Message]
    all: bool  # there was no more


class Upload:
    """A request body that arrives in parts."""

    def __init__(self, opened: BodyOpen) -> None:
        self.opened = opened
        self._parts: list[bytes] = []
        self._received = 0

    def add(self, data: bytes) -> bool:
        """True when the body is complete."""
        self._parts.append(data)
        self._received += len(data)
        if self._received > self.opened.length:
            raise ProtocolError(f"a body of {self.opened.length} bytes got {self._received}")
        return self._received == self.opened.length

    def body(self) -> bytes:
        return b"".join(self._parts)


class _Bulk:
    """An answer that leaves in parts."""

    def __init__(self, data: bytes) -> None:
        self.rest = memoryview(data)
        self.credits = PART_CREDITS


class Link:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.greeted = False
        self.role = "?"
        self.upload: Upload | None = None
        self.commands: dict[int, Command] = {}
        self.interest = 0
        self._decoder = Decoder()
        self._out: deque[bytes | memoryview] = deque()
        self._bulk: dict[int, _Bulk] = {}
        self.out_bytes = 0

    def receive(self) -> Received | None:
        """What has arrived, up to a bound; None if the peer is gone. Raises ProtocolError."""
        try:
            data = self.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return Received([], True)
        except OSError:
            return None
        return Received(self._decoder.feed(data), len(data) < RECEIVE_BYTES) if data else None

    def add_part(self, part: Part) -> Upload | None:
        """The upload, when this part completes it."""
        if self.upload is None or self.upload.opened.id != part.id:
            raise ProtocolError(f"part of an unknown body {part.id}")
        if not self.upload.add(part.data):
            self.push(encode(Credit(part.id, 1)))
            return None
        upload, self.upload = self.upload, None
        return upload

    def push(self, data: bytes | memoryview) -> None:
        self._out.append(data)
        self.out_bytes += len(data)

    def answer(self, request_id: int, answer: Answer) -> None:
        length = sum(map(len, answer.parts))
        if length <= _JOIN_BYTES_MAX:
            head = reply_head(request_id, answer.status, answer.retry_after_s, length)
            self.push(b"".join((head, *answer.parts)))
        elif length <= INLINE_BYTES_MAX:
            self.push(reply_head(request_id, answer.status, answer.retry_after_s, length))
            for part in answer.parts:
                self.push(part)
        else:
            self.push(encode(ReplyOpen(request_id, answer.status, answer.retry_after_s, length)))
            self._bulk[request_id] = _Bulk(b"".join(answer.parts))
            self._pump(request_id)

    def credit(self, credit: Credit) -> None:
        bulk = self._bulk.get(credit.id)
        if bulk is not None:
            bulk.credits += credit.parts
            self._pump(credit.id)

    def forget(self, request_id: int) -> None:
        """The peer no longer wants this answer."""
        self._bulk.pop(request_id, None)

    def _pump(self, request_id: int) -> None:
        bulk = self._bulk[request_id]
        while bulk.credits and bulk.rest:
            part, bulk.rest = bulk.rest[:PART_BYTES], bulk.rest[PART_BYTES:]
            bulk.credits -= 1
            self.push(part_head(request_id, len(part)))
            self.push(part)
        if not bulk.rest:
            del self._bulk[request_id]

    def flush(self) -> bool:
        """Send what can be sent now; False if the peer is gone."""
        while self._out:
            if self.out_bytes <= len(self._out) * _JOIN_BYTES_MAX:
                buffers: list[bytes | memoryview] = [b"".join(self._out)]
                self._out.clear()
            else:
                buffers = [self._out.popleft() for _ in range(min(len(self._out), _SEND_BUFFERS))]
            try:
                sent = self.sock.sendmsg(buffers)
            except BlockingIOError:
                sent = 0
            except OSError:
                return False
            self.out_bytes -= sent
            if not self._put_back(buffers, sent):
                return True
        return True

    def _put_back(self, buffers: list[bytes | memoryview], sent: int) -> bool:
        """Keep what was not sent; True if everything was."""
        for index, buffer in enumerate(buffers):
            if sent < len(buffer):
                rest = [memoryview(buffer)[sent:], *buffers[index + 1 :]]
                self._out.extendleft(reversed(rest))
                return False
            sent -= len(buffer)
        return True

    @property
    def blocked(self) -> bool:
        return bool(self._out)
