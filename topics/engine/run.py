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
from topics.engine.record import NO_META, WriteRecord, check_payload

DATA_KEY = b',"data":'
META_KEY = b',"meta":'
NODE_KEY = b',"$node":'
TAG_KEY = b',"$tag":'
# What surrounds the payload of every record: the data key and the closing brace.
FRAME_BYTES = len(DATA_KEY) + 1

# A nesting deeper than allowed needs at least this many bytes, so shorter records need no look.
_LOOK_AT_BYTES = 256


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
        total = sum(self.lengths) - sum(self.heads) - FRAME_BYTES * self.count
        if self.node_ids is not None:
            total -= sum(len(self.nodes[at]) for at in self.node_ids)
        if self.meta_lengths is not None:
            total -= len(META_KEY) * (self.count - self.meta_lengths.count(0))
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
    if plain and node is UNSET:
        form = b'{"$seq":%%d,"$ts":%d,"data":%%b}' % ts
        rendered = [form % (seq, record.data) for seq, record in enumerate(records, first_seq)]
        run = Run(
            first_seq,
            len(rendered),
            ts,
            b",".join(rendered),
            head_lengths(first_seq, len(rendered), ts),
            array("I", map(len, rendered)),
            [b""],
            None,
            None,
            None,
            b"",
        )
    else:
        run = _render_sections(records, first_seq, ts, node)
    _check_sizes(records, run, limits)
    return run


def _render_sections(records: Sequence[WriteRecord], first_seq: int, ts: int, node: str | UnsetType) -> Run:
    nodes: list[bytes] = [b""]
    known: dict[str, int] = {}
    node_ids, meta_lengths, tag_lengths = array("H"), array("I"), array("I")
    rendered: list[bytes] = []
    tags: list[bytes] = []
    for seq, record in enumerate(records, first_seq):
        origin = node if record.node is UNSET else record.node
        at = 0
        if origin is not UNSET:
            at = known.get(origin, 0)
            if not at:
                at = known[origin] = len(nodes)
                nodes.append(node_section(origin))
        node_ids.append(at)
        meta = b"" if record.meta is NO_META else META_KEY + bytes(record.meta)
        meta_lengths.append(len(meta))
        tag = b"" if record.tag is UNSET else encode_tag(record.tag)
        tag_lengths.append(len(tag))
        tags.append(tag)
        rendered.append(b'{"$seq":%d,"$ts":%d%b,"data":%b%b}' % (seq, ts, nodes[at], record.data, meta))
    return Run(
        first_seq,
        len(rendered),
        ts,
        b",".join(rendered),
        head_lengths(first_seq, len(rendered), ts),
        array("I", map(len, rendered)),
        nodes,
        node_ids if known else None,
        meta_lengths if any(meta_lengths) else None,
        tag_lengths if any(tag_lengths) else None,
        b"".join(tags),
    )


def _check_sizes(records: Sequence[WriteRecord], run: Run, limits: Limits) -> None:
    look_at = min(_LOOK_AT_BYTES, limits.record_bytes)
    if max(run.lengths) > look_at:
        for index, length in enumerate(run.lengths):
            if length > look_at:
                check_payload(records[index], index, limits)
