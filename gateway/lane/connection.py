"""One HTTP/1.1 connection of the fast lane: bytes in, handlers run, answers out, in order.

* Requests of a connection are answered one after another; what was sent ahead waits, within bounds.
* A peer that does not read its answer is not read from.
* A peer that half-closes still gets its answers; one that is gone has its request cancelled.
* An answer that leaves before its request's body was read ends the connection, after a moment in
  which the rest is read away: otherwise the answer might never arrive.
"""

import socket
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.effects import Ask, Effect, Handling, ReadBody
from gateway.http import Headers, Request, Response, error_response, path_of
from gateway.lane.parsing import H2_PREFACE, PIPELINE_MAX, BadRequest, Head, RequestParser, UnknownMethod
from topics.errors import InvalidRequest, PayloadTooLarge, TopicsError
from topics.protocol.messages import INLINE_BYTES_MAX

if TYPE_CHECKING:
    from gateway.context import Gateway
    from shards.client import Ticket

RECEIVE_BYTES: Final = 256 * 1024
IDLE_S: Final = 75.0
HEAD_S: Final = 30.0
BODY_IDLE_S: Final = 30.0
WRITE_STALL_S: Final = 30.0
LINGER_S: Final = 2.0
HALF_CLOSED_S: Final = 1.0
_FOREVER: Final = float("inf")

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    return f"date: {formatdate(second, usegmt=True)}\r\n".encode()


class Lane(Protocol):
    """What a connection needs from the reactor around it."""

    gateway: "Gateway"

    def handle(self, request: Request) -> Handling[Response]: ...
    def in_task(self, connection: "Connection", effect: Effect[Any]) -> None: ...
    def hand_over(self, connection: "Connection", data: bytes) -> None: ...
    def rearm(self, connection: "Connection") -> None: ...
    def drop(self, connection: "Connection") -> None: ...


class Connection:
    __slots__ = (
        "_body_limit",
        "_close_after",
        "_first",
        "_handling",
        "_head",
        "_lane",
        "_lingering",
        "_out",
        "_parser",
        "_refusal",
        "_request",
        "_ticket",
        "closed",
        "deadline",
        "fd",
        "interest",
        "peer_done",
        "sock",
    )

    def __init__(self, lane: Lane, sock: socket.socket) -> None:
        self._lane = lane
        self.sock = sock
        self.fd = sock.fileno()
        self.interest = 0
        self.closed = False
        self.peer_done = False
        self.deadline = time.monotonic() + HEAD_S
        self._parser = RequestParser()
        # Bytes since the last moment between two requests, kept until we know whether they are ours.
        self._first = b""
        self._head: Head | None = None
        self._request: Request | None = None
        self._handling: Handling[Response] | None = None
        self._ticket: Ticket | None = None
        self._body_limit: int | None = None
        self._refusal: BadRequest | None = None
        self._out: memoryview | None = None
        self._close_after = False
        self._lingering = False

    @property
    def idle(self) -> bool:
        return self._handling is None and self._out is None and not self._parser.in_request

    @property
    def wants_read(self) -> bool:
        if self.peer_done or self._refusal is not None:
            return False
        return self._out is None and len(self._parser.heads) < PIPELINE_MAX

    @property
    def wants_write(self) -> bool:
        return self._out is not None

    # -- reading

    def on_readable(self) -> None:
        try:
            data = self.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not data:
            self._on_peer_done()
        elif not self._lingering:
            self._take(data)

    def _on_peer_done(self) -> None:
        self.peer_done = True
        if self._handling is None and self._out is None:
            self.close()
        elif self._body_limit is not None:
            # The rest of the body will never come.
            self.close()
        else:
            # It may only have said that it sends no more; one that has left would not take an answer.
            self.deadline = time.monotonic() + HALF_CLOSED_S
            self._lane.rearm(self)

    def _take(self, data: bytes) -> None:
        if self._handling is None and not self._parser.in_request and not self._parser.heads:
            self._first = b""
            self.deadline = time.monotonic() + HEAD_S
        if self._head is None:
            self._first += data
            if self._first.startswith(H2_PREFACE):
                self._lane.hand_over(self, self._first)
                return
            if H2_PREFACE.startswith(self._first):
                return
            data = self._first if len(self._first) > len(data) and not self._parser.in_request else data
        try:
            self._parser.feed(data)
        except UnknownMethod as error:
            self._hand_over(error, heads=0)
            return
        except BadRequest as error:
            self._refusal = error
        if self._parser.upgrade:
            behind = BadRequest("an upgrade may not follow requests that are not answered yet")
            self._hand_over(behind, heads=1)
            return
        if self._body_limit is not None:
            self._on_body()
        self._start_next()

    def _hand_over(self, otherwise: BadRequest, *, heads: int) -> None:
        """Give the connection away, if nothing of it but this request has been looked at."""
        if len(self._parser.heads) == heads and self._handling is None:
            self._lane.hand_over(self, self._first)
        else:
            self._refusal = otherwise
            self._start_next()

    def _refuse(self, error: BadRequest) -> None:
        """The last answer of this connection: what follows cannot be told from what went wrong."""
        self._refusal = None
        refused = InvalidRequest(f"not a valid HTTP request: {error}", field="request")
        response = error_response(refused, time.monotonic_ns())
        response.status = error.status
        response.headers.append(("content-length", str(len(response.body))))
        self._close_after = True
        self._send(response)

    # -- handling

    def _start_next(self) -> None:
        if self._handling is not None or self._out is not None or self._close_after:
            return
        if not self._parser.heads:
            if self._refusal is not None:
                self._refuse(self._refusal)
            return
        head = self._head = self._parser.heads.popleft()
        # It is ours, and the bytes of a head hold its token.
        self._first = b""
        path, _, query = path_of(head.target).partition(b"?")
        request = self._request = Request(
            method=head.method.decode("ascii"),
            raw_path=path,
            query_string=query,
            headers=Headers(head.headers),
            arrived_ns=time.monotonic_ns(),
        )
        self.deadline = _FOREVER
        self._lane.gateway.under_way += 1
        self._handling = self._lane.handle(request)
        self._advance(self._handling.send, None)

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
            if isinstance(effect, ReadBody):
                try:
                    body = self._body(effect.limit_bytes)
                except TopicsError as error:
                    step, value = handling.throw, error
                    continue
                if body is None:
                    return
                step, value = handling.send, body
            elif isinstance(effect, Ask) and len(effect.body) <= INLINE_BYTES_MAX:
                try:
                    self._ticket = effect.link.submit(
                        effect.op, effect.topic, effect.params, effect.body, effect.arrived_ns, self.resume
                    )
                except TopicsError as error:
                    step, value = handling.throw, error
                    continue
                return
            else:
                self._lane.in_task(self, effect)
                return

    def resume(self, result: Any, error: Exception | None) -> None:
        """What the handler waited for is there."""
        self._ticket = None
        if self._handling is None:
            return
        if error is not None:
            self._advance(self._handling.throw, error)
        else:
            self._advance(self._handling.send, result)

    def _body(self, limit_bytes: int) -> bytes | None:
        """The body if it is complete; else None, and the handler is resumed when it is."""
        head = self._head
        assert head is not None
        if head.received_bytes > limit_bytes:
            raise PayloadTooLarge(limit_bytes)
        if head.complete:
            return head.parts[0] if len(head.parts) == 1 else b"".join(head.parts)
        if (head.header(b"expect") or b"").lower() == b"100-continue" and not head.received_bytes:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._body_limit = limit_bytes
        self.deadline = time.monotonic() + BODY_IDLE_S
        return None

    def _on_body(self) -> None:
        limit_bytes, self._body_limit = self._body_limit, None
        assert limit_bytes is not None
        assert self._handling is not None
        try:
            body = self._body(limit_bytes)
        except TopicsError as error:
            self._advance(self._handling.throw, error)
            return
        if body is not None:
            self.deadline = _FOREVER
            self._advance(self._handling.send, body)

    # -- answering

    def _finish(self, response: Response) -> None:
        head = self._head
        assert head is not None
        self._handling = self._request = None
        self._lane.gateway.under_way -= 1
        if not head.complete:
            head.discard = True
            head.parts.clear()
        if not head.complete or not head.keep_alive or self.peer_done or self._lane.gateway.draining:
            self._close_after = True
        self._send(response)

    def _send(self, response: Response) -> None:
        lines = [_STATUS_LINES[response.status], _date_line(int(time.time()))]
        lines += [f"{name}: {value}\r\n".encode("latin-1") for name, value in response.headers]
        if self._close_after:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        lines.append(response.body)
        self._head = None
        self._write(b"".join(lines))
        if self._out is None:
            self._after_answer()

    def _write(self, data: bytes) -> None:
        if self.closed:
            return
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        if sent < len(data):
            self._out = memoryview(data)[sent:]
            self.deadline = time.monotonic() + WRITE_STALL_S
            self._lane.rearm(self)

    def on_writable(self) -> None:
        if self._out is None:
            return
        try:
            sent = self.sock.send(self._out)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        self.deadline = time.monotonic() + WRITE_STALL_S
        self._out = self._out[sent:]
        if not self._out:
            self._out = None
            self._after_answer()

    def _after_answer(self) -> None:
        if self.closed:
            return
        if self._handling is not None:
            # It was "100 Continue": the answer itself is still to come.
            self._lane.rearm(self)
        elif self._close_after:
            self._linger()
        elif self.peer_done and not self._parser.heads:
            self.close()
        else:
            self.deadline = time.monotonic() + (HEAD_S if self._parser.in_request else IDLE_S)
            self._lane.rearm(self)
            self._start_next()

    def _linger(self) -> None:
        if self.peer_done or not self._parser.in_request:
            self.close()
            return
        self._lingering = True
        self.deadline = time.monotonic() + LINGER_S
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        self._lane.rearm(self)

    # -- the end

    def on_deadline(self) -> None:
        """Too slow. A body that stops arriving gets an answer; a head or a reader does not."""
        if self._body_limit is not None and self._handling is not None:
            self._body_limit = None
            silence = InvalidRequest(f"the body stopped arriving for {BODY_IDLE_S:.0f} s", field="body")
            self._advance(self._handling.throw, silence)
        else:
            self.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._ticket is not None:
            self._ticket.cancel()
        if self._handling is not None:
            self._lane.gateway.under_way -= 1
            self._handling.close()
            self._handling = None
        self._lane.drop(self)

    def release(self) -> socket.socket:
        """Give the socket away; this object is done."""
        self.closed = True
        return self.sock
