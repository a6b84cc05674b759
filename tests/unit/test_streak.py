"""Writes in a row: applied at once, and nobody can tell."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.command import Command
from tests.fakes.shard_harness import Reply, ShardHarness, reply_of
from tests.fakes.sim_disk import SimDisk
from topics.engine.limits import Limits
from topics.protocol.messages import Op

LIMITS = Limits(record_bytes=200)
ORDINARY = b'{"records":[{"data":{"n":%d}}]}'
BODIES = [
    b'{"records":[{"data":{"n":1}}]}',
    b'{"records":[{"data":"\xc3\xa9"}],"create":false}',
    b'{"records":[{"data":2,"tag":"t"}]}',
    b'{"records":[{"data":3,"node":"n"}]}',
    b'{"records":[{"data":4}],"node":"m"}',
    b'{"records":[{"data":5,"meta":{"k":1}}]}',
    b'{"records":[{"data":6}],"idempotency_key":"same"}',
    b'{"records":[{"data":7},{"data":8}]}',
    b'{"records":[]}',
    b'{"records":[{"data":"' + b"x" * 300 + b'"}]}',
    b'{"records":[{"data":"' + b"x" * 60 + b'"}]}',
    b'{"records":[{"data":' + b"[" * 70 + b"]" * 70 + b"}]}",
    b'{"records":[{"data":\xff}]}',
    b"not json",
]
CONFIGS: list[dict[str, Any]] = [
    {},
    {"durable": True},
    {"durability": "ephemeral"},
    {"cap_records": 3},
    {"cap_bytes": 40},
    {"cap_records": 3, "discard": "reject"},
    {"ttl_ms": 1000},
]


class Writers:
    """The same commands, run one by one or as the actor runs them."""

    def __init__(self, config: dict[str, Any], *, rows: bool) -> None:
        self.harness = ShardHarness(SimDisk(), limits=LIMITS)
        self.harness.do(Op.PUT_TOPIC, "a", config)
        # The first write of a topic waits for its ceiling.
        self.harness.write("a", 0)
        self.rows = rows
        self.in_rows = 0

    def run(self, bodies: list[bytes]) -> list[Reply]:
        commands = [self.harness.command(Op.WRITE, "a", body) for body in bodies]
        waiting = list(commands)
        while waiting:
            if self.rows:
                run = self.harness.shard.execute_row("a", waiting[:32])
                self.in_rows += run
                del waiting[:run]
                self.harness.settle()
            if waiting:
                self.harness.submit_command(waiting.pop(0))
                self.harness.settle()
        return [without_times(reply_of(command)) for command in commands]

    def state(self) -> list[dict[str, Any]]:
        """What readers see, now and after a restart."""
        seen = [self.seen()]
        self.harness.close()
        self.harness = self.harness.reopen()
        return [*seen, self.seen()]

    def seen(self) -> dict[str, Any]:
        return {
            "diff": without_times(self.harness.do(Op.DIFF, "a", {"include_tags": True, "limit": 1000})),
            "topic": without_times(self.harness.do(Op.GET_TOPIC, "a", touch=False)),
        }


def without_times(reply: Reply) -> Reply:
    reply.body.pop("performance", None)
    reply.body.pop("last_read_ts", None)
    return reply


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(CONFIGS), st.lists(st.one_of(st.just(BODIES[0]), st.sampled_from(BODIES)), max_size=70)
)
def test_writes_in_a_row_leave_what_single_writes_leave(config: dict[str, Any], bodies: list[bytes]) -> None:
    alone, rows = Writers(config, rows=False), Writers(config, rows=True)
    assert rows.run(bodies) == alone.run(bodies)
    assert rows.state() == alone.state()


def test_ordinary_writes_of_one_topic_make_one_frame() -> None:
    writers = Writers({}, rows=True)
    wal = writers.harness.wal
    assert wal is not None
    before = wal.frames
    replies = writers.run([ORDINARY % n for n in range(32)])
    assert wal.frames == before + 1
    assert writers.in_rows == 32
    assert [reply.body["first_seq"] for reply in replies] == list(range(2, 34))
    assert [reply.body["head_seq"] for reply in replies] == list(range(2, 34))


def test_a_row_ends_before_the_first_command_that_is_not_an_ordinary_write() -> None:
    harness = Writers({}, rows=True).harness
    commands = [harness.command(Op.WRITE, "a", ORDINARY % n) for n in range(5)]
    commands.insert(3, harness.command(Op.DIFF, "a"))
    assert harness.shard.execute_row("a", commands) == 3


def test_a_cancelled_write_is_not_part_of_a_row() -> None:
    harness = Writers({}, rows=True).harness
    commands = [harness.command(Op.WRITE, "a", ORDINARY % n) for n in range(5)]
    commands[2].cancelled = True
    assert harness.shard.execute_row("a", commands) == 2


def test_a_row_does_not_go_over_the_ceiling() -> None:
    harness = Writers({}, rows=True).harness
    topic = harness.shard.registry.find("a")
    assert topic is not None
    topic.durable_ceiling = topic.log.head + 3
    commands = [harness.command(Op.WRITE, "a", ORDINARY % n) for n in range(4)]
    assert harness.shard.execute_row("a", commands) == 0
    assert harness.shard.execute_row("a", commands[:3]) == 3


def test_an_error_inside_a_row_answers_its_commands_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Writers({}, rows=True).harness

    def breaks(*_: object) -> list[Command]:
        raise RuntimeError("a bug")

    monkeypatch.setattr("shards.shard.run_in_a_row", breaks)
    commands = [harness.command(Op.WRITE, "a", ORDINARY % n) for n in range(2)]
    assert harness.shard.execute_row("a", commands) == 2
    assert harness.shard.must_reload
    assert {reply_of(command).status for command in commands} == {500}
    assert harness.reopen().read("a")["head_seq"] == 1
