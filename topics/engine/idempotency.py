"""Remembered write keys: digest of the key → the seqs its first write got, for a window of time.

Entries live in time buckets that are dropped whole, so forgetting costs nothing per key. A hit is
decided by the entry's own time, not by its bucket's.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any

# The window is divided into this many buckets; one more is alive while the oldest expires.
_BUCKETS_PER_WINDOW = 8
# digest, first seq, count, time
_ENTRY = Struct("<16sQIQ")


@dataclass(frozen=True, slots=True)
class Remembered:
    first_seq: int
    count: int
    ts: int


def digest(key: str) -> bytes:
    """16 bytes that stand for a key in memory and in the log."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class IdempotencyWindow:
    """The keys of one topic."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: list[tuple[int, dict[bytes, tuple[int, int, int]]]] = []

    def find(self, key: bytes, *, now_ms: int, window_ms: int) -> Remembered | None:
        self._forget(now_ms, window_ms)
        for _, entries in reversed(self._buckets):
            entry = entries.get(key)
            if entry is not None:
                return Remembered(*entry) if now_ms - entry[2] < window_ms else None
        return None

    def remember(self, key: bytes, entry: Remembered, *, window_ms: int) -> None:
        width = max(1, window_ms // _BUCKETS_PER_WINDOW)
        if not self._buckets or entry.ts - self._buckets[-1][0] >= width:
            self._buckets.append((entry.ts, {}))
        self._buckets[-1][1][key] = (entry.first_seq, entry.count, entry.ts)

    def packed(self, wanted: Callable[[int], bool]) -> list[list[object]]:
        """Writes whose first seq is wanted, as buckets of their start and the bytes of their entries."""
        return [
            [start, b"".join(_ENTRY.pack(key, *entry) for key, entry in entries.items() if wanted(entry[0]))]
            for start, entries in self._buckets
        ]

    def unpack(self, buckets: list[list[Any]]) -> None:
        """What `packed` gave. Raises ValueError or struct.error for anything else."""
        self._buckets = [
            (start, {key: (first, count, ts) for key, first, count, ts in _ENTRY.iter_unpack(packed)})
            for start, packed in buckets
        ]

    def _forget(self, now_ms: int, window_ms: int) -> None:
        # A bucket's entries are all older than the start of the next one.
        while len(self._buckets) > 1 and now_ms - self._buckets[1][0] >= window_ms:
            del self._buckets[0]
