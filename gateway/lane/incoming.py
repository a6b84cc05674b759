"""The body of a request on its way in: within its limit, and within the room that all bodies share."""

from typing import TYPE_CHECKING

from gateway.lane.parsing import BadRequest, Head
from topics.errors import InvalidRequest, PayloadTooLarge

if TYPE_CHECKING:
    from gateway.slots import BodyBudget, BodyHold


class Incoming:
    __slots__ = ("_body", "_budget", "_hold", "broken", "expects_continue")

    def __init__(self, head: Head, budget: "BodyBudget") -> None:
        self._body = head.body()
        self._budget = budget
        self._hold: BodyHold | None = None
        # Whether the client waits to be told that the body is wanted.
        self.expects_continue = head.expects_continue()
        # Where the body ends cannot be told, so the connection cannot go on.
        self.broken = False

    @property
    def complete(self) -> bool:
        return self._body.complete

    def take(self, data: bytes, limit_bytes: int) -> bytes:
        """Take what belongs to the body; returns what follows it.

        Raises PayloadTooLarge, Throttled, or InvalidRequest for broken framing.
        """
        before = self._body.received_bytes
        following = self._feed(data)
        received = self._body.received_bytes
        if received > limit_bytes:
            raise PayloadTooLarge(limit_bytes)
        if self._hold is None:
            self._hold = self._budget.open()
        self._hold.add(received - before)
        self.expects_continue = False
        return following

    def skip(self, data: bytes) -> bytes:
        """The request is answered: take what belongs to its body for nothing. Returns what follows it."""
        try:
            return self._feed(data)
        except InvalidRequest:
            return b""

    def _feed(self, data: bytes) -> bytes:
        try:
            return self._body.feed(data)
        except BadRequest as error:
            self.broken = True
            raise InvalidRequest(f"not a valid HTTP request: {error}", field="request") from None

    def whole(self) -> bytes:
        return self._body.whole()

    def close(self) -> None:
        """Give the room back; the request has ended."""
        if self._hold is not None:
            self._hold.close()
