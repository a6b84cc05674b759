"""Loss that nobody asked for is told with its exact range, and only that (3.3, the dual watermark)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.server import Topic, eventually


def _gap(page: Any) -> tuple[int, int, str] | None:
    """The tombstone's range and reason, after what holds for every tombstone was checked."""
    tombstone = page["tombstone"]
    if tombstone is None:
        return None
    assert set(tombstone) == {"gap_from", "gap_to", "reason", "missed_estimate", "earliest_seq", "head_seq"}
    assert tombstone["earliest_seq"] == page["earliest_seq"]
    assert tombstone["head_seq"] == page["head_seq"]
    assert 0 <= tombstone["missed_estimate"] <= tombstone["gap_to"] - tombstone["gap_from"] + 1
    return tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"]


def _seqs(page: Any) -> list[int]:
    return [record["$seq"] for record in page["records"]]


def _expire(topic: Topic) -> None:
    eventually(lambda: topic.state()["count"] == 0)


# -- cap --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("from_seq", "gap", "seqs"),
    [
        (0, (1, 7, "cap"), [8, 9, 10]),
        (1, (2, 7, "cap"), [8, 9, 10]),
        (5, (6, 7, "cap"), [8, 9, 10]),
        (6, (7, 7, "cap"), [8, 9, 10]),
        (7, None, [8, 9, 10]),
        (8, None, [9, 10]),
        (10, None, []),
    ],
)
def test_a_reader_below_the_evict_floor_is_told_exactly_what_it_missed(
    topic: Topic, from_seq: int, gap: tuple[int, int, str] | None, seqs: list[int]
) -> None:
    topic.put(cap_records=3)
    topic.write(*range(6))
    topic.write(*range(4))
    page = topic.diff(from_seq)
    assert _gap(page) == gap
    assert _seqs(page) == seqs
    assert (page["next_from_seq"], page["earliest_seq"], page["head_seq"]) == (10, 8, 10)
    assert (page["caught_up"], page["lag"]) == (True, 0)


def test_missed_estimate_counts_what_was_evicted(topic: Topic) -> None:
    topic.put(cap_records=3)
    topic.write(*range(10))
    assert topic.diff()["tombstone"]["missed_estimate"] == 7


def test_cap_records_is_exact_after_every_write(topic: Topic) -> None:
    topic.put(cap_records=3)
    for seq in range(1, 9):
        topic.write(seq)
        state = topic.state()
        assert (state["count"], state["earliest_seq"]) == (min(seq, 3), max(1, seq - 2))


def test_cap_bytes_evicts_exactly_what_does_not_fit(topic: Topic) -> None:
    topic.put(cap_bytes=10)
    topic.write_records([{"data": 11}, {"data": 22, "meta": {}}, {"data": 33}, {"data": 44}])
    assert topic.state()["bytes"] == 10
    topic.write(5)
    page = topic.diff()
    assert (_gap(page), _seqs(page)) == ((1, 1, "cap"), [2, 3, 4, 5])
    topic.write(123456)
    page = topic.diff()
    assert (_gap(page), _seqs(page)) == ((1, 3, "cap"), [4, 5, 6])
    assert topic.state()["bytes"] == 9


def test_whichever_cap_is_met_first_evicts(topic: Topic) -> None:
    topic.put(cap_bytes=10, cap_records=3)
    topic.write(1, 2, 3, 4)
    assert topic.state()["count"] == 3
    topic.write(123456789)
    assert topic.state()["count"] == 2
    topic.write(1234567890)
    assert topic.seqs(5) == [6]


def test_after_the_tombstone_reading_goes_on_without_it(topic: Topic) -> None:
    topic.put(cap_records=4)
    topic.write(*range(10))
    page = topic.diff(2, limit=1)
    assert (_gap(page), _seqs(page)) == ((3, 6, "cap"), [7])
    assert (page["next_from_seq"], page["caught_up"], page["lag"]) == (7, False, 3)
    page = topic.diff(page["next_from_seq"])
    assert (_gap(page), _seqs(page)) == (None, [8, 9, 10])


def test_a_reader_that_lags_again_gets_a_second_tombstone(topic: Topic) -> None:
    topic.put(cap_records=2)
    topic.write(1, 2, 3)
    cursor = topic.diff(limit=1)["next_from_seq"]
    assert cursor == 2
    topic.write(4, 5, 6)
    assert _gap(topic.diff(cursor)) == (3, 4, "cap")


def test_a_tightened_cap_evicts_at_once_and_a_widened_one_brings_nothing_back(topic: Topic) -> None:
    topic.write(*range(10))
    topic.put(cap_records=4)
    state = topic.state()
    assert (state["count"], state["earliest_seq"]) == (4, 7)
    assert _gap(topic.diff()) == (1, 6, "cap")
    topic.put(cap_records=0)
    page = topic.diff()
    assert (_gap(page), _seqs(page)) == ((1, 6, "cap"), [7, 8, 9, 10])
    topic.write(11)
    assert topic.state()["count"] == 5


def test_own_records_above_the_gap_are_filtered_and_the_gap_is_still_told(topic: Topic) -> None:
    topic.put(cap_records=2)
    topic.write(1, 2, 3, 4, node="me")
    page = topic.diff(node="me")
    assert (_gap(page), _seqs(page)) == ((1, 2, "cap"), [])
    assert (page["next_from_seq"], page["caught_up"]) == (4, True)


def test_a_queue_tells_its_losses_like_a_log(topic: Topic) -> None:
    topic.put(type="queue", cap_records=2)
    topic.write(1, 2, 3)
    assert _gap(topic.diff()) == (1, 1, "cap")
    assert topic.state()["queue"]["ready"] == 2


# -- ttl --------------------------------------------------------------------------------------------------


def test_expired_records_are_a_tombstone_up_to_the_head_when_all_are_gone(topic: Topic) -> None:
    topic.put(ttl_ms=100)
    topic.write(1, 2, 3)
    assert topic.seqs() == [1, 2, 3]
    _expire(topic)
    state = topic.state()
    assert (state["bytes"], state["head_seq"], state["earliest_seq"], state["next_seq"]) == (0, 3, 4, 4)
    page = topic.diff(1)
    assert (_gap(page), _seqs(page)) == ((2, 3, "ttl"), [])
    assert (page["next_from_seq"], page["caught_up"], page["lag"]) == (3, True, 0)
    assert _gap(topic.diff(3)) is None
    assert topic.write(4)["seqs"] == [4]
    page = topic.diff(0)
    assert (_gap(page), _seqs(page)) == ((1, 3, "ttl"), [4])


def test_only_what_is_old_enough_expires(topic: Topic) -> None:
    topic.put(ttl_ms=400)
    topic.write("old")
    eventually(lambda: topic.write("filler")["last_seq"] > 20)
    eventually(lambda: topic.state()["earliest_seq"] > 1)
    page = topic.diff()
    gap = _gap(page)
    assert gap is not None
    assert gap == (1, page["earliest_seq"] - 1, "ttl")
    if page["records"]:
        assert page["records"][0]["$seq"] == page["earliest_seq"]


def test_a_tightened_ttl_applies_at_once_and_a_widened_one_brings_nothing_back(topic: Topic) -> None:
    topic.write(1, 2)
    topic.put(ttl_ms=30)
    _expire(topic)
    topic.put(ttl_ms=0)
    topic.write(3)
    page = topic.diff()
    assert (_gap(page), _seqs(page)) == ((1, 2, "ttl"), [3])
    assert topic.state()["earliest_seq"] == 3


def test_cap_and_ttl_together_are_mixed(topic: Topic) -> None:
    topic.put(cap_records=2)
    topic.write(1, 2, 3)
    topic.put(ttl_ms=30)
    _expire(topic)
    topic.put(ttl_ms=0)
    topic.write(4)
    page = topic.diff()
    assert (_gap(page), _seqs(page)) == ((1, 3, "mixed"), [4])


# -- voluntary removal ------------------------------------------------------------------------------------


@pytest.mark.parametrize("from_seq", range(6))
def test_a_purely_deleted_gap_is_silent(topic: Topic, from_seq: int) -> None:
    topic.write(*range(6))
    topic.delete_records(before_seq=5)
    page = topic.diff(from_seq)
    assert _gap(page) is None
    assert _seqs(page) == [seq for seq in (5, 6) if seq > from_seq]
    assert (page["next_from_seq"], page["earliest_seq"], page["caught_up"]) == (6, 5, True)


def test_a_topic_deleted_to_the_end_reads_silently_to_its_head(topic: Topic) -> None:
    topic.write(1, 2, 3)
    topic.delete_records(before_seq=99)
    page = topic.diff()
    assert (_gap(page), _seqs(page)) == (None, [])
    assert (page["next_from_seq"], page["earliest_seq"], page["caught_up"], page["lag"]) == (3, 4, True, 0)


@pytest.mark.parametrize(
    ("from_seq", "gap"), [(0, (1, 5, "cap")), (2, (3, 5, "cap")), (3, None), (4, None), (5, None)]
)
def test_deleted_seqs_above_an_eviction_belong_to_its_range_but_alone_they_are_silent(
    topic: Topic, from_seq: int, gap: tuple[int, int, str] | None
) -> None:
    topic.put(cap_records=5)
    topic.write(*range(8))
    topic.delete_records(before_seq=6)
    page = topic.diff(from_seq)
    assert _gap(page) == gap
    assert _seqs(page) == [6, 7, 8]


def test_deleted_records_do_not_count_towards_the_cap(topic: Topic) -> None:
    topic.put(cap_records=3)
    topic.write(1, 2, 3)
    topic.delete_records(before_seq=3)
    topic.write(4, 5)
    page = topic.diff()
    assert (_gap(page), _seqs(page)) == (None, [3, 4, 5])
    topic.write(6)
    page = topic.diff()
    assert (_gap(page), _seqs(page)) == ((1, 3, "cap"), [4, 5, 6])
    assert page["tombstone"]["missed_estimate"] >= 1


def test_a_deleted_record_in_the_middle_lets_the_cap_keep_one_more(topic: Topic) -> None:
    topic.put(cap_records=3)
    topic.write_records([{"data": 1}, {"data": 2, "tag": "gone"}, {"data": 3}])
    topic.delete_records(match="gone")
    topic.write(4)
    page = topic.diff()
    assert (_gap(page), _seqs(page)) == (None, [1, 3, 4])
    topic.write(5)
    page = topic.diff()
    assert _seqs(page) == [3, 4, 5]
    assert _gap(page) == (1, 2, "cap")


def test_expiry_of_records_that_were_deleted_before_stays_silent(topic: Topic) -> None:
    topic.write(1, 2, 3)
    topic.delete_records(before_seq=4)
    topic.put(ttl_ms=1)
    eventually(lambda: topic.write("new")["last_seq"] > 30)
    topic.put(ttl_ms=0)
    first_kept = topic.state()["earliest_seq"]
    gap = _gap(topic.diff(0))
    assert gap is None or gap[1] == first_kept - 1
    assert _gap(topic.diff(first_kept - 1)) is None


def test_deleted_records_never_expire_into_a_tombstone(topic: Topic) -> None:
    topic.put(ttl_ms=60)
    topic.write(1, 2, 3)
    topic.delete_records(before_seq=99)
    topic.diff(3, wait_ms=150)
    assert _gap(topic.diff(0)) is None


def test_node_filtered_records_are_silent(topic: Topic) -> None:
    topic.write(1, 2, 3, node="me")
    page = topic.diff(node="me")
    assert (_gap(page), _seqs(page), page["next_from_seq"]) == (None, [], 3)


# -- recreated --------------------------------------------------------------------------------------------


def test_a_cursor_ahead_of_the_head_is_from_an_earlier_life(topic: Topic) -> None:
    topic.write(*range(10))
    topic.drop()
    topic.write("a", "b", "c")
    page = topic.diff(10)
    assert (_gap(page), _seqs(page)) == ((1, 3, "recreated"), [1, 2, 3])
    assert (page["next_from_seq"], page["caught_up"]) == (3, True)
    assert _gap(topic.diff(4)) == (1, 3, "recreated")
    assert _gap(topic.diff(3)) is None


def test_an_empty_new_topic_answers_a_recreated_gap_that_ends_at_zero(topic: Topic) -> None:
    topic.put()
    page = topic.diff(1)
    assert (_gap(page), _seqs(page)) == ((1, 0, "recreated"), [])
    assert page["tombstone"]["missed_estimate"] == 0
    assert (page["next_from_seq"], page["caught_up"], page["lag"]) == (0, True, 0)


@pytest.mark.parametrize("from_seq", [4, 1000, 2**53 + 1, 2**63, 2**64 - 1])
def test_any_cursor_ahead_of_the_head_starts_over(topic: Topic, from_seq: int) -> None:
    topic.write(1, 2, 3)
    page = topic.diff(from_seq, limit=2)
    assert (_gap(page), _seqs(page)) == ((1, 3, "recreated"), [1, 2])
    page = topic.diff(page["next_from_seq"])
    assert (_gap(page), _seqs(page)) == (None, [3])


def test_a_recreated_topic_with_losses_of_its_own_starts_at_its_earliest_record(topic: Topic) -> None:
    topic.put(cap_records=2)
    topic.write(1, 2, 3, 4)
    page = topic.diff(9)
    assert (_gap(page), _seqs(page)) == ((1, 4, "recreated"), [3, 4])
    topic.delete_records(before_seq=99)
    page = topic.diff(9)
    assert (_gap(page), _seqs(page)) == ((1, 4, "recreated"), [])
    assert (page["next_from_seq"], page["caught_up"]) == (4, True)


# -- the watermarks ---------------------------------------------------------------------------------------


def test_earliest_seq_never_moves_back_and_the_next_seq_never_repeats(topic: Topic) -> None:
    topic.put(cap_records=4)
    earliest, head = 1, 0
    for turn in range(30):
        if turn % 5 == 3:
            topic.delete_records(before_seq=head)
        elif turn % 7 == 6:
            topic.put(cap_records=2 + turn % 3)
        else:
            written = topic.write(*range(turn % 3 + 1))
            assert written["first_seq"] == head + 1
            head = written["head_seq"]
        state = topic.state()
        assert state["earliest_seq"] >= earliest
        assert (state["head_seq"], state["next_seq"]) == (head, head + 1)
        earliest = state["earliest_seq"]
        assert topic.diff()["earliest_seq"] == earliest
