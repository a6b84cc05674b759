"""Deleting records by seq and by tag (section 5): permanent, immediate, silent, point in time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.server import JSON_TYPE, Topic

TAGGED = ["a", "a:", "a:1", "a:2", "a;", "b", None, "A:1", "a*", "ä", "a:\U0010ffff", "a:1:x"]


def _write_tagged(topic: Topic) -> None:
    topic.write_records([{"data": tag} if tag is None else {"data": tag, "tag": tag} for tag in TAGGED]).ok(
        201
    )


def _left(topic: Topic) -> list[Any]:
    return [record["data"] for record in topic.diff()["records"]]


def test_the_answer_is_the_count_and_the_state_afterwards(topic: Topic) -> None:
    topic.write("a", "bb", "ccc", "dddd")
    body = topic.delete_records(before_seq=3)
    assert "performance" in body
    del body["performance"]
    assert body == {
        "topic": topic.name,
        "deleted": 2,
        "earliest_seq": 3,
        "head_seq": 4,
        "count": 2,
        "bytes": len('"ccc"') + len('"dddd"'),
    }
    state = topic.state()
    assert {name: state[name] for name in ("earliest_seq", "head_seq", "count", "bytes")} == {
        name: body[name] for name in ("earliest_seq", "head_seq", "count", "bytes")
    }


@pytest.mark.parametrize(
    ("before_seq", "deleted", "left"),
    [
        (0, 0, [1, 2, 3]),
        (1, 0, [1, 2, 3]),
        (2, 1, [2, 3]),
        (3, 2, [3]),
        (4, 3, []),
        (1000, 3, []),
        (2**64 - 1, 3, []),
    ],
)
def test_before_seq_is_an_exclusive_upper_bound(
    topic: Topic, before_seq: int, deleted: int, left: list[int]
) -> None:
    topic.write(1, 2, 3)
    body = topic.delete_records(before_seq=before_seq)
    assert body["deleted"] == deleted
    assert body["earliest_seq"] == (left[0] if left else 4)
    assert topic.seqs() == left
    assert topic.write(4)["seqs"] == [4]
    assert topic.seqs() == [*left, 4]


@pytest.mark.parametrize(
    ("match", "gone"),
    [
        ("a", ["a"]),
        ("a*", ["a*"]),
        ("zz", []),
        (["tag", "Eq", "a"], ["a"]),
        (["tag", "Eq", "a*"], ["a*"]),
        (["tag", "Eq", "ä"], ["ä"]),
        (["tag", "Eq", "A:1"], ["A:1"]),
        (["tag", "Glob", "a:*"], ["a:", "a:1", "a:2", "a:\U0010ffff", "a:1:x"]),
        (["tag", "Glob", "a:1*"], ["a:1", "a:1:x"]),
        (["tag", "Glob", "a:\U0010ffff*"], ["a:\U0010ffff"]),
        (["tag", "Glob", "ä*"], ["ä"]),
        (["tag", "Glob", "zz*"], []),
        (["tag", "Glob", "*"], [tag for tag in TAGGED if tag is not None]),
    ],
)
def test_match_removes_exactly_the_records_whose_tag_matches(
    topic: Topic, match: object, gone: list[str]
) -> None:
    _write_tagged(topic)
    body = topic.delete_records(match=match)
    assert body["deleted"] == len(gone)
    assert body["count"] == len(TAGGED) - len(gone)
    assert _left(topic) == [tag for tag in TAGGED if tag not in gone]
    assert topic.delete_records(match=match)["deleted"] == 0


def test_match_and_before_seq_are_both_needed_to_be_true(topic: Topic) -> None:
    topic.write_records([{"data": n, "tag": "msg-1" if n % 2 else "msg-2"} for n in range(1, 7)])
    assert topic.delete_records(match=["tag", "Eq", "msg-1"], before_seq=5)["deleted"] == 2
    assert topic.seqs() == [2, 4, 5, 6]
    assert topic.delete_records(match=["tag", "Glob", "msg-*"], before_seq=5)["deleted"] == 2
    assert topic.seqs() == [5, 6]


def test_a_delete_is_point_in_time_and_never_a_standing_filter(topic: Topic) -> None:
    topic.write_records([{"data": 1, "tag": "t"}])
    topic.delete_records(match="t")
    topic.delete_records(match=["tag", "Glob", "t*"])
    topic.delete_records(before_seq=1000)
    topic.write_records([{"data": 2, "tag": "t"}])
    assert topic.seqs() == [2]
    assert topic.delete_records(match="t")["deleted"] == 1


def test_deleting_everything_leaves_the_head_and_no_seq_is_used_again(topic: Topic) -> None:
    topic.write(1, 2, 3)
    body = topic.delete_records(before_seq=4)
    assert (body["count"], body["bytes"], body["earliest_seq"], body["head_seq"]) == (0, 0, 4, 3)
    assert topic.state()["next_seq"] == 4
    assert topic.write("next")["seqs"] == [4]


def test_a_delete_in_the_middle_leaves_earliest_seq_alone_until_the_front_goes(topic: Topic) -> None:
    topic.write_records([{"data": 1}, {"data": 2, "tag": "t"}, {"data": 3}])
    assert topic.delete_records(match="t")["earliest_seq"] == 1
    assert topic.delete_records(before_seq=2)["earliest_seq"] == 3


def test_evicted_and_expired_records_are_not_counted_as_deleted(topic: Topic) -> None:
    topic.put(cap_records=2)
    topic.write_records([{"data": n, "tag": "t"} for n in range(5)])
    assert topic.delete_records(match="t")["deleted"] == 2
    assert topic.delete_records(before_seq=99)["deleted"] == 0


def test_a_delete_never_creates(topic: Topic) -> None:
    for _ in range(2):
        detail = topic.try_delete_records({"before_seq": 1}).failed(404, "topic_not_found")
        assert detail["topic"] == topic.name


@pytest.mark.parametrize("raw", [b"{}", b'{"unknown":1}'])
def test_a_delete_needs_a_predicate(topic: Topic, raw: bytes) -> None:
    topic.server.post(f"{topic.path}/delete", raw=raw, headers=JSON_TYPE).failed(400, "invalid_request")
    topic.write(1)
    topic.server.post(f"{topic.path}/delete", raw=raw, headers=JSON_TYPE).failed(400, "invalid_request")
    assert topic.seqs() == [1]


BAD_MATCHES: list[object] = [
    *(
        None,
        1,
        True,
        {},
        [],
        ["tag"],
        ["tag", "Eq"],
        ["tag", "Eq", "x", "y"],
        ["Eq", "x"],
        [["tag", "Eq", "x"]],
    ),
    *(["node", "Eq", "x"], ["Tag", "Eq", "x"], ["data", "Eq", "x"], ["$tag", "Eq", "x"], [None, "Eq", "x"]),
    *(
        ["tag", "eq", "x"],
        ["tag", "Regex", "x"],
        ["tag", "In", ["x"]],
        ["tag", "glob", "x*"],
        ["tag", None, "x"],
    ),
    *(["tag", "NotEq", "x"], ["tag", "", "x"], ["tag", 1, "x"], [1, "Eq", "x"]),
    *(["tag", "Eq", 1], ["tag", "Eq", None], ["tag", "Eq", ["x"]], ["tag", "Glob", 1], ["tag", "Glob", None]),
    *(
        ["tag", "Glob", "x"],
        ["tag", "Glob", ""],
        ["tag", "Glob", "*x"],
        ["tag", "Glob", "x*y"],
        ["tag", "Glob", "x?"],
    ),
]


@pytest.mark.parametrize("match", BAD_MATCHES, ids=str)
def test_a_bad_match_is_400_and_removes_nothing(topic: Topic, match: object) -> None:
    topic.write_records([{"data": 1, "tag": "x"}])
    for body in ({"match": match}, {"match": match, "before_seq": 99}):
        topic.try_delete_records(body).failed(400, "invalid_request")
        assert str(topic.try_delete_records(body).field).startswith("match")
    assert topic.seqs() == [1]


@pytest.mark.parametrize("before_seq", [-1, 1.0, 1.5, "2", None, True, [2], {}])
def test_a_bad_before_seq_is_400_and_removes_nothing(topic: Topic, before_seq: object) -> None:
    topic.try_delete_records({"before_seq": before_seq}).failed(400, "invalid_request", "before_seq")
    topic.write_records([{"data": 1, "tag": "x"}])
    for more in ({}, {"match": "x"}):
        topic.try_delete_records({"before_seq": before_seq, **more}).failed(
            400, "invalid_request", "before_seq"
        )
    assert topic.seqs() == [1]


def test_a_large_tagged_topic_loses_exactly_the_asked_for_tags(topic: Topic) -> None:
    topic.write_records([{"data": n, "tag": f"user-{n % 50}:msg"} for n in range(2000)])
    assert topic.delete_records(match=["tag", "Glob", "user-7:*"])["deleted"] == 40
    assert topic.delete_records(match=["tag", "Glob", "user-1*"])["deleted"] == 40 * 11
    assert topic.delete_records(match="user-20:msg", before_seq=1001)["deleted"] == 20
    assert topic.state()["count"] == 2000 - 40 - 440 - 20
    left = [
        n for n in range(2000) if n % 50 not in (1, 7, *range(10, 20)) and not (n % 50 == 20 and n < 1000)
    ]
    seen: list[int] = []
    page = topic.diff(limit=1000)
    for _ in range(5):
        seen += [record["data"] for record in page["records"]]
        if page["caught_up"]:
            break
        page = topic.diff(page["next_from_seq"], limit=1000)
    assert seen == left
