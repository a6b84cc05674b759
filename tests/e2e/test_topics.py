"""Create, configure, look at and remove a topic (sections 0.10, 1.1, 1.2 and 1.4)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.e2e.server import Server, Topic, eventually, now_ms

DEFAULT_CONFIG: dict[str, Any] = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120000,
    "dedupe_node": True,
    "lease_ms": 30000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
}
PLAIN_INTEGERS = (
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
)
BOOLS = ("durable", "auto_priority", "auto_create", "dedupe_node", "leases_durable")
U64_MAX = 2**64 - 1


# -- PUT --------------------------------------------------------------------------------------------------


def test_an_empty_put_creates_a_topic_with_every_default(topic: Topic) -> None:
    body = topic.server.put(topic.path, {}).ok(201)
    assert set(body) == {"topic", "created", "config", "performance"}
    assert body["topic"] == topic.name
    assert body["created"] is True
    assert body["config"] == DEFAULT_CONFIG


def test_a_put_without_any_body_is_an_empty_object_and_needs_no_content_type(topic: Topic) -> None:
    assert topic.server.put(topic.path).ok(201)["config"] == DEFAULT_CONFIG


def test_an_identical_put_is_a_no_op_with_200(topic: Topic) -> None:
    config = {"ttl_ms": 60000, "cap_records": 9, "durable": True, "priority": 10}
    first = topic.server.put(topic.path, config).ok(201)
    second = topic.server.put(topic.path, config).ok(200)
    assert second["created"] is False
    assert second["config"] == first["config"]


@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        ({"type": "queue"}, {"type": "queue"}),
        ({"type": "log"}, {"type": "log"}),
        ({"ttl_ms": 60000}, {"ttl_ms": 60000}),
        ({"ttl_ms": U64_MAX}, {"ttl_ms": U64_MAX}),
        ({"cap_records": 1}, {"cap_records": 1}),
        ({"cap_records": U64_MAX}, {"cap_records": U64_MAX}),
        ({"cap_bytes": 1}, {"cap_bytes": 1}),
        ({"cap_bytes": U64_MAX}, {"cap_bytes": U64_MAX}),
        ({"discard": "reject"}, {"discard": "reject"}),
        ({"priority": 0}, {"priority": 0}),
        ({"priority": 1000}, {"priority": 1000}),
        ({"priority": 1001}, {"priority": 1000}),
        ({"priority": 10**30}, {"priority": 1000}),
        ({"priority": -1000}, {"priority": -1000}),
        ({"priority": -1001}, {"priority": -1000}),
        ({"priority": -(10**30)}, {"priority": -1000}),
        ({"priority": None}, {"priority": None}),
        ({"auto_priority": False}, {"auto_priority": False}),
        ({"auto_create": False}, {"auto_create": False}),
        ({"idempotency_window_ms": 1}, {"idempotency_window_ms": 1}),
        ({"idempotency_window_ms": 0}, {"idempotency_window_ms": 0}),
        ({"dedupe_node": False}, {"dedupe_node": False}),
        ({"lease_ms": 0}, {"lease_ms": 100}),
        ({"lease_ms": 99}, {"lease_ms": 100}),
        ({"lease_ms": 100}, {"lease_ms": 100}),
        ({"lease_ms": 86400000}, {"lease_ms": 86400000}),
        ({"lease_ms": 86400001}, {"lease_ms": 86400000}),
        ({"lease_ms": 10**30}, {"lease_ms": 86400000}),
        ({"claim_jitter_ms": 5000}, {"claim_jitter_ms": 5000}),
        ({"claim_jitter_ms": 5001}, {"claim_jitter_ms": 5000}),
        ({"claim_jitter_ms": 10**30}, {"claim_jitter_ms": 5000}),
        ({"max_deliveries": 5}, {"max_deliveries": 5}),
        ({"dead_letter": "other.dlq"}, {"dead_letter": "other.dlq"}),
        ({"dead_letter": None}, {"dead_letter": None}),
        ({"leases_durable": True}, {"leases_durable": True}),
        ({"durable": True}, {"durable": True, "durability": "fsync"}),
        ({"durable": False}, {"durable": False, "durability": "disk"}),
        ({"durability": "ephemeral"}, {"durable": False, "durability": "ephemeral"}),
        ({"durability": "memory"}, {"durable": False, "durability": "memory"}),
        ({"durability": "disk"}, {"durable": False, "durability": "disk"}),
        ({"durability": "fsync"}, {"durable": True, "durability": "fsync"}),
        ({"durable": True, "durability": "memory"}, {"durable": False, "durability": "memory"}),
        ({"durable": False, "durability": "fsync"}, {"durable": True, "durability": "fsync"}),
        ({"no_such_field": {"deep": [1]}}, {}),
    ],
)
def test_a_config_value_is_taken_or_clamped_and_echoed_in_full(
    topic: Topic, given: dict[str, Any], echoed: dict[str, Any]
) -> None:
    assert topic.server.put(topic.path, given).ok(201)["config"] == DEFAULT_CONFIG | echoed
    assert topic.state()["config"] == DEFAULT_CONFIG | echoed


def _wrong_values() -> list[tuple[str, object]]:
    no_integers: list[object] = [-1, 1.0, 1.5, "1", None, True, [1], {}]
    no_bools: list[object] = [1, 0, "true", None, [], {}]
    no_words: list[object] = ["nonsense", "", "LOG", "Old", "Disk", 1, True, None, ["log"], {}]
    no_priorities: list[object] = [1.0, "1", True, [1], {}]
    no_names: list[object] = [1, True, ["dlq"], {}, "", "-dlq", "a b", "x" * 256, "ä", "a\n"]
    return [
        *itertools.product(PLAIN_INTEGERS, no_integers),
        *itertools.product(BOOLS, no_bools),
        *itertools.product(("type", "discard", "durability"), no_words),
        *itertools.product(("priority",), no_priorities),
        *itertools.product(("dead_letter",), no_names),
        *itertools.product(("ttl_ms", "cap_records", "cap_bytes"), [U64_MAX + 1]),
    ]


@pytest.mark.parametrize(("name_of_field", "value"), _wrong_values(), ids=lambda value: repr(value)[:20])
def test_a_wrong_config_value_is_400_with_its_field_and_creates_nothing(
    topic: Topic, name_of_field: str, value: object
) -> None:
    topic.server.put(topic.path, {name_of_field: value}).failed(400, "invalid_request", name_of_field)
    topic.server.get(topic.path).failed(404, "topic_not_found")


def test_a_topic_is_not_its_own_dead_letter(topic: Topic) -> None:
    topic.server.put(topic.path, {"type": "queue", "dead_letter": topic.name}).failed(
        400, "invalid_request", "dead_letter"
    )
    topic.put()
    topic.server.put(topic.path, {"dead_letter": topic.name}).failed(400, "invalid_request", "dead_letter")
    assert topic.state()["config"]["dead_letter"] is None


def test_a_put_changes_the_fields_it_names_and_keeps_the_others(topic: Topic) -> None:
    topic.put(ttl_ms=60000, cap_records=7, discard="reject", priority=3, dead_letter="d", durability="memory")
    body = topic.server.put(topic.path, {"cap_records": 8, "auto_create": False}).ok(200)
    expected = DEFAULT_CONFIG | {
        "ttl_ms": 60000,
        "cap_records": 8,
        "discard": "reject",
        "priority": 3,
        "dead_letter": "d",
        "durability": "memory",
        "auto_create": False,
    }
    assert body["created"] is False
    assert body["config"] == expected
    assert topic.server.put(topic.path, {}).ok(200)["config"] == expected
    assert topic.state()["config"] == expected


def test_a_null_takes_priority_and_dead_letter_away_again(topic: Topic) -> None:
    topic.put(priority=3, dead_letter="d")
    assert topic.put(priority=None, dead_letter=None)["config"] == DEFAULT_CONFIG


def test_a_failed_put_changes_no_field_at_all(topic: Topic) -> None:
    topic.put(ttl_ms=1000)
    topic.server.put(topic.path, {"cap_records": 5, "ttl_ms": "x"}).failed(400, "invalid_request", "ttl_ms")
    assert topic.state()["config"] == DEFAULT_CONFIG | {"ttl_ms": 1000}


@pytest.mark.parametrize("before", ["ephemeral", "memory", "disk", "fsync"])
def test_the_durability_class_is_freely_mutable(topic: Topic, before: str) -> None:
    for after in ("ephemeral", "memory", "disk", "fsync"):
        topic.put(durability=before)
        topic.write(after)
        config = topic.put(durability=after)["config"]
        assert config["durability"] == after
        assert config["durable"] is (after == "fsync")
    assert [record["data"] for record in topic.diff()["records"]] == ["ephemeral", "memory", "disk", "fsync"]


def test_durable_alone_moves_an_existing_topic_between_disk_and_fsync(topic: Topic) -> None:
    topic.put()
    assert topic.put(durable=True)["config"]["durability"] == "fsync"
    assert topic.put(cap_records=5)["config"]["durability"] == "fsync"
    assert topic.put(durable=False)["config"]["durability"] == "disk"


@pytest.mark.parametrize(("before", "after"), [("log", "queue"), ("queue", "log")])
def test_the_type_is_immutable(topic: Topic, before: str, after: str) -> None:
    topic.put(type=before)
    topic.server.put(topic.path, {"type": after, "ttl_ms": 5}).failed(409, "topic_exists_incompatible")
    topic.server.put(topic.path, {"type": after, "ttl_ms": "x"}).failed(400, "invalid_request", "ttl_ms")
    assert topic.state()["config"] == DEFAULT_CONFIG | {"type": before}
    assert topic.put(type=before, ttl_ms=5)["config"] == DEFAULT_CONFIG | {"type": before, "ttl_ms": 5}
    assert topic.put(ttl_ms=6)["config"]["type"] == before


def test_the_largest_ttl_expires_nothing(topic: Topic) -> None:
    topic.put(ttl_ms=U64_MAX, cap_bytes=U64_MAX, cap_records=U64_MAX)
    topic.write(1)
    assert topic.seqs() == [1]


# -- GET --------------------------------------------------------------------------------------------------


def test_the_state_of_a_fresh_topic(topic: Topic) -> None:
    topic.put()
    state = topic.state()
    assert set(state) - {"type"} == {
        "topic",
        "head_seq",
        "earliest_seq",
        "next_seq",
        "count",
        "bytes",
        "config",
        "effective_priority",
        "last_write_ts",
        "last_read_ts",
        "performance",
    }
    assert state.get("type", "log") == "log"
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"]) == (0, 1, 1)
    assert (state["count"], state["bytes"]) == (0, 0)
    assert state["last_write_ts"] is None
    assert state["last_read_ts"] is None
    assert state["config"] == DEFAULT_CONFIG


def test_the_state_counts_records_and_exactly_their_data_and_meta_bytes(topic: Topic) -> None:
    raw = b'{"records":[{"data":{"a": 1},"tag":"t","node":"n","meta":{"k":"v"}},{"data": 1.50 }]}'
    topic.server.post(topic.path, raw=raw, headers={"Content-Type": "application/json"}).ok(201)
    state = topic.state()
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"], state["count"]) == (2, 1, 3, 2)
    assert state["bytes"] == len('{"a": 1}') + len('{"k":"v"}') + len("1.50")


def test_last_write_ts_is_the_ts_of_the_newest_record(topic: Topic) -> None:
    before = now_ms()
    topic.write(1)
    topic.write(2)
    after = now_ms()
    written = topic.state()["last_write_ts"]
    assert before <= written <= after
    assert topic.diff()["records"][-1]["$ts"] == written


def test_a_state_read_moves_last_read_ts_unless_touch_is_false(topic: Topic) -> None:
    topic.put()
    assert topic.state()["last_read_ts"] is None
    before = now_ms()
    topic.server.get(topic.path).ok()
    after = now_ms()
    touched = topic.state()["last_read_ts"]
    assert before <= touched <= after
    assert topic.state()["last_read_ts"] == touched


def test_an_explicit_touch_is_the_default(topic: Topic) -> None:
    topic.put()
    topic.server.get(topic.path, params={"touch": "true"}).ok()
    assert topic.state()["last_read_ts"] is not None


def test_neither_a_write_nor_a_listing_nor_a_delete_of_records_counts_as_a_read(topic: Topic) -> None:
    topic.write(1)
    topic.server.get("/v0/topics", params={"prefix": topic.name}).ok()
    topic.delete_records(before_seq=1)
    topic.put(ttl_ms=600000)
    state = topic.state()
    assert state["last_read_ts"] is None
    assert state["effective_priority"] == 0


def test_a_touch_gives_the_recency_bonus_and_it_shows_at_once(topic: Topic) -> None:
    topic.put()
    assert topic.state()["effective_priority"] == 0
    assert topic.server.get(topic.path).ok()["effective_priority"] == 500
    assert 450 <= topic.state()["effective_priority"] <= 500


@pytest.mark.parametrize("priority", [-1000, -1, 0, 10, 1000])
def test_a_manual_priority_is_reported_without_the_recency_bonus(topic: Topic, priority: int) -> None:
    topic.put(priority=priority)
    assert topic.server.get(topic.path).ok()["effective_priority"] == priority
    assert topic.state()["effective_priority"] == priority


def test_without_auto_priority_a_touch_changes_nothing(topic: Topic) -> None:
    topic.put(auto_priority=False)
    assert topic.server.get(topic.path).ok()["effective_priority"] == 0


def test_the_state_of_a_queue_has_its_counters_and_a_log_has_none(server: Server, name: str) -> None:
    queue = Topic(server, f"{name}-queue")
    queue.put(type="queue")
    assert queue.state()["queue"] == {"ready": 0, "in_flight": 0, "dead_lettered": 0}
    queue.write(1, 2, 3)
    state = queue.state()
    assert state["type"] == "queue"
    assert state["queue"] == {"ready": 3, "in_flight": 0, "dead_lettered": 0}
    assert queue.seqs() == [1, 2, 3]
    queue.delete_records(before_seq=2)
    assert queue.state()["queue"]["ready"] == 2

    log = Topic(server, f"{name}-log")
    log.put()
    assert "queue" not in log.state()


def test_a_state_read_never_creates(topic: Topic) -> None:
    for _ in range(2):
        detail = topic.server.get(topic.path).failed(404, "topic_not_found")
        assert detail["topic"] == topic.name


# -- DELETE -----------------------------------------------------------------------------------------------


def test_deleting_a_topic_removes_it_and_says_so_once(topic: Topic) -> None:
    topic.write(1, 2)
    body = topic.drop()
    assert set(body) == {"topic", "deleted", "routers_removed", "performance"}
    assert (body["topic"], body["deleted"], body["routers_removed"]) == (topic.name, True, [])
    topic.server.get(topic.path).failed(404, "topic_not_found")
    topic.try_diff({}).failed(404, "topic_not_found")
    topic.try_delete_records({"before_seq": 1}).failed(404, "topic_not_found")
    again = topic.drop()
    assert (again["topic"], again["deleted"], again["routers_removed"]) == (topic.name, False, [])


def test_a_topic_recreated_by_a_write_is_new_and_empty_with_default_config(topic: Topic) -> None:
    topic.put(cap_records=5, type="queue", durability="memory")
    topic.write(1, 2, 3)
    topic.drop()
    assert topic.server.post(topic.path, {"records": [{"data": "new"}]}).ok(201)["seqs"] == [1]
    state = topic.state()
    assert state["config"] == DEFAULT_CONFIG
    assert (state["head_seq"], state["count"]) == (1, 1)
    assert [record["data"] for record in topic.diff()["records"]] == ["new"]


def test_if_empty_spares_a_topic_with_records(topic: Topic) -> None:
    topic.write(1)
    topic.server.delete(topic.path, params={"if_empty": "true"}).failed(409, "topic_not_empty")
    assert topic.seqs() == [1]
    topic.delete_records(before_seq=2)
    assert topic.server.delete(topic.path, params={"if_empty": "true"}).ok()["deleted"] is True
    assert topic.server.delete(topic.path, params={"if_empty": "true"}).ok()["deleted"] is False


def test_if_empty_false_is_the_default(topic: Topic) -> None:
    topic.write(1)
    assert topic.server.delete(topic.path, params={"if_empty": "false"}).ok()["deleted"] is True


def test_a_topic_whose_records_all_expired_is_empty(topic: Topic) -> None:
    topic.put(ttl_ms=50)
    topic.write(1)
    eventually(lambda: topic.state()["count"] == 0)
    assert topic.server.delete(topic.path, params={"if_empty": "true"}).ok()["deleted"] is True


@pytest.mark.parametrize(
    ("method", "query", "field"),
    [
        ("GET", "touch=maybe", "touch"),
        ("GET", "touch=2", "touch"),
        ("DELETE", "if_empty=perhaps", "if_empty"),
        ("DELETE", "if_empty=%ff", "if_empty"),
        ("POST", "return_seqs=nah", "return_seqs"),
    ],
)
def test_garbage_in_a_query_parameter_is_400_and_does_nothing(
    topic: Topic, method: str, query: str, field: str
) -> None:
    topic.write(1)
    body = {"records": [{"data": 2}]} if method == "POST" else None
    topic.server.request(method, f"{topic.path}?{query}", body).failed(400, "invalid_request", field)
    state = topic.state()
    assert (state["head_seq"], state["last_read_ts"]) == (1, None)
