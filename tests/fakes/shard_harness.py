"""Drives a `Shard` without sockets, threads or real time.

Kept here and nowhere else:
  * Commands of one topic run in order: while a topic waits for a sync, what is submitted to it waits too.
  * A command has been answered when it is in `answered`, and not before: a test may take that as the ack.
  * With a `DeferredSyncer` a sync happens when the test says so, and is noticed when the test says so,
    so that groups can be written before, between and after the two.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from shards.background import InlineBackground
from shards.checkpoint import CheckpointOptions
from shards.command import Command
from shards.disk import Disk, Fd
from shards.keeper import Keeper
from shards.load import load
from shards.shard import Shard
from shards.wal.sync import Before, InlineSyncer, SyncDone, run_sync
from shards.wal.writer import WalOptions
from tests.fakes.sim_disk import SimDisk
from topics.engine.limits import Limits
from topics.protocol.messages import Op

KIB = 1024
# Checkpoints come when a test wants them.
CHECKPOINTS = CheckpointOptions(log_bytes=1 << 60, age_ms=1 << 40, segment_events=6, segment_bytes=4096)
DEFAULT_OPTIONS = WalOptions(file_bytes=1024 * KIB, step_bytes=64 * KIB)
# A command that still waits after this many syncs waits for something that never comes.
ROUNDS_MAX = 50


class FakeClock:
    """Time that stands still, except for a microsecond at each look at the monotonic clock."""

    def __init__(self, *, wall_ms: int = 1_700_000_000_000, boot_id: str = "boot-1") -> None:
        self.wall_ms = wall_ms
        self.elapsed_ns = 1_000_000
        self.boot = boot_id

    def advance(self, ms: int) -> None:
        self.wall_ms += ms
        self.elapsed_ns += ms * 1_000_000

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ns(self) -> int:
        self.elapsed_ns += 1_000
        return self.elapsed_ns

    def boot_id(self) -> str:
        return self.boot


class DeferredSyncer:
    """Takes a sync and does it at `finish`; the shard learns of it at its next `sync_done`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._job: tuple[int, list[Fd], Before | None] | None = None
        self._done: SyncDone | None = None

    @property
    def busy(self) -> bool:
        return self._job is not None or self._done is not None

    def start(self, batch: int, targets: list[Fd], before: Before | None = None) -> None:
        assert not self.busy, "one sync at a time"
        self._job = (batch, targets, before)

    def finish(self) -> None:
        """Sync now what was asked for, if anything was."""
        if self._job is not None:
            job, self._job = self._job, None
            self._done = run_sync(self._disk, *job)

    def take_done(self) -> SyncDone | None:
        done, self._done = self._done, None
        return done


class Reply(NamedTuple):
    status: int
    body: dict[str, Any]


def reply_of(command: Command) -> Reply:
    assert command.answer is not None, f"{command.op.name} of {command.topic!r} has no answer yet"
    return Reply(command.answer.status, json.loads(b"".join(command.answer.parts)))


class ShardHarness:
    """One session of a shard on any disk."""

    def __init__(
        self,
        disk: Disk,
        clock: FakeClock | None = None,
        *,
        options: WalOptions = DEFAULT_OPTIONS,
        limits: Limits | None = None,
        deferred: bool = False,
        sync_interval_ms: int = 50,
        read_only_because: str = "",
        on_answer: Callable[[Command], None] = lambda command: None,
        on_execute: Callable[[Command], None] = lambda command: None,
    ) -> None:
        self.disk = disk
        self.clock = clock or FakeClock()
        self.options, self.limits, self.deferred = options, limits or Limits(), deferred
        self.sync_interval_ms, self.on_answer, self.on_execute = sync_interval_ms, on_answer, on_execute
        self.syncer: InlineSyncer | DeferredSyncer = DeferredSyncer(disk) if deferred else InlineSyncer(disk)
        self.loaded, self.wal = load(disk, options, self.clock, read_only_because=read_only_because)
        self.keeper: Keeper | None = None
        if self.wal is not None:
            background = InlineBackground()
            self.keeper = Keeper(disk, self.loaded, self.wal, background, self.clock, CHECKPOINTS)
        self.shard = Shard(
            self.loaded, self.wal, self.syncer, self.clock, self.limits, sync_interval_ms=sync_interval_ms,
            keeper=self.keeper,
        )  # fmt: skip
        self.answered: list[Command] = []
        self._held: dict[str, deque[Command]] = {}
        self._taken: dict[int, Command] = {}
        self._again: list[Command] = []  # to be run again, with the next group
        self._next_id = 1

    # -- commands

    def command(self, op: Op, topic: str, body: object = None, **params: object) -> Command:
        self._next_id += 1
        given = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
        return Command(None, self._next_id, op, topic, params, given, self.clock.monotonic_ns())

    def submit(self, op: Op, topic: str, body: object = None, **params: object) -> Command:
        """Run a command in the group that is forming; it waits if its topic does."""
        return self.submit_command(self.command(op, topic, body, **params))

    def submit_command(self, command: Command) -> Command:
        self._taken[command.id] = command
        if command.topic in self._held:
            self._held[command.topic].append(command)
        else:
            self._execute([command])
        return command

    def do(self, op: Op, topic: str, body: object = None, **params: object) -> Reply:
        """Run a command to its answer, with every commit and sync that it takes."""
        command = self.submit(op, topic, body, **params)
        self.settle()
        return reply_of(command)

    def write(self, topic: str, *data: object, **fields: object) -> Reply:
        """Write one record for each of `data`."""
        return self.do(Op.WRITE, topic, {"records": [{"data": value} for value in data], **fields})

    def read(self, topic: str, from_seq: int = 0, **fields: object) -> dict[str, Any]:
        """One diff, which must succeed."""
        reply = self.do(Op.DIFF, topic, {"from_seq": from_seq, **fields})
        assert reply.status == 200, reply
        return reply.body

    # -- steps

    def commit(self) -> None:
        again, self._again = self._again, []
        for command in again:
            self._execute([command])
        self.shard.commit()
        self._take_ready()

    def finish_sync(self) -> None:
        """Let the sync under way happen; the shard does not know yet."""
        if isinstance(self.syncer, DeferredSyncer):
            self.syncer.finish()

    def sync_done(self) -> None:
        self.shard.sync_done()
        self._take_ready()

    def settle(self) -> None:
        """Commit and sync until every command has its answer."""
        for _ in range(ROUNDS_MAX):
            self.commit()
            self.finish_sync()
            self.sync_done()
            # A long-poll may stay without an answer; everything else must get one.
            unanswered = [command for command in self._taken.values() if not command.deadline_ns]
            if self.shard.must_reload or not (unanswered or self.syncer.busy):
                return
        raise AssertionError(f"commands wait for ever, of topics {list(self._held)}")

    def tick(self, ms: int = 0) -> None:
        """Let time pass and the shard notice it."""
        self.clock.advance(ms)
        self.shard.tick()
        self._take_ready()

    def start_checkpoint(self) -> None:
        assert self.keeper is not None
        self.keeper.start(self.clock.now_ms())

    def go_on(self) -> None:
        """Let the shard take up what was done beside it, and do a slice of a checkpoint under way."""
        self.shard.background_done()
        self._take_ready()

    def checkpoint(self) -> None:
        """A whole checkpoint, with the syncs that it waits for."""
        self.start_checkpoint()
        self.finish_checkpoint()

    def finish_checkpoint(self) -> None:
        assert self.keeper is not None
        for _ in range(ROUNDS_MAX):
            self.go_on()
            if not self.keeper.under_way:
                return
            self.tick(self.sync_interval_ms)
            self.finish_sync()
            self.sync_done()
        raise AssertionError("a checkpoint without end")

    def _execute(self, commands: Iterable[Command]) -> None:
        waiting = deque(commands)
        while waiting:
            command = waiting[0]
            must_wait = not self.shard.execute(command)
            self.on_execute(command)  # it may have created its topic before it had to wait
            if must_wait:
                self._held[command.topic] = waiting
                return
            waiting.popleft()

    def _take_ready(self) -> None:
        while self.shard.fetching:
            self.shard.background_done()
        ready = self.shard.take_ready()
        for command in ready.commands:
            self.answered.append(command)
            self._taken.pop(command.id, None)
            self.on_answer(command)
        self._again += ready.again
        for name in ready.topics:
            self._execute(self._held.pop(name, ()))

    # -- ends

    def close(self) -> None:
        """End the session in order."""
        self.settle()
        self.shard.close()
        self._take_ready()

    def reopen(
        self, disk: Disk | None = None, *, boot_id: str = "", read_only_because: str = ""
    ) -> "ShardHarness":
        """The next session on the same disk, or on what a crash has left of it."""
        if boot_id:
            self.clock.boot = boot_id
        return ShardHarness(
            disk if disk is not None else self.disk,
            self.clock,
            options=self.options,
            limits=self.limits,
            deferred=self.deferred,
            sync_interval_ms=self.sync_interval_ms,
            read_only_because=read_only_because,
            on_answer=self.on_answer,
            on_execute=self.on_execute,
        )

    def crash(self) -> "ShardHarness":
        """Kill the process: the next session on what it has left."""
        assert isinstance(self.disk, SimDisk), "only a simulated disk can be left behind"
        return self.reopen(self.disk.process_crash())
