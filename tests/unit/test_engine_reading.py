"""The read plan: what was asked for, byte for byte, in pages that always move on."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.requests import decode_diff
from tests.fakes.model import append_json
from topics.engine import chunk, reading
from topics.engine.config import TopicConfig
from topics.engine.limits import Limits
from topics.engine.reading import ReadOptions, ReadResult, read
from topics.engine.run import node_section
from topics.engine.topic import TopicLog

PLAIN = '{"data":1}'
FULL = '{"data": [ 1 ] ,"meta": {"k" : 1.0} ,"tag":"t","node":"n"}'
KINDS = [
    PLAIN,
    FULL,
    '{"data":{"meta":{}},"tag":"q\\""}',
    '{"data":"}","node":"m"}',
    '{"data":null,"meta":{}}',
]


@pytest.fixture
def log() -> TopicLog:
    return TopicLog(1, "a", TopicConfig())


def body(result: ReadResult) -> bytes:
    return b"[" + b",".join(bytes(part) for part in result.parts) + b"]"


def seqs(result: ReadResult) -> list[int]:
    return [record["$seq"] for record in json.loads(body(result))]


def small_chunks(monkeypatch: pytest.MonkeyPatch, records: int = 2) -> None:
    monkeypatch.setattr(chunk, "CHUNK_RECORDS", records)


def unwanted(*nodes: str) -> frozenset[bytes]:
    return frozenset(map(node_section, nodes))


# -- cuts


@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("data", [False, True])
def test_every_cut_leaves_exactly_what_was_asked_for(
    log: TopicLog, tags: bool, meta: bool, data: bool
) -> None:
    append_json(log, *KINDS, ts=77)
    found = body(read(log, 0, ReadOptions(include_tags=tags, include_meta=meta, include_data=data)))
    wanted: list[dict[str, Any]] = []
    for seq, text in enumerate(KINDS, 1):
        sent = json.loads(text)
        record = {"$seq": seq, "$ts": 77}
        record |= {"$tag": sent["tag"]} if tags and "tag" in sent else {}
        record |= {"$node": sent["node"]} if "node" in sent else {}
        record |= {"data": sent["data"]} if data else {}
        record |= {"meta": sent["meta"]} if meta and "meta" in sent else {}
        wanted.append(record)
    assert json.loads(found) == wanted
    assert (b"[ 1 ]" in found) is data
    assert (b'{"k" : 1.0}' in found) is meta


def test_a_default_read_is_the_stored_bytes(log: TopicLog) -> None:
    append_json(log, FULL, ts=77)
    assert body(read(log, 0, ReadOptions())) == (
        b'[{"$seq":1,"$ts":77,"$node":"n","data":[ 1 ],"meta":{"k" : 1.0}}]'
    )


def test_heads_are_cut_right_where_a_seq_gets_one_digit_more(log: TopicLog) -> None:
    append_json(log, *[FULL] * 12)
    found = json.loads(body(read(log, 0, ReadOptions(include_tags=True, include_data=False))))
    assert [record["$seq"] for record in found] == list(range(1, 13))
    assert all(record["$tag"] == "t" and record["$node"] == "n" for record in found)
    assert log.bytes == 12 * (len("[ 1 ]") + len('{"k" : 1.0}'))


# -- the node filter


def test_own_records_are_left_out_and_passed_over(log: TopicLog) -> None:
    append_json(log, '{"data":1,"node":"a"}', '{"data":1,"node":"b"}', PLAIN, '{"data":1,"node":"a"}')
    result = read(log, 0, ReadOptions(nodes=unwanted("a")))
    assert seqs(result) == [2, 3]
    assert result.next_from_seq == 4
    assert seqs(read(log, 0, ReadOptions(nodes=unwanted("a", "b")))) == [3]
    assert seqs(read(log, 0, ReadOptions(nodes=unwanted("x")))) == [1, 2, 3, 4]


@pytest.mark.parametrize("node", ["A", "a ", "aa", "", 'a"', "*"])
def test_nodes_are_compared_byte_for_byte(log: TopicLog, node: str) -> None:
    append_json(log, '{"data":1,"node":"a"}')
    assert seqs(read(log, 0, ReadOptions(nodes=unwanted(node)))) == [1]


def test_an_escaped_node_is_the_same_node(log: TopicLog) -> None:
    append_json(log, '{"data":1,"node":"\\u0061\\u00e4"}')
    assert seqs(read(log, 0, ReadOptions(nodes=unwanted("aä")))) == []


def test_a_record_without_a_node_is_nobodys_own(log: TopicLog) -> None:
    append_json(log, PLAIN, '{"data":1,"node":""}')
    assert seqs(read(log, 0, ReadOptions(nodes=unwanted("")))) == [1]


@pytest.mark.parametrize(
    ("body_text", "nodes"),
    [('{"node":"a"}', ("a",)), ('{"node":["a","b"]}', ("a", "b")), ('{"node":[]}', ()), ("{}", ())],
)
def test_a_node_is_named_as_a_string_or_as_a_list(body_text: str, nodes: tuple[str, ...]) -> None:
    assert decode_diff(body_text.encode(), Limits()).options.nodes == unwanted(*nodes)


# -- pages


def test_a_page_of_own_records_is_empty_and_still_moves_on(log: TopicLog) -> None:
    append_json(log, *['{"data":1,"node":"a"}'] * 3)
    result = read(log, 0, ReadOptions(limit=1, nodes=unwanted("a")))
    assert (seqs(result), result.next_from_seq, result.examined) == ([], 3, 3)


def test_one_call_examines_a_bounded_share_and_the_next_goes_on(
    log: TopicLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 3)
    monkeypatch.setattr(reading, "EXAMINE_MAX", 4)
    append_json(log, *['{"data":1,"node":"a"}'] * 5)
    append_json(log, *['{"data":1,"node":"a"}'] * 5, PLAIN)
    cursor, found, calls = 0, [], 0
    while cursor < log.head:
        result = read(log, cursor, ReadOptions(nodes=unwanted("a")))
        assert cursor < result.next_from_seq <= cursor + 4
        assert result.examined <= 4
        found += seqs(result)
        cursor, calls = result.next_from_seq, calls + 1
        assert calls < 20
    assert found == [11]


@pytest.mark.parametrize(
    ("budget", "taken"),
    # Thirty bytes each, and a comma between two.
    [(1, 1), (29, 1), (30, 1), (60, 1), (61, 2), (62, 2), (91, 2), (92, 3), (10**9, 5)],
)
def test_a_page_keeps_to_its_byte_budget_and_is_never_empty(log: TopicLog, budget: int, taken: int) -> None:
    append_json(log, *[PLAIN] * 5)
    result = read(log, 0, ReadOptions(bytes_max=budget))
    assert seqs(result) == list(range(1, taken + 1))
    assert result.next_from_seq == taken
    assert result.size_bytes <= max(budget, 30)


def test_a_budget_is_kept_across_deleted_records_and_chunks(
    log: TopicLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    for _ in range(4):
        append_json(log, PLAIN)
    log.delete([(2, 2)])
    assert seqs(read(log, 0, ReadOptions(bytes_max=30))) == [1]
    assert seqs(read(log, 0, ReadOptions(bytes_max=60))) == [1, 3]
    assert seqs(read(log, 0, ReadOptions(limit=2))) == [1, 3]


@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize("chunk_records", [2, 4, 100])
def test_a_budget_is_kept_where_every_other_record_is_passed_over(
    log: TopicLog, monkeypatch: pytest.MonkeyPatch, tags: bool, chunk_records: int
) -> None:
    small_chunks(monkeypatch, chunk_records)
    tag = "t" * 60
    for _ in range(4):
        append_json(log, '{"data":1,"node":"a"}', f'{{"data":1,"node":"b","tag":"{tag}"}}', ts=1)
    stored = len('{"$seq":1,"$ts":1,"$node":"b","data":1}')
    sent = stored + (len(f',"$tag":"{tag}"') if tags else 0)
    for budget in range(1, 4 * sent + 10):
        # As long as the next record fits as it is stored; commas between such records are free.
        fitting = max(1, min(4, 1 + (budget - stored) // sent))
        result = read(log, 0, ReadOptions(bytes_max=budget, nodes=unwanted("a"), include_tags=tags))
        assert (result.count, result.size_bytes) == (fitting, fitting * sent)


def test_records_written_after_a_delete_come_with_those_before_it(log: TopicLog) -> None:
    append_json(log, *[PLAIN] * 3)
    log.delete([(2, 2)])
    append_json(log, *[PLAIN] * 3)
    assert len(log.chunks) == 1
    assert seqs(read(log, 0, ReadOptions())) == [1, 3, 4, 5, 6]
    log.delete([(5, 5)])
    assert seqs(read(log, 0, ReadOptions())) == [1, 3, 4, 6]


def test_a_record_larger_than_the_budget_comes_alone(log: TopicLog) -> None:
    append_json(log, PLAIN, json.dumps({"data": "x" * 500}), PLAIN)
    pages = [seqs(read(log, cursor, ReadOptions(bytes_max=100))) for cursor in (0, 1, 2)]
    assert pages == [[1], [2], [3]]


def test_a_hole_ends_a_page_and_begins_the_next(log: TopicLog) -> None:
    append_json(log, PLAIN, PLAIN)
    log.lose(5, cause="crash")
    append_json(log, PLAIN)
    first = read(log, 0, ReadOptions())
    assert (seqs(first), first.next_from_seq, first.gap) == ([1, 2], 2, None)
    second = read(log, 2, ReadOptions())
    assert second.gap is not None
    assert (second.gap.first, second.gap.last) == (3, 5)
    assert (seqs(second), second.next_from_seq) == ([6], 6)
    inside = read(log, 4, ReadOptions())
    assert inside.gap is not None
    assert (inside.gap.first, inside.gap.last, seqs(inside)) == (5, 5, [6])


def test_a_closed_chunk_is_answered_without_a_copy(log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch)
    append_json(log, PLAIN, PLAIN)
    append_json(log, PLAIN)
    parts = read(log, 0, ReadOptions()).parts
    assert [type(part) for part in parts] == [memoryview, bytes]


# -- parts: what the layers below join and send


def half_own(log: TopicLog, records: int) -> None:
    append_json(log, *['{"data":1,"node":"a","tag":"t"}', '{"data":1,"node":"b","meta":{}}'] * (records // 2))


@pytest.mark.parametrize(
    "options",
    [
        ReadOptions(1000, nodes=unwanted("a")),
        ReadOptions(300, nodes=unwanted("a")),
        ReadOptions(1000, nodes=unwanted("a"), include_tags=True),
        ReadOptions(1000, nodes=unwanted("a"), include_meta=False),
        ReadOptions(1000, bytes_max=10_000, nodes=unwanted("a")),
        ReadOptions(1000, bytes_max=10_000, nodes=unwanted("a"), include_tags=True),
    ],
)
@pytest.mark.parametrize("closed", [False, True])
def test_many_short_stretches_of_a_chunk_are_one_part(
    log: TopicLog, options: ReadOptions, closed: bool
) -> None:
    half_own(log, 1000)
    log.chunks[0].closed = closed
    result = read(log, 0, options)
    assert len(result.parts) == 1
    assert result.count == len(seqs(result)) > 100
    assert seqs(result) == list(range(2, 2 * result.count + 1, 2))


def test_the_parts_of_a_read_over_deleted_records_grow_with_chunks_not_with_records(
    log: TopicLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 100)
    for _ in range(10):
        append_json(log, *[PLAIN] * 100)
    log.delete([(seq, seq) for seq in range(10, 1001, 10)])
    result = read(log, 0, ReadOptions(1000))
    assert (result.count, len(result.parts)) == (900, 10)


def test_long_stretches_of_a_closed_chunk_are_not_copied(log: TopicLog) -> None:
    long = json.dumps({"data": "x" * 20_000, "node": "b"})
    append_json(log, long, long, '{"data":1,"node":"a"}', long, PLAIN)
    log.chunks[0].closed = True
    log.delete([(1, 1)])
    result = read(log, 0, ReadOptions(nodes=unwanted("a")))
    assert seqs(result) == [2, 4, 5]
    assert [type(part) for part in result.parts] == [memoryview, memoryview]


def test_a_chunk_of_many_nodes_is_filtered_like_one_of_few(log: TopicLog) -> None:
    append_json(log, *[f'{{"data":1,"node":"{at}"}}' for at in range(600)], PLAIN)
    assert len(log.chunks[0].content().nodes) > 256
    result = read(log, 0, ReadOptions(1000, nodes=unwanted("0", "255", "256", "257", "599")))
    assert set(range(1, 602)) - set(seqs(result)) == {1, 256, 257, 258, 600}


def as_read(text: str, seq: int, *, tags: bool, meta: bool, data: bool) -> bytes:
    """One record as a reader gets it, put together from the fields that were sent."""
    sent = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    out = b'{"$seq":%d,"$ts":77' % seq
    shown = {"tag": tags, "node": True, "data": data, "meta": meta}
    for name, key in (("tag", b'"$tag"'), ("node", b'"$node"'), ("data", b'"data"'), ("meta", b'"meta"')):
        if shown[name] and name in sent:
            out += b"," + key + b":" + bytes(sent[name])
    return out + b"}"


@given(
    batches=st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=9), min_size=1, max_size=5),
    deleted=st.sets(st.integers(1, 30), max_size=12),
    limit=st.integers(1, 30),
    nodes=st.sampled_from([(), ("n",), ("n", "m"), ("x",)]),
    chunk_records=st.sampled_from([1, 7, 8192]),
    view_bytes=st.sampled_from([1, 100, 16_384]),
    tags=st.booleans(),
    meta=st.booleans(),
    data=st.booleans(),
)
def test_what_is_read_is_what_was_sent_whatever_is_left_out(
    batches: list[list[str]], deleted: set[int], limit: int, nodes: tuple[str, ...], chunk_records: int,
    view_bytes: int, tags: bool, meta: bool, data: bool,
) -> None:  # fmt: skip
    log = TopicLog(1, "a", TopicConfig())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk, "CHUNK_RECORDS", chunk_records)
        patch.setattr(chunk, "_VIEW_BYTES_MIN", view_bytes)
        for batch in batches:
            append_json(log, *batch, ts=77)
        log.delete([(seq, seq) for seq in sorted(deleted)])
        options = ReadOptions(
            limit, nodes=unwanted(*nodes), include_tags=tags, include_meta=meta, include_data=data
        )
        result = read(log, 0, options)
    sent = dict(enumerate([text for batch in batches for text in batch], 1))
    wanted = [
        seq
        for seq, text in sent.items()
        if seq not in deleted and json.loads(text).get("node", "-") not in nodes
    ]
    texts = [as_read(sent[seq], seq, tags=tags, meta=meta, data=data) for seq in wanted[:limit]]
    assert body(result) == b"[" + b",".join(texts) + b"]"
    assert result.count == len(texts)
    # Every seq below the next wanted record has been passed, and none beyond.
    assert result.next_from_seq == (wanted[limit] - 1 if len(wanted) > limit else log.head)


@given(
    batches=st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), min_size=1, max_size=6),
    deleted=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3)), max_size=4),
    limit=st.integers(1, 5),
    budget=st.sampled_from([1, 50, 100, 10**6]),
    nodes=st.sampled_from([frozenset[bytes](), unwanted("n"), unwanted("n", "m")]),
    chunk_records=st.sampled_from([1, 2, 3, 8192]),
    examine=st.sampled_from([1, 3, 100_000]),
    tags=st.booleans(),
)
def test_paging_visits_every_wanted_record_once_and_ends(
    batches: list[list[str]], deleted: list[tuple[int, int]], limit: int, budget: int,
    nodes: frozenset[bytes], chunk_records: int, examine: int, tags: bool,
) -> None:  # fmt: skip
    log = TopicLog(1, "a", TopicConfig())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk, "CHUNK_RECORDS", chunk_records)
        patch.setattr(reading, "EXAMINE_MAX", examine)
        for batch in batches:
            append_json(log, *batch)
        gone = {seq for first, more in deleted for seq in range(first, first + more + 1)}
        for first, more in deleted:
            log.delete([(first, first + more)])
        found, cursor = [], 0
        for _ in range(log.head + 1):
            result = read(log, cursor, ReadOptions(limit, budget, nodes, tags))
            assert result.next_from_seq > cursor or cursor == log.head
            assert result.gap is None, "deletes are silent"
            assert result.count == len(seqs(result)) <= limit
            found += seqs(result)
            cursor = result.next_from_seq
    sent = [json.loads(text) for batch in batches for text in batch]
    wanted = [
        seq
        for seq, record in enumerate(sent, 1)
        if seq not in gone and ("node" not in record or node_section(record["node"]) not in nodes)
    ]
    assert (found, cursor) == (wanted, log.head)
