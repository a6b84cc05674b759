"""Sealed pages that are worth being written again: small ones in a row, and the last ones of files half dead.

A topic that is written a little between two checkpoints collects small pages; some of them in a row become
one. A file whose pages are mostly gone is given back when the rest of it stands elsewhere.
"""

from collections import defaultdict
from itertools import pairwise

from shards.state import TopicState
from shards.store.segments import PageLost, SegmentStore
from topics.engine.chunk import CHUNK_BYTES, CHUNK_RECORDS, Chunk
from topics.engine.sealed import Sealed

SMALL_PAGE_BYTES = 32 * 1024
# So many small pages in a row become one.
SMALL_PAGES = 8
# What one checkpoint writes again, at most.
REWRITE_BYTES_MAX = 32 * 1024 * 1024
REWRITE_PAGES_MAX = 2000


class Rewriting:
    """Looks at topics one by one, then reads what is worth it. `chunks` is what it has read."""

    def __init__(self, segments: SegmentStore) -> None:
        self._segments = segments
        self._by_file: dict[int, list[Sealed]] = defaultdict(list)
        self._rows: list[list[Sealed]] = []
        self._bytes = self._pages = 0
        # Pages by the first of those that become one, and the chunks of all of them.
        self.groups: dict[Sealed, list[Sealed]] = {}
        self.chunks: dict[Sealed, Chunk] = {}

    def look_at(self, topic: TopicState) -> None:
        pages = [piece for piece in topic.log.chunks if isinstance(piece, Sealed)]
        for page in pages:
            self._by_file[page.file].append(page)
        row: list[Sealed] = pages[:1] if pages and pages[0].length < SMALL_PAGE_BYTES else []
        for before, page in pairwise(pages):
            if page.length >= SMALL_PAGE_BYTES or page.first_seq != before.end_seq or not _fits(row, page):
                self._keep(row)
                row = []
            if page.length < SMALL_PAGE_BYTES:
                row.append(page)
        self._keep(row)

    def _keep(self, row: list[Sealed]) -> None:
        if len(row) >= SMALL_PAGES:
            self._rows.append(row)

    def read(self) -> None:
        """May be called in a thread."""
        for row in self._rows:
            self._read_group(row)
        for number, pages in self._by_file.items():
            # By whole pages: what is deleted inside of one is written again with it.
            live_bytes = sum(page.length for page in pages if page.live)
            if live_bytes * 2 < self._segments.files.get(number, 0):
                for page in pages:
                    if page not in self.chunks:
                        self._read_group([page])

    def _read_group(self, pages: list[Sealed]) -> None:
        length = sum(page.length for page in pages)
        if self._bytes + length > REWRITE_BYTES_MAX or self._pages + len(pages) > REWRITE_PAGES_MAX:
            return
        self._bytes += length
        self._pages += len(pages)
        try:
            chunks = [self._segments.read(page) for page in pages]
        except PageLost:
            # Whoever reads it next will say so.
            return
        self.groups[pages[0]] = pages
        self.chunks.update(zip(pages, chunks, strict=True))


def _fits(row: list[Sealed], page: Sealed) -> bool:
    return (
        sum(other.length for other in row) + page.length < CHUNK_BYTES
        and sum(other.count for other in row) + page.count < CHUNK_RECORDS
    )
