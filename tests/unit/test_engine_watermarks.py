"""The tombstone rule: involuntary loss is told exactly, voluntary removal is silent."""

from collections.abc import Callable

import pytest

from topics.engine.watermarks import Gap, Hole, Watermarks, lost_gap


def alive(*seqs: int, head: int) -> Callable[[int], int]:
    """`next_live` of a topic in which exactly these seqs are live."""
    return lambda seq: min((live for live in seqs if live >= seq), default=head + 1)


def gap(cursor: int, marks: Watermarks, *live: int, head: int) -> Gap | None:
    next_live = alive(*live, head=head)
    return lost_gap(cursor, head=head, earliest=next_live(1), marks=marks, next_live=next_live)


def hole(first: int, last: int, cause: str = "crash") -> Hole:
    return Hole(first, last, "cap", cause)


# Seqs 1..4 were evicted, 5 and 6 were deleted, 7..9 are live: evict_floor is 5, earliest is 7.
@pytest.mark.parametrize(
    ("cursor", "first"),
    [(0, 1), (1, 2), (2, 3), (3, 4), (4, None), (5, None), (6, None), (7, None), (9, None)],
)
def test_a_tombstone_is_told_below_the_evict_floor_and_never_at_it(cursor: int, first: int | None) -> None:
    found = gap(cursor, Watermarks(cap_evicted=4), 7, 8, 9, head=9)
    if first is None:
        assert found is None
    else:
        assert found == Gap(first, 6, "cap", resume_after=6)


def test_the_gap_reaches_to_the_first_live_record_even_if_its_end_was_deleted() -> None:
    found = gap(0, Watermarks(ttl_expired=2), 10, head=10)
    assert found == Gap(1, 9, "ttl", resume_after=9)
    assert found.missed_estimate == 9


def test_a_purely_deleted_gap_is_silent() -> None:
    for cursor in range(6):
        assert gap(cursor, Watermarks(), 6, head=6) is None


def test_a_topic_that_lost_everything_tells_it_up_to_its_head() -> None:
    assert gap(0, Watermarks(cap_evicted=5), head=5) == Gap(1, 5, "cap", resume_after=5)
    assert gap(3, Watermarks(cap_evicted=5), head=5) == Gap(4, 5, "cap", resume_after=5)
    assert gap(4, Watermarks(cap_evicted=5), head=5) == Gap(5, 5, "cap", resume_after=5)
    assert gap(5, Watermarks(cap_evicted=5), head=5) is None


@pytest.mark.parametrize(
    ("cap", "ttl", "cursor", "reason"),
    [
        (3, 0, 0, "cap"),
        (0, 3, 0, "ttl"),
        (3, 2, 0, "mixed"),
        (2, 3, 0, "mixed"),
        (3, 2, 1, "mixed"),
        (3, 2, 2, "cap"),
        (2, 3, 2, "ttl"),
    ],
)
def test_the_reason_names_what_was_lost_above_the_cursor(
    cap: int, ttl: int, cursor: int, reason: str
) -> None:
    found = gap(cursor, Watermarks(cap_evicted=cap, ttl_expired=ttl), 4, head=4)
    assert found is not None
    assert found.reason == reason


def test_the_floor_is_one_above_the_highest_loss_of_either_kind() -> None:
    assert Watermarks().evict_floor == 1
    assert Watermarks(cap_evicted=3, ttl_expired=7).evict_floor == 8
    assert Watermarks(cap_evicted=7, ttl_expired=3).evict_floor == 8


def test_floors_never_go_back() -> None:
    marks = Watermarks(cap_evicted=5, ttl_expired=6)
    marks.evicted(cap=2, ttl=3)
    assert (marks.cap_evicted, marks.ttl_expired) == (5, 6)


def test_a_floor_above_the_first_live_record_is_a_bug_and_is_refused() -> None:
    with pytest.raises(AssertionError):
        gap(0, Watermarks(cap_evicted=5), 3, head=9)


# -- a cursor of an earlier life


@pytest.mark.parametrize("cursor", [4, 5, 2**64 - 1])
def test_a_cursor_ahead_of_the_head_is_from_an_earlier_life(cursor: int) -> None:
    assert gap(cursor, Watermarks(), 1, 2, 3, head=3) == Gap(1, 3, "recreated", resume_after=0)


def test_a_cursor_at_the_head_is_an_ordinary_tail() -> None:
    assert gap(3, Watermarks(), 1, 2, 3, head=3) is None
    assert gap(0, Watermarks(), head=0) is None


def test_an_empty_new_topic_reports_an_empty_range() -> None:
    found = gap(7, Watermarks(), head=0)
    assert found == Gap(1, 0, "recreated", resume_after=0)
    assert found.missed_estimate == 0


def test_recreated_wins_over_loss_and_reading_goes_on_at_the_first_live_record() -> None:
    assert gap(9, Watermarks(cap_evicted=2), 4, 5, head=5) == Gap(1, 5, "recreated", resume_after=3)


# -- holes: 1..3 live, 4..6 lost, 7..8 live


@pytest.mark.parametrize(
    ("cursor", "first"),
    [(0, None), (2, None), (3, 4), (4, 5), (5, 6), (6, None), (7, None), (8, None)],
)
def test_a_hole_is_told_when_the_cursor_stands_before_it_or_inside(cursor: int, first: int | None) -> None:
    found = gap(cursor, Watermarks(holes=[hole(4, 6)]), 1, 2, 3, 7, 8, head=8)
    expected = None if first is None else Gap(first, 6, "cap", resume_after=6, cause="crash")
    assert found == expected


def test_a_hole_behind_deleted_records_is_told_at_once_and_exactly() -> None:
    marks = Watermarks(holes=[hole(4, 6)])
    assert gap(0, marks, 7, head=7) == Gap(4, 6, "cap", resume_after=6, cause="crash")
    assert gap(0, marks, 3, 7, head=7) is None, "3 can still be had first"


def test_a_hole_at_the_head_is_told_to_a_reader_that_was_caught_up() -> None:
    marks = Watermarks(holes=[hole(4, 6)])
    assert gap(3, marks, 1, 2, 3, head=6) == Gap(4, 6, "cap", resume_after=6, cause="crash")
    assert gap(6, marks, 1, 2, 3, head=6) is None


def test_two_holes_are_told_one_after_the_other() -> None:
    marks = Watermarks(holes=[hole(2, 3), hole(5, 6)])
    assert gap(1, marks, 1, 4, 7, head=7) == Gap(2, 3, "cap", resume_after=3, cause="crash")
    assert gap(3, marks, 1, 4, 7, head=7) is None
    assert gap(4, marks, 1, 4, 7, head=7) == Gap(5, 6, "cap", resume_after=6, cause="crash")


def test_adjacent_holes_of_one_cause_are_one_hole() -> None:
    marks = Watermarks()
    marks.add_hole(hole(2, 3))
    marks.add_hole(hole(4, 6))
    assert marks.holes == [hole(2, 6)]


def test_adjacent_holes_of_different_causes_keep_their_causes() -> None:
    marks = Watermarks()
    marks.add_hole(hole(2, 3))
    marks.add_hole(hole(4, 6, "corruption"))
    first = gap(1, marks, 1, 7, head=7)
    assert first == Gap(2, 3, "cap", resume_after=3, cause="crash")
    assert gap(3, marks, 1, 7, head=7) == Gap(4, 6, "cap", resume_after=6, cause="corruption")


def test_an_empty_hole_is_no_hole() -> None:
    marks = Watermarks()
    marks.add_hole(hole(4, 3))
    assert marks.holes == []


def test_holes_out_of_order_are_a_bug_and_are_refused() -> None:
    marks = Watermarks(holes=[hole(5, 6)])
    with pytest.raises(AssertionError):
        marks.add_hole(hole(6, 8))


def test_eviction_past_a_hole_swallows_it_into_one_range() -> None:
    marks = Watermarks(holes=[hole(4, 6), hole(9, 9)])
    marks.evicted(cap=7)
    assert marks.holes == [hole(9, 9)]
    assert gap(0, marks, 8, 10, head=10) == Gap(1, 7, "cap", resume_after=7)
    assert gap(4, marks, 8, 10, head=10) == Gap(5, 7, "cap", resume_after=7)


def test_eviction_up_to_a_hole_makes_one_range_with_it() -> None:
    marks = Watermarks(holes=[hole(4, 6)])
    marks.evicted(cap=3)
    assert marks.holes == [hole(4, 6)]
    assert gap(0, marks, 7, head=7) == Gap(1, 6, "cap", resume_after=6)
    assert gap(3, marks, 7, head=7) == Gap(4, 6, "cap", resume_after=6, cause="crash")


def test_deletes_never_erase_a_hole() -> None:
    marks = Watermarks(holes=[hole(4, 6)])
    assert gap(0, marks, head=8) == Gap(4, 6, "cap", resume_after=6, cause="crash")


@pytest.mark.parametrize(("first", "last", "missed"), [(1, 5, 5), (5, 5, 1), (1, 0, 0)])
def test_the_estimate_is_never_larger_than_the_range_and_never_negative(
    first: int, last: int, missed: int
) -> None:
    assert Gap(first, last, "cap", resume_after=last).missed_estimate == missed
