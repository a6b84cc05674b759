"""Caps over all shards stay exact whoever is killed, and nobody hangs while their owner is away.

Shard 0 owns the caps. Its death must not stop what others may do without it.
"""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.crash.client import Reply
from tests.crash.conftest import Start
from tests.crash.ledger import topic_on
from tests.crash.processes import SHARDS, Server, eventually
from topics.engine.placement import shard_of

MAX_TOPICS = 120
MAX_BYTES = 12_000
CAPS = {"TOPICS_MAX_TOPICS": str(MAX_TOPICS), "TOPICS_MAX_TOTAL_BYTES": str(MAX_BYTES)}
# What may come back while processes die; anything else is a bug.
ALLOWED = {200, 201, 429, 503}


def names_on(shard: int, stem: str) -> Iterator[str]:
    return (name for n in range(100_000) if shard_of(name := f"{stem}-{n}", SHARDS) == shard)


def put(server: Server, name: str) -> Reply:
    return server.ask("PUT", f"/v0/topics/{name}", {})


def write(server: Server, name: str, size: int = 100) -> Reply:
    return server.ask("POST", f"/v0/topics/{name}", {"records": [{"data": "x" * (size - 2)}]})


def listed(server: Server) -> list[dict[str, int]]:
    reply = server.ask("GET", "/v0/topics?page_size=1000")
    assert reply.status == 200, reply
    topics: list[dict[str, int]] = reply.body["topics"]
    return topics


def drop_some(server: Server, count: int) -> None:
    for topic in listed(server)[:count]:
        assert server.ask("DELETE", f"/v0/topics/{topic['topic']}").status == 200


class Hammer:
    """Threads that do the same over and over, one per shard, and count how it was answered."""

    def __init__(self, *works: Callable[[], Reply]) -> None:
        self.seen: Counter[int] = Counter()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]

    def _run(self, work: Callable[[], Reply]) -> None:
        while not self._over.is_set():
            try:
                self.seen[work().status] += 1
            except OSError:
                self.seen[0] += 1

    def __enter__(self) -> "Hammer":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, status: int) -> None:
        """Until it was seen once more than now."""
        before = self.seen[status]
        eventually(f"another {status}", lambda: self.seen[status] > before)


def heal(server: Server, child: str, since: int) -> None:
    server.wait_event("child.state", since=since, child=child, state="ready")
    server.wait_ready()


@pytest.mark.parametrize("victims", [("shard-0",) * 3, ("shard-1",) * 3, ("shard-0", "shard-1") * 2])
def test_topics_are_counted_exactly_whoever_is_killed(start: Start, victims: tuple[str, ...]) -> None:
    with start(**CAPS) as server:
        server.wait_ready()
        names = [names_on(0, "t"), names_on(1, "t")]

        def creator(shard: int) -> Callable[[], Reply]:
            return lambda: put(server, next(names[shard]))

        for victim in victims:
            with Hammer(creator(0), creator(1)) as hammer:
                hammer.wait_for(201)
                since = server.kill_child(victim)
                heal(server, victim, since)
                hammer.wait_for(429)
                assert len(listed(server)) <= MAX_TOPICS
            assert set(hammer.seen) <= ALLOWED, hammer.seen
            for name in names:
                refused = put(server, next(name))
                assert (refused.status, refused.detail) == (429, {"limit": "max_topics", "max": MAX_TOPICS})
            assert len(listed(server)) == MAX_TOPICS
            drop_some(server, 60)
        assert server.stop() == 0


@pytest.mark.parametrize("victim", ["shard-0", "shard-1"])
def test_bytes_are_counted_exactly_whoever_is_killed(start: Start, victim: str) -> None:
    topics = [topic_on(shard, SHARDS, "b") for shard in range(SHARDS)]
    with start(**CAPS) as server:
        server.wait_ready()
        # One of them alone may use up all that is left before the other gets any.
        for topic in topics:
            assert [write(server, topic).status for _ in range(5)] == [201, 200, 200, 200, 200]
        with Hammer(*[partial(write, server, topic) for topic in topics]) as hammer:
            hammer.wait_for(200)
            heal(server, victim, server.kill_child(victim))
            hammer.wait_for(429)
        assert set(hammer.seen) <= ALLOWED, hammer.seen
        assert sum(topic["bytes"] for topic in listed(server)) == MAX_BYTES
        for topic in topics:
            refused = write(server, topic, size=3)
            assert (refused.status, refused.detail) == (429, {"limit": "max_total_bytes", "max": MAX_BYTES})
        # What one shard frees goes to the other, also after its restart.
        for freed, wanted in [topics, topics[::-1]]:
            assert server.ask("POST", f"/v0/topics/{freed}/delete", {"before_seq": 6}).status == 200
            heal(server, victim, server.kill_child(victim))
            room = MAX_BYTES - sum(topic["bytes"] for topic in listed(server))
            assert write(server, wanted, size=room).status == 200
            assert write(server, wanted, size=3).status == 429
            assert sum(topic["bytes"] for topic in listed(server)) == MAX_BYTES
        assert server.stop() == 0


def test_without_the_owner_a_stock_is_used_and_then_nobody_hangs(start: Start) -> None:
    with start(**CAPS) as server:
        server.wait_ready()
        names = names_on(1, "t")
        existing = next(names)
        assert put(server, existing).status == 201
        server.signal_child("shard-0", signal.SIGSTOP)
        created = 0
        while (reply := put(server, next(names))).status == 201:
            created += 1
        assert created > 0, "there was no stock"
        assert (reply.status, reply.code) == (503, "not_ready")
        assert reply.detail["outcome"] == "not_applied"
        assert reply.retry_after_s >= 1
        began_s = time.monotonic()
        assert put(server, next(names)).status == 503
        assert time.monotonic() - began_s < 3
        assert put(server, existing).status == 200
        assert server.ask("POST", f"/v0/topics/{existing}", {"records": [{"data": 1}]}).status == 200
        server.signal_child("shard-0", signal.SIGCONT)
        assert put(server, next(names)).status == 201
        assert server.stop() == 0


def test_a_shard_that_cannot_be_asked_is_no_reason_to_exceed_or_to_refuse_for_good(start: Start) -> None:
    with start(**CAPS) as server:
        server.wait_ready()
        names = names_on(0, "t")
        server.signal_child("shard-1", signal.SIGSTOP)
        while (reply := put(server, next(names))).status == 201:
            pass
        # The stopped shard holds a stock that it does not use; nobody knows that now.
        assert (reply.status, reply.detail["outcome"]) == (503, "not_applied")
        server.signal_child("shard-1", signal.SIGCONT)
        eventually("room", lambda: put(server, next(names)).status == 201)
        while (reply := put(server, next(names))).status != 429:
            assert reply.status == 201
        assert reply.detail == {"limit": "max_topics", "max": MAX_TOPICS}
        server.wait_ready()
        assert len(listed(server)) == MAX_TOPICS
        assert server.stop() == 0
