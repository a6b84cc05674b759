"""Any process but the supervisor may be killed at any time: what was acked stays, and the server heals.

Every kill is a real SIGKILL under load on all classes and both shards. A kill counts when the supervisor
has seen the death, and the load counts when every topic was acked in between.
"""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.crash.client import Connection, Reply
from tests.crash.conftest import Start
from tests.crash.ledger import Verdict, read_all, topic_on
from tests.crash.processes import CHILDREN, HEAL_S, SHARDS, Server
from tests.crash.workload import Workload

KILLS = ("shard-0", "shard-1") * 7 + ("gateway",) * 4 + ("router",) * 4


def shards_of(child: str) -> set[int]:
    return {int(child.removeprefix("shard-"))} if child.startswith("shard-") else set()


@pytest.mark.timeout(170)
def test_kills_under_load_lose_nothing_acked_and_the_server_heals(
    start: Start, figures: Callable[[str], None]
) -> None:
    plan = list(KILLS)
    random.Random(20).shuffle(plan)
    with start() as server:
        server.wait_ready()
        with Workload(server.address) as load:
            for victim in plan:
                load.wait_flow()
                kill_and_heal(server, load, victim)
            load.wait_flow()
            kill_all_at_once(server, load)
            load.wait_flow()
            load.stop_writing()
            load.wait_followed()
        verdicts = load.audit(died=())
        assert server.stop() == 0
        checkpoints = [int(path.stem) for path in server.data_dir.glob("shard-*/snap/*.snap")]
    report(figures, Counter(plan) + Counter(CHILDREN), load, verdicts)
    figures(f"checkpoints meanwhile: at least {max(checkpoints, default=0)} in one shard")
    assert max(checkpoints, default=0) >= 5


def kill_and_heal(server: Server, load: Workload, victim: str) -> None:
    """Kill one child; the others' requests must not fail, and everything acked must be there after it."""
    others = {0, 1} - shards_of(victim)
    acked_before = load.acked(others)
    killed_s = time.monotonic()
    before = server.kill_child(victim)
    died_s = time.monotonic()
    server.wait_event("child.started", since=before, child=victim)
    server.wait_ready()
    if victim != "router":
        server.wait_event("child.state", since=before, child=victim, state="ready")
    healed_s = time.monotonic()
    assert healed_s - killed_s < HEAL_S
    if victim != "gateway":
        failed = [f for f in load.failures_between(killed_s, healed_s) if f.shard in others]
        assert not failed, f"{victim} was killed, and requests to shards {others} failed: {failed[:5]}"
        acked = load.acked(others)
        assert all(acked[name] > count for name, count in acked_before.items()), (acked_before, acked)
    assert died_s - killed_s < 5
    load.audit(died=shards_of(victim))


def kill_all_at_once(server: Server, load: Workload) -> None:
    for child in CHILDREN:
        server.signal_child(child, signal.SIGSTOP)
    lines = [server.kill_child(child) for child in CHILDREN]
    for child, before in zip(CHILDREN, lines, strict=True):
        server.wait_event("child.started", since=before, child=child)
    server.wait_ready()
    load.audit(died=(0, 1))


def report(
    figures: Callable[[str], None], kills: Counter[str], load: Workload, verdicts: dict[str, Verdict]
) -> None:
    failed = load.how_it_failed()
    deduped = sum(ledger.deduped for ledger in load.ledgers)
    assert sum(kills.values()) >= 20
    # A fault that nobody noticed, or a retry that never happened, would prove nothing.
    assert failed["unknown"] > 0, failed
    assert load.retries_with_key > 0
    figures(f"kills under load: {sum(kills.values())} ({', '.join(f'{k} {n}' for k, n in kills.items())})")
    figures(
        f"records acked {sum(load.acked().values())}; "
        f"lost {sum(len(v.lost) for v in verdicts.values())}; "
        f"duplicates {sum(len(v.duplicates) for v in verdicts.values())}; "
        f"silent gaps {sum(v.silent_gaps for v in verdicts.values())}; "
        f"ephemeral lost under a tombstone {sum(v.lost_under_tombstone for v in verdicts.values())}"
    )
    figures(f"failed requests: {', '.join(f'{how} {times}' for how, times in failed.most_common())}")
    figures(f"retries with the same key {load.retries_with_key}, recognised {deduped}")


def test_shard_that_is_killed_again_while_it_recovers_loses_nothing(
    start: Start, figures: Callable[[str], None]
) -> None:
    # Before it has read its boot message, when it has begun to replay, and when it has just begun to serve.
    moments: tuple[dict[str, str], ...] = ({}, {"state": "listening"}, {"state": "ready"})
    kills = 0
    # This load comes in by the other front door.
    with start(TOPICS_FAST_LANE="0") as server:
        server.wait_ready()
        with Workload(server.address) as load:
            load.wait_flow()
            for moment in moments * 2:
                before = server.kill_child("shard-0")
                event = "child.state" if moment else "child.started"
                server.wait_event(event, since=before, child="shard-0", **moment)
                kills += 1
            before = server.kill_child("shard-0")
            server.wait_event("child.state", since=before, child="shard-0", state="ready")
            server.wait_ready()
            load.audit(died=(0,))
            load.wait_flow()
            load.stop_writing()
            load.wait_followed()
        load.audit(died=())
        assert server.stop() == 0
    figures(f"kills during recovery: {kills + 1}, {sum(load.acked().values())} acked, 0 lost")


@pytest.mark.parametrize("fast_lane", ["1", "0"])
def test_requests_in_flight_to_a_killed_shard_are_answered_as_unknown(start: Start, fast_lane: str) -> None:
    hurt, spared = topic_on(0, SHARDS, "hurt"), topic_on(1, SHARDS, "spared")
    write = {"records": [{"data": "in flight"}], "idempotency_key": "the same"}
    with start(TOPICS_FAST_LANE=fast_lane) as server:
        server.wait_ready()
        for topic in (hurt, spared):
            assert server.ask("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}).status == 201
        server.signal_child("shard-0", signal.SIGSTOP)
        replies: dict[str, Reply] = {}
        requests = {
            "write": (f"/v0/topics/{hurt}", write),
            "long-poll": (f"/v0/topics/{hurt}/diff", {"from_seq": 1, "wait_ms": 30_000}),
        }

        def send(name: str) -> None:
            replies[name] = server.ask("POST", *requests[name])

        threads = [threading.Thread(target=send, args=(name,)) for name in requests]
        for thread in threads:
            thread.start()
        # It asks the stopped shard too and gives it a second, so both requests are on their way by then.
        ready = server.ask("GET", "/v0/ready")
        assert (ready.status, ready.code) == (503, "not_ready")
        assert [(s["shard"], s["state"]) for s in ready.detail["shards"]] == [(0, "unreachable")]
        assert not replies
        assert server.ask("POST", f"/v0/topics/{spared}", {"records": [{"data": 2}]}).status == 200
        server.kill_child("shard-0")
        for thread in threads:
            thread.join(HEAL_S)
        for name, reply in replies.items():
            assert (reply.status, reply.code) == (503, "not_ready"), name
            assert reply.detail["outcome"] == "unknown", name
            assert reply.retry_after_s >= 1, name
        assert replies.keys() == requests.keys()
        server.wait_ready()
        assert server.ask("POST", *requests["write"]).status == 200
        with Connection(server.address) as connection:
            assert list(read_all(connection, hurt).records.values()) == [1, "in flight"]
