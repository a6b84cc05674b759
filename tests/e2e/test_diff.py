"""Reading by cursor (sections 3 and 4): the answer, limits and filters."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.server import Topic, now_ms

KIB = 1024


def _read_all(topic: Topic, **fields: Any) -> list[Any]:
    """Follow next_from_seq until caught up."""
    records, cursor = [], 0
    for _ in range(1000):
        page = topic.diff(cursor, **fields)
        assert page["tombstone"] is None
        assert page["lag"] == page["head_seq"] - page["next_from_seq"]
        assert page["caught_up"] is (page["next_from_seq"] == page["head_seq"])
        records += page["records"]
        if page["caught_up"]:
            return records
        assert page["next_from_seq"] > cursor, "no forward progress"
        cursor = page["next_from_seq"]
    raise AssertionError("never caught up")


# -- the answer -------------------------------------------------------------------------------------------


def test_the_answer_has_every_field(topic: Topic) -> None:
    topic.write("a", "b", "c")
    page = topic.diff(1, limit=1)
    performance = page.pop("performance")
    assert performance["records_scanned"] == 1
    record = page["records"][0]
    assert set(record) == {"$seq", "$ts", "data"}
    del page["records"]
    assert page == {
        "topic": topic.name,
        "next_from_seq": 2,
        "head_seq": 3,
        "earliest_seq": 1,
        "caught_up": False,
        "tombstone": None,
        "lag": 1,
    }


def test_an_empty_topic_is_caught_up(topic: Topic) -> None:
    topic.put()
    page = topic.diff()
    assert page["records"] == []
    assert (page["next_from_seq"], page["head_seq"], page["earliest_seq"], page["lag"]) == (0, 0, 1, 0)
    assert page["caught_up"] is True
    assert page["tombstone"] is None


@pytest.mark.parametrize("raw", [b"{}", b"", b'{"from_seq":0}', b'{"unknown":[1],"Limit":"x"}'])
def test_every_field_has_a_default_and_an_empty_body_is_an_empty_object(topic: Topic, raw: bytes) -> None:
    topic.write(1, 2)
    headers = {"Content-Type": "application/json"} if raw else {}
    body = topic.server.post(f"{topic.path}/diff", raw=raw, headers=headers).ok()
    assert [record["$seq"] for record in body["records"]] == [1, 2]


@pytest.mark.parametrize(("from_seq", "seqs"), [(0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (3, [])])
def test_the_cursor_is_an_exclusive_lower_bound(topic: Topic, from_seq: int, seqs: list[int]) -> None:
    topic.write("a", "b", "c")
    page = topic.diff(from_seq)
    assert [record["$seq"] for record in page["records"]] == seqs
    assert page["next_from_seq"] == 3
    assert page["caught_up"] is True
    assert page["tombstone"] is None


def test_reading_is_repeatable(topic: Topic) -> None:
    topic.write("a", "b")
    assert topic.diff()["records"] == topic.diff()["records"]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
def test_pages_of_any_size_show_every_record_once_in_order(topic: Topic, limit: int) -> None:
    topic.write(*range(3))
    topic.write(*range(3, 6))
    assert [record["data"] for record in _read_all(topic, limit=limit)] == list(range(6))
    assert len(topic.diff(limit=limit)["records"]) == min(limit, 6)


def test_the_limit_is_256_by_default_and_clamped_to_1000(topic: Topic) -> None:
    topic.write(*range(600))
    topic.write(*range(600, 1100))
    assert topic.seqs() == list(range(1, 257))
    assert topic.seqs(limit=0) == list(range(1, 257))
    assert topic.seqs(limit=999) == list(range(1, 1000))
    for limit in (1000, 1001, 2**32, 10**30):
        page = topic.diff(limit=limit)
        assert [record["$seq"] for record in page["records"]] == list(range(1, 1001))
        assert (page["next_from_seq"], page["caught_up"], page["lag"]) == (1000, False, 100)
    assert len(_read_all(topic, limit=77)) == 1100


def test_tags_come_only_when_asked_for_and_meta_unless_declined(topic: Topic) -> None:
    topic.write_records([{"data": 1, "tag": "t", "meta": {"k": 1}, "node": "n"}, {"data": 2}])
    expected = {
        (False, True): {"meta"},
        (True, True): {"$tag", "meta"},
        (True, False): {"$tag"},
        (False, False): set(),
    }
    for (tags, meta), extra in expected.items():
        full, bare = topic.diff(include_tags=tags, include_meta=meta)["records"]
        assert set(full) == {"$seq", "$ts", "$node", "data"} | extra
        assert set(bare) == {"$seq", "$ts", "data"}
    assert set(topic.diff()["records"][0]) == {"$seq", "$ts", "$node", "data", "meta"}


def test_data_that_looks_like_our_own_framing_survives_every_option(topic: Topic) -> None:
    tricky = [
        {"data": '"meta":{"k":1}', "tag": '","meta":{', "meta": {"$tag": "x", "data": 1}, "node": '"$tag":"'},
        {"data": {"$seq": 7, "meta": {"a": 1}, "$tag": "z"}, "tag": "}", "meta": {"k": '},{"$seq":9'}},
    ]
    topic.write_records(tricky).ok(201)
    for tags in (False, True):
        for meta in (False, True):
            records = topic.diff(include_tags=tags, include_meta=meta)["records"]
            assert [record["data"] for record in records] == [record["data"] for record in tricky]
            assert [record.get("$tag") for record in records] == [r["tag"] if tags else None for r in tricky]
            assert [record.get("meta") for record in records] == [r["meta"] if meta else None for r in tricky]
            assert records[0]["$node"] == '"$tag":"'


def test_a_diff_counts_as_a_read(topic: Topic) -> None:
    topic.put()
    before = now_ms()
    topic.diff()
    after = now_ms()
    state = topic.state()
    assert before <= state["last_read_ts"] <= after
    assert 450 <= state["effective_priority"] <= 500


def test_a_diff_never_creates(topic: Topic) -> None:
    for _ in range(2):
        detail = topic.try_diff({}).failed(404, "topic_not_found")
        assert detail["topic"] == topic.name


NO_INTEGERS: list[Any] = [-1, 1.0, 1.5, "1", None, True, [1], {}]
NO_BOOLS: list[Any] = [1, 0, "true", None, [], {}]
NO_NODES: list[Any] = [1, True, {}, None]
BAD_DIFFS: list[tuple[dict[str, Any], str]] = [
    *[
        ({name: bad}, name)
        for name in ("from_seq", "limit", "wait_ms", "max_batch_bytes")
        for bad in NO_INTEGERS
    ],
    *[({name: bad}, name) for name in ("include_tags", "include_meta") for bad in NO_BOOLS],
    *[({"node": bad}, "node") for bad in NO_NODES],
    *[({"node": ["a", bad]}, "node[1]") for bad in [*NO_NODES, ["b"]]],
]


@pytest.mark.parametrize(("body", "field"), BAD_DIFFS, ids=lambda value: str(value)[:40])
def test_a_field_of_a_wrong_type_is_400_even_before_the_missing_topic(
    topic: Topic, body: dict[str, Any], field: str
) -> None:
    topic.try_diff(body).failed(400, "invalid_request", field)
    topic.put()
    topic.try_diff(body).failed(400, "invalid_request", field)


# -- the byte budget --------------------------------------------------------------------------------------


def test_one_answer_has_a_mebibyte_of_records_by_default(topic: Topic) -> None:
    for number in range(6):
        topic.write(str(number) * (300 * KIB))
    page = topic.diff()
    assert [record["$seq"] for record in page["records"]] == [1, 2, 3]
    assert (page["next_from_seq"], page["caught_up"], page["lag"]) == (3, False, 3)
    assert [record["data"][0] for record in _read_all(topic)] == list("012345")


def test_the_byte_budget_can_be_chosen_and_always_lets_one_record_through(topic: Topic) -> None:
    for number in range(4):
        topic.write(str(number) * (100 * KIB))
    assert topic.seqs(max_batch_bytes=1) == [1]
    assert topic.seqs(max_batch_bytes=250 * KIB) == [1, 2]
    assert topic.seqs(max_batch_bytes=500 * KIB) == [1, 2, 3, 4]
    assert topic.seqs(max_batch_bytes=500 * KIB, limit=3) == [1, 2, 3]
    assert len(_read_all(topic, max_batch_bytes=1)) == 4


def test_one_record_of_the_largest_size_comes_through_the_default_budget(topic: Topic) -> None:
    topic.write("x" * (1024 * KIB - 2))
    topic.write("y" * (1024 * KIB - 2))
    assert [record["data"][0] for record in _read_all(topic)] == ["x", "y"]


def test_the_byte_budget_is_clamped_to_8_mebibytes(topic: Topic) -> None:
    for _ in range(10):
        topic.write("x" * (900 * KIB))
    for wanted in (9 * KIB * KIB, 10**30):
        assert topic.seqs(max_batch_bytes=wanted) == list(range(1, 10))


# -- what is skipped --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "datas"),
    [
        (None, ["a", "b", "none", "ab", "A"]),
        ("a", ["b", "none", "ab", "A"]),
        ("b", ["a", "none", "ab", "A"]),
        ("", ["a", "b", "none", "ab", "A"]),
        ("a*", ["a", "b", "none", "ab", "A"]),
        (["a"], ["b", "none", "ab", "A"]),
        (["a", "b"], ["none", "ab", "A"]),
        (["a", "a", "A", "zz"], ["b", "none", "ab"]),
        ([], ["a", "b", "none", "ab", "A"]),
    ],
)
def test_records_of_the_readers_own_nodes_are_left_out_by_exact_match(
    topic: Topic, node: object, datas: list[str]
) -> None:
    topic.write_records(
        [
            {"data": name, "node": name} if name != "none" else {"data": name}
            for name in ["a", "b", "none", "ab", "A"]
        ]
    )
    page = topic.diff() if node is None else topic.diff(node=node)
    assert [record["data"] for record in page["records"]] == datas
    assert (page["next_from_seq"], page["caught_up"], page["tombstone"]) == (5, True, None)


def test_filtered_records_advance_the_cursor_although_nothing_is_returned(topic: Topic) -> None:
    topic.write(*range(600), node="me")
    assert _read_all(topic, node="me") == []
    topic.write("other", node="you")
    assert [record["$seq"] for record in _read_all(topic, node="me", limit=10)] == [601]


def test_a_trailing_filtered_record_is_examined_and_leaves_the_reader_caught_up(topic: Topic) -> None:
    topic.write_records([{"data": 1, "node": "you"}, {"data": 2, "node": "me"}])
    page = topic.diff(node="me")
    assert [record["$seq"] for record in page["records"]] == [1]
    assert (page["next_from_seq"], page["caught_up"]) == (2, True)


def test_a_topic_without_dedupe_node_echoes(topic: Topic) -> None:
    topic.put(dedupe_node=False)
    topic.write("x", node="me")
    assert topic.seqs(node="me") == [1]
    topic.put(dedupe_node=True)
    assert topic.seqs(node="me") == []
    topic.put(dedupe_node=False)
    assert topic.seqs(node=["me"]) == [1]


def test_deleted_records_are_skipped_silently_wherever_they_are(topic: Topic) -> None:
    topic.write_records([{"data": number, "tag": "gone" if number % 2 else "kept"} for number in range(1, 7)])
    topic.delete_records(match="gone")
    page = topic.diff()
    assert [record["$seq"] for record in page["records"]] == [2, 4, 6]
    assert (page["next_from_seq"], page["earliest_seq"], page["tombstone"]) == (6, 2, None)
    page = topic.diff(2, limit=1)
    assert [record["$seq"] for record in page["records"]] == [4]
    assert topic.diff(page["next_from_seq"], limit=1)["records"][0]["$seq"] == 6


def test_records_scanned_counts_what_was_skipped_too(topic: Topic) -> None:
    topic.write_records([{"data": number, "node": "me" if number % 2 else "you"} for number in range(10)])
    page = topic.diff(node="me")
    assert len(page["records"]) == 5
    assert page["performance"]["records_scanned"] == 10
