"""What a clean stop and a new start on the same directory keep: each class its promise, and no seq twice.

Each scenario is a generator that yields where the server is restarted (see scenarios.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.scenarios import Place, Scenarios
from tests.e2e.server import JSON_TYPE, Server, Topic, eventually, request_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CLASSES = ["ephemeral", "memory", "disk", "fsync"]
KEPT = ["memory", "disk", "fsync"]
RECORDS: list[dict[str, Any]] = [
    {"data": {"b": 1, "a": [1.5, None]}, "tag": "t:1", "node": "n", "meta": {"k": "v"}},
    {"data": None},
    {"data": "ä😀", "tag": "t:2"},
]
SCENARIOS = Scenarios()
scenario = SCENARIOS.add


@pytest.fixture(scope="module")
def outcomes(start_server: Callable[[Mapping[str, str]], Server]) -> dict[str, Exception | None]:
    """How each scenario ended."""
    return SCENARIOS.run(start_server({}))


def _gap(page: Any) -> tuple[int, int, str] | None:
    tombstone = page["tombstone"]
    if tombstone is None:
        return None
    assert 0 <= tombstone["missed_estimate"] <= tombstone["gap_to"] - tombstone["gap_from"] + 1
    return tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"]


def _seqs(page: Any) -> list[int]:
    return [record["$seq"] for record in page["records"]]


# -- records, config, head --------------------------------------------------------------------------------


@scenario
def records_config_and_heads_are_as_before(place: Place) -> Iterator[None]:
    topics = {name: place.topic(name) for name in CLASSES}
    before = {}
    for name, topic in topics.items():
        topic.put(durability=name, ttl_ms=3_600_000, cap_records=100, priority=7, dedupe_node=False)
        topic.write_records(RECORDS).ok(200)
        topic.write("last")
        before[name] = (topic.state(), topic.diff(include_tags=True))
    yield
    for name in KEPT:
        state, page = before[name]
        after = topics[name].state()
        for field in ("head_seq", "earliest_seq", "next_seq", "count", "bytes", "config"):
            assert after[field] == state[field], (name, field)
        assert topics[name].diff(include_tags=True)["records"] == page["records"], name
    for name in CLASSES:
        assert topics[name].state()["config"] == before[name][0]["config"]
        assert topics[name].write("next")["seqs"] == [5], name


@scenario
def every_config_field_survives(place: Place) -> Iterator[None]:
    topic = place.topic("configured")
    topic.put(type="queue")
    config = topic.put(
        ttl_ms=2**64 - 1,
        cap_records=11,
        cap_bytes=2**63,
        discard="reject",
        durability="memory",
        priority=-5,
        auto_priority=False,
        auto_create=False,
        idempotency_window_ms=77,
        dedupe_node=False,
        lease_ms=12345,
        claim_jitter_ms=678,
        max_deliveries=9,
        dead_letter="jobs.dlq",
        leases_durable=True,
    )["config"]
    yield
    state = topic.state()
    assert state["type"] == "queue"
    assert state["config"] == config
    assert topic.put()["created"] is False


@scenario
def data_and_meta_are_byte_for_byte_as_before(place: Place) -> Iterator[None]:
    topic = place.topic("verbatim")
    raw = b'{ "b":1.0,"a":1e3,"a":' + b"9" * 40 + rb',"s":"\u00e9\/" }'
    body = b'{"records":[{"data":' + raw + b',"meta":' + raw + b"}]}"
    place.server.post(topic.path, raw=body, headers=JSON_TYPE).ok(201)
    before = topic.try_diff({}).body.split(b'"next_from_seq"')[0]
    yield
    after = topic.try_diff({}).body
    assert after.count(raw) == 2
    assert after.split(b'"next_from_seq"')[0] == before


@scenario
def large_batches_and_many_topics_survive(place: Place) -> Iterator[None]:
    topics = [place.topic(f"many-{number}") for number in range(40)]
    for number, topic in enumerate(topics):
        topic.write(*range(number * 5 + 1), config={"durability": KEPT[number % 3]})
    large = place.topic("large")
    large.write(*["x" * 1_000_000] * 5)
    yield
    for number, topic in enumerate(topics):
        assert topic.state()["count"] == number * 5 + 1
        assert [record["data"] for record in topic.diff()["records"]] == list(range(number * 5 + 1))
    assert large.state()["bytes"] == 5 * 1_000_002


@scenario
def several_restarts_in_a_row_lose_nothing(place: Place) -> Iterator[None]:
    topic = place.topic("again")
    for turn in range(1, 4):
        assert topic.write(turn)["seqs"] == [turn]
        yield
    yield
    assert [record["data"] for record in topic.diff()["records"]] == [1, 2, 3]


# -- ephemeral --------------------------------------------------------------------------------------------


@scenario
def ephemeral_records_are_gone_with_a_tombstone_and_their_seqs_are_not_used_again(
    place: Place,
) -> Iterator[None]:
    topic = place.topic("resident")
    config = topic.put(durability="ephemeral")["config"]
    topic.write(1, 2, 3)
    yield
    state = topic.state()
    assert state["config"] == config
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"]) == (3, 4, 4)
    assert (state["count"], state["bytes"]) == (0, 0)
    for cursor, gap in [(0, (1, 3, "cap")), (1, (2, 3, "cap")), (2, (3, 3, "cap")), (3, None)]:
        page = topic.diff(cursor)
        assert (_gap(page), _seqs(page)) == (gap, [])
        assert (page["next_from_seq"], page["caught_up"], page["head_seq"]) == (3, True, 3)
    assert topic.write(4)["seqs"] == [4]
    page = topic.diff(0)
    assert (_gap(page), _seqs(page)) == ((1, 3, "cap"), [4])
    yield
    assert _gap(topic.diff(2)) == (3, 4, "cap")
    assert topic.write(5)["seqs"] == [5]


@scenario
def an_empty_ephemeral_topic_is_simply_empty_after_a_restart(place: Place) -> Iterator[None]:
    topic = place.topic("resident")
    topic.put(durability="ephemeral")
    yield
    assert topic.state()["head_seq"] == 0
    assert _gap(topic.diff()) is None
    assert topic.write(1)["seqs"] == [1]


@scenario
def deleted_ephemeral_records_do_not_alarm_after_a_restart_and_their_seqs_stay_used(
    place: Place,
) -> Iterator[None]:
    topic = place.topic("resident")
    topic.put(durability="ephemeral")
    topic.write(1, 2, 3)
    topic.delete_records(before_seq=3)
    yield
    page = topic.diff(2)
    assert (_gap(page), page["next_from_seq"]) == ((3, 3, "cap"), 3)
    assert topic.write(4)["seqs"] == [4]


# -- a record keeps the promise of the class it was written under -----------------------------------------


@scenario
def records_written_as_disk_survive_a_later_change_to_ephemeral(place: Place) -> Iterator[None]:
    topic = place.topic("changed")
    topic.write(1, 2, 3)
    topic.put(durability="ephemeral")
    yield
    assert _seqs(topic.diff()) == [1, 2, 3]
    assert _gap(topic.diff()) is None


@scenario
def records_written_as_ephemeral_are_lost_explicitly_after_a_change_to_fsync(place: Place) -> Iterator[None]:
    topic = place.topic("changed")
    topic.put(durability="ephemeral")
    topic.write(1, 2, 3)
    topic.put(durability="fsync")
    topic.write(4, 5)
    yield
    page = topic.diff()
    assert (_gap(page), _seqs(page)) == ((1, 3, "cap"), [4, 5])


@scenario
def a_hole_above_live_records_is_told_by_the_read_that_reaches_it(place: Place) -> Iterator[None]:
    topic = place.topic("holed")
    topic.write(1, 2, 3)
    topic.put(durability="ephemeral")
    topic.write(4, 5, 6)
    topic.put(durability="disk")
    topic.write(7, 8, 9)
    assert _seqs(topic.diff()) == list(range(1, 10))
    for _ in range(2):
        yield
        state = topic.state()
        assert (state["count"], state["earliest_seq"], state["head_seq"]) == (6, 1, 9)
        page = topic.diff()
        assert (_gap(page), _seqs(page)) == (None, [1, 2, 3])
        assert (page["next_from_seq"], page["caught_up"], page["lag"]) == (3, False, 6)
        for cursor, gap in [(3, (4, 6, "cap")), (4, (5, 6, "cap")), (5, (6, 6, "cap")), (6, None)]:
            page = topic.diff(cursor)
            assert (_gap(page), _seqs(page)) == (gap, [7, 8, 9])
            assert page["caught_up"] is True
    topic.delete_records(before_seq=4)
    page = topic.diff()
    assert _seqs(page) in ([], [7, 8, 9])
    if not page["records"]:
        page = topic.diff(page["next_from_seq"])
    assert (_gap(page), _seqs(page)) in [((4, 6, "cap"), [7, 8, 9]), ((1, 6, "cap"), [7, 8, 9])]


@scenario
def a_hole_at_the_very_end_is_told_too(place: Place) -> Iterator[None]:
    topic = place.topic("holed")
    topic.write(1, 2)
    topic.put(durability="ephemeral")
    topic.write(3, 4)
    yield
    page = topic.diff()
    assert (_gap(page), _seqs(page), page["next_from_seq"], page["caught_up"]) == (None, [1, 2], 2, False)
    page = topic.diff(2, wait_ms=10_000)
    assert (_gap(page), _seqs(page), page["next_from_seq"], page["caught_up"]) == ((3, 4, "cap"), [], 4, True)
    assert topic.write(5)["seqs"] == [5]


# -- what was removed stays removed -----------------------------------------------------------------------


@scenario
def deleted_records_stay_deleted_and_silent(place: Place) -> Iterator[None]:
    by_seq = [place.topic(f"{durability}-by-seq") for durability in KEPT]
    by_tag = [place.topic(f"{durability}-by-tag") for durability in KEPT]
    for topic in by_seq + by_tag:
        topic.put(durability=topic.name.split(":")[1].split("-")[0])
        topic.write_records([{"data": n, "tag": "odd" if n % 2 else "even"} for n in range(1, 7)])
    for topic in by_seq:
        topic.delete_records(before_seq=4)
    for topic in by_tag:
        topic.delete_records(match="odd")
        topic.delete_records(match=["tag", "Glob", "ev*"], before_seq=3)
    yield
    for topics, left in ((by_seq, [4, 5, 6]), (by_tag, [4, 6])):
        for topic in topics:
            page = topic.diff()
            assert (_gap(page), _seqs(page)) == (None, left), topic.name
            state = topic.state()
            assert (state["count"], state["earliest_seq"], state["head_seq"]) == (len(left), left[0], 6)
    for topic in by_tag:
        assert topic.delete_records(match="even")["deleted"] == 2, "the tag index is back"
    for topic in by_seq:
        topic.delete_records(before_seq=99)
    yield
    for topic in by_seq + by_tag:
        page = topic.diff()
        assert (_gap(page), _seqs(page), page["next_from_seq"], page["caught_up"]) == (None, [], 6, True)
        assert topic.write("next")["seqs"] == [7]


@scenario
def evicted_records_stay_evicted_also_under_a_widened_cap(place: Place) -> Iterator[None]:
    names = ["kept", "widened-before", "widened-after"]
    kept, before, after = topics = [place.topic(name) for name in names]
    for topic in topics:
        topic.put(cap_records=3)
        topic.write(*range(1, 6))
        topic.write(*range(6, 11))
    before.put(cap_records=0)
    before.write(11)
    yield
    after.put(cap_records=100)
    after.write(11)
    for topic, left in ((kept, [8, 9, 10]), (before, [8, 9, 10, 11]), (after, [8, 9, 10, 11])):
        page = topic.diff(2)
        assert (_gap(page), _seqs(page)) == ((3, 7, "cap"), left), topic.name
        assert _gap(topic.diff(7)) is None
        assert topic.state()["count"] == len(left)
    yield
    assert _seqs(after.diff(2)) == [8, 9, 10, 11]
    assert _gap(after.diff(2)) == (3, 7, "cap")


@scenario
def records_evicted_by_bytes_stay_evicted_and_the_gap_with_deletes_is_the_same(
    place: Place,
) -> Iterator[None]:
    topic = place.topic("mixed-gap")
    topic.put(cap_bytes=5)
    topic.write(*range(1, 9))
    topic.delete_records(before_seq=6)
    topic.put(cap_bytes=0)
    before = [(cursor, _gap(topic.diff(cursor)), _seqs(topic.diff(cursor))) for cursor in range(9)]
    assert before[0][1:] == ((1, 5, "cap"), [6, 7, 8])
    assert before[3][1:] == (None, [6, 7, 8])
    yield
    after = [(cursor, _gap(topic.diff(cursor)), _seqs(topic.diff(cursor))) for cursor in range(9)]
    assert after == before


@scenario
def expired_records_stay_expired_also_under_a_widened_ttl(place: Place) -> Iterator[None]:
    kept, before, after = topics = [place.topic(name) for name in ("kept", "before", "after")]
    for topic in topics:
        topic.put(ttl_ms=80)
        topic.write(1, 2, 3)
    for topic in topics:
        eventually(lambda topic=topic: topic.state()["count"] == 0)  # type: ignore[misc]
    before.put(ttl_ms=0)
    before.write(4)
    yield
    after.put(ttl_ms=0)
    after.write(4)
    for topic, left in ((kept, []), (before, [4]), (after, [4])):
        page = topic.diff(1)
        assert _seqs(page) == left, topic.name
        gap = _gap(page)
        assert gap is not None
        assert gap[:2] == (2, 3)


@scenario
def a_tightened_cap_is_remembered_although_nothing_was_written_after_it(place: Place) -> Iterator[None]:
    topic = place.topic("tightened")
    topic.write(*range(1, 11))
    topic.put(cap_records=4)
    topic.put(cap_records=0)
    yield
    page = topic.diff()
    assert (_gap(page), _seqs(page)) == ((1, 6, "cap"), [7, 8, 9, 10])


@scenario
def a_deleted_topic_stays_deleted_and_a_recreated_one_is_the_new_one(place: Place) -> Iterator[None]:
    gone, renewed = place.topic("gone"), place.topic("renewed")
    for topic in (gone, renewed):
        topic.put(cap_records=50, durability="fsync")
        topic.write(*range(10))
        topic.drop()
    renewed.write("new")
    yield
    place.server.get(gone.path).failed(404, "topic_not_found")
    assert [record["data"] for record in renewed.diff()["records"]] == ["new"]
    assert renewed.state()["config"]["durability"] == "disk"
    assert _gap(renewed.diff(10)) == (1, 1, "recreated")
    assert gone.write("new")["seqs"] == [1]
    yield
    assert [record["data"] for record in gone.diff()["records"]] == ["new"]
    assert gone.drop()["deleted"] is True


# -- idempotency ------------------------------------------------------------------------------------------


@scenario
def a_retry_after_the_restart_is_still_a_retry(place: Place) -> Iterator[None]:
    topics = [place.topic(durability) for durability in KEPT]
    for topic, durability in zip(topics, KEPT, strict=True):
        topic.put(durability=durability)
        topic.write("before")
        topic.write("a", "b", idempotency_key="k")
        topic.write("c")
    yield
    for topic in topics:
        retry = topic.write_records([{"data": "other"}], idempotency_key="k").ok(200)
        assert (retry["deduped"], retry["created"]) == (True, False)
        assert (retry["seqs"], retry["head_seq"]) == ([2, 3], 4)
        topic.delete_records(before_seq=99)
    yield
    for topic in topics:
        retry = topic.write_records([{"data": "other"}], idempotency_key="k").ok(200)
        assert (retry["deduped"], retry["seqs"], retry["count"]) == (True, [2, 3], 2)
        assert topic.write("a", idempotency_key="new")["deduped"] is False


@scenario
def a_key_is_not_remembered_beyond_its_window_by_a_restart(place: Place) -> Iterator[None]:
    topic = place.topic("retried")
    topic.put(idempotency_window_ms=100)
    topic.write("a", idempotency_key="k")
    yield
    late = eventually(lambda: [w for w in [topic.write("x", idempotency_key="k")] if not w["deduped"]])
    assert late[0]["seqs"] == [2]


@scenario
def keys_of_a_deleted_topic_are_not_remembered_over_a_restart(place: Place) -> Iterator[None]:
    topic = place.topic("retried")
    topic.write("a", idempotency_key="k")
    topic.drop()
    yield
    fresh = topic.write_records([{"data": "b"}], idempotency_key="k").ok(201)
    assert (fresh["deduped"], fresh["seqs"]) == (False, [1])


@scenario
def what_was_acknowledged_just_before_the_stop_is_there(place: Place) -> Iterator[None]:
    # The last scenario of the file, so that nothing comes between its writes and the stop.
    topic = place.topic("hurried")
    for turn in range(2):
        for _ in range(50):
            topic.write("x")
        yield
        assert topic.state()["count"] == 50 * (turn + 1)


@pytest.mark.parametrize("name", SCENARIOS.names())
def test_over_a_restart(name: str, outcomes: dict[str, Exception | None]) -> None:
    failure = outcomes[name]
    if failure is not None:
        raise failure


# -- stopping ---------------------------------------------------------------------------------------------


def test_a_stop_ends_a_waiting_reader_with_an_answer_and_exits_with_zero(own_server: Server) -> None:
    topic = Topic(own_server, "waited-for")
    topic.write(1)
    body = json.dumps({"from_seq": 1, "wait_ms": 30_000}).encode()
    head = f"POST {topic.path}/diff HTTP/1.1\nContent-Type: application/json\nContent-Length: {len(body)}"
    with own_server.connect() as wire:
        wire.send(request_bytes(head, body))
        assert wire.is_silent_for(0.2)
        assert own_server.stop() == 0
        answer = wire.answer()
    if answer.status == 200:
        assert answer.json["records"] == []
        assert answer.json["next_from_seq"] == 1
    else:
        answer.failed(503, "shutting_down")
        assert int(answer.headers["retry-after"]) >= 1
    own_server.start()
    assert topic.seqs() == [1]
