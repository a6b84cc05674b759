"""One HTTP/1.1 connection of the fast lane: bytes in, handlers run, answers out, in order.

* Requests of a connection are answered one after another; what was sent ahead waits, within bounds.
* A peer that does not read its answer is not read from.
* A peer that half-closes still gets its answers; one that is gone has its request cancelled.
* An answer that leaves before its request's body was read ends the connection, after a moment in
  which the rest is read away: otherwise the answer might never arrive.
"""

import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gateway.effects import Ask, Effect, Handling, ReadBody
from gateway.http import Request, Response, error_response, retry_after, with_length
from gateway.lane.incoming import Incoming
from gateway.lane.lane import Lane
from gateway.lane.outlet import Outlet
from gateway.lane.parsing import H2_PREFACE, BadRequest, Head, head_end, without_empty_lines
from gateway.lane.rendering import render, render_reply
from gateway.routes import admitted, note_latency
from topics.errors import InvalidRequest, TopicsError
from topics.polling import BROKEN, PEER_CLOSED, READABLE, WRITABLE
from topics.protocol.messages import INLINE_BYTES_MAX, Reply

if TYPE_CHECKING:
    from gateway.lane.openings import Opening
    from gateway.slots import Place
    from shards.client import Ticket

log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 256 * 1024
HEAD_RECEIVE_BYTES: Final = 64 * 1024
# Requests of one connection that are served before others have their turn.
STEPS_PER_TURN: Final = 64
IDLE_S: Final = 75.0
HEAD_S: Final = 30.0
BODY_IDLE_S: Final = 30.0
WRITE_STALL_S: Final = 30.0
LINGER_S: Final = 2.0
HALF_CLOSED_S: Final = 1.0
_FOREVER: Final = float("inf")
# What a connection waits for most of the time: more to read, or the end.
_PLAIN: Final = READABLE | PEER_CLOSED


class Connection:
    __slots__ = (
        "_body_limit",
        "_buffer",
        "_close_after",
        "_handling",
        "_head",
        "_incoming",
        "_lane",
        "_lingering",
        "_outlet",
        "_place",
        "_request",
        "_running",
        "_ticket",
        "_unread",
        "_untouched",
        "closed",
        "deadline",
        "fd",
        "half_closed",
        "interest",
        "peer_done",
        "sock",
        "wants_write",
    )

    def __init__(self, lane: Lane, sock: socket.socket) -> None:
        self._lane = lane
        self.sock = sock
        self.fd = sock.fileno()
        self.interest = 0
        self.closed = False
        self.half_closed = False
        self.peer_done = False
        self.deadline = time.monotonic() + HEAD_S
        # What has arrived and was not looked at yet.
        self._buffer = b""
        # Nothing of this connection has been taken for HTTP/1.1 so far.
        self._untouched = True
        self._head: Head | None = None
        self._incoming: Incoming | None = None
        # The request under way, and how it is worked on: by a handler, or as one question to a shard.
        self._request: Request | None = None
        self._handling: Handling[Response] | None = None
        self._place: Place | None = None
        self._ticket: Ticket | None = None
        self._body_limit: int | None = None
        self._outlet = Outlet(sock)
        # An answer is on its way that the socket has not taken whole.
        self.wants_write = False
        self._close_after = False
        # More is on its way than will be read.
        self._unread = False
        self._lingering = False
        self._running = False

    @property
    def idle(self) -> bool:
        return self._request is None and not self.wants_write and not self._buffer

    @property
    def wants_read(self) -> bool:
        """What was sent ahead of an answer waits in the kernel, apart from one receive."""
        if self.peer_done or self.wants_write:
            return False
        return self._lingering or self._request is None or self._body_limit is not None or not self._buffer

    def on_event(self, event: int) -> None:
        """Nothing that one connection does may end the others."""
        try:
            if event & BROKEN:
                self.close()
                return
            if event & WRITABLE:
                self.on_writable()
            if event & READABLE and not self.closed:
                self.on_readable()
            if event & PEER_CLOSED and not self.closed and not self.half_closed:
                self.on_half_closed()
        except Exception:
            log.exception("connection.failed")
            self.close()

    # -- reading

    def on_readable(self) -> None:
        try:
            data = self.sock.recv(HEAD_RECEIVE_BYTES if self._body_limit is None else RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not data:
            self._on_peer_done()
        elif not self._lingering:
            if self._buffer:
                self._buffer += data
            else:
                if self._request is None and not self.wants_write:
                    if self._take_known(data):
                        return
                    self.deadline = time.monotonic() + HEAD_S
                self._buffer = data
            self.proceed()

    def _take_known(self, data: bytes) -> bool:
        """Most requests are like others before them, come whole and alone, and ask one shard."""
        end = data.find(b"\r\n\r\n") + 4
        opening = self._lane.openings.known.get(data[:end])
        if opening is None or opening.head.length != len(data) - end or self.interest != _PLAIN:
            return False
        self._untouched = False
        return not self._close_after and self._ask_directly(opening, data[end:])

    def on_half_closed(self) -> None:
        """The peer sends no more. It may still want its answers; if it has left, it will not take them."""
        self.half_closed = True
        if self._request is not None and self._body_limit is None:
            self.deadline = time.monotonic() + HALF_CLOSED_S
        self._lane.rearm(self)

    def _on_peer_done(self) -> None:
        self.peer_done = self.half_closed = True
        if self._body_limit is not None or (self._request is None and not self.wants_write):
            self.close()
        else:
            self.deadline = min(self.deadline, time.monotonic() + HALF_CLOSED_S)
            self._lane.rearm(self)

    def proceed(self) -> None:
        """Do what can be done with what has arrived. Answers that are there at once do not nest."""
        if self._running or self.closed:
            return
        self._running = True
        try:
            for _ in range(STEPS_PER_TURN):
                if self.closed or not self._step():
                    break
            else:
                self._lane.come_back(self)
        finally:
            self._running = False
        if not self.closed and (
            self.interest != _PLAIN or self._buffer or self.wants_write or self.peer_done
        ):
            self._lane.rearm(self)

    def _step(self) -> bool:
        """One step forward; False if the next one has to wait."""
        if self.wants_write or self._close_after:
            return False
        if self._request is not None:
            return self._body_limit is not None and bool(self._buffer) and self._continue_body()
        if not self._buffer:
            if self.peer_done:
                self.close()
            return False
        try:
            return self._begin()
        except BadRequest as error:
            self._refuse(error)
            return False

    def _begin(self) -> bool:
        """Take the next head from the buffer, if it is complete."""
        data = self._buffer
        if self._untouched and H2_PREFACE.startswith(data[: len(H2_PREFACE)]):
            if len(data) >= len(H2_PREFACE):
                self._lane.hand_over(self, data)
            return False
        self._untouched = False
        data = self._buffer = without_empty_lines(data)
        end = head_end(data)
        if end < 0:
            return False
        opening = self._lane.openings.of(data[:end] if end < len(data) else data)
        if opening.head.upgrade:
            self._lane.hand_over(self, data)
            return False
        self._buffer = data[end:]
        self._handle(opening)
        # One that waits for its answer has nothing more to do, unless more has come already.
        return bool(self._buffer) or self._ticket is None

    def _refuse(self, error: BadRequest) -> None:
        """The last answer of this connection: what follows cannot be told from what went wrong."""
        refused = InvalidRequest(f"not a valid HTTP request: {error}", field="request")
        response = error_response(refused, time.monotonic_ns())
        response.status = error.status
        self._close_after = self._unread = True
        self._send_response(with_length(response))

    # -- handling

    def _handle(self, opening: "Opening") -> None:
        head, buffer = opening.head, self._buffer
        if not head.chunked and head.length <= min(len(buffer), INLINE_BYTES_MAX):
            body = buffer if len(buffer) == head.length else buffer[: head.length]
            if self._ask_directly(opening, body):
                self._buffer = buffer[head.length :]
                return
        request = opening.request(time.monotonic_ns())
        self._take_up(head, request)
        self._incoming = Incoming(head, self._lane.gateway.bodies)
        self._handling = self._lane.handle(request)
        self._advance(self._handling.send, None)

    def _take_up(self, head: Head, request: Request) -> None:
        self._head, self._request = head, request
        self.deadline = time.monotonic() + HALF_CLOSED_S if self.half_closed else _FOREVER
        self._lane.gateway.under_way += 1

    def _ask_directly(self, opening: "Opening", body: bytes) -> bool:
        """Whether the request is on its way to a shard; if not, a handler is needed."""
        short = opening.short
        if short is None:
            return False
        place = admitted(self._lane.gateway, short, opening.headers, body)
        if place is None:
            return False
        request = opening.request(time.monotonic_ns())
        ask = short.ask
        try:
            self._ticket = ask.link.submit(
                ask.op, short.topic, short.params, body, request.arrived_ns, self.take_reply
            )
        except TopicsError:
            # The handler will meet the same, and knows how to say it.
            place.give_back()
            return False
        request.route = short.route.title
        self._place = place
        self._take_up(opening.head, request)
        return True

    def take_reply(self, reply: Reply | None, error: TopicsError | None) -> None:
        """The answer to a question that was asked directly."""
        try:
            self._ticket = None
            request = self._request
            assert request is not None
            note_latency(self._lane.gateway, request)
            self._end_request()
            if reply is not None:
                seconds = retry_after(reply.status, reply.retry_after_s)
                self._send(render_reply(reply, seconds, close=self._close_after))
            elif error is not None:
                self._send_response(with_length(error_response(error, request.arrived_ns)))
            if self._buffer or self.wants_write or self.peer_done or self.interest != _PLAIN:
                self.proceed()
        except Exception:
            log.exception("connection.failed")
            self.close()

    def _advance(self, step: Callable[[Any], Effect[Any]], value: Any) -> None:
        """Run the handler until it waits for something that is not there yet, or has its response."""
        handling = self._handling
        assert handling is not None
        while True:
            try:
                effect = step(value)
            except StopIteration as done:
                self._finish(done.value)
                return
            try:
                if isinstance(effect, ReadBody):
                    body = self._read_body(effect.limit_bytes)
                    if body is None:
                        return
                    step, value = handling.send, body
                elif isinstance(effect, Ask) and len(effect.body) <= INLINE_BYTES_MAX:
                    self._ticket = effect.submit(partial(self._lane.resume, self))
                    return
                else:
                    self._lane.in_task(self, effect)
                    return
            except TopicsError as error:
                step, value = handling.throw, error

    def resume(self, result: Any, error: Exception | None) -> None:
        """What the handler waited for is there."""
        self._ticket = None
        if self._handling is None:
            return
        if error is not None:
            self._advance(self._handling.throw, error)
        else:
            self._advance(self._handling.send, result)
        self.proceed()

    def _read_body(self, limit_bytes: int) -> bytes | None:
        """The body if it is complete; else None, and the handler is resumed when it is."""
        incoming = self._incoming
        assert incoming is not None
        if not incoming.complete and self._buffer:
            data, self._buffer = self._buffer, b""
            self._buffer = incoming.take(data, limit_bytes)
        if incoming.complete:
            return incoming.whole()
        if self._body_limit is None and incoming.expects_continue:
            self._write([b"HTTP/1.1 100 Continue\r\n\r\n"])
        self._body_limit = limit_bytes
        self.deadline = time.monotonic() + BODY_IDLE_S
        return None

    def _continue_body(self) -> bool:
        limit_bytes = self._body_limit
        assert limit_bytes is not None
        assert self._handling is not None
        try:
            body = self._read_body(limit_bytes)
        except TopicsError as error:
            self._body_limit = None
            self._advance(self._handling.throw, error)
            return True
        if body is None:
            return False
        self._body_limit = None
        self.deadline = _FOREVER
        self._advance(self._handling.send, body)
        return True

    # -- answering

    def _finish(self, response: Response) -> None:
        incoming = self._incoming
        assert incoming is not None
        self._handling = self._body_limit = None
        if not incoming.complete and self._buffer and not incoming.broken:
            data, self._buffer = self._buffer, b""
            self._buffer = incoming.skip(data)
        if incoming.broken or not incoming.complete:
            self._close_after = True
        self._end_request()
        self._send_response(response)

    def _end_request(self) -> None:
        """The request is answered, or will never be. The one place where it gives back what it held."""
        self._request = None
        self._lane.gateway.under_way -= 1
        if self._place is not None:
            self._place.give_back()
            self._place = None
        if self._incoming is not None:
            self._incoming.close()
        if (self._head is not None and not self._head.keep_alive) or self._lane.gateway.draining:
            self._close_after = True

    def _send_response(self, response: Response) -> None:
        self._send(render(response, close=self._close_after))

    def _send(self, parts: list[bytes]) -> None:
        self._write(parts)
        if not self.wants_write:
            self._after_answer()

    def _write(self, parts: list[bytes]) -> None:
        if self.closed:
            return
        try:
            self.wants_write = not self._outlet.send(parts)
        except OSError:
            self.close()
            return
        if self.wants_write:
            self.deadline = time.monotonic() + WRITE_STALL_S

    def on_writable(self) -> None:
        try:
            if not self._outlet.flush():
                return
        except OSError:
            self.close()
            return
        self.deadline = time.monotonic() + WRITE_STALL_S
        if not self._outlet.pending_bytes:
            self.wants_write = False
            self._after_answer()
            self.proceed()

    def _after_answer(self) -> None:
        if self.closed or self._request is not None:
            # "100 Continue" is not the answer itself.
            return
        incoming, self._incoming, self._head = self._incoming, None, None
        unread = self._unread or bool(self._buffer) or (incoming is not None and not incoming.complete)
        if self._close_after:
            self._linger() if unread and not self.peer_done else self.close()
        else:
            self.deadline = time.monotonic() + (HEAD_S if self._buffer else IDLE_S)

    def _linger(self) -> None:
        """Say that nothing follows, and read away what is still coming, for a moment."""
        self._lingering = True
        self._buffer = b""
        self.deadline = time.monotonic() + LINGER_S
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()

    # -- the end

    def on_deadline(self) -> None:
        """Too slow. A body that stops arriving gets an answer; a head or a reader does not."""
        if self._body_limit is not None and self._handling is not None:
            self._body_limit = None
            silence = InvalidRequest(f"the body stopped arriving for {BODY_IDLE_S:.0f} s", field="body")
            self._advance(self._handling.throw, silence)
            self.proceed()
        else:
            self.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._ticket is not None:
            self._ticket.cancel()
        if self._handling is not None:
            self._handling.close()
            self._handling = None
        if self._request is not None:
            self._end_request()
        self._lane.drop(self)

    def release(self) -> socket.socket:
        """Give the socket away; this object is done."""
        self.closed = True
        return self.sock
