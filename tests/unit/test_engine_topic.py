"""Retention is exact by record: caps, TTL, deletes and holes, and what they do to the watermarks."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.model import append_json
from topics.engine import chunk
from topics.engine.config import TopicConfig
from topics.engine.tags import parse_match
from topics.engine.topic import TopicLog


def topic(**config: object) -> TopicLog:
    return TopicLog(1, "a", TopicConfig(**config))  # type: ignore[arg-type]


def fill(log: TopicLog, count: int, *, ts: int = 1000) -> None:
    for _ in range(count):
        append_json(log, '{"data":1,"tag":"t"}', ts=ts)


def figures(log: TopicLog) -> tuple[int, int, int, int]:
    return log.marks.evict_floor, log.earliest, log.count, log.bytes


def test_a_new_topic_is_empty_and_its_first_seq_is_one() -> None:
    log = topic()
    assert (log.head, *figures(log)) == (0, 1, 1, 0, 0)
    fill(log, 1)
    assert (log.head, *figures(log)) == (1, 1, 1, 1, 1)


@pytest.mark.parametrize(("cap", "floor"), [(1, 6), (2, 5), (5, 2), (6, 1), (7, 1)])
def test_a_record_cap_evicts_exactly_the_oldest(cap: int, floor: int) -> None:
    log = topic(cap_records=cap)
    fill(log, 6)
    log.evict_to_caps()
    assert figures(log) == (floor, floor, min(cap, 6), min(cap, 6))


@pytest.mark.parametrize(("cap", "earliest"), [(4, 4), (5, 4), (8, 4), (9, 3), (10, 3), (13, 2), (14, 1)])
def test_a_byte_cap_evicts_exactly_what_is_over(cap: int, earliest: int) -> None:
    log = topic(cap_bytes=cap)
    for text in ("1", "1234", "12345", "1234"):
        append_json(log, f'{{"data":{text}}}')
    log.evict_to_caps()
    assert log.earliest == log.marks.evict_floor == earliest
    assert log.bytes <= cap


def test_bytes_are_data_and_meta_and_nothing_around_them() -> None:
    log = topic()
    append_json(log, '{"data":  "ä"  ,"meta": {"a" : 1} ,"tag":"ttt","node":"nnn"}')
    assert log.bytes == len('"ä"'.encode()) + len('{"a" : 1}')


def test_whichever_cap_is_hit_first_evicts() -> None:
    log = topic(cap_records=3, cap_bytes=2)
    fill(log, 4)
    log.evict_to_caps()
    assert figures(log) == (3, 3, 2, 2)


def test_a_cap_counts_live_records_only() -> None:
    log = topic(cap_records=2)
    fill(log, 4)
    log.delete([(2, 3)])
    log.evict_to_caps()
    assert figures(log) == (1, 1, 2, 2)


def test_passing_deleted_records_does_not_move_the_floor() -> None:
    log = topic(cap_records=1)
    fill(log, 5)
    log.delete([(2, 4)])
    log.evict_to_caps()
    assert (log.marks.evict_floor, log.earliest) == (2, 5)


def test_a_delete_moves_the_first_live_seq_and_never_the_floor() -> None:
    log = topic()
    fill(log, 4)
    assert log.delete([(1, 2)]) == 2
    assert figures(log) == (1, 3, 2, 2)
    assert log.delete([(1, 4)]) == 2
    assert figures(log) == (1, 5, 0, 0)
    assert log.delete([(1, 4)]) == 0


@pytest.mark.parametrize(("now_ms", "floor"), [(1010, 1), (1011, 3), (1020, 3), (1021, 5), (99_999, 5)])
def test_a_record_expires_when_it_is_older_than_the_ttl(now_ms: int, floor: int) -> None:
    log = topic(ttl_ms=10)
    fill(log, 2, ts=1000)
    fill(log, 2, ts=1010)
    log.expire(now_ms)
    assert (log.marks.evict_floor, log.earliest, log.count) == (floor, floor, 5 - floor)
    assert log.marks.ttl_expired == floor - 1


def test_deleted_records_do_not_expire() -> None:
    log = topic(ttl_ms=10)
    fill(log, 3)
    log.delete([(2, 3)])
    log.expire(2000)
    assert (log.marks.evict_floor, log.earliest) == (2, 4)


def test_without_a_ttl_nothing_expires() -> None:
    log = topic()
    fill(log, 1, ts=0)
    log.expire(2**63)
    assert log.count == 1


def test_the_largest_ttl_keeps_everything() -> None:
    log = topic(ttl_ms=2**64 - 1)
    fill(log, 1, ts=0)
    log.expire(2**62)
    assert log.count == 1


def test_losing_a_tail_moves_the_head_and_keeps_what_is_below() -> None:
    log = topic()
    fill(log, 2)
    log.lose(9, cause="crash")
    assert (log.head, log.earliest, log.count) == (9, 1, 2)
    log.lose(9, cause="crash")
    assert len(log.marks.holes) == 1
    fill(log, 1)
    assert (log.head, log.next_live(3)) == (10, 10)


def test_an_empty_topic_that_lost_its_tail_starts_behind_it() -> None:
    log = topic()
    log.lose(4, cause="crash")
    assert (log.head, log.earliest) == (4, 5)


def test_eviction_across_a_hole_takes_the_hole_along() -> None:
    log = topic(cap_records=1)
    fill(log, 1)
    log.lose(4, cause="crash")
    fill(log, 2)
    log.evict_to_caps()
    assert (log.marks.evict_floor, log.earliest, log.marks.holes) == (6, 6, [])


def test_a_match_finds_live_tagged_records_below_its_bound() -> None:
    log = topic()
    for tag in ("a:1", "a:2", "b", "a:1"):
        append_json(log, json.dumps({"data": 1, "tag": tag}))
    append_json(log, '{"data":1}')
    log.delete([(1, 1)])
    every = parse_match(["tag", "Glob", "a:*"], field="match")
    assert log.matching(every, below=6) == [2, 4]
    assert log.matching(every, below=4) == [2]
    assert log.matching(parse_match("a:1", field="match"), below=6) == [4]
    assert log.matching(parse_match("a:*", field="match"), below=6) == []


@given(
    ops=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(1, 4), st.integers(1, 9)),
            st.tuples(st.just("delete"), st.integers(0, 25), st.integers(0, 6)),
            st.tuples(st.just("cap"), st.integers(0, 8), st.integers(0, 30)),
            st.tuples(st.just("time"), st.integers(0, 9), st.integers(0, 9)),
            st.tuples(st.just("lose"), st.integers(1, 4), st.just(0)),
        ),
        max_size=20,
    ),
    chunk_records=st.sampled_from([1, 2, 3, 8192]),
)
def test_count_bytes_and_watermarks_are_exact_after_every_operation(
    ops: list[tuple[str, int, int]], chunk_records: int
) -> None:
    log, now_ms = topic(ttl_ms=10), 1000
    live: dict[int, tuple[int, int]] = {}  # seq -> time, size
    floor = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk, "CHUNK_RECORDS", chunk_records)
        for kind, first, second in ops:
            if kind == "write":
                append_json(log, *[f'{{"data":{"1" * second}}}'] * first, ts=now_ms)
                live |= dict.fromkeys(range(log.head - first + 1, log.head + 1), (now_ms, second))
            elif kind == "delete":
                gone = [seq for seq in live if first <= seq <= first + second]
                assert log.delete([(first, first + second)]) == len(gone)
                for seq in gone:
                    del live[seq]
            elif kind == "cap":
                log.config = TopicConfig(ttl_ms=10, cap_records=first, cap_bytes=second)
                while (first and len(live) > first) or (second and sum(s for _, s in live.values()) > second):
                    oldest = min(live)
                    del live[oldest]
                    floor = oldest + 1
                log.evict_to_caps()
            elif kind == "time":
                now_ms += first
                for seq in [seq for seq, (ts, _) in live.items() if now_ms - ts > 10]:
                    del live[seq]
                    floor = seq + 1
                log.expire(now_ms)
            else:
                log.lose(log.head + first, cause="crash")
            sizes = sum(size for _, size in live.values())
            assert figures(log) == (floor, min(live, default=log.head + 1), len(live), sizes)
            assert [log.next_live(seq) for seq in live] == list(live)


def test_expiry_that_ends_before_a_deleted_record_goes_on_to_the_next_live_one() -> None:
    log = topic(ttl_ms=10)
    fill(log, 1, ts=1000)
    fill(log, 2, ts=1010)
    log.delete([(2, 2)])
    log.expire(1011)
    assert (log.marks.evict_floor, log.earliest, log.count) == (2, 3, 1)


def test_an_eviction_that_is_replayed_gives_the_same_watermarks() -> None:
    log = topic()
    fill(log, 4)
    log.delete([(3, 3)])
    log.evict_below(3, ttl=False)
    assert figures(log) == (3, 4, 1, 1)
    log.evict_below(5, ttl=True)
    assert (log.marks.cap_evicted, log.marks.ttl_expired, log.earliest) == (2, 4, 5)
