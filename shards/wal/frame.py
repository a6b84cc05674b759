"""What a log frame says: kinds and the bytes of their bodies. No files, no state.

Bodies are little-endian and have no version of their own: the batch's version covers them.
Small hot bodies are packed by hand; OPEN, CREATE and CONFIG are CBOR maps.
"""

import sys
from array import array
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

import cbor2
import msgspec

from shards.wal.batch import Frame
from topics.engine.config import TopicConfig
from topics.engine.run import Run, head_lengths
from topics.engine.watermarks import Hole

assert sys.byteorder == "little", "the log's columns are little-endian arrays"


class Kind(IntEnum):
    OPEN = 1  # a session starts: boot id
    CLOSE = 2  # a session ended in order: every head is exact
    CREATE = 3  # a topic: id, name, config
    CONFIG = 4  # its new config, and its head at that moment
    DROP = 5  # the topic is gone
    APPEND = 6  # records first_seq … first_seq + count - 1
    DELETE = 7  # seq ranges
    FLOOR = 8  # what was lost to caps and time
    CEILING = 9  # no seq above first_seq was handed out
    HOLE = 10  # records first_seq … first_seq + count - 1 are lost


_HAS_KEY, _HAS_FLOOR, _HAS_NODES, _HAS_META, _HAS_TAGS = 1, 2, 4, 8, 16
_U64 = Struct("<Q")
_U64_PAIR = Struct("<QQ")
_U16 = Struct("<H")
KEY_BYTES = 16


class FrameError(Exception):
    """An intact frame that says something impossible: written by a newer or a broken version."""


@dataclass(frozen=True, slots=True)
class Append:
    run: Run
    key: bytes  # empty: no idempotency key
    cap_evicted: int  # 0: this append evicted nothing new


def append_frame(topic_id: int, run: Run, *, key: bytes = b"", cap_evicted: int = 0) -> Frame:
    flags = 0
    parts = [_U64.pack(run.ts)]
    if key:
        flags |= _HAS_KEY
        parts.append(key)
    if cap_evicted:
        flags |= _HAS_FLOOR
        parts.append(_U64.pack(cap_evicted))
    if run.count > 1:
        parts.append(run.lengths.tobytes())
    if run.node_ids is not None:
        flags |= _HAS_NODES
        parts.append(_U16.pack(len(run.nodes)))
        for section in run.nodes:
            parts += (_U16.pack(len(section)), section)
        parts.append(run.node_ids.tobytes())
    if run.meta_lengths is not None:
        flags |= _HAS_META
        parts.append(run.meta_lengths.tobytes())
    if run.tag_lengths is not None:
        flags |= _HAS_TAGS
        parts += (run.tag_lengths.tobytes(), run.tags)
    parts.append(run.blob)
    return Frame(Kind.APPEND, topic_id, run.first_seq, run.count, b"".join(parts), flags)


class _Cursor:
    """Reads a body from the front; running out of bytes is a FrameError."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, length: int) -> memoryview:
        end = self._at + length
        if end > len(self._data):
            raise FrameError(f"body ends after {len(self._data)} bytes, {end} are needed")
        view = self._data[self._at : end]
        self._at = end
        return view

    def number(self, layout: Struct) -> int:
        return int(layout.unpack(self.take(layout.size))[0])

    def column(self, typecode: str, count: int) -> "array[int]":
        column = array(typecode)
        column.frombytes(self.take(column.itemsize * count))
        return column

    def rest(self) -> bytes:
        return bytes(self._data[self._at :])


def decode_append(first_seq: int, count: int, flags: int, body: bytes | memoryview) -> Append:
    if not count:
        raise FrameError("an append of no records")
    cursor = _Cursor(body)
    ts = cursor.number(_U64)
    key = bytes(cursor.take(KEY_BYTES)) if flags & _HAS_KEY else b""
    cap_evicted = cursor.number(_U64) if flags & _HAS_FLOOR else 0
    lengths = cursor.column("I", count) if count > 1 else array("I")
    nodes, node_ids = [b""], None
    if flags & _HAS_NODES:
        nodes = [bytes(cursor.take(cursor.number(_U16))) for _ in range(cursor.number(_U16))]
        node_ids = cursor.column("H", count)
        if max(node_ids) >= len(nodes):
            raise FrameError("a record names a node that the frame does not list")
    meta_lengths = cursor.column("I", count) if flags & _HAS_META else None
    tag_lengths, tags = None, b""
    if flags & _HAS_TAGS:
        tag_lengths = cursor.column("I", count)
        tags = bytes(cursor.take(sum(tag_lengths)))
    blob = cursor.rest()
    if count == 1:
        lengths.append(len(blob))
    if sum(lengths) + count - 1 != len(blob):
        raise FrameError(f"{count} records do not fill {len(blob)} bytes")
    heads = head_lengths(first_seq, count, ts)
    run = Run(first_seq, count, ts, blob, heads, lengths, nodes, node_ids, meta_lengths, tag_lengths, tags)
    return Append(run, key, cap_evicted)


def delete_frame(topic_id: int, ranges: list[tuple[int, int]]) -> Frame:
    body = b"".join(_U64_PAIR.pack(first, last) for first, last in ranges)
    return Frame(Kind.DELETE, topic_id, ranges[0][0], len(ranges), body)


def decode_delete(body: bytes | memoryview) -> list[tuple[int, int]]:
    if len(body) % _U64_PAIR.size:
        raise FrameError(f"a delete of {len(body)} bytes is not a list of ranges")
    return [(first, last) for first, last in _U64_PAIR.iter_unpack(body)]


def floor_frame(topic_id: int, *, cap_evicted: int, ttl_expired: int) -> Frame:
    return Frame(Kind.FLOOR, topic_id, 0, 0, _U64_PAIR.pack(cap_evicted, ttl_expired))


def decode_floor(body: bytes | memoryview) -> tuple[int, int]:
    if len(body) != _U64_PAIR.size:
        raise FrameError(f"a floor of {len(body)} bytes")
    cap_evicted, ttl_expired = _U64_PAIR.unpack(body)
    return int(cap_evicted), int(ttl_expired)


def ceiling_frame(topic_id: int, ceiling: int) -> Frame:
    return Frame(Kind.CEILING, topic_id, ceiling, 0, b"")


def hole_frame(topic_id: int, hole: Hole) -> Frame:
    body = cbor2.dumps({"reason": hole.reason, "cause": hole.cause, "last": hole.last})
    return Frame(Kind.HOLE, topic_id, hole.first, 0, body)


def decode_hole(first_seq: int, body: bytes | memoryview) -> Hole:
    fields = _map(body)
    last, reason, cause = fields.get("last"), fields.get("reason"), fields.get("cause")
    if not isinstance(last, int) or not isinstance(reason, str) or not isinstance(cause, str):
        raise FrameError(f"not a hole: {fields}")
    return Hole(first_seq, last, reason, cause)


def open_frame(boot_id: str, version: str) -> Frame:
    return Frame(Kind.OPEN, 0, 0, 0, cbor2.dumps({"boot_id": boot_id, "version": version}))


def decode_open(body: bytes | memoryview) -> str:
    boot_id = _map(body).get("boot_id")
    if not isinstance(boot_id, str):
        raise FrameError("a session without a boot id")
    return boot_id


def close_frame() -> Frame:
    return Frame(Kind.CLOSE, 0, 0, 0, b"")


def create_frame(topic_id: int, name: str, config: TopicConfig) -> Frame:
    body = cbor2.dumps({"name": name, "config": msgspec.structs.asdict(config)})
    return Frame(Kind.CREATE, topic_id, 0, 0, body)


def decode_create(body: bytes | memoryview) -> tuple[str, TopicConfig]:
    fields = _map(body)
    name = fields.get("name")
    if not isinstance(name, str):
        raise FrameError("a topic without a name")
    return name, _config(fields)


def config_frame(topic_id: int, config: TopicConfig, head: int) -> Frame:
    body = cbor2.dumps({"config": msgspec.structs.asdict(config)})
    return Frame(Kind.CONFIG, topic_id, head, 0, body)


def decode_config(body: bytes | memoryview) -> TopicConfig:
    return _config(_map(body))


def drop_frame(topic_id: int) -> Frame:
    return Frame(Kind.DROP, topic_id, 0, 0, b"")


def _map(body: bytes | memoryview) -> dict[str, object]:
    try:
        value = cbor2.loads(bytes(body))
    except (cbor2.CBORDecodeError, ValueError) as error:
        raise FrameError(f"not CBOR: {error}") from error
    if not isinstance(value, dict):
        raise FrameError(f"expected a map, got {type(value).__name__}")
    return value


def _config(fields: dict[str, object]) -> TopicConfig:
    try:
        return msgspec.convert(fields.get("config"), TopicConfig)
    except msgspec.ValidationError as error:
        raise FrameError(f"not a topic config: {error}") from error
