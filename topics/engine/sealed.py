"""A sealed page: a closed chunk whose bytes are in a file, and what is known of it without them.

Stands in a topic's list of chunks where the chunk stood. Questions about the page as a whole are
answered from a few numbers; what needs its columns brings the chunk back (`columns`, at once); what needs
its bytes for a reader asks for them (`content`) and raises `Cold`, so that nobody waits for a disk.
Deletes are remembered here until they are in the file's flags.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from topics.engine.chunk import Chunk

if TYPE_CHECKING:
    from topics.engine.tags import TagColumn, TagMatch


class Cold(Exception):
    """A reader needs a page that is not in memory; the same again when it has been fetched."""

    def __init__(self, page: "Sealed") -> None:
        super().__init__(f"page from seq {page.first_seq}")
        self.page = page


class Lost(Exception):
    """A page cannot be read any more as it was sealed."""


class Pages(Protocol):
    """Where the bytes of pages are."""

    def resident(self, page: "Sealed") -> Chunk | None:
        """The page's chunk, if it is in memory."""
        ...

    def bring(self, page: "Sealed") -> Chunk:
        """The page's chunk, from its file if it must be. Raises Lost."""
        ...


class Sealed:
    """Records `first_seq` … `first_seq + count - 1` of a topic, in the file `file` at `offset`."""

    __slots__ = (
        "count",
        "file",
        "first_seq",
        "first_ts",
        "last_ts",
        "length",
        "live",
        "live_payload",
        "offset",
        "pages",
        "pending",
        "tags_between",
        "topic_id",
    )

    closed = True

    def __init__(
        self, pages: Pages, *, topic_id: int, file: int, offset: int, length: int, first_seq: int, count: int,
        live: int, live_payload: int, first_ts: int, last_ts: int, tags_between: tuple[bytes, bytes] | None,
    ) -> None:  # fmt: skip
        self.pages = pages
        self.topic_id = topic_id
        self.file, self.offset, self.length = file, offset, length
        self.first_seq, self.count = first_seq, count
        self.live, self.live_payload = live, live_payload
        self.first_ts, self.last_ts = first_ts, last_ts
        self.tags_between = tags_between  # the first and the last one; None: no record has a tag
        # Deleted records, as ranges of indexes, that the file's flags do not show yet.
        self.pending: list[tuple[int, int]] = []

    @property
    def end_seq(self) -> int:
        return self.first_seq + self.count

    def content(self) -> Chunk:
        chunk = self.pages.resident(self)
        if chunk is None:
            raise Cold(self)
        return chunk

    def columns(self) -> Chunk:
        return self.pages.bring(self)

    def apply_pending(self, chunk: Chunk) -> None:
        """What was deleted since the flags in the file were written, on a chunk that came from there."""
        for start, stop in self.pending:
            chunk.mark_deleted(start, stop)

    # -- what a chunk answers, too

    @property
    def tags(self) -> "TagColumn | None":
        return self.columns().tags if self.tags_between is not None else None

    @property
    def deleted(self) -> bytearray | None:
        return self.columns().deleted if self.live < self.count else None

    def may_match(self, match: "TagMatch") -> bool:
        """Whether a live record of it can have such a tag, as far as that can be told without its tags."""
        return self.live > 0 and self.tags_between is not None and match.may_be_between(*self.tags_between)

    def _whole(self, start: int, stop: int) -> bool:
        return start <= 0 and stop >= self.count

    def live_count(self, start: int, stop: int) -> int:
        if self._whole(start, stop):
            return self.live
        if self.live == self.count:
            return max(0, stop - start)
        return self.columns().live_count(start, stop)

    def live_bytes(self, start: int, stop: int) -> int:
        if self._whole(start, stop):
            return self.live_payload
        return self.columns().live_bytes(start, stop) if start < stop else 0

    def payload_bytes(self, start: int, stop: int) -> int:
        if self._whole(start, stop) and self.live == self.count:
            return self.live_payload
        return self.columns().payload_bytes(start, stop)

    def live_runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        if self.live == self.count:
            if start < stop:
                yield start, stop
        else:
            yield from self.columns().live_runs(start, stop)

    def first_live(self, start: int, stop: int) -> int:
        if self.live == self.count:
            return start if start < stop else -1
        return self.columns().first_live(start, stop) if self.live else -1

    def last_live(self, start: int, stop: int) -> int:
        if self.live == self.count:
            return stop - 1 if start < stop else -1
        return self.columns().last_live(start, stop) if self.live else -1

    def index_at_ts(self, ts: int) -> int:
        if ts > self.last_ts:
            return self.count
        return 0 if ts <= self.first_ts else self.columns().index_at_ts(ts)

    def delete_all(self) -> None:
        """Needs nothing from the file."""
        self.live = self.live_payload = 0
        self.pending.append((0, self.count))
        chunk = self.pages.resident(self)
        if chunk is not None:
            chunk.mark_deleted(0, self.count)

    def mark_deleted(self, start: int, stop: int) -> None:
        """Records that are live so far."""
        chunk = self.columns()
        self.live_payload -= chunk.payload_bytes(start, stop)
        self.live -= stop - start
        chunk.mark_deleted(start, stop)
        self.pending.append((start, stop))
