"""Places that requests hold while they live. Taken and given back here and nowhere else.

A place is held by a `with` block around the work, so it is given back however the work ends: with an
answer, an error, or a client that has left.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from topics.errors import Throttled

RETRY_AFTER_S = 1


class Slots:
    """Counts per holder; `inflight_per_key` 0 means that there is no bound."""

    def __init__(self, *, inflight_per_key: int = 0) -> None:
        self._inflight_per_key = inflight_per_key
        self._inflight: Counter[bytes] = Counter()

    @contextmanager
    def request(self, key_digest: bytes) -> Iterator[None]:
        """One request of this key; callers without a key are not counted."""
        if not key_digest or not self._inflight_per_key:
            yield
            return
        if self._inflight[key_digest] >= self._inflight_per_key:
            raise limit_reached("max_inflight_per_key", self._inflight_per_key, "requests of this key")
        self._inflight[key_digest] += 1
        try:
            yield
        finally:
            self._inflight[key_digest] -= 1
            if not self._inflight[key_digest]:
                del self._inflight[key_digest]


def limit_reached(limit: str, maximum: int, what: str) -> Throttled:
    return Throttled(
        f"{what}: at most {maximum} at a time (TOPICS_{limit.upper()})",
        retry_after_s=RETRY_AFTER_S,
        detail={"limit": limit, "max": maximum},
    )
