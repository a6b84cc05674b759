"""Places that requests hold while they live. Taken and given back here and nowhere else.

A place is given back once, however the work ends: with an answer, an error, or a client that has left.
A `with` block around the work does it; a front door without one keeps the place and gives it back itself.
"""

from collections import Counter

from topics.errors import Throttled

RETRY_AFTER_S = 1


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
            raise limit_reached("max_inflight_per_key", self._inflight_per_key, "requests of this key")
        self._inflight[key_digest] += 1
        return Place(self._inflight, key_digest)


def limit_reached(limit: str, maximum: int, what: str) -> Throttled:
    return Throttled(
        f"{what}: at most {maximum} at a time (TOPICS_{limit.upper()})",
        retry_after_s=RETRY_AFTER_S,
        detail={"limit": limit, "max": maximum},
    )
