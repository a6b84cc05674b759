"""TOPICS_MAX_TOPICS and TOPICS_MAX_TOTAL_BYTES: one number for the whole server, exact over its shards."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.e2e.server import Answer, Server, Topic, eventually
from topics.engine.placement import shard_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

MAX_TOPICS = 20
MAX_BYTES = 2000
CAPS = {"TOPICS_MAX_TOPICS": str(MAX_TOPICS), "TOPICS_MAX_TOTAL_BYTES": str(MAX_BYTES)}
DOORS = {"lane": ({}, False), "quart": ({"TOPICS_FAST_LANE": "0"}, False), "h2c": ({}, True)}


@pytest.fixture(params=DOORS)
def capped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server of two shards with small caps, asked through one of its doors."""
    settings, http2 = DOORS[request.param]
    yield from running(tmp_path, settings, http2=http2)


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[Server]:
    yield from running(tmp_path, {})


def running(directory: Path, settings: Mapping[str, str], *, http2: bool = False) -> Iterator[Server]:
    server = Server(directory, {**CAPS, **settings}, http2=http2)
    server.start()
    yield server
    server.end()


def names_on(shard: int, stem: str, count: int) -> list[str]:
    found = (f"{stem}{n}" for n in range(10_000))
    return [name for name in found if shard_of(name, 2) == shard][:count]


def spread(stem: str, count: int) -> list[str]:
    """Names that alternate between the two shards."""
    pairs = zip(names_on(0, stem, count), names_on(1, stem, count), strict=True)
    return [name for pair in pairs for name in pair][:count]


def at_once(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(lambda call: call(), calls))


def put(server: Server, name: str) -> Answer:
    return server.put(Topic(server, name).path, {})


def is_refused(answer: Answer, limit: str, maximum: int) -> None:
    assert answer.failed(429, "throttled") == {"limit": limit, "max": maximum}
    assert int(answer.headers["retry-after"]) >= 1


def is_written(topic: Topic) -> bool:
    return topic.write_records([{"data": "x" * 98}]).status == 200


def count_topics(server: Server) -> int:
    return len(server.get("/v0/topics", params={"page_size": "1000"}).ok()["topics"])


def test_exactly_as_many_topics_as_allowed_are_created_at_once_over_all_shards(capped: Server) -> None:
    names = spread("t", 3 * MAX_TOPICS)
    # Half of them by PUT, half by a write.
    calls = [
        partial(put, capped, name) if n % 4 < 2 else partial(Topic(capped, name).write_records, [{"data": 1}])
        for n, name in enumerate(names)
    ]
    answers = at_once(calls)
    assert Counter(answer.status for answer in answers) == {201: MAX_TOPICS, 429: 2 * MAX_TOPICS}
    for answer in answers:
        if answer.status == 429:
            is_refused(answer, "max_topics", MAX_TOPICS)
    assert count_topics(capped) == MAX_TOPICS
    for shard in (0, 1):
        is_refused(put(capped, names_on(shard, "more", 1)[0]), "max_topics", MAX_TOPICS)
    created = next(n for n, answer in zip(names, answers, strict=True) if answer.status == 201)
    put(capped, created).ok(200)
    Topic(capped, created).write_records([{"data": 2}]).ok(200)


def test_a_deleted_topic_makes_room_at_once_on_any_shard_and_a_restart_keeps_counting(lane: Server) -> None:
    names = spread("t", MAX_TOPICS)
    for name in names:
        put(lane, name).ok(201)
    for freed, wanted in [(0, 1), (1, 0), (0, 0), (1, 1)]:
        gone = next(name for name in names if shard_of(name, 2) == freed)
        new, one_more = names_on(wanted, f"new{freed}{wanted}-", 2)
        Topic(lane, gone).drop()
        put(lane, new).ok(201)
        names = [*(name for name in names if name != gone), new]
        is_refused(put(lane, one_more), "max_topics", MAX_TOPICS)
    lane.restart()
    assert count_topics(lane) == MAX_TOPICS
    for shard in (0, 1):
        is_refused(put(lane, names_on(shard, "later", 1)[0]), "max_topics", MAX_TOPICS)
    Topic(lane, names[0]).drop()
    put(lane, names_on(1 - shard_of(names[0], 2), "later", 1)[0]).ok(201)


def bytes_of_all(server: Server) -> int:
    return sum(
        topic["bytes"] for topic in server.get("/v0/topics", params={"page_size": "1000"}).ok()["topics"]
    )


def test_exactly_as_many_bytes_as_allowed_are_written_at_once_over_all_shards(capped: Server) -> None:
    topics = [Topic(capped, name) for name in spread("b", 8)]
    for topic in topics:
        topic.put()
    record = [{"data": "x" * 98}]  # 100 bytes
    calls = [partial(topic.write_records, record) for topic in topics * 5]
    answers = at_once(calls)
    assert Counter(answer.status for answer in answers) == {200: 20, 429: 20}
    assert bytes_of_all(capped) == MAX_BYTES
    for topic in topics[:2]:
        refused = topic.write_records([{"data": 1}])
        is_refused(refused, "max_total_bytes", MAX_BYTES)
    new = Topic(capped, "new")
    is_refused(new.write_records([{"data": 1}]), "max_total_bytes", MAX_BYTES)
    capped.get(new.path).failed(404, "topic_not_found")


def test_what_is_deleted_evicted_or_expired_makes_room_for_the_other_shard(lane: Server) -> None:
    left, right = Topic(lane, names_on(0, "l", 1)[0]), Topic(lane, names_on(1, "r", 1)[0])
    for full, other in [(left, right), (right, left)]:
        full.write(*["x" * 98] * 20)
        is_refused(other.write_records([{"data": 1}]), "max_total_bytes", MAX_BYTES)
        full.delete_records(before_seq=full.state()["head_seq"] - 4)
        other.write(*["x" * 98] * 15)
        is_refused(other.write_records([{"data": 1}]), "max_total_bytes", MAX_BYTES)
        full.put(cap_records=1)
        other.write(*["x" * 98] * 4)
        is_refused(other.write_records([{"data": 1}]), "max_total_bytes", MAX_BYTES)
        full.put(ttl_ms=1)
        eventually(partial(is_written, other))
        assert bytes_of_all(lane) == MAX_BYTES
        other.drop()
        full.drop()


def test_a_topic_at_its_cap_is_written_for_ever_within_the_cap_on_all_bytes(lane: Server) -> None:
    ring = Topic(lane, names_on(1, "ring", 1)[0])
    ring.put(cap_bytes=500)
    ring.write(*["x" * 98] * 5)
    Topic(lane, names_on(0, "rest", 1)[0]).write(*["x" * 98] * 15)
    for _ in range(20):
        ring.write("y" * 98)
    assert bytes_of_all(lane) == MAX_BYTES


def test_a_maximum_below_what_exists_loses_nothing_and_lets_nothing_be_added(lane: Server) -> None:
    names = spread("t", MAX_TOPICS)
    for name in names:
        put(lane, name).ok(201)
    lane.settings = {**lane.settings, "TOPICS_MAX_TOPICS": "5"}
    lane.restart()
    assert count_topics(lane) == MAX_TOPICS
    for name in names[:-4]:
        for shard in (0, 1):
            is_refused(put(lane, names_on(shard, "more", 1)[0]), "max_topics", 5)
        Topic(lane, name).drop()
    put(lane, "the-fifth").ok(201)
    is_refused(put(lane, "the-sixth"), "max_topics", 5)


def test_nothing_is_bounded_where_the_variables_say_0(start_server: Callable[..., Server]) -> None:
    server = start_server({"TOPICS_MAX_TOPICS": "0", "TOPICS_MAX_TOTAL_BYTES": "0"})
    answers = at_once([partial(put, server, f"t{n}") for n in range(60)])
    assert {answer.status for answer in answers} == {201}
    Topic(server, "t0").write(*["x" * 98] * 50)


def test_one_shard_alone_is_as_exact(start_server: Callable[..., Server]) -> None:
    server = start_server({**CAPS, "TOPICS_WAL_SHARDS": "1"})
    answers = at_once([partial(put, server, f"t{n}") for n in range(2 * MAX_TOPICS)])
    assert Counter(answer.status for answer in answers) == {201: MAX_TOPICS, 429: MAX_TOPICS}
    topic = Topic(server, next(f"t{n}" for n, answer in enumerate(answers) if answer.status == 201))
    topic.write(*["x" * 98] * 20)
    is_refused(topic.write_records([{"data": 1}]), "max_total_bytes", MAX_BYTES)
