"""The bytes of one log batch. No files, no clock, no trio.

    header | directory | header checksum | frame bodies | directory again | trailer | trailer checksum

Kept here and nowhere else:
  * Little-endian. The directory names every frame: kind, topic, seq range, length, checksum. It stands
    in front of the bodies and behind them, so that one damaged place does not make the rest unreadable
    and what was damaged can still be named.
  * A batch's identity is its header checksum, which covers the directory and so every frame.
  * A header carries its predecessor's identity written out, the batch's number, the session that wrote
    it, that session's first batch and the highest batch known durable then. A stale batch can never be
    taken for a new one: every batch of a later session says from where on its session took over.
Decided elsewhere: what a frame means (frame.py), what damage means (recovery.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

import msgspec
from xxhash import xxh3_64_intdigest

MAGIC = b"TWAL"
END_MAGIC = b"LAWT"
VERSION = 1

# magic, version, reserved, session, frames, number, session's first, durable, predecessor, time, body length
_HEADER = Struct("<4sHHIIQQQQQQ")
# kind, flags, reserved, length, topic id, first seq, count, checksum
_ENTRY = Struct("<BBHIQQIQ")
# number, session, frames, body length, header checksum, end magic
_TRAILER = Struct("<QIIQQ4s")
_CHECKSUM = Struct("<Q")

TRAILER_BYTES = _TRAILER.size + _CHECKSUM.size

# A directory beyond this is a damaged length, not a batch.
FRAMES_MAX = 2**22


class UnknownFormat(Exception):
    """The log was written by a newer version."""

    def __init__(self, version: int) -> None:
        super().__init__(f"the log has format version {version}, this server reads {VERSION}")


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One logged event: who and which seqs (`kind` decides their meaning), and its body."""

    kind: int
    topic_id: int
    first_seq: int
    count: int
    body: bytes
    flags: int = 0


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """What the directory says of a frame, and whether its body is as it was written."""

    kind: int
    flags: int
    topic_id: int
    first_seq: int
    count: int
    start: int
    length: int
    intact: bool
    batch: int = 0  # the number of its batch


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch found in a file, by its header or, if that is damaged, by its trailer."""

    number: int
    session: int
    session_first: int
    durable: int
    predecessor: int
    identity: int
    time_ms: int
    start: int
    end: int
    frames: int
    directory_at: int
    bodies_at: int
    from_trailer: bool = False


def encode(
    frames: Sequence[Frame],
    *,
    number: int,
    session: int,
    session_first: int,
    durable: int,
    predecessor: int,
    time_ms: int,
) -> tuple[list[bytes], int]:
    """The bytes of a batch, in parts so that large bodies are not copied, and its identity."""
    directory = b"".join(
        _ENTRY.pack(
            f.kind, f.flags, 0, len(f.body), f.topic_id, f.first_seq, f.count, xxh3_64_intdigest(f.body)
        )
        for f in frames
    )
    body_length = sum(len(f.body) for f in frames)
    head = (
        _HEADER.pack(
            MAGIC,
            VERSION,
            0,
            session,
            len(frames),
            number,
            session_first,
            durable,
            predecessor,
            time_ms,
            body_length,
        )
        + directory
    )
    identity = xxh3_64_intdigest(head)
    tail = directory + _TRAILER.pack(number, session, len(frames), body_length, identity, END_MAGIC)
    parts = [head, _CHECKSUM.pack(identity)]
    parts += [f.body for f in frames]
    parts += [tail, _CHECKSUM.pack(xxh3_64_intdigest(tail))]
    return parts, identity


def batch_overhead(frames: int) -> int:
    """Bytes that a batch of `frames` frames costs beyond its bodies."""
    return _HEADER.size + _TRAILER.size + 2 * _CHECKSUM.size + 2 * _ENTRY.size * frames


def decode(data: bytes | memoryview, at: int) -> Batch | None:
    """The batch whose intact header starts at `at`; its frames may be damaged. None if there is none.

    Raises UnknownFormat for an intact header of another version.
    """
    if at + _HEADER.size + _CHECKSUM.size > len(data):
        return None
    magic, version, _, session, frames, number, session_first, durable, predecessor, time_ms, body_length = (
        _HEADER.unpack_from(data, at)
    )
    if magic != MAGIC or frames > FRAMES_MAX:
        return None
    bodies = at + _HEADER.size + frames * _ENTRY.size + _CHECKSUM.size
    if bodies > len(data):
        return None
    (identity,) = _CHECKSUM.unpack_from(data, bodies - _CHECKSUM.size)
    if xxh3_64_intdigest(data[at : bodies - _CHECKSUM.size]) != identity:
        return None
    if version != VERSION:
        raise UnknownFormat(version)
    end = bodies + body_length + frames * _ENTRY.size + _TRAILER.size + _CHECKSUM.size
    return Batch(
        number, session, session_first, durable, predecessor, identity, time_ms, at, end, frames,
        at + _HEADER.size, bodies,
    )  # fmt: skip


def decode_backwards(data: bytes | memoryview, end: int) -> Batch | None:
    """The batch whose intact trailer ends at `end`, for when its header is damaged."""
    at = end - _TRAILER.size - _CHECKSUM.size
    if at < 0 or end > len(data):
        return None
    number, session, frames, body_length, identity, magic = _TRAILER.unpack_from(data, at)
    directory = at - frames * _ENTRY.size
    bodies = directory - body_length
    start = bodies - _CHECKSUM.size - frames * _ENTRY.size - _HEADER.size
    if magic != END_MAGIC or frames > FRAMES_MAX or start < 0:
        return None
    tail = data[directory : at + _TRAILER.size]
    if xxh3_64_intdigest(tail) != _CHECKSUM.unpack_from(data, at + _TRAILER.size)[0]:
        return None
    return Batch(
        number, session, number, 0, 0, identity, 0, start, end, frames, directory, bodies, from_trailer=True
    )


def version_at(data: bytes | memoryview, at: int) -> int | None:
    """The format version of what claims to be a header at `at`, if anything does."""
    if data[at : at + 4] != MAGIC or at + _HEADER.size > len(data):
        return None
    return int(_HEADER.unpack_from(data, at)[1])


def is_beginning(data: bytes | memoryview, at: int, stop: int) -> bool:
    """Whether what stands between `at` and `stop` can be the first part of a batch, and no more than that."""
    if data[at : min(at + 4, stop)] != MAGIC[: stop - at]:
        return False
    if at + _HEADER.size > stop:
        return True
    _, _, _, _, frames, _, _, _, _, _, body_length = _HEADER.unpack_from(data, at)
    # The header is not proven: a whole batch whose header is damaged still has its end magic.
    incomplete = at + body_length + batch_overhead(frames) - TRAILER_BYTES >= stop
    return bool(incomplete and bytes(data[at:stop]).find(END_MAGIC) < 0)


def end_behind(end_magic_at: int) -> int:
    """Where a batch ends whose end magic stands at this offset."""
    return end_magic_at + len(END_MAGIC) + _CHECKSUM.size


def body_of(data: bytes | memoryview, entry: FrameEntry) -> bytes | memoryview:
    return data[entry.start : entry.start + entry.length]


def entries(data: bytes | memoryview, batch: Batch) -> list[FrameEntry]:
    """What the batch's directory names, each body checked against its checksum."""
    found, at = [], batch.bodies_at
    for index in range(batch.frames):
        kind, flags, _, length, topic_id, first_seq, count, checksum = _ENTRY.unpack_from(
            data, batch.directory_at + index * _ENTRY.size
        )
        body = data[at : at + length]
        intact = len(body) == length and xxh3_64_intdigest(body) == checksum
        found.append(FrameEntry(kind, flags, topic_id, first_seq, count, at, length, intact, batch.number))
        at += length
    return found
