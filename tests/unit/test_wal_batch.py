"""The bytes of a batch: frozen, verified, found again when damaged, and refused when from the future."""

from itertools import product
from pathlib import Path
from struct import pack_into

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from xxhash import xxh3_64_intdigest

from shards.wal import batch as codec
from shards.wal import frame as frames
from shards.wal.batch import Frame, UnknownFormat
from shards.wal.frame import Kind
from shards.wal.recovery import Verdict, find_batches, survey, verdict
from tests.fakes.sim_disk import SimDisk
from topics.engine.config import TopicConfig
from topics.engine.limits import Limits
from topics.engine.record import WriteRecord
from topics.engine.run import render
from topics.engine.watermarks import Hole

GOLDEN = Path(__file__).parent.parent / "golden"

_RUN = render(
    [
        WriteRecord(data=Raw(b'{"a":1.0}'), tag="t1", node="n1", meta=Raw(b'{"m":"x"}')),
        WriteRecord(data=Raw(b"null")),
    ],
    first_seq=41,
    ts=1_700_000_000_123,
    node=UNSET,
    plain=False,
    limits=Limits(),
)
_ONE = render([WriteRecord(data=Raw(b"[1,2]"))], first_seq=1, ts=1, node=UNSET, plain=True, limits=Limits())
EVERY_KIND = [
    frames.open_frame("4d5c1f0e-boot", "0.1.0"),
    frames.create_frame(3, "orders", TopicConfig(durability="fsync", durable=True, cap_records=5)),
    frames.ceiling_frame(3, 4137),
    frames.append_frame(3, _RUN, key=bytes(range(16)), cap_evicted=36),
    frames.append_frame(9, _ONE),
    frames.config_frame(3, TopicConfig(ttl_ms=1000), 42),
    frames.floor_frame(3, cap_evicted=36, ttl_expired=12),
    frames.delete_frame(3, [(37, 38), (40, 41)]),
    frames.hole_frame(3, Hole(43, 4137, "cap", "crash")),
    frames.drop_frame(9),
    frames.close_frame(),
]
FIELDS = {
    "number": 7,
    "session": 2,
    "session_first": 6,
    "durable": 5,
    "predecessor": 0x1122334455667788,
    "time_ms": 1_700_000_000_456,
}


def encoded(batch_frames: list[Frame] | None = None, **fields: int) -> bytes:
    return b"".join(codec.encode(EVERY_KIND if batch_frames is None else batch_frames, **FIELDS | fields)[0])


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / name).read_text())


def test_wal_v1_bytes_never_change() -> None:
    assert {frame.kind for frame in EVERY_KIND} == set(Kind)
    assert encoded() == golden("wal-v1-every-frame.hex")
    assert encoded([]) == golden("wal-v1-empty-batch.hex")


def test_a_golden_batch_is_read_as_it_was_meant() -> None:
    data = golden("wal-v1-every-frame.hex")
    found = codec.decode(data, 0)
    assert found is not None
    assert {name: getattr(found, name) for name in FIELDS} == FIELDS
    assert (found.start, found.end, found.from_trailer) == (0, len(data), False)
    read = [
        Frame(e.kind, e.topic_id, e.first_seq, e.count, bytes(codec.body_of(data, e)), e.flags)
        for e in codec.entries(data, found)
        if e.intact
    ]
    assert read == EVERY_KIND
    assert len(data) == codec.batch_overhead(len(EVERY_KIND)) + sum(len(frame.body) for frame in EVERY_KIND)


def test_the_trailer_alone_names_the_same_frames() -> None:
    data = encoded()
    whole, found = codec.decode(data, 0), codec.decode_backwards(data, len(data))
    assert whole is not None
    assert found is not None
    assert (found.number, found.session, found.identity, found.end) == (7, 2, whole.identity, len(data))
    assert found.start == 0
    assert found.from_trailer
    assert codec.entries(data, found) == codec.entries(data, whole)


def from_the_future() -> bytes:
    """A batch of version 2 that is intact by the rules of version 1, as a later server might write it."""
    data = bytearray(encoded([frames.close_frame()]))
    pack_into("<H", data, 4, 2)
    whole = codec.decode(encoded([frames.close_frame()]), 0)
    assert whole is not None
    checked = whole.bodies_at - 8
    identity = xxh3_64_intdigest(bytes(data[:checked]))
    pack_into("<Q", data, checked, identity)
    trailer_at = len(data) - codec.TRAILER_BYTES
    pack_into("<Q", data, trailer_at + 24, identity)
    tail = bytes(data[whole.bodies_at : -8])
    pack_into("<Q", data, len(data) - 8, xxh3_64_intdigest(tail))
    return bytes(data)


def test_a_log_from_the_future_is_refused_by_its_version() -> None:
    data = golden("wal-v2-from-the-future.hex")
    assert data == from_the_future()
    with pytest.raises(UnknownFormat, match="version 2"):
        codec.decode(data, 0)
    assert codec.version_at(data, 0) == 2
    disk = SimDisk()
    disk.mkdir("wal")
    fd = disk.open("wal/00000001.wal", create=True)
    disk.pwrite(fd, data + bytes(4096), 0)
    with pytest.raises(UnknownFormat, match="format version 2, this server reads 1"):
        survey(disk, "wal")


def test_every_flipped_bit_is_noticed_and_none_moves_a_frame() -> None:
    data = encoded()
    whole = codec.decode(data, 0)
    assert whole is not None
    truth = codec.entries(data, whole)
    noticed = 0
    for at in range(len(data)):
        damaged = data[:at] + bytes((data[at] ^ 1 << at % 8,)) + data[at + 1 :]
        by_head, by_end = codec.decode(damaged, 0), codec.decode_backwards(damaged, len(damaged))
        assert by_head is not None or by_end is not None, f"byte {at} hides the batch"
        noticed += by_head is None or by_end is None
        for found in (by_head, by_end):
            if found is None:
                continue
            entries = codec.entries(damaged, found)
            spoiled = [old for old, new in zip(truth, entries, strict=True) if old != new]
            assert len(spoiled) <= 1
            noticed += bool(spoiled) and found is by_head
            assert all(old.start <= at < old.start + old.length for old in spoiled)
    assert noticed == len(data)


@settings(max_examples=300)
@given(st.binary(max_size=400), st.integers(0, 420))
def test_no_bytes_surprise_the_decoders(data: bytes, at: int) -> None:
    try:
        for found in (codec.decode(data, at), codec.decode_backwards(data, at)):
            if found is not None:
                codec.entries(data, found)
    except UnknownFormat:
        pass
    codec.version_at(data, at)
    codec.is_beginning(data, at, len(data))


@settings(max_examples=300)
@given(st.data())
def test_no_damage_surprises_the_search_and_nothing_false_is_found(data: st.DataObject) -> None:
    batches = [encoded(EVERY_KIND[:count], number=count) for count in (1, 4, 2)]
    log = bytearray(b"".join(batches) + bytes(64))
    for _ in range(data.draw(st.integers(0, 3))):
        log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(log))] * 2)))
    damaged = bytes(log[:start] + log[stop:]) if data.draw(st.booleans()) else bytes(log[start:stop])
    try:
        found = list(find_batches(damaged))
    except UnknownFormat:
        return
    for batch in found:
        assert batch.number in (1, 2, 4)
        for index, entry in enumerate(codec.entries(damaged, batch)):
            if entry.intact:
                assert bytes(codec.body_of(damaged, entry)) == EVERY_KIND[index].body


def test_batches_are_found_one_after_another_and_past_a_damaged_header() -> None:
    first, second, third = (encoded(EVERY_KIND[:count], number=count) for count in (1, 2, 3))
    data = bytearray(first + second + third + bytes(100))
    assert [batch.number for batch in find_batches(bytes(data))] == [1, 2, 3]
    data[len(first) + 20] ^= 1
    found = list(find_batches(bytes(data)))
    assert [(batch.number, batch.from_trailer) for batch in found] == [(1, False), (2, True), (3, False)]
    data[len(first) + len(second) - 20] ^= 1
    assert [batch.number for batch in find_batches(bytes(data))] == [1, 3]


def test_only_a_batch_that_was_never_called_durable_may_be_cut() -> None:
    for intact, number, durable in product((True, False), (1, 4, 5, 6, 9), (0, 5)):
        got = verdict(intact=intact, number=number, durable=durable)
        assert (got is Verdict.KEEP) == intact
        assert (got is Verdict.CUT) == (not intact and number > durable)
        assert (got is Verdict.QUARANTINE) == (not intact and number <= durable)
