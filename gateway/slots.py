"""What requests hold while they live: places, and room for their bodies. Taken and given back here alone.

A place is given back once, however the work ends: with an answer, an error, or a client that has left.
A `with` block around the work does it; a front door without one keeps the place and gives it back itself.
Room for a body is held by its front door, until the request has ended.
"""

from collections import Counter
from typing import Final

from topics.errors import LimitReached, Throttled

RETRY_AFTER_S: Final = 1
MIB: Final = 1024 * 1024
# What each body may take without being counted: ordinary requests never wait for large ones.
BODY_FREE_BYTES: Final = 256 * 1024
# Whatever the largest body is, several of them fit at a time.
BODIES_BYTES_MIN: Final = 256 * MIB
LARGEST_BODIES_AT_A_TIME: Final = 4


class Place:
    """A place that is held until it is given back."""

    __slots__ = ("_holder", "_holders")

    def __init__(self, holders: Counter[bytes] | None = None, holder: bytes = b"") -> None:
        self._holders = holders
        self._holder = holder

    def give_back(self) -> None:
        holders, self._holders = self._holders, None
        if holders is not None:
            holders[self._holder] -= 1
            if not holders[self._holder]:
                del holders[self._holder]

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.give_back()


_UNCOUNTED = Place()


class Slots:
    """Counts per holder; `inflight_per_key` 0 means that there is no bound."""

    def __init__(self, *, inflight_per_key: int = 0) -> None:
        self._inflight_per_key = inflight_per_key
        self._inflight: Counter[bytes] = Counter()

    def request(self, key_digest: bytes) -> Place:
        """The place of one request of this key; callers without a key are not counted."""
        if not key_digest or not self._inflight_per_key:
            return _UNCOUNTED
        if self._inflight[key_digest] >= self._inflight_per_key:
            raise LimitReached(
                "max_inflight_per_key", self._inflight_per_key, "requests of this key at a time"
            )
        self._inflight[key_digest] += 1
        return Place(self._inflight, key_digest)


class BodyBudget:
    """Room for the bodies of all requests together, so that many large ones do not take all memory."""

    def __init__(self, *, body_bytes_max: int) -> None:
        self.bytes_max = max(BODIES_BYTES_MIN, LARGEST_BODIES_AT_A_TIME * body_bytes_max)
        self.bytes_held = 0

    def open(self) -> "BodyHold":
        return BodyHold(self)


class BodyHold:
    """The room of one body. `add` as its bytes arrive; `close` when its request has ended."""

    __slots__ = ("_budget", "_counted", "_received")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._received = 0
        self._counted = 0

    def add(self, count: int) -> None:
        """Takes room for so many more bytes. Raises Throttled if there is none; then keeps what it had."""
        received = self._received + count
        more = max(0, received - BODY_FREE_BYTES) - self._counted
        budget = self._budget
        if more > budget.bytes_max - budget.bytes_held:
            raise Throttled(
                "the bodies of other requests take all the room there is; try again later",
                retry_after_s=RETRY_AFTER_S,
                detail={"retry_after_ms": RETRY_AFTER_S * 1000},
            )
        self._received = received
        self._counted += more
        budget.bytes_held += more

    def close(self) -> None:
        """Gives the room back; a second time does nothing."""
        self._budget.bytes_held -= self._counted
        self._received = self._counted = 0
