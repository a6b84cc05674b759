"""A run: the records of one write, rendered once to the bytes that readers will get.

    {"$seq":7,"$ts":1748450001000 | ,"$node":"a" | ,"data":{...} | ,"meta":{...} }
      head                           node section   data section   meta section

Records are joined by commas. The log, the tail in memory and a default answer carry the same bytes.
`$tag` is kept beside them, because a default read leaves it out.

Lengths per record live in arrays; there is no object per record.
"""

from array import array
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from topics.engine.limits import Limits
from topics.engine.record import NO_META, WriteRecord, check_payload, may_be_deep

DATA_KEY = b',"data":'
META_KEY = b',"meta":'
NODE_KEY = b',"$node":'
TAG_KEY = b',"$tag":'
# What surrounds the payload of every record: the data key and the closing brace.
FRAME_BYTES = len(DATA_KEY) + 1

# A nesting deeper than allowed needs at least this many bytes, so shorter records need no look.
_LOOK_AT_BYTES = 256

_ONE_HEAD = [bytes((length,)) for length in range(256)]
_encoder = msgspec.json.Encoder()


class Run(msgspec.Struct, gc=False):
    """`count` records from `first_seq` on, all committed at `ts`."""

    first_seq: int
    count: int
    ts: int
    blob: bytes
    heads: bytes  # bytes of `{"$seq":…,"$ts":…` per record
    lengths: "array[int]"  # rendered bytes per record, without the comma
    nodes: list[bytes]  # distinct node sections; index 0 is "no node"
    node_ids: "array[int] | None"  # per record, an index into `nodes`; None if no record has a node
    meta_lengths: "array[int] | None"  # bytes of the meta section per record
    tag_lengths: "array[int] | None"  # bytes of the JSON-encoded tag per record, 0 if it has none
    tags: bytes

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    def payload_bytes(self) -> int:
        """`data` + `meta` bytes as sent, over all records."""
        heads, count = self.heads, self.count
        # Heads only grow within a run: seqs get more digits, never fewer.
        head_bytes = heads[0] * count if heads[0] == heads[-1] else sum(heads)
        total = len(self.blob) - (count - 1) - head_bytes - FRAME_BYTES * count
        if self.node_ids is not None:
            total -= sum(map(list(map(len, self.nodes)).__getitem__, self.node_ids))
        if self.meta_lengths is not None:
            total -= len(META_KEY) * (count - self.meta_lengths.count(0))
        return total

    def payload_bytes_max(self) -> int:
        """`data` + `meta` bytes of the largest record."""
        largest = 0
        for index, length in enumerate(self.lengths):
            size = length - self.heads[index] - FRAME_BYTES
            if self.node_ids is not None:
                size -= len(self.nodes[self.node_ids[index]])
            if self.meta_lengths is not None and self.meta_lengths[index]:
                size -= len(META_KEY)
            largest = max(largest, size)
        return largest

    def stored_bytes_max(self) -> int:
        """At least what the run takes in the log: its bytes, its tags and four numbers per record."""
        nodes = sum(len(section) + 2 for section in self.nodes) if self.node_ids is not None else 0
        return len(self.blob) + len(self.tags) + 16 * self.count + nodes


def head_lengths(first_seq: int, count: int, ts: int) -> bytes:
    """Bytes of each record's head: constant between two powers of ten."""
    fixed = len('{"$seq":,"$ts":') + len(str(ts))
    seq, end, out = first_seq, first_seq + count, b""
    while seq < end:
        digits = len(str(seq))
        upto = min(end, 10**digits)
        out += bytes((fixed + digits,)) * (upto - seq)
        seq = upto
    return out


def node_section(node: str) -> bytes:
    return NODE_KEY + msgspec.json.encode(node)


def encode_tag(tag: str) -> bytes:
    """A tag as stored: its JSON string. Prefixes of tags stay prefixes, up to the closing quote."""
    return msgspec.json.encode(tag)


def render(
    records: Sequence[WriteRecord],
    *,
    first_seq: int,
    ts: int,
    node: str | UnsetType,
    plain: bool,
    limits: Limits,
) -> Run:
    """Give each record its seq and time, and render it. Raises if one is too large or too deep.

    `plain` says that no record has a tag, a node or a meta of its own.
    """
    if len(records) == 1:
        return _render_one(records[0], first_seq, ts, node, limits)
    if not plain or node is not UNSET:
        return _render_sections(records, first_seq, ts, node, limits)
    return _render_plain(records, first_seq, ts, limits)


def _render_one(record: WriteRecord, seq: int, ts: int, node: str | UnsetType, limits: Limits) -> Run:
    """Most writes are one record, so nothing here is done by the column."""
    origin = node if record.node is UNSET else record.node
    section = b"" if origin is UNSET else node_section(origin)
    meta = b"" if record.meta is NO_META else b',"meta":%b' % record.meta
    tag = b"" if record.tag is UNSET else encode_tag(record.tag)
    blob = b'{"$seq":%d,"$ts":%d%b,"data":%b%b}' % (seq, ts, section, record.data, meta)
    # Nothing but two numbers stands before the first section.
    head = blob.index(section or DATA_KEY)
    if len(blob) > _LOOK_AT_BYTES or len(blob) > limits.record_bytes:
        _check_sizes([blob], [record], limits)
    return Run(
        seq,
        1,
        ts,
        blob,
        _ONE_HEAD[head],
        array("I", (len(blob),)),
        [b"", section] if section else [b""],
        array("H", (1,)) if section else None,
        array("I", (len(meta),)) if meta else None,
        array("I", (len(tag),)) if tag else None,
        tag,
    )


def _render_plain(records: Sequence[WriteRecord], first_seq: int, ts: int, limits: Limits) -> Run:
    """Two records or more. All heads by one replacement in a list of numbers: nothing is formatted singly."""
    count = len(records)
    datas = [record.data for record in records]
    sizes = list(map(len, datas))
    if max(sizes) > min(_LOOK_AT_BYTES, limits.record_bytes):
        _check_sizes(list(map(bytes, datas)), records, limits)
    after_seq = b',"$ts":%d%b' % (ts, DATA_KEY)
    numbers = _encoder.encode(list(range(first_seq, first_seq + count)))[1:-1]
    # Between two records: what follows the one's number, its data, and what leads to the other's.
    between = numbers.replace(b",", after_seq + b"\n" + b'},{"$seq":').split(b"\n")
    pieces: list[bytes | msgspec.Raw] = [b"}"] * (2 * count + 1)
    pieces[:-1:2] = between
    pieces[1::2] = datas
    pieces[0] = b'{"$seq":' + between[0]
    pieces[-3] = between[-1] + after_seq
    heads = head_lengths(first_seq, count, ts)
    around = heads[0] + FRAME_BYTES
    if heads[0] == heads[-1]:
        lengths = [size + around for size in sizes]
    else:
        lengths = [size + head + FRAME_BYTES for size, head in zip(sizes, heads, strict=True)]
    return Run(
        first_seq,
        count,
        ts,
        b"".join(pieces),
        heads,
        array("I", lengths),
        [b""],
        None,
        None,
        None,
        b"",
    )


def _render_sections(
    records: Sequence[WriteRecord], first_seq: int, ts: int, node: str | UnsetType, limits: Limits
) -> Run:
    """Column by column, so that the work per record is done by few and simple steps."""
    origins = [node if record.node is UNSET else record.node for record in records]
    sections: dict[str | UnsetType, bytes] = {UNSET: b""}
    for origin in dict.fromkeys(origins):
        if origin is not UNSET:
            sections[origin] = node_section(origin)
    metas = [b"" if record.meta is NO_META else b',"meta":%b' % record.meta for record in records]
    form = b'{"$seq":%%d,"$ts":%d%%b,"data":%%b%%b}' % ts
    values = zip(
        range(first_seq, first_seq + len(records)),
        map(sections.__getitem__, origins),
        [record.data for record in records],
        metas,
        strict=True,
    )
    run = _joined(list(map(form.__mod__, values)), records, first_seq, ts, limits)
    if len(sections) > 1:
        numbers = {origin: number for number, origin in enumerate(sections)}
        run.nodes = list(sections.values())
        run.node_ids = array("H", list(map(numbers.__getitem__, origins)))
    if any(metas):
        run.meta_lengths = array("I", list(map(len, metas)))
    tags = _encode_tags([None if record.tag is UNSET else record.tag for record in records])
    if any(tags):
        run.tag_lengths = array("I", list(map(len, tags)))
        run.tags = b"".join(tags)
    return run


def _joined(
    rendered: list[bytes], records: Sequence[WriteRecord], first_seq: int, ts: int, limits: Limits
) -> Run:
    """Rendered records as a run without columns."""
    lengths = list(map(len, rendered))
    heads = head_lengths(first_seq, len(rendered), ts)
    if max(lengths) > min(_LOOK_AT_BYTES, limits.record_bytes) + heads[0] + FRAME_BYTES:
        _check_sizes(rendered, records, limits)
    blob = b",".join(rendered)
    return Run(first_seq, len(rendered), ts, blob, heads, array("I", lengths), [b""], None, None, None, b"")


def _encode_tags(tags: list[str | None]) -> list[bytes]:
    """Each as `encode_tag` gives it; empty for None."""
    # A JSON string has no line break, and no string is written like null.
    lines = _encoder.encode_lines(tags).split(b"\n")
    lines.pop()
    return [b"" if line == b"null" else line for line in lines] if None in tags else lines


def _check_sizes(rendered: list[bytes], records: Sequence[WriteRecord], limits: Limits) -> None:
    """A rendered record is longer than its payload and has its brackets, so most need no real look."""
    for index, text in enumerate(rendered):
        if len(text) > limits.record_bytes or may_be_deep(text):
            check_payload(records[index], index, limits)
