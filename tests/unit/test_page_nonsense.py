"""Pages that no writer wrote: no bytes surprise the decoders, and what contradicts itself is refused."""

import tracemalloc
from struct import calcsize, pack_into

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.store import page as codec
from shards.store.page import HEAD_BYTES, Page, PageDamaged, UnknownPageFormat
from tests.fakes.pages import BARE, FULL, record, resealed, sealable, sealed, served, tag_part
from topics.engine.chunk import Chunk
from topics.engine.tags import TagMatch


def decode_all(data: bytes) -> None:
    """Every decoder, on bytes that may be anything."""
    for read in (codec.decode_head, codec.decode):
        try:
            got = read(data)
        except (PageDamaged, UnknownPageFormat):
            continue
        if isinstance(got, Page):
            served(got.chunk)
            codec.find_tags(got.head, tag_part(data), TagMatch(b'"', True))


@settings(max_examples=150)
@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_surprise_the_decoders(data: bytes, begins_well: bool) -> None:
    decode_all(resealed(b"TPAG\1\0" + data + bytes(HEAD_BYTES)) if begins_well else data)


@settings(max_examples=300)
@given(st.data())
def test_no_intact_nonsense_surprises_the_decoders(data: st.DataObject) -> None:
    page = bytearray(sealed(data.draw(st.sampled_from([FULL, BARE]))))
    flags_at = codec.decode_head(bytes(page)).flags_at
    for _ in range(data.draw(st.integers(1, 3))):
        page[data.draw(st.integers(4, flags_at))] = data.draw(st.sampled_from([0, 1, 2, 3, 10, 127, 255]))
    decode_all(resealed(bytes(page)))


def edited(chunk: Chunk, layout: str, *edits: tuple[int, int]) -> bytes:
    """The chunk's page with numbers replaced, and intact by its checksums."""
    page = bytearray(sealed(chunk))
    for at, value in edits:
        pack_into(layout, page, at, value)
    return resealed(bytes(page))


@pytest.mark.parametrize(
    ("chunk", "layout", "at", "value"),
    [
        (FULL, "<H", 6, 15),  # an optional part that does not exist
        (FULL, "<H", 6, 6),  # nodes, but no node ids
        (FULL, "<H", 6, 3),  # tags, but no tag part
        (FULL, "<I", 8, 0),  # no records
        (FULL, "<I", 12, 0),  # no time
        (FULL, "<I", 12, 7),  # more times than records
        (FULL, "<I", 16, 0),  # no nodes
        (FULL, "<I", 16, 2**16 + 1),  # more nodes than ids
        (BARE, "<I", 20, 1),  # a node section of no node
        (FULL, "<I", 24, 7),  # more tagged records than records
        (BARE, "<I", 24, 1),  # a tagged record without tags
        (FULL, "<I", 28, 5),  # a record without a line in the tags
        (BARE, "<I", 28, 1),  # lines without tags
        (FULL, "<Q", 48, 10),  # less data than commas and braces
        (FULL, "<Q", 48, 2**32),  # more data than a start can say
    ],
)
def test_an_intact_header_that_contradicts_itself_is_refused(
    chunk: Chunk, layout: str, at: int, value: int
) -> None:
    with pytest.raises(PageDamaged, match="contradicts itself"):
        codec.decode_head(edited(chunk, layout, (at, value)))


TIMES = sealable(*[[record()]] * 5)


@pytest.mark.parametrize(
    ("chunk", "column", "layout", "values"),
    [
        (FULL, 0, "<I", {0: 1}),  # the first record does not begin at the beginning
        (FULL, 0, "<I", {2: 1}),  # records overlap
        (FULL, 0, "<I", {5: 2**32 - 1}),  # a record begins behind the data
        (FULL, 2, "<I", {0: 1}),  # the first record has no time
        (FULL, 2, "<I", {1: 6}),  # a time of no record
        (TIMES, 2, "<I", {1: 4, 2: 1}),  # times out of order
        (FULL, 4, "<H", {0: 3}),  # a node that is not listed
        (FULL, 5, "<I", {0: 1, 2: 12}),  # the first node is not "no node"
        (FULL, 5, "<I", {2: 100}),  # a node longer than all of them
    ],
)
def test_intact_columns_that_contradict_themselves_are_refused(
    chunk: Chunk, column: int, layout: str, values: dict[int, int]
) -> None:
    head = codec.decode_head(sealed(chunk))
    at = head.columns_at + sum(head.column_lengths()[:column])
    edits = [(at + index * calcsize(layout), value) for index, value in values.items()]
    with pytest.raises(PageDamaged, match="columns contradict themselves"):
        codec.decode(edited(chunk, layout, *edits))


def test_two_nodes_of_one_name_are_refused() -> None:
    assert sealed().count(b'"n2"') == 2
    with pytest.raises(PageDamaged, match="columns contradict themselves"):
        codec.decode(resealed(sealed().replace(b'"n2"', b'"n1"')))


@pytest.mark.parametrize(
    ("piece", "layout", "index", "value"), [(0, "<I", 5, 0), (1, "<B", 4, 0), (2, "<I", 0, 6)]
)
def test_an_intact_tag_part_that_contradicts_itself_is_refused(
    piece: int, layout: str, index: int, value: int
) -> None:
    """An end before the end, a line break too few, and a record that does not exist."""
    head = codec.decode_head(sealed())
    at = head.tags_at + sum(head.tag_lengths()[:piece])
    page = edited(FULL, layout, (at + index * calcsize(layout), value))
    with pytest.raises(PageDamaged, match="tag"):
        codec.decode(page)
    with pytest.raises(PageDamaged, match="tag"):
        codec.find_tags(codec.decode_head(page), tag_part(page), TagMatch(b'"', True))


def test_a_header_that_claims_too_much_costs_no_memory() -> None:
    data = bytearray(sealed())
    pack_into("<6I", data, 8, 2**31, 2**31, 2**16, 2**32 - 1, 2**31, 2**32 - 1)
    pack_into("<Q", data, 48, 2**32 - 1)
    claim = resealed(bytes(data))
    assert codec.decode_head(claim).length > 2**35
    tracemalloc.start()
    try:
        with pytest.raises(PageDamaged, match="the page takes"):
            codec.decode(claim)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
