"""Appending records (section 2): the answer, atomic batches, creation, full topics."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.server import JSON_TYPE, Answer, Server, Topic, eventually

MIB = 1024 * 1024


def _write_raw(topic: Topic, body: bytes) -> Answer:
    return topic.server.post(topic.path, raw=body, headers=JSON_TYPE)


# -- the answer -------------------------------------------------------------------------------------------


def test_the_answer_names_the_assigned_seqs_and_says_whether_the_topic_is_new(topic: Topic) -> None:
    first = topic.write_records([{"data": 1}, {"data": 2}, {"data": 3}]).ok(201)
    assert set(first) == {
        "topic",
        "first_seq",
        "last_seq",
        "seqs",
        "head_seq",
        "count",
        "created",
        "deduped",
        "performance",
    }
    del first["performance"]
    assert first == {
        "topic": topic.name,
        "first_seq": 1,
        "last_seq": 3,
        "seqs": [1, 2, 3],
        "head_seq": 3,
        "count": 3,
        "created": True,
        "deduped": False,
    }
    second = topic.write_records([{"data": 4}]).ok(200)
    assert (second["first_seq"], second["last_seq"], second["seqs"]) == (4, 4, [4])
    assert (second["head_seq"], second["count"]) == (4, 1)
    assert (second["created"], second["deduped"]) == (False, False)


def test_a_write_to_a_topic_made_by_put_is_200(topic: Topic) -> None:
    topic.put()
    assert topic.write_records([{"data": 1}]).ok(200)["created"] is False


def test_seqs_can_be_left_out_of_the_answer(topic: Topic) -> None:
    body = {"records": [{"data": 1}, {"data": 2}]}
    short = topic.server.post(topic.path, body, params={"return_seqs": "false"}).ok(201)
    assert "seqs" not in short
    assert (short["first_seq"], short["last_seq"], short["count"], short["head_seq"]) == (1, 2, 2, 2)
    assert topic.server.post(topic.path, body, params={"return_seqs": "true"}).ok(200)["seqs"] == [3, 4]


def test_the_default_batch_limit_is_10000_records(topic: Topic) -> None:
    records = [{"data": number} for number in range(10001)]
    topic.write_records(records).failed(400, "batch_too_large")
    topic.server.get(topic.path).failed(404, "topic_not_found")
    body = topic.write_records(records[:10000]).ok(201)
    assert body["count"] == 10000
    assert body["seqs"] == list(range(1, 10001))


# -- bad requests -----------------------------------------------------------------------------------------

GOOD: list[dict[str, Any]] = [{"data": 0}]
NO_TEXTS: list[Any] = [None, 1, True, ["t"], {}]
NO_BOOLS: list[Any] = [None, 1, 0, "true", [], {}]
NO_RECORDS: list[Any] = [None, [], {}, "x", 1, True]
NO_RECORD: list[Any] = [None, 1, "x", [], True]
WITHOUT_DATA: list[Any] = [{}, {"tag": "t"}, {"Data": 1}]
NO_META: list[Any] = [None, 1, "x", True, [], [1], "{}"]
NO_CONFIG: list[Any] = [None, 1, "x", True, []]
BAD_WRITES: list[tuple[dict[str, Any], str]] = [
    ({}, "records"),
    *[({"records": bad}, "records") for bad in NO_RECORDS],
    *[({"records": [{"data": 0}, bad]}, "records[1]") for bad in NO_RECORD],
    *[({"records": [bad]}, "records[0].data") for bad in WITHOUT_DATA],
    *[
        ({"records": [{"data": 0}, {"data": 0, name: bad}]}, f"records[1].{name}")
        for name in ("tag", "node")
        for bad in NO_TEXTS
    ],
    *[({"records": [{"data": 0, "meta": bad}]}, "records[0].meta") for bad in NO_META],
    *[({"records": GOOD, "node": bad}, "node") for bad in NO_TEXTS],
    *[({"records": GOOD, "idempotency_key": bad}, "idempotency_key") for bad in NO_TEXTS],
    *[({"records": GOOD, "create": bad}, "create") for bad in NO_BOOLS],
    *[({"records": GOOD, "disable_backpressure": bad}, "disable_backpressure") for bad in NO_BOOLS],
    *[({"records": GOOD, "config": bad}, "config") for bad in NO_CONFIG],
    ({"records": GOOD, "config": {"ttl_ms": -1}}, "config.ttl_ms"),
    ({"records": GOOD, "config": {"ttl_ms": 1.0}}, "config.ttl_ms"),
    ({"records": GOOD, "config": {"cap_records": None}}, "config.cap_records"),
    ({"records": GOOD, "config": {"type": "stream"}}, "config.type"),
    ({"records": GOOD, "config": {"durability": "ram"}}, "config.durability"),
    ({"records": GOOD, "config": {"discard": 1}}, "config.discard"),
    ({"records": GOOD, "config": {"dead_letter": "-x"}}, "config.dead_letter"),
    ({"records": GOOD, "config": {"priority": "1"}}, "config.priority"),
    ({"records": [{"data": 0, "tag": "t" * 257}]}, "records[0].tag"),
    ({"records": [{"data": 0, "tag": "ä" * 129}]}, "records[0].tag"),
    ({"records": [{"data": 0, "node": "n" * 129}]}, "records[0].node"),
    ({"records": [{"data": 0, "node": "😀" * 33}]}, "records[0].node"),
    ({"records": GOOD, "node": "n" * 129}, "node"),
    ({"records": GOOD, "idempotency_key": "k" * 257}, "idempotency_key"),
    ({"records": [{"data": 0}, {"data": 0, "meta": {str(n): 0 for n in range(65)}}]}, "records[1].meta"),
    ({"records": [{"data": 0, "meta": {"a": "x" * (16 * 1024 - 7)}}]}, "records[0].meta"),
]


@pytest.mark.parametrize(("body", "field"), BAD_WRITES, ids=lambda value: str(value)[:50])
def test_a_bad_write_is_400_with_the_field_and_creates_nothing(
    topic: Topic, body: dict[str, Any], field: str
) -> None:
    topic.server.post(topic.path, body).failed(400, "invalid_request", field)
    topic.server.get(topic.path).failed(404, "topic_not_found")


def test_one_bad_record_stops_the_whole_batch(topic: Topic) -> None:
    topic.write("kept")
    bad: list[Any] = [{}, 1, {"data": 1, "tag": 5}, {"data": 1, "meta": []}, {"data": "x" * MIB}]
    for record in bad:
        answer = topic.write_records([{"data": 1}, {"data": 2}, record])
        assert answer.status == 400
    assert topic.write("next")["seqs"] == [2]


def test_the_largest_allowed_values_are_accepted(topic: Topic) -> None:
    records = [
        {"data": 0, "tag": "t" * 256},
        {"data": 0, "tag": "ä" * 128},
        {"data": 0, "node": "n" * 128},
        {"data": 0, "node": "😀" * 32},
        {"data": 0, "meta": {str(number): {"a": 1, "b": 2} for number in range(64)}},
        {"data": 0, "meta": {"a": "x" * (16 * 1024 - 9)}},
    ]
    topic.write_records(records, node="b" * 128, idempotency_key="ä" * 256).ok(201)


def test_a_record_may_have_one_mebibyte_of_data_and_meta_together(topic: Topic) -> None:
    meta = {"k": "v"}  # written as {"k": "v"}, 10 bytes
    fits = {"data": "x" * (MIB - 2 - 10), "meta": meta}
    topic.write_records([fits]).ok(201)
    assert topic.state()["bytes"] == MIB
    topic.write_records([{**fits, "data": "x" * (MIB - 2 - 9)}]).failed(400, "record_too_large")
    topic.write_records([{"data": "x" * (MIB - 1)}]).failed(400, "record_too_large")
    topic.write_records([{"data": "x" * (MIB - 2)}]).ok(200)


# -- creation ---------------------------------------------------------------------------------------------


def test_create_false_spares_a_missing_topic_and_is_nothing_to_an_existing_one(topic: Topic) -> None:
    detail = topic.write_records([{"data": 1}], create=False).failed(404, "topic_not_found")
    assert detail["topic"] == topic.name
    topic.server.get(topic.path).failed(404, "topic_not_found")
    topic.write_records([{"data": 1}], create=True).ok(201)
    topic.write_records([{"data": 1}], create=False).ok(200)
    topic.write_records([{"data": 1}], create=True).ok(200)


def test_a_bad_body_comes_before_the_missing_topic(topic: Topic) -> None:
    topic.write_records([{"data": 1, "tag": 1}], create=False).failed(
        400, "invalid_request", "records[0].tag"
    )


def test_auto_create_false_does_not_close_an_existing_topic(topic: Topic) -> None:
    topic.put(auto_create=False)
    topic.write_records([{"data": 1}]).ok(200)


def test_the_inline_config_counts_when_the_write_creates_the_topic(topic: Topic) -> None:
    config = {"type": "queue", "ttl_ms": 60000, "cap_records": 9, "durability": "memory", "priority": 5000}
    topic.write_records([{"data": 1}], config=config).ok(201)
    shown = topic.state()["config"]
    assert shown["priority"] == 1000
    assert {**shown, "priority": 5000} == {**shown, **config}
    assert shown["lease_ms"] == 30000


def test_the_inline_config_is_ignored_when_the_topic_exists(topic: Topic) -> None:
    topic.put(cap_records=5)
    before = topic.state()["config"]
    topic.write_records([{"data": 1}], config={"type": "queue", "cap_records": 1, "ttl_ms": 1}).ok(200)
    assert topic.state()["config"] == before


def test_the_inline_config_cannot_make_a_topic_its_own_dead_letter(topic: Topic) -> None:
    topic.write_records([{"data": 1}], config={"type": "queue", "dead_letter": topic.name}).failed(
        400, "invalid_request", "config.dead_letter"
    )


def test_a_write_that_can_never_fit_does_not_leave_an_empty_topic_behind(topic: Topic) -> None:
    topic.write_records([{"data": "x" * 100}], config={"cap_bytes": 10}).failed(400, "record_too_large")
    topic.server.get(topic.path).failed(404, "topic_not_found")


# -- full topics ------------------------------------------------------------------------------------------


def test_a_full_reject_topic_refuses_with_422_and_appends_nothing(topic: Topic) -> None:
    topic.put(cap_records=3, discard="reject")
    topic.write(1, 2)
    topic.write_records([{"data": 3}, {"data": 4}]).failed(422, "topic_full")
    assert topic.state()["head_seq"] == 2
    assert topic.write(3)["seqs"] == [3]
    topic.write_records([{"data": 4}]).failed(422, "topic_full")
    topic.delete_records(before_seq=3)
    assert topic.write(4, 5)["seqs"] == [4, 5]
    assert topic.seqs() == [3, 4, 5]


def test_a_reject_topic_is_full_by_bytes_too(topic: Topic) -> None:
    topic.put(cap_bytes=10, discard="reject")
    topic.write_records([{"data": 1234, "meta": {}}]).ok(200)
    topic.write_records([{"data": 12345}]).failed(422, "topic_full")
    topic.write_records([{"data": 1234}]).ok(200)
    topic.write_records([{"data": 1}]).failed(422, "topic_full")
    assert topic.state()["bytes"] == 10


def test_expired_records_make_room_in_a_reject_topic(topic: Topic) -> None:
    topic.put(cap_records=2, discard="reject", ttl_ms=100)
    topic.write(1, 2)
    eventually(lambda: topic.write_records([{"data": 3}]).status == 200)
    assert topic.state()["head_seq"] == 3


@pytest.mark.parametrize("discard", ["old", "reject"])
def test_a_record_larger_than_the_whole_topic_is_record_too_large(topic: Topic, discard: str) -> None:
    topic.put(cap_bytes=10, discard=discard)
    topic.write_records([{"data": 123456789, "meta": {}}]).failed(400, "record_too_large")
    topic.write_records([{"data": 1}, {"data": "123456789"}]).failed(400, "record_too_large")
    assert topic.state()["head_seq"] == 0
    topic.write_records([{"data": "12345678"}]).ok(200)


@pytest.mark.parametrize("cap", [{"cap_records": 2}, {"cap_bytes": 2}])
def test_a_batch_that_can_never_fit_a_reject_topic_is_record_too_large(
    topic: Topic, cap: dict[str, int]
) -> None:
    topic.put(discard="reject", **cap)
    topic.write_records([{"data": 1}, {"data": 2}, {"data": 3}]).failed(400, "record_too_large")
    assert topic.state()["head_seq"] == 0
    topic.write_records([{"data": 1}, {"data": 2}]).ok(200)


def test_a_batch_larger_than_an_old_topic_keeps_its_newest_records(topic: Topic) -> None:
    topic.put(cap_records=2)
    assert topic.write(1, 2, 3, 4, 5)["seqs"] == [1, 2, 3, 4, 5]
    state = topic.state()
    assert (state["count"], state["earliest_seq"], state["head_seq"]) == (2, 4, 5)


def test_disable_backpressure_is_accepted(topic: Topic) -> None:
    topic.write_records([{"data": 1}], disable_backpressure=True).ok(201)
    topic.write_records([{"data": 1}], disable_backpressure=False).ok(200)


# -- order ------------------------------------------------------------------------------------------------


def test_concurrent_batches_are_contiguous_and_their_seqs_have_no_gap(topic: Topic) -> None:
    def write(writer: int) -> list[list[int]]:
        return [topic.write(*[[writer, turn, part] for part in range(3)])["seqs"] for turn in range(15)]

    with ThreadPoolExecutor(8) as pool:
        batches = [batch for batches in pool.map(write, range(8)) for batch in batches]
    assert all(batch == list(range(batch[0], batch[0] + 3)) for batch in batches)
    assert sorted(seq for batch in batches for seq in batch) == list(range(1, 361))
    records = topic.diff(limit=1000)["records"]
    assert [record["$seq"] for record in records] == list(range(1, 361))
    stamps = [record["$ts"] for record in records]
    assert stamps == sorted(stamps)
    for writer in range(8):
        own = [record["data"][1:] for record in records if record["data"][0] == writer]
        assert own == [[turn, part] for turn in range(15) for part in range(3)]


def test_seqs_of_different_topics_are_independent(server: Server, name: str) -> None:
    for number in range(6):
        assert Topic(server, f"{name}-{number}").write(1, 2)["seqs"] == [1, 2]
