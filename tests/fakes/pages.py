"""Chunks to be sealed, all that can be seen of a chunk, and pages as a broken writer would leave them."""

from struct import pack_into

from msgspec import UNSET, Raw
from xxhash import xxh3_64_intdigest

from shards.store import page as codec
from shards.store.page import HEAD_BYTES, PageDamaged, UnknownPageFormat
from topics.engine.chunk import Chunk
from topics.engine.limits import Limits
from topics.engine.record import NO_META, WriteRecord
from topics.engine.run import render
from topics.engine.tags import TagMatch

TOPIC = 7

# Where the header holds the two checksums of parts, and its own.
TAGS_SUM, COLUMNS_SUM, HEAD_SUM = HEAD_BYTES - 24, HEAD_BYTES - 16, HEAD_BYTES - 8


def sealable(
    *batches: list[WriteRecord], first_seq: int = 1, deleted: set[int] | None = None, ts: int = 1_000
) -> Chunk:
    """A closed chunk; each batch has its own time, and every third the time of the one before."""
    chunk = Chunk(first_seq)
    for number, records in enumerate(batches):
        run = render(
            records,
            first_seq=chunk.end_seq,
            ts=ts + number - (number % 3 == 2),
            node=UNSET,
            plain=False,
            limits=Limits(),
        )
        chunk.absorb(run)
    for index in deleted or ():
        chunk.mark_deleted(index, index + 1)
    chunk.closed = True
    return chunk


def record(
    data: bytes = b"1", tag: str | None = None, node: str | None = None, meta: bytes = b""
) -> WriteRecord:
    return WriteRecord(
        Raw(data),
        UNSET if tag is None else tag,
        UNSET if node is None else node,
        Raw(meta) if meta else NO_META,
    )


FULL = sealable(
    [record(b'{"a":1.0}', "t1", "n1", b'{"m":"x"}'), record(b"null")],
    [record(b"[ 1 ]", "t1:x", "n2")],
    [record(b'"z"', "", "n1"), record(b"{}", 'q"', None, b"{}"), record(b"0", "t1")],
    first_seq=98,
    deleted={1, 4},
    ts=1_700_000_000_123,
)
BARE = sealable([record(b"[1,2]")])


def sealed(chunk: Chunk = FULL) -> bytes:
    return b"".join(codec.encode(TOPIC, chunk))


def tag_part(data: bytes) -> bytes:
    head = codec.decode_head(data)
    return data[head.tags_at : head.tags_at + head.tags_length]


def raw_records(chunk: Chunk) -> list[bytes]:
    return [bytes(chunk.slice(index, index + 1)) for index in range(chunk.count)]


def live(chunk: Chunk) -> list[int]:
    return [index for index in range(chunk.count) if chunk.first_live(index, index + 1) == index]


def served(chunk: Chunk) -> bytes:
    """What a reader of the whole chunk gets."""
    if not live(chunk):
        return b""
    wanted = chunk.wanted(0, chunk.count, frozenset())
    parts = chunk.pick(0, chunk.count, wanted) if wanted else [chunk.slice(0, chunk.count)]
    return b",".join(parts)


def everything(chunk: Chunk) -> dict[str, object]:
    """All that can be seen of a chunk; of the tag index, that it finds each tag."""
    seen = {name: getattr(chunk, name) for name in Chunk.__slots__ if name != "tags"}
    # Equal dicts may differ in their order, and sealing numbers nodes by it.
    seen["nodes"] = list(chunk.nodes.items())
    if chunk.tags is not None:
        tags = [chunk.tags[index] for index in range(chunk.count)]
        seen["tags"] = tags, len(chunk.tags), chunk.tags.columns()
        seen["found"] = [sorted(chunk.tags.find(TagMatch(tag, False), below=chunk.count)) for tag in tags]
    return seen


def resealed(data: bytes) -> bytes:
    """The same page with checksums that are right again, as a broken writer would leave it."""
    page = bytearray(data)
    reseal(page, HEAD_SUM, 0, HEAD_SUM)
    try:
        head = codec.decode_head(bytes(page))
    except (PageDamaged, UnknownPageFormat):
        return bytes(page)
    reseal(page, TAGS_SUM, head.tags_at, head.columns_at)
    reseal(page, COLUMNS_SUM, head.columns_at, head.checksums_at)
    seed = reseal(page, HEAD_SUM, 0, HEAD_SUM)
    for block in range(head.blocks if head.length == len(page) else 0):
        begin = head.data_at + block * codec.BLOCK_BYTES
        end = min(head.flags_at, begin + codec.BLOCK_BYTES)
        reseal(page, head.checksums_at + 8 * block, begin, end, seed + block)
    return bytes(page)


def reseal(page: bytearray, at: int, begin: int, end: int, seed: int = 0) -> int:
    checksum = xxh3_64_intdigest(bytes(page[begin:end]), seed % 2**64)
    pack_into("<Q", page, at, checksum)
    return checksum
