"""Frame bodies: what is written is what is read, and no body can do more than be refused."""

import json
from array import array
from contextlib import suppress
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from msgspec.structs import replace

from shards.wal import frame as frames
from shards.wal.frame import FrameError
from topics.engine.config import TopicConfig
from topics.engine.limits import Limits
from topics.engine.record import NO_META, WriteRecord, check_records
from topics.engine.run import render
from topics.engine.watermarks import Hole

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def _raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


RECORDS = st.lists(
    st.builds(
        WriteRecord,
        data=JSON.map(_raw),
        tag=st.just(UNSET) | st.text(max_size=8),
        node=st.just(UNSET) | st.text(max_size=8),
        meta=st.just(NO_META) | st.dictionaries(st.text(max_size=4), JSON, max_size=2).map(_raw),
    ),
    min_size=1,
    max_size=12,
)
U64 = st.integers(0, 2**64 - 1)


@given(
    RECORDS,
    st.just(UNSET) | st.text(max_size=8),
    st.integers(1, 2**60),
    st.integers(0, 2**45),
    st.just(b"") | st.binary(min_size=16, max_size=16),
    st.integers(0, 2**60),
)
def test_an_append_comes_back_as_it_was_written(
    records: list[WriteRecord], node: Any, first_seq: int, ts: int, key: bytes, cap_evicted: int
) -> None:
    plain = check_records(records, Limits())
    run = render(records, first_seq=first_seq, ts=ts, node=node, plain=plain, limits=Limits())
    frame = frames.append_frame(7, run, key=key, cap_evicted=cap_evicted)
    assert (frame.topic_id, frame.first_seq, frame.count) == (7, first_seq, len(records))
    assert len(frame.body) <= run.stored_bytes_max() + 64
    back = frames.decode_append(frame.first_seq, frame.count, frame.flags, frame.body)
    assert (back.run, back.key, back.cap_evicted) == (run, key, cap_evicted)


@given(st.lists(st.tuples(U64, U64), min_size=1, max_size=20))
def test_a_delete_comes_back_as_it_was_written(ranges: list[tuple[int, int]]) -> None:
    assert frames.decode_delete(frames.delete_frame(1, ranges).body) == ranges


@given(U64, U64)
def test_floors_come_back_as_they_were_written(cap_evicted: int, ttl_expired: int) -> None:
    frame = frames.floor_frame(1, cap_evicted=cap_evicted, ttl_expired=ttl_expired)
    assert frames.decode_floor(frame.body) == (cap_evicted, ttl_expired)


def test_control_frames_come_back_as_they_were_written() -> None:
    config = TopicConfig(cap_records=7, durability="fsync", durable=True, dead_letter="dead", priority=-3)
    assert frames.decode_create(frames.create_frame(3, "orders", config).body) == ("orders", config)
    changed = frames.config_frame(3, config, 99)
    assert (changed.first_seq, frames.decode_config(changed.body)) == (99, config)
    assert frames.decode_open(frames.open_frame("boot", "1.2.3").body) == "boot"
    hole = Hole(5, 9, "cap", "crash")
    frame = frames.hole_frame(3, hole)
    assert frames.decode_hole(frame.first_seq, frame.body) == hole


_RUN = render(
    [
        WriteRecord(data=Raw(b'{"a":1}'), tag="t", node="n", meta=Raw(b'{"m":1}')),
        WriteRecord(data=Raw(b"null"), tag="u"),
    ],
    first_seq=5,
    ts=1_700_000_000_000,
    node=UNSET,
    plain=False,
    limits=Limits(),
)
_APPEND = frames.append_frame(1, _RUN, key=b"k" * 16, cap_evicted=2)
_BODIES = [
    _APPEND.body,
    frames.open_frame("boot", "1").body,
    frames.create_frame(1, "a", TopicConfig()).body,
    frames.config_frame(1, TopicConfig(), 3).body,
    frames.hole_frame(1, Hole(1, 2, "cap", "crash")).body,
    frames.delete_frame(1, [(1, 2)]).body,
    frames.floor_frame(1, cap_evicted=1, ttl_expired=2).body,
]


def _decode_with_all(body: bytes, first_seq: int, count: int, flags: int) -> None:
    """Every decoder either reads the body or refuses it by FrameError."""
    for decode in (
        lambda: frames.decode_append(first_seq, count, flags, body),
        lambda: frames.decode_open(body),
        lambda: frames.decode_create(body),
        lambda: frames.decode_config(body),
        lambda: frames.decode_hole(first_seq, body),
        lambda: frames.decode_delete(body),
        lambda: frames.decode_floor(body),
    ):
        with suppress(FrameError):
            decode()


COUNTS = st.integers(0, 5) | st.integers(0, 2**32 - 1)


@settings(max_examples=500)
@given(st.binary(max_size=300), U64, COUNTS, st.integers(0, 255))
def test_no_bytes_at_all_surprise_a_decoder(body: bytes, first_seq: int, count: int, flags: int) -> None:
    _decode_with_all(body, first_seq, count, flags)


@settings(max_examples=500)
@given(st.sampled_from(_BODIES), st.data())
def test_no_damage_to_a_real_body_surprises_a_decoder(body: bytes, data: st.DataObject) -> None:
    mutated = bytearray(body)
    for _ in range(data.draw(st.integers(0, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(mutated)))
    damaged = bytes(mutated[:cut]) + data.draw(st.binary(max_size=8))
    flags = data.draw(st.integers(0, 255) | st.just(_APPEND.flags))
    _decode_with_all(damaged, 1, data.draw(COUNTS), flags)


def test_a_body_that_is_too_short_is_refused() -> None:
    for cut in range(len(_APPEND.body)):
        with pytest.raises(FrameError):
            frames.decode_append(5, 2, _APPEND.flags, _APPEND.body[:cut])


@pytest.mark.parametrize("flags", [0, 1, 2, 4, 8, 16, 31])
def test_an_append_of_no_records_is_refused(flags: int) -> None:
    with pytest.raises(FrameError):
        frames.decode_append(1, 0, flags, bytes(64))


def test_a_record_of_an_unlisted_node_is_refused() -> None:
    frame = frames.append_frame(1, replace(_RUN, node_ids=array("H", [3, 0])))
    with pytest.raises(FrameError, match="names a node"):
        frames.decode_append(5, 2, frame.flags, frame.body)


def test_a_newer_server_s_config_field_or_class_is_refused_by_name() -> None:
    body = cbor2.dumps({"name": "a", "config": {"durability": "quantum"}})
    with pytest.raises(FrameError, match="quantum"):
        frames.decode_create(body)
