"""Pages on their way into a file, and what they take the place of when the file is durable."""

from dataclasses import dataclass, field

from shards.state import TopicState
from shards.store import page as codec
from shards.store.segments import HEADER_BYTES, SegmentStore
from topics.engine.chunk import Chunk
from topics.engine.sealed import Sealed
from topics.engine.topic import Piece


@dataclass(slots=True)
class Source:
    """A piece of a topic that a planned page will stand for."""

    piece: Piece
    at: int  # where its records begin in the page
    known: int = 0  # of a sealed one: how many of its pending deletes the planned page has


@dataclass(slots=True)
class PlannedPage:
    topic: TopicState
    chunk: Chunk
    sealed: Sealed
    flags: bytes  # deletes as they were written
    sources: list[Source]

    def install(self) -> None:
        """The page is durable: it stands in its topic from now on, unless what it stands for is gone."""
        pieces = self.topic.log.chunks
        places = [at for at, piece in enumerate(pieces) if any(piece is s.piece for s in self.sources)]
        if not places:
            return
        self._catch_up(pieces)
        pieces[places[0] : places[-1] + 1] = [self.sealed] if self.sealed.live else []

    def _catch_up(self, pieces: list[Piece]) -> None:
        """What was deleted since the page was planned is pending in it."""
        chunk, sealed = self.chunk, self.sealed
        for source in self.sources:
            piece = source.piece
            if piece is chunk:
                continue
            assert isinstance(piece, Sealed)
            gone = piece.pending[source.known :]
            if not any(piece is present for present in pieces):
                gone = [(0, piece.count)]
            for start, stop in gone:
                chunk.mark_deleted(source.at + start, source.at + stop)
        sealed.live = chunk.live_count(0, chunk.count)
        sealed.live_payload = chunk.live_bytes(0, chunk.count)
        if chunk.deleted is not None and bytes(chunk.deleted) != self.flags:
            fresh = [at for at in range(chunk.count) if chunk.deleted[at] and not self.flags[at]]
            sealed.pending = as_stretches(fresh)


@dataclass(slots=True)
class PlannedFile:
    number: int
    size: int = HEADER_BYTES
    events: int = 0
    parts: list[list[bytes | memoryview]] = field(default_factory=list)
    planned: list[PlannedPage] = field(default_factory=list)

    def add(self, store: SegmentStore, topic: TopicState, chunk: Chunk, sources: list[Source]) -> Sealed:
        """Plan a page of this chunk, which does not grow any more."""
        chunk.closed = True
        parts = codec.encode(topic.log.topic_id, chunk)
        length = sum(map(len, parts))
        count = chunk.count
        sealed = Sealed(
            store, topic_id=topic.log.topic_id, file=self.number, offset=self.size, length=length,
            first_seq=chunk.first_seq, count=count, live=chunk.live_count(0, count),
            live_payload=chunk.live_bytes(0, count), first_ts=chunk.ts_values[0],
            last_ts=chunk.ts_values[-1],
            tags_between=chunk.tags.between() if chunk.tags is not None else None,
        )  # fmt: skip
        flags = bytes(chunk.deleted) if chunk.deleted is not None else bytes(count)
        # An entry that is written while a page is planned asks for its live records.
        store.planned[sealed] = chunk
        self.parts.append(parts)
        self.planned.append(PlannedPage(topic, chunk, sealed, flags, sources))
        self.size += length
        self.events += count
        return sealed


def as_stretches(indexes: list[int]) -> list[tuple[int, int]]:
    stretches: list[tuple[int, int]] = []
    for index in indexes:
        if stretches and stretches[-1][1] == index:
            stretches[-1] = (stretches[-1][0], index + 1)
        else:
            stretches.append((index, index + 1))
    return stretches
