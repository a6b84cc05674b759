"""A retried write is appended once (section 0.8 and the ruling on dedupe hits)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.server import Server, Topic, eventually

RECORDS = [{"data": "a"}, {"data": "b"}]


def test_a_retry_returns_the_original_seqs_and_appends_nothing(topic: Topic) -> None:
    first = topic.write_records(RECORDS, idempotency_key="k").ok(201)
    assert first["deduped"] is False
    topic.write("between")
    retry = topic.write_records(RECORDS, idempotency_key="k").ok(200)
    del retry["performance"]
    assert retry == {
        "topic": topic.name,
        "first_seq": 1,
        "last_seq": 2,
        "seqs": [1, 2],
        "head_seq": 3,
        "count": 2,
        "created": False,
        "deduped": True,
    }
    assert topic.seqs() == [1, 2, 3]


def test_a_different_body_under_the_same_key_changes_nothing(topic: Topic) -> None:
    topic.write_records(RECORDS, idempotency_key="k").ok(201)
    retry = topic.write_records([{"data": "other"}], idempotency_key="k").ok(200)
    assert (retry["deduped"], retry["seqs"]) == (True, [1, 2])
    assert [record["data"] for record in topic.diff()["records"]] == ["a", "b"]


def test_the_key_may_come_as_a_header_and_the_body_field_wins(topic: Topic) -> None:
    def write(header: str, **fields: str) -> tuple[bool, list[int]]:
        answer = topic.server.post(
            topic.path, {"records": [{"data": 1}], **fields}, headers={"Idempotency-Key": header}
        )
        return answer.json["deduped"], answer.json["seqs"]

    assert write("head") == (False, [1])
    assert write("head") == (True, [1])
    assert write("head", idempotency_key="body") == (False, [2])
    assert write("other", idempotency_key="body") == (True, [2])
    assert write("other") == (False, [3])
    assert topic.write_records([{"data": 1}], idempotency_key="head").ok()["seqs"] == [1]


def test_a_header_key_beyond_256_characters_is_400(topic: Topic) -> None:
    body = {"records": [{"data": 1}]}
    answer = topic.server.post(topic.path, body, headers={"Idempotency-Key": "k" * 257})
    answer.failed(400, "invalid_request")
    topic.server.post(topic.path, body, headers={"Idempotency-Key": "k" * 256}).ok(201)


def test_the_retry_of_a_short_answer_is_short_too(topic: Topic) -> None:
    body = {"records": RECORDS, "idempotency_key": "k"}
    topic.server.post(topic.path, body).ok(201)
    retry = topic.server.post(topic.path, body, params={"return_seqs": "false"}).ok(200)
    assert "seqs" not in retry
    assert (retry["first_seq"], retry["last_seq"], retry["deduped"]) == (1, 2, True)


def test_a_key_belongs_to_one_topic(server: Server, name: str) -> None:
    for number in range(4):
        other = Topic(server, f"{name}-{number}")
        assert other.write_records(RECORDS, idempotency_key="same").ok(201)["deduped"] is False


def test_keys_are_compared_exactly(topic: Topic) -> None:
    for seq, key in enumerate(["k", "K", "k ", " k", "é", "e\u0301", "😀", "k\x00"], start=1):
        assert topic.write("x", idempotency_key=key)["seqs"] == [seq], key


def test_a_key_is_forgotten_when_its_window_is_over(topic: Topic) -> None:
    topic.put(idempotency_window_ms=150)
    topic.write("x", idempotency_key="k")
    assert topic.write("x", idempotency_key="k")["deduped"] is True
    late = eventually(lambda: [w for w in [topic.write("x", idempotency_key="k")] if not w["deduped"]])
    assert late[0]["seqs"] == [2]
    assert topic.write("x", idempotency_key="k")["seqs"] == [2]


def test_a_retry_to_a_full_topic_is_still_a_retry(topic: Topic) -> None:
    topic.put(cap_records=2, discard="reject")
    topic.write_records(RECORDS, idempotency_key="k").ok(200)
    topic.write_records(RECORDS, idempotency_key="other").failed(422, "topic_full")
    assert topic.write_records(RECORDS, idempotency_key="k").ok(200)["deduped"] is True


def test_a_refused_write_leaves_its_key_unused(topic: Topic) -> None:
    topic.put(cap_records=2, discard="reject")
    topic.write(1)
    topic.write_records(RECORDS, idempotency_key="k").failed(422, "topic_full")
    topic.delete_records(before_seq=2)
    accepted = topic.write_records(RECORDS, idempotency_key="k").ok(200)
    assert (accepted["deduped"], accepted["seqs"]) == (False, [2, 3])


def test_a_retry_is_recognised_after_its_records_were_deleted_or_evicted(topic: Topic) -> None:
    topic.put(cap_records=2)
    topic.write_records(RECORDS, idempotency_key="k").ok(200)
    topic.delete_records(before_seq=2)
    topic.write(3, 4)
    retry = topic.write_records(RECORDS, idempotency_key="k").ok(200)
    assert (retry["deduped"], retry["seqs"], retry["head_seq"]) == (True, [1, 2], 4)
    assert topic.seqs() == [3, 4]


def test_keys_are_forgotten_when_the_topic_is_deleted_and_made_again(topic: Topic) -> None:
    topic.write("old", idempotency_key="k")
    topic.drop()
    fresh = topic.write_records([{"data": "new"}], idempotency_key="k").ok(201)
    assert (fresh["deduped"], fresh["seqs"]) == (False, [1])
    assert [record["data"] for record in topic.diff()["records"]] == ["new"]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_of_concurrent_writes_under_one_key_exactly_one_is_appended(topic: Topic, durability: str) -> None:
    topic.put(durability=durability)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: topic.write(n, n, idempotency_key="k"), range(24)))
    assert [answer["deduped"] for answer in answers].count(False) == 1
    assert {tuple(answer["seqs"]) for answer in answers} == {(1, 2)}
    assert topic.state()["head_seq"] == 2
