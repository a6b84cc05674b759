"""The bytes of a page: frozen, read again as sealed, and damage costs the records it touches and no other."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from struct import pack_into, unpack_from

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from shards.store import page as codec
from shards.store.page import HEAD_BYTES, Page, PageDamaged, UnknownPageFormat
from tests.fakes.pages import (
    BARE,
    FULL,
    TOPIC,
    everything,
    live,
    raw_records,
    record,
    resealed,
    sealable,
    sealed,
    served,
    tag_part,
)
from topics.engine.chunk import Chunk
from topics.engine.tags import TagMatch, parse_match

GOLDEN = Path(__file__).parent.parent / "golden"


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / name).read_text())


def damaged_indexes(page: Page) -> list[int]:
    return [seq - page.head.first_seq for first, last in page.damaged for seq in range(first, last + 1)]


@pytest.fixture
def small_blocks() -> Iterator[int]:
    """Blocks so small that a short page has many, some with an edge at a comma."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "BLOCK_BYTES", 16)
        yield 16


# -- the format


def test_page_v1_bytes_never_change() -> None:
    assert sealed(FULL) == golden("page-v1-every-part.hex")
    assert sealed(BARE) == golden("page-v1-bare.hex")


def test_a_golden_page_is_read_as_it_was_meant() -> None:
    page = codec.decode(golden("page-v1-every-part.hex"))
    assert everything(page.chunk) == everything(FULL)
    assert page.damaged == []
    head = page.head
    assert (head.topic_id, head.first_seq, head.end_seq, head.count) == (TOPIC, 98, 104, 6)
    assert (head.first_ts, head.last_ts) == (1_700_000_000_123, 1_700_000_000_124)
    assert (head.ts_runs, head.nodes, head.tagged) == (2, 3, 5)
    assert head.data_bytes == len(FULL.buffer)
    assert head.live_bytes == FULL.live_bytes(0, 6)
    bare = codec.decode(golden("page-v1-bare.hex"))
    assert everything(bare.chunk) == everything(BARE)
    assert bare.head.tags_length == 0


def test_the_header_alone_says_where_everything_is() -> None:
    for chunk in (FULL, BARE):
        data = sealed(chunk)
        head = codec.decode_head(data[:HEAD_BYTES])
        assert head.length == len(data)
        assert head.tags_at == HEAD_BYTES
        assert data[head.data_at : head.flags_at] == chunk.buffer
        assert [flag == 0xD1 for flag in data[head.flags_at :]] == [
            index not in live(chunk) for index in range(chunk.count)
        ]
        assert set(data[head.flags_at :]) <= {0, 0xD1}
        assert resealed(data) == data


def from_the_future() -> bytes:
    """A page of version 2 that is intact by the rules of version 1, as a later server might write it."""
    data = bytearray(sealed(BARE))
    pack_into("<H", data, 4, 2)
    return resealed(bytes(data))


def test_a_page_from_the_future_is_refused_by_its_version() -> None:
    data = golden("page-v2-from-the-future.hex")
    assert data == from_the_future()
    for refuse in (codec.decode_head, codec.decode):
        with pytest.raises(UnknownPageFormat, match="format version 2, this server reads 1") as refused:
            refuse(data)
        assert refused.value.version == 2


def test_sealing_does_not_copy_the_records() -> None:
    parts = codec.encode(TOPIC, FULL)
    views = [part for part in parts if isinstance(part, memoryview)]
    assert [view.obj is FULL.buffer for view in views] == [True]
    assert len(views[0]) == len(FULL.buffer)


def test_sealing_leaves_the_chunk_as_it_was() -> None:
    chunk = sealable([record(b"1", f"t{number % 7}") for number in range(100)], deleted={3})
    before = everything(chunk)
    assert sealed(chunk) == sealed(chunk)
    assert everything(chunk) == before


# -- round trips

TEXTS = st.text(st.sampled_from('ab*"\\\nä😀'), max_size=3)
RECORDS = st.builds(
    record,
    st.sampled_from([b"null", b"[ 1 ]", b'"%b"' % (b"x" * 50), b'{"meta":{}}', b'",{"']),
    st.none() | TEXTS,
    st.none() | TEXTS,
    st.sampled_from([b"", b"{}", b'{"k":1.0}']),
)


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    # Long runs of one record are what makes the tag index longer than its unsorted tail.
    repeat = draw(st.sampled_from([1, 1, 1, 30]))
    batches = draw(st.lists(st.lists(RECORDS, min_size=1, max_size=5), min_size=1, max_size=5))
    batches = [batch * repeat for batch in batches]
    count = sum(map(len, batches))
    deleted = draw(st.sets(st.integers(0, count - 1), max_size=8))
    first_seq = draw(st.sampled_from([1, 8, 995, 2**53]))
    chunk = sealable(*batches, first_seq=first_seq, deleted=deleted)
    if chunk.tags is not None and draw(st.booleans()):
        list(chunk.tags.find(TagMatch(b'"a"', False), below=count))
    return chunk


@settings(max_examples=60)
@given(chunks(), st.integers(0, 2**64 - 1))
def test_what_was_sealed_is_read_again(chunk: Chunk, topic_id: int) -> None:
    data = b"".join(codec.encode(topic_id, chunk))
    page = codec.decode(memoryview(data))
    assert everything(page.chunk) == everything(chunk)
    assert page.damaged == []
    assert (page.head.topic_id, page.head.length) == (topic_id, len(data))
    assert page.head.live_bytes == chunk.live_bytes(0, chunk.count)
    assert codec.decode_head(data[:HEAD_BYTES]) == page.head
    assert b"".join(codec.encode(topic_id, page.chunk)) == data


def test_a_chunk_read_from_a_page_can_be_cut_and_deleted_from() -> None:
    chunk, copy = sealable([record(b"1", "t", "n", b"{}")] * 5), codec.decode(sealed(BARE)).chunk
    assert copy.bare
    copy.mark_deleted(0, 1)
    assert not live(copy)
    copy = codec.decode(sealed(chunk)).chunk
    for one in (chunk, copy):
        one.mark_deleted(1, 3)
    wanted = copy.wanted(0, 5, frozenset())
    assert copy.cut(0, 5, wanted, tags=True, meta=False, data=True) == chunk.cut(
        0, 5, wanted, tags=True, meta=False, data=True
    )


# -- damage


def region(data: bytes, at: int) -> str:
    head = codec.decode_head(data)
    bounds = {"sealed": head.checksums_at, "checksums": head.data_at, "data": head.flags_at}
    return next((name for name, end in bounds.items() if at < end), "flags")


def test_no_flipped_bit_changes_what_is_served(small_blocks: int) -> None:
    data, raw, alive = sealed(), raw_records(FULL), live(FULL)
    head = codec.decode_head(data)
    for at in range(len(data)):
        for bit in range(8):
            flipped = data[:at] + bytes((data[at] ^ 1 << bit,)) + data[at + 1 :]
            where = region(data, at)
            if where == "sealed":
                with pytest.raises(PageDamaged):
                    codec.decode(flipped)
                continue
            page = codec.decode(flipped)
            lost = damaged_indexes(page)
            if where == "flags":
                index = at - head.flags_at
                assert lost == []
                assert live(page.chunk) == sorted({*alive, index})
                assert raw_records(page.chunk) == raw
                continue
            block = (at - head.checksums_at) // 8 if where == "checksums" else (at - head.data_at) // 16
            assert lost == touching(FULL, block * small_blocks, (block + 1) * small_blocks)
            assert live(page.chunk) == [index for index in alive if index not in lost]
            assert served(page.chunk) == b",".join(raw[index] for index in live(page.chunk))
            assert all(set(raw_records(page.chunk)[index]) == {ord(",")} for index in lost)


def touching(chunk: Chunk, begin: int, end: int) -> list[int]:
    """Records with a byte in that stretch of the data, one after another."""
    return [
        index
        for index in range(chunk.count)
        if max(begin, chunk.starts[index]) < min(end, chunk.end_offset(index))
    ]


@settings(max_examples=80)
@given(chunks(), st.integers(8, 90), st.data())
def test_damaged_blocks_cost_the_records_in_them_and_no_other(
    chunk: Chunk, block_bytes: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "BLOCK_BYTES", block_bytes)
        spoiled = bytearray(sealed(chunk))
        head = codec.decode_head(bytes(spoiled))
        blocks = data.draw(st.sets(st.integers(0, head.blocks - 1), min_size=1, max_size=4))
        for block in blocks:
            begin, end = head.data_at + block * block_bytes, head.data_at + (block + 1) * block_bytes
            spoiled[begin : min(end, head.flags_at)] = b"#" * (min(end, head.flags_at) - begin)
        page = codec.decode(bytes(spoiled))
    lost = {index for b in blocks for index in touching(chunk, b * block_bytes, (b + 1) * block_bytes)}
    assert damaged_indexes(page) == sorted(lost)
    assert all(later[0] > earlier[1] + 1 for earlier, later in pairwise(page.damaged))
    raw = raw_records(chunk)
    assert live(page.chunk) == [index for index in live(chunk) if index not in lost]
    assert served(page.chunk) == b",".join(raw[index] for index in live(page.chunk))
    assert b"#" not in page.chunk.buffer


def test_a_large_record_is_lost_with_any_of_its_blocks() -> None:
    chunk = sealable([record(b'"%b"' % (b"x" * size)) for size in (10, 200_000, 10, 70_000, 10)])
    data = bytearray(sealed(chunk))
    head = codec.decode_head(bytes(data))
    assert head.blocks == 5
    data[head.data_at + 2 * 65_536] ^= 1
    page = codec.decode(bytes(data))
    assert page.damaged == [(2, 2)]
    data[head.flags_at - 1] ^= 1
    assert codec.decode(bytes(data)).damaged == [(2, 2), (4, 5)]
    assert live(codec.decode(bytes(data)).chunk) == [0, 2]


def test_data_of_another_page_is_not_taken_for_this_ones() -> None:
    """Here the headers differ in the topic alone, so everything else has its usual place."""
    one = sealed(sealable([record(b'"1"')] * 4))
    other = b"".join(codec.encode(TOPIC + 1, sealable([record(b'"2"')] * 4)))
    data_from = codec.decode_head(one).checksums_at
    page = codec.decode(one[:data_from] + other[data_from:])
    assert page.damaged == [(1, 4)]
    assert not live(page.chunk)


def test_blocks_that_changed_places_are_damaged(small_blocks: int) -> None:
    data = bytearray(sealed(sealable([record(b'"%d"' % digit) for digit in range(10)])))
    head = codec.decode_head(bytes(data))
    for at, size in ((head.checksums_at, 8), (head.data_at, small_blocks)):
        data[at : at + 2 * size] = data[at + size : at + 2 * size] + data[at : at + size]
    assert codec.decode(bytes(data)).damaged == [(1, 1)]


@pytest.mark.parametrize("chunk", [FULL, BARE], ids=["full", "bare"])
def test_a_page_of_any_other_length_is_refused(chunk: Chunk) -> None:
    data = sealed(chunk)
    for length in range(len(data)):
        with pytest.raises(PageDamaged):
            codec.decode(data[:length])
        if length < HEAD_BYTES:
            with pytest.raises(PageDamaged):
                codec.decode_head(data[:length])
    with pytest.raises(PageDamaged):
        codec.decode(data + b"\0")


# -- tags


@settings(max_examples=60)
@given(chunks(), TEXTS, st.booleans())
def test_tags_are_found_as_by_a_walk_over_all_of_them(chunk: Chunk, text: str, is_glob: bool) -> None:
    text = text.replace("*", "") if is_glob else text
    match = parse_match(["tag", "Glob", text + "*"] if is_glob else text, field="match")
    data = sealed(chunk)
    head = codec.decode_head(data[:HEAD_BYTES])
    tags = [] if chunk.tags is None else [chunk.tags[index] for index in range(chunk.count)]
    linear = [index for index, tag in enumerate(tags) if tag and match.covers(tag)]
    assert codec.find_tags(head, tag_part(data), match) == linear


def test_a_damaged_or_foreign_tag_part_finds_nothing() -> None:
    data = sealed()
    head, part, match = codec.decode_head(data), tag_part(data), TagMatch(b'"t1"', False)
    assert codec.find_tags(head, part, match) == [0, 5]
    for at in range(len(part)):
        with pytest.raises(PageDamaged):
            codec.find_tags(head, part[:at] + bytes((part[at] ^ 4,)) + part[at + 1 :], match)
    for wrong in (b"", part[:-1], part + b"\0"):
        with pytest.raises(PageDamaged):
            codec.find_tags(head, wrong, match)
    with pytest.raises(PageDamaged):
        codec.find_tags(replace(head, tags_checksum=xxh3_64_intdigest(part[:-1])), part[:-1], match)
    assert codec.find_tags(codec.decode_head(sealed(BARE)), b"", match) == []


# -- deletes in place


@settings(max_examples=50)
@given(chunks(), st.data())
def test_flags_written_in_place_are_deletes(chunk: Chunk, data: st.DataObject) -> None:
    page = bytearray(sealed(chunk))
    head = codec.decode_head(bytes(page))
    gone = data.draw(st.lists(st.integers(0, chunk.count - 1), max_size=10))
    for index in gone:
        page[head.flags_at + index : head.flags_at + index + 1] = codec.deleted_flags(1)
        chunk.mark_deleted(index, index + 1)
    assert len(page) == head.length
    assert head.flags_at == head.length - head.count
    assert everything(codec.decode(bytes(page)).chunk) == everything(chunk)


def test_only_the_exact_flag_deletes() -> None:
    data = sealed(BARE)
    for flag in range(256):
        chunk = codec.decode(data[:-1] + bytes((flag,))).chunk
        assert (chunk.deleted is None) == (flag != 0xD1)
    assert unpack_from("<4sH", data) == (b"TPAG", 1)
