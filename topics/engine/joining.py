"""Several chunks of consecutive records as one."""

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise

from topics.engine.chunk import Chunk
from topics.engine.run import Run


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """A closed chunk with the records of all of them, deleted ones included; they follow each other."""
    whole = Chunk(chunks[0].first_seq)
    for chunk in chunks:
        assert chunk.first_seq == whole.end_seq, (chunk.first_seq, whole.end_seq)
        at = whole.count
        for run in _runs(chunk):
            whole.absorb(run)
        if chunk.deleted is not None:
            for start, stop in _stretches(chunk.deleted):
                whole.mark_deleted(at + start, at + stop)
    whole.closed = True
    return whole


def _runs(chunk: Chunk) -> Iterator[Run]:
    """The records of a chunk as they were once appended, one run for each time."""
    nodes = list(chunk.nodes)
    for start, stop in pairwise([*chunk.ts_starts, chunk.count]):
        ends = [chunk.end_offset(index) for index in range(start, stop)]
        lengths = array("I", [end - begin for begin, end in zip(chunk.starts[start:stop], ends, strict=True)])
        tag_lengths, tags = None, b""
        if chunk.tags is not None:
            texts = [chunk.tags[index] for index in range(start, stop)]
            tag_lengths, tags = array("I", list(map(len, texts))), b"".join(texts)
        yield Run(
            chunk.first_seq + start,
            stop - start,
            chunk.ts_values[chunk.ts_starts.index(start)],
            bytes(chunk.buffer[chunk.starts[start] : ends[-1]]),
            bytes(chunk.heads[start:stop]),
            lengths,
            nodes,
            chunk.node_ids[start:stop] if chunk.node_ids is not None else None,
            chunk.meta_lengths[start:stop] if chunk.meta_lengths is not None else None,
            tag_lengths,
            tags,
        )


def _stretches(deleted: bytearray) -> Iterator[tuple[int, int]]:
    at = deleted.find(1)
    while at >= 0:
        end = deleted.find(0, at)
        stop = len(deleted) if end < 0 else end
        yield at, stop
        at = deleted.find(1, stop)
