"""A shard at work, with a ledger of what it promises, step by step."""

import json
from dataclasses import dataclass, field

from shards.command import Command
from shards.disk import Disk
from shards.wal.writer import WalOptions
from tests.fakes.shard_harness import ROUNDS_MAX, FakeClock, ShardHarness, reply_of
from tests.simulation.explore import Journal
from tests.simulation.log_ledger import Ledger
from tests.simulation.log_view import TINY, WALL_MS, TopicView
from topics.protocol.messages import Op


@dataclass(slots=True)
class _Asked:
    """A command under way, and what it will have changed when it is answered."""

    command: Command
    topic_id: int | None = None
    deleted: set[int] = field(default_factory=set)
    view: TopicView | None = None  # its topic when its group was written


class Driver:
    """Issues commands to a shard and writes into the ledger what they were promised.

    `commit`, `finish_sync` and `sync_done` are steps of their own, so that a workload can be between them.
    """

    def __init__(
        self,
        disk: Disk,
        ledger: Ledger,
        journal: Journal[str],
        *,
        options: WalOptions = TINY,
        boot_id: str = "boot-1",
    ) -> None:
        self.ledger, self._journal = ledger, journal
        self._asked: dict[int, _Asked] = {}
        self._records = 0
        self._committing = False
        self.views: dict[int, TopicView] = {}
        clock = FakeClock(wall_ms=WALL_MS, boot_id=boot_id)
        self.harness = ShardHarness(disk, clock, options=options, deferred=True)
        self._begin_session()

    def _begin_session(self) -> None:
        self.harness.on_answer, self.harness.on_execute = self._answered, self._executed
        self._asked.clear()
        self.views = self.ledger.note_memory(self.harness.shard.registry)
        self.ledger.note_recovered(self.views)
        self._journal.ack("session")

    # -- commands

    def put(self, topic: str, **patch: object) -> None:
        self._submit(Op.PUT_TOPIC, topic, patch)

    def write(
        self, topic: str, count: int = 1, *, size: int = 8, key: str = "", tag: str = "", **fields: object
    ) -> None:
        records: list[dict[str, object]] = []
        for index in range(count):
            self._records += 1
            data: dict[str, object] = {"id": self._records, "fill": "x" * size}
            if key and not index:
                data["key"] = key
            record: dict[str, object] = {"data": data}
            if tag:
                record["tag"] = tag
            if index % 3 == 2:
                record |= {"node": f"n{index}", "meta": {"m": index}}
            records.append(record)
        body = {"records": records, **fields}
        self._submit(Op.WRITE, topic, body | ({"idempotency_key": key} if key else {}))

    def delete(self, topic: str, **body: object) -> None:
        self._submit(Op.DELETE_RECORDS, topic, body)

    def drop(self, topic: str) -> None:
        self._submit(Op.DELETE_TOPIC, topic)

    def _submit(self, op: Op, topic: str, body: object = None) -> None:
        command = self.harness.submit(op, topic, body)
        self._asked.setdefault(command.id, _Asked(command))

    def _topic(self, name: str) -> TopicView | None:
        return next((view for view in self.views.values() if view.name == name), None)

    def _executed(self, command: Command) -> None:
        """A command has run, now or after it had to wait: what it changed may reach the disk from here on."""
        asked = self._asked.setdefault(command.id, _Asked(command))
        before = self._topic(command.topic)
        self.views = self.ledger.note_memory(self.harness.shard.registry)
        after = self._topic(command.topic)
        if after is not None:
            asked.topic_id = after.topic_id
            if command.op == Op.DELETE_RECORDS and before is not None:
                asked.deleted = before.records.keys() - after.records.keys()
                self.ledger.lives[after.topic_id].deletes |= asked.deleted
        elif command.op == Op.DELETE_TOPIC and before is not None:
            asked.topic_id = before.topic_id
            self.ledger.lives[before.topic_id].drop_issued = True
        self._journal.issue(command.op.name)

    # -- steps

    def commit(self) -> None:
        self._committing = True
        self.harness.commit()
        self._see_written()

    def tick(self, ms: int) -> None:
        self._committing = True
        self.harness.tick(ms)
        self._see_written()

    def finish_sync(self) -> None:
        self.harness.finish_sync()

    def sync_done(self) -> None:
        self.harness.sync_done()

    def settle(self) -> None:
        """Commit and sync until every command is answered."""
        for _ in range(ROUNDS_MAX):
            self.commit()
            self.finish_sync()
            self.sync_done()
            if not (self._asked or self.harness.syncer.busy):
                return
        raise AssertionError("commands wait for ever")

    def checkpoint(self) -> None:
        self.harness.checkpoint()

    def begin_noting(self) -> None:
        self.harness.begin_noting()

    def go_on(self) -> None:
        self.harness.go_on()

    def finish_checkpoint(self) -> None:
        self.harness.finish_checkpoint()

    def close(self) -> None:
        self.settle()
        self.harness.close()

    def reopen(self, disk: Disk | None = None, *, boot_id: str = "") -> None:
        """The process is killed, or has ended, and the next one starts."""
        self.harness = self.harness.reopen(disk, boot_id=boot_id)
        assert not self.harness.loaded.problems, self.harness.loaded.problems
        self._begin_session()

    # -- answers

    def _see_written(self) -> None:
        """What was just written is visible; before the answers of the same commit are handed out."""
        if not self._committing:
            return
        self._committing = False
        self.views = self.ledger.note_memory(self.harness.shard.registry)
        self.ledger.note_visible(self.views)
        for asked in self._asked.values():
            if asked.view is None and asked.command.answer is not None and asked.topic_id is not None:
                asked.view = self.views.get(asked.topic_id)
        self._journal.ack("visible")

    def _answered(self, command: Command) -> None:
        self._see_written()
        asked = self._asked.pop(command.id)
        status, body = reply_of(command)
        assert status in (200, 201), f"{command.op.name} of {command.topic} was refused: {body}"
        assert command.answer is not None
        synced = command.answer.synced
        topic_id = asked.topic_id
        if topic_id is None:  # a drop of what was not there
            assert body["deleted"] is False
        elif command.op == Op.DELETE_TOPIC:
            self.ledger.ack_drop(topic_id)
        elif command.op == Op.WRITE:
            seqs = range(body["first_seq"], body["last_seq"] + 1)
            self.ledger.ack_write(topic_id, seqs, asked.view if synced else None)
        elif command.op == Op.PUT_TOPIC:
            config = json.dumps(body["config"], separators=(",", ":"))
            self.ledger.ack_config(topic_id, config, asked.view)
        elif command.op == Op.DELETE_RECORDS:
            self.ledger.ack_delete(topic_id, asked.deleted, synced=synced)
        self._journal.ack(command.op.name)
