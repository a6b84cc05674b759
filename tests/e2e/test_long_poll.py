"""wait_ms (section 3): a read that waits is woken by the write, and by nothing else."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.server import Server, Topic, Wire, eventually, request_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator


def _send_diff(wire: Wire, topic: Topic, **fields: Any) -> None:
    body = json.dumps(fields).encode()
    head = f"POST {topic.path}/diff HTTP/1.1\nContent-Type: application/json\nContent-Length: {len(body)}"
    wire.send(request_bytes(head, body))


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with server.connect() as wire:
        yield wire


def test_a_long_poll_is_woken_by_the_write(topic: Topic, wire: Wire) -> None:
    topic.write("old")
    _send_diff(wire, topic, from_seq=1, wait_ms=30000)
    assert wire.is_silent_for(0.2)
    written = time.monotonic()
    topic.write("new", "newer")
    page = wire.answer().ok()
    assert time.monotonic() - written < 2
    assert [record["data"] for record in page["records"]] == ["new", "newer"]
    assert (page["next_from_seq"], page["head_seq"], page["caught_up"]) == (3, 3, True)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_long_poll_is_woken_in_every_class(topic: Topic, wire: Wire, durability: str) -> None:
    topic.put(durability=durability)
    _send_diff(wire, topic, wait_ms=30000)
    assert wire.is_silent_for(0.05)
    topic.write("new")
    assert [record["data"] for record in wire.answer().ok()["records"]] == ["new"]


def test_a_long_poll_over_the_clamp_is_accepted_and_woken(topic: Topic, wire: Wire) -> None:
    topic.put()
    _send_diff(wire, topic, wait_ms=10**30)
    assert wire.is_silent_for(0.05)
    topic.write("new")
    assert [record["data"] for record in wire.answer().ok()["records"]] == ["new"]


def test_a_long_poll_with_something_to_say_does_not_wait(topic: Topic) -> None:
    topic.write(1, 2)
    started = time.monotonic()
    assert topic.seqs(1, wait_ms=20000) == [2]
    assert time.monotonic() - started < 5


def test_a_long_poll_ends_empty_when_its_time_is_over(topic: Topic) -> None:
    topic.write(1)
    started = time.monotonic()
    page = topic.diff(1, wait_ms=300)
    waited = time.monotonic() - started
    assert 0.29 <= waited < 3
    assert page["records"] == []
    assert (page["next_from_seq"], page["caught_up"], page["tombstone"]) == (1, True, None)


def test_a_diff_without_wait_ms_does_not_wait(topic: Topic) -> None:
    topic.put()
    started = time.monotonic()
    topic.diff()
    topic.diff(wait_ms=0)
    assert time.monotonic() - started < 2


def test_a_long_poll_waits_on_when_only_filtered_records_arrive(topic: Topic, wire: Wire) -> None:
    topic.put()
    _send_diff(wire, topic, node="me", wait_ms=30000)
    assert wire.is_silent_for(0.1)
    topic.write("own", node="me")
    assert wire.is_silent_for(0.3)
    topic.write("other", node="you")
    page = wire.answer().ok()
    assert [record["data"] for record in page["records"]] == ["other"]
    assert page["next_from_seq"] == 2


def test_a_long_poll_that_met_only_filtered_records_returns_the_advanced_cursor(topic: Topic) -> None:
    topic.write("own", node="me")
    page = topic.diff(node="me", wait_ms=200)
    assert page["records"] == []
    assert (page["next_from_seq"], page["caught_up"]) == (1, True)


def test_a_tombstone_ends_a_long_poll_at_once(topic: Topic) -> None:
    topic.put()
    started = time.monotonic()
    assert topic.diff(5, wait_ms=20000)["tombstone"]["reason"] == "recreated"
    topic.put(ttl_ms=50)
    topic.write("short-lived")
    eventually(lambda: topic.state()["count"] == 0)
    assert topic.diff(0, wait_ms=20000)["tombstone"]["reason"] == "ttl"
    assert time.monotonic() - started < 10


def test_many_long_polls_of_one_topic_are_all_woken(topic: Topic, server: Server) -> None:
    topic.put()
    with server.connect() as a, server.connect() as b, server.connect() as c:
        for wire in (a, b, c):
            _send_diff(wire, topic, wait_ms=30000)
        assert c.is_silent_for(0.1)
        topic.write("new")
        for wire in (a, b, c):
            assert len(wire.answer().ok()["records"]) == 1


def test_a_write_to_another_topic_does_not_end_a_long_poll(server: Server, wire: Wire, name: str) -> None:
    quiet = Topic(server, f"{name}-quiet")
    quiet.put()
    _send_diff(wire, quiet, wait_ms=30000)
    for number in range(6):
        Topic(server, f"{name}-{number}").write(1)
    assert wire.is_silent_for(0.2)
    quiet.write("now")
    assert wire.answer().ok()["next_from_seq"] == 1


def test_deleting_the_topic_ends_a_long_poll_with_an_answer(topic: Topic, wire: Wire) -> None:
    topic.put()
    _send_diff(wire, topic, wait_ms=1500)
    assert wire.is_silent_for(0.1)
    topic.drop()
    answer = wire.answer()
    assert answer.status in (200, 404), answer.body


def test_a_reader_that_went_away_does_no_harm(topic: Topic, server: Server) -> None:
    topic.put()
    with server.connect() as gone:
        _send_diff(gone, topic, wait_ms=30000)
        assert gone.is_silent_for(0.05)
    assert topic.write("x")["seqs"] == [1]
    assert topic.seqs() == [1]


@pytest.mark.waits_for_the_longest_poll
def test_wait_ms_is_clamped_to_thirty_seconds(longest_poll: tuple[float, Wire]) -> None:
    started, wire = longest_poll
    answer = wire.answer()
    assert answer.ok()["records"] == []
    assert 30 - 0.1 <= answer.json["performance"]["server_total_ms"] / 1000 < 33
    assert time.monotonic() - started >= 29.9
