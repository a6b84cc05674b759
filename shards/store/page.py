"""The bytes of one page: a closed chunk of a topic, sealed. No files, no clock, no trio.

    header | tag part | columns | block checksums | data | flags

    tag part   end of each tag u32, tags in record order, tagged records sorted by tag u32; may be empty
    columns    starts u32, heads u8, ts starts u32, ts values u64,
               node ids u16, node lengths u32, node sections (optional), meta lengths u32 (optional)
    data       the records as readers get them, checked in blocks of 64 KiB
    flags      one byte per record

Kept here and nowhere else:
  * Little-endian. The header has a fixed size and gives the place and the length of everything else. The
    tag part follows it, so that a lookup by tag is one short read.
  * The header holds the checksums of the tag part and of the columns, and is covered by its own. What
    is damaged there says nothing any more: the page is refused.
  * The checksum of a block is seeded with the header's and the block's number, so that data of an older
    page in the same place is not taken for this one's. A damaged block costs only the records in it.
  * A record is deleted if its flag is exactly 0xD1. No single bit makes a live record a deleted one, and
    flags are overwritten in place, so no checksum covers them.
Decided elsewhere: where pages stand, and what becomes of damaged records.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from struct import Struct

from xxhash import xxh3_64_intdigest

from topics.engine.chunk import Chunk
from topics.engine.tags import TagColumn, TagMatch

assert sys.byteorder == "little", "a page's columns are little-endian arrays"

MAGIC = b"TPAG"
VERSION = 1
BLOCK_BYTES = 64 * 1024
DELETED = 0xD1

# magic, version, optional parts, count, ts runs, nodes, node bytes, tagged, tag bytes,
# topic id, first seq, data bytes, live bytes, first ts, last ts, checksums of tag part and columns
_HEADER = Struct("<4sHHIIIIIIQQQQQQQQ")
_CHECKSUM = Struct("<Q")
HEAD_BYTES = _HEADER.size + _CHECKSUM.size

_HAS_NODES, _HAS_META, _HAS_TAGS = 1, 2, 4
_NODES_MAX = 2**16
_DATA_BYTES_MAX = 2**32 - 1
_IS_DELETED = bytes(flag == DELETED for flag in range(256))


class PageDamaged(Exception):
    """These bytes are no intact page; none of them may be used."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnknownPageFormat(Exception):
    """The page was written by a newer version."""

    def __init__(self, version: int) -> None:
        super().__init__(f"the page has format version {version}, this server reads {VERSION}")
        self.version = version


@dataclass(frozen=True, slots=True)
class PageHead:
    """What the header says, and where everything is."""

    checksum: int
    optional: int  # which of the optional parts exist
    count: int
    ts_runs: int
    nodes: int
    node_bytes: int
    tagged: int
    tag_bytes: int
    topic_id: int
    first_seq: int
    data_bytes: int
    live_bytes: int  # `data` + `meta` bytes of the records that were live at sealing
    first_ts: int
    last_ts: int
    tags_checksum: int
    columns_checksum: int

    @property
    def end_seq(self) -> int:
        """The seq after the last record."""
        return self.first_seq + self.count

    @property
    def tags_at(self) -> int:
        return HEAD_BYTES

    @property
    def tags_length(self) -> int:
        return sum(self.tag_lengths())

    @property
    def columns_at(self) -> int:
        return HEAD_BYTES + self.tags_length

    @property
    def blocks(self) -> int:
        return -(-self.data_bytes // BLOCK_BYTES)

    @property
    def checksums_at(self) -> int:
        return self.columns_at + sum(self.column_lengths())

    @property
    def data_at(self) -> int:
        return self.checksums_at + _CHECKSUM.size * self.blocks

    @property
    def flags_at(self) -> int:
        return self.data_at + self.data_bytes

    @property
    def length(self) -> int:
        """Bytes of the whole page."""
        return self.flags_at + self.count

    def tag_lengths(self) -> tuple[int, ...]:
        """Bytes of each piece of the tag part: ends, tags, order."""
        ends = 4 * self.count if self.optional & _HAS_TAGS else 0
        return ends, self.tag_bytes, 4 * self.tagged

    def column_lengths(self) -> tuple[int, ...]:
        """Bytes of each column, in their order in the page."""
        count, runs = self.count, self.ts_runs
        node_ids = 2 * count if self.optional & _HAS_NODES else 0
        metas = 4 * count if self.optional & _HAS_META else 0
        return 4 * count, count, 4 * runs, 8 * runs, node_ids, 4 * self.nodes, self.node_bytes, metas

    def is_possible(self) -> bool:
        return (
            self.optional <= _HAS_NODES | _HAS_META | _HAS_TAGS
            and 0 < self.ts_runs <= self.count
            and (0 < self.nodes <= _NODES_MAX if self.optional & _HAS_NODES else not self.nodes)
            and (self.nodes > 0 or not self.node_bytes)
            # A line break follows every tag, also an empty one.
            and (self.tag_bytes >= self.count if self.optional & _HAS_TAGS else not self.tag_bytes)
            and self.tagged <= (self.count if self.optional & _HAS_TAGS else 0)
            # Records are not empty, and there is a comma between two of them.
            and 2 * self.count - 1 <= self.data_bytes <= _DATA_BYTES_MAX
        )


@dataclass(frozen=True, slots=True)
class Page:
    head: PageHead
    chunk: Chunk
    damaged: list[tuple[int, int]]  # inclusive seq ranges; in the chunk these records are deleted and wiped


def encode(topic_id: int, chunk: Chunk) -> list[bytes | memoryview]:
    """The bytes of a page, in parts so that the data is not copied: that part is a view of the chunk's."""
    assert chunk.closed, "an open chunk still grows"
    assert chunk.count, "a page has records"
    optional, tag_part, tag_bytes, tagged = 0, b"", 0, 0
    if chunk.tags is not None:
        optional |= _HAS_TAGS
        ends, lines, order = chunk.tags.columns()
        tag_part = b"".join((ends.tobytes(), lines, order.tobytes()))
        tag_bytes, tagged = len(lines), len(order)
    columns: list[bytes | bytearray] = [chunk.starts.tobytes(), chunk.heads]
    columns += (chunk.ts_starts.tobytes(), chunk.ts_values.tobytes())
    sections: list[bytes] = []
    if chunk.node_ids is not None:
        optional |= _HAS_NODES
        sections = list(chunk.nodes)
        columns += (chunk.node_ids.tobytes(), array("I", chunk.section_lengths).tobytes(), *sections)
    if chunk.meta_lengths is not None:
        optional |= _HAS_META
        columns.append(chunk.meta_lengths.tobytes())
    column_part = b"".join(columns)
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        optional,
        chunk.count,
        len(chunk.ts_starts),
        len(sections),
        sum(map(len, sections)),
        tagged,
        tag_bytes,
        topic_id,
        chunk.first_seq,
        len(chunk.buffer),
        chunk.live_bytes(0, chunk.count),
        chunk.ts_values[0],
        chunk.ts_values[-1],
        xxh3_64_intdigest(tag_part),
        xxh3_64_intdigest(column_part),
    )
    checksum = xxh3_64_intdigest(header)
    data = memoryview(chunk.buffer)
    blocks = array("Q", _block_checksums(checksum, data)).tobytes()
    flags = bytes(chunk.count)
    if chunk.deleted is not None:
        flags = bytes(chunk.deleted.replace(b"\x01", bytes((DELETED,))))
    return [header + _CHECKSUM.pack(checksum), tag_part, column_part, blocks, data, flags]


def decode_head(data: bytes | memoryview) -> PageHead:
    """What the header at the front of `data` says.

    Raises PageDamaged if there is none, and UnknownPageFormat for an intact one of another version.
    """
    if len(data) < HEAD_BYTES:
        raise PageDamaged(f"a header takes {HEAD_BYTES} bytes, there are {len(data)}")
    magic, version, *fields = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise PageDamaged("no page begins here")
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    if xxh3_64_intdigest(data[: _HEADER.size]) != checksum:
        raise PageDamaged("the header does not match its checksum")
    if version != VERSION:
        raise UnknownPageFormat(version)
    head = PageHead(checksum, *fields)
    if not head.is_possible():
        raise PageDamaged("the header contradicts itself")
    return head


def decode(data: bytes | memoryview) -> Page:
    """The page that `data` is, from its first byte to its last.

    Damaged data costs the records in it; any other damage raises PageDamaged.
    """
    view = memoryview(data)
    head = decode_head(view[:HEAD_BYTES])
    if len(view) != head.length:
        raise PageDamaged(f"the page takes {head.length} bytes, there are {len(view)}")
    chunk = _decode_chunk(head, view)
    damaged = _records_in(chunk, _bad_blocks(head, view))
    for first, last in damaged:
        _wipe(chunk, first, last)
    return Page(head, chunk, [(head.first_seq + first, head.first_seq + last) for first, last in damaged])


def defects(head: PageHead, page: memoryview) -> list[tuple[int, str]]:
    """What does not match its checksum in a whole page, each with its offset in the page."""
    found = []
    if xxh3_64_intdigest(page[head.tags_at : head.columns_at]) != head.tags_checksum:
        found.append((head.tags_at, "the tag part does not match its checksum"))
    if xxh3_64_intdigest(page[head.columns_at : head.checksums_at]) != head.columns_checksum:
        found.append((head.columns_at, "the columns do not match their checksum"))
    found += [
        (head.data_at + block * BLOCK_BYTES, f"data block {block} does not match its checksum")
        for block in _bad_blocks(head, page)
    ]
    return found


def find_tags(head: PageHead, tag_part: bytes | memoryview, match: TagMatch) -> list[int]:
    """Numbers of the records whose tag matches, deleted ones included, ascending; by the tag part alone."""
    return sorted(_decode_tags(head, memoryview(tag_part)).find(match, below=head.count))


def deleted_flags(count: int) -> bytes:
    """What to write over the flags of so many records that are deleted."""
    return bytes((DELETED,)) * count


def _block_checksums(seed: int, data: memoryview) -> list[int]:
    return [
        xxh3_64_intdigest(data[at : at + BLOCK_BYTES], (seed + number) % 2**64)
        for number, at in enumerate(range(0, len(data), BLOCK_BYTES))
    ]


def _bad_blocks(head: PageHead, page: memoryview) -> list[int]:
    stored = _column("Q", page[head.checksums_at : head.data_at])
    found = _block_checksums(head.checksum, page[head.data_at : head.flags_at])
    return [block for block in range(head.blocks) if stored[block] != found[block]]


def _decode_chunk(head: PageHead, page: memoryview) -> Chunk:
    """The page's chunk, its data unchecked."""
    part = page[head.columns_at : head.checksums_at]
    if xxh3_64_intdigest(part) != head.columns_checksum:
        raise PageDamaged("the columns do not match their checksum")
    pieces = _split(part, head.column_lengths())
    starts, ts_starts, ts_values = _column("I", pieces[0]), _column("I", pieces[2]), _column("Q", pieces[3])
    node_ids = meta_lengths = None
    sections = [b""]
    possible = (
        starts[0] == 0
        and starts[-1] < head.data_bytes
        and _is_sorted(starts)
        and ts_starts[0] == 0
        and ts_starts[-1] < head.count
        and _is_sorted(ts_starts)
    )
    if head.optional & _HAS_NODES:
        node_ids, lengths = _column("H", pieces[4]), _column("I", pieces[5])
        sections = [bytes(piece) for piece in _split(pieces[6], lengths)]
        possible = (
            possible
            and sum(lengths) == head.node_bytes
            and max(node_ids) < head.nodes
            and sections[0] == b""
            and len(set(sections)) == head.nodes
        )
    if head.optional & _HAS_META:
        meta_lengths = _column("I", pieces[7])
    if not possible:
        raise PageDamaged("the columns contradict themselves")
    tags = _decode_tags(head, page[head.tags_at : head.columns_at])
    deleted = bytearray(page[head.flags_at :]).translate(_IS_DELETED)
    return Chunk.of_columns(
        head.first_seq,
        buffer=bytearray(page[head.data_at : head.flags_at]),
        starts=starts,
        heads=bytearray(pieces[1]),
        ts_starts=ts_starts,
        ts_values=ts_values,
        nodes=sections,
        node_ids=node_ids,
        meta_lengths=meta_lengths,
        tags=tags if head.optional & _HAS_TAGS else None,
        deleted=deleted if 1 in deleted else None,
    )


def _decode_tags(head: PageHead, part: memoryview) -> TagColumn:
    if len(part) != head.tags_length or xxh3_64_intdigest(part) != head.tags_checksum:
        raise PageDamaged("the tag part does not match its checksum")
    pieces = _split(part, head.tag_lengths())
    ends, lines, order = _column("I", pieces[0]), bytearray(pieces[1]), _column("I", pieces[2])
    if lines.count(b"\n") != len(ends) or len(lines) != (ends[-1] if ends else 0) + len(ends):
        raise PageDamaged("the tags contradict themselves")
    if max(order, default=-1) >= head.count:
        raise PageDamaged("the tag order names a record that does not exist")
    return TagColumn.of(ends, lines, order)


def _split(part: memoryview, lengths: Iterable[int]) -> list[memoryview]:
    ends = list(accumulate(lengths, initial=0))
    return [part[begin:end] for begin, end in pairwise(ends)]


def _column(typecode: str, piece: memoryview) -> "array[int]":
    column = array(typecode)
    column.frombytes(piece)
    return column


def _is_sorted(column: "array[int]") -> bool:
    values = column.tolist()
    return values == sorted(values)


def _records_in(chunk: Chunk, blocks: list[int]) -> list[tuple[int, int]]:
    """First and last of each stretch of records that the blocks, in ascending order, hold bytes of."""
    found: list[tuple[int, int]] = []
    for block in blocks:
        begin, end = block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES
        first = bisect_right(chunk.starts, begin) - 1
        if chunk.end_offset(first) <= begin:
            first += 1
        last = bisect_left(chunk.starts, end) - 1
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def _wipe(chunk: Chunk, first: int, last: int) -> None:
    """Delete these records, and leave no byte of them."""
    begin = max(0, chunk.starts[first] - 1)
    end = min(len(chunk.buffer), chunk.end_offset(last) + 1)
    # Commas, because the ones at both ends may be damaged too, and live neighbours are sent with them.
    chunk.buffer[begin:end] = b"," * (end - begin)
    chunk.mark_deleted(first, last + 1)
