"""Chunks joined are the chunk that would have been there if nobody had closed them in between."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from tests.fakes.pages import everything
from topics.engine.chunk import Chunk
from topics.engine.joining import joined
from topics.engine.limits import Limits
from topics.engine.record import NO_META, WriteRecord
from topics.engine.run import Run, render

RECORDS = st.builds(
    WriteRecord,
    st.sampled_from([Raw(b"1"), Raw(b'{"a":"\xc3\xa4"}'), Raw(b'"' + b"x" * 40 + b'"')]),
    st.sampled_from([UNSET, "t", "", "z\n"]),
    st.sampled_from([UNSET, "n", "m"]),
    st.sampled_from([NO_META, Raw(b'{"k":1}')]),
)
WRITES = st.lists(
    st.tuples(st.lists(RECORDS, min_size=1, max_size=4), st.integers(0, 2), st.booleans()),
    min_size=1,
    max_size=8,
)


@settings(max_examples=200, deadline=None)
@given(WRITES, st.data())
def test_joined_chunks_are_what_one_chunk_would_be(
    writes: list[tuple[list[WriteRecord], int, bool]], data: st.DataObject
) -> None:
    whole, parts, seq, ts = Chunk(1), [Chunk(1)], 1, 1000
    for records, later, cut in writes:
        ts += later
        run: Run = render(records, first_seq=seq, ts=ts, node=UNSET, plain=False, limits=Limits())
        if cut and parts[-1].count:
            parts.append(Chunk(seq))
        whole.absorb(run)
        parts[-1].absorb(run)
        seq += run.count
    for index in data.draw(st.sets(st.integers(0, whole.count - 1), max_size=4)):
        whole.mark_deleted(index, index + 1)
        part = next(part for part in reversed(parts) if part.first_seq <= index + 1)
        at = index + 1 - part.first_seq
        part.mark_deleted(at, at + 1)
    whole.closed = True
    found = joined(parts)
    assert found.slice(0, found.count) == whole.slice(0, whole.count)
    for name in (
        "starts",
        "heads",
        "ts_starts",
        "ts_values",
        "meta_lengths",
        "deleted",
        "first_seq",
        "closed",
    ):
        assert everything(found)[name] == everything(whole)[name], name
    wanted = {"tags": True, "meta": False, "data": True}
    assert found.cut(0, found.count, b"", **wanted) == whole.cut(0, whole.count, b"", **wanted)
    assert found.payload_bytes(0, found.count) == whole.payload_bytes(0, whole.count)
    for node in whole.nodes:
        assert found.wanted(0, found.count, frozenset({node})) == whole.wanted(
            0, whole.count, frozenset({node})
        )
