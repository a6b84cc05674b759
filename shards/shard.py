"""A shard without its sockets: state, log and syncer, driven step by step.

    execute(command) …   run commands against memory, collect their frames
    commit()             one write for the group; answers that need no sync may leave
    sync_done()          a sync has ended: gated answers leave, waiting topics go on
    tick()               expiry, clean ceilings, the periodic sync

Synchronous, so that a simulation can crash it at every disk operation. The actor around it owns
sockets, queues and waiting.

  * Memory is ahead of the log only inside one group. If its write fails, memory is worthless: every
    answer of the group becomes a refusal and the shard must be loaded anew (`must_reload`).
  * A gated answer leaves only after a sync that was started after its group was written.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from shards import answers
from shards.allowance import Allowances, NeedsQuota
from shards.background import Background, InlineBackground
from shards.clock import Clock
from shards.command import Answer, Command
from shards.commands import Context, Continues, NeedsRoom, NeedsSearch, NeedsSync, Waits, handle
from shards.fetching import Fetcher
from shards.keeper import Keeper
from shards.load import Loaded
from shards.metrics import FSYNC_BUCKETS_US, topic_rows, totals
from shards.state import TopicState
from shards.store.segments import PageLost
from shards.streak import run_in_a_row
from shards.upkeep import Upkeep
from shards.waiting import LongPolls
from shards.wal import frame as frames
from shards.wal.sync import Syncer
from shards.wal.writer import WalFailed, WalWriter
from topics.engine.limits import Limits
from topics.engine.sealed import Cold
from topics.errors import Internal, NotReady, TopicsError
from topics.histogram import Histogram

log = logging.getLogger("shard")


@dataclass(slots=True)
class Group:
    """Answers whose frames are written and wait for one sync."""

    batch: int
    written_ns: int
    append_ns: int
    commands: list[Command]
    topics: list[str]  # names whose next command waits for this sync
    ceilings: list[tuple[TopicState, int]]


@dataclass(slots=True)
class Ready:
    """What may leave and what may go on after a step."""

    commands: list[Command] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    again: list[Command] = field(default_factory=list)


class Shard:
    def __init__(
        self, loaded: Loaded, wal: WalWriter | None, syncer: Syncer, clock: Clock, limits: Limits, *,
        sync_interval_ms: int, allowed: Allowances | None = None, readers: Background | None = None,
        keeper: Keeper | None = None,
    ) -> None:  # fmt: skip
        self._wal = wal
        self._syncer = syncer
        self._clock = clock
        self._sync_interval_ns = sync_interval_ms * 1_000_000
        self.registry = loaded.registry
        self.read_only_reason = "; ".join(loaded.problems)
        self._fsync_us = Histogram(FSYNC_BUCKETS_US)
        self.must_reload = False
        self.ready = Ready()
        self._context = Context(self.registry, limits, writable=wal is not None and not loaded.problems)
        self._context.now_ms = loaded.time_ms
        self._context.allowed = self._allowed = allowed or Allowances()
        self._executed: list[Command] = []
        self._parked: list[str] = []
        self._groups: list[Group] = []
        self.polls = LongPolls()
        self._dirty_since_ns = 0
        self._context.restless.update(self.registry)
        self._read_clock()
        self._start_group()
        self._readers = readers or InlineBackground()
        self._fetcher = Fetcher(loaded, self._readers, self._again, self._refused)
        self._upkeep = Upkeep(self._context, self._fetcher, clock.monotonic_ns())
        self._keeper = keeper
        self._attach_allowances()

    # -- commands

    def execute(self, command: Command) -> bool:
        """Run one command; False if its topic must wait and the command be given again later."""
        context = self._context
        self._read_clock()
        try:
            command.answer = handle(context, command)
        except TopicsError as error:
            self._allowed.forget(command)
            command.answer = Answer.of_error(error)
        except NeedsQuota as need:
            need.allowance.wait(command, need.amount)
            return False
        except NeedsSync:
            self._parked.append(command.topic)
            return False
        except NeedsRoom as need:
            return self._make_room(command, need.length)
        except Waits:
            self.polls.add(command)
            return True
        except Cold as cold:
            self._fetcher.fetch(cold.page, command)
            return True
        except NeedsSearch as need:
            self._fetcher.search(need.pages, need.match, command)
            return True
        except PageLost as lost:
            self._fetcher.take_out(lost)
            return self.execute(command)
        except Continues:
            self.ready.again.append(command)
            return True
        except Exception as error:
            self._fail_commands([command], error)
            return True
        self._executed.append(command)
        return True

    def execute_row(self, name: str, commands: Sequence[Command]) -> int:
        """Run ordinary writes of one topic at once, from the first command on; how many were run."""
        self._read_clock()
        now_ns = self._context.now_ns
        for command in commands:
            command.waited_ns = now_ns - command.taken_ns
        try:
            row = run_in_a_row(self._context, name, commands)
        except PageLost:
            # The first of them meets it again, and is not alone with it then.
            return 0
        except Exception as error:
            self._fail_commands(commands, error)
            return len(commands)
        self._executed += row
        return len(row)

    def _fail_commands(self, commands: Sequence[Command], error: Exception) -> None:
        """Memory may be half changed. The log is not, so the shard goes back to what it says."""
        log.exception("command.failed", extra={"op": commands[0].op.name, "topic": commands[0].topic})
        for command in commands:
            command.answer = Answer.of_error(Internal("an internal error; it has been logged"))
            self._finish(command, self._context.now_ns)
        self._fail_group(WalFailed(f"an internal error: {type(error).__name__}", final=False))

    def _again(self, commands: list[Command]) -> None:
        self.ready.again += commands

    def _refused(self, commands: list[Command]) -> None:
        for command in commands:
            self._finish(command, self._context.now_ns)

    def background_done(self) -> None:
        """Take up what threads have finished."""
        self._readers.take_done()
        if not self._context.frames:
            self._step_keeper()

    def _step_keeper(self) -> None:
        """A checkpoint that meets something unexpected ends; the shard goes on."""
        if self._keeper is None or not self._keeper.under_way:
            return
        try:
            self._keeper.step()
        except PageLost as lost:
            self._keeper.abandon(lost)
            self._fetcher.take_out(lost)
        except Exception as error:
            log.exception("checkpoint.broken")
            self._keeper.abandon(error)

    def take_waiting(self) -> list[Command]:
        """Long-polls and commands that wait for a page; this shard ends."""
        return [*self.polls.take_where(lambda _: True), *self._fetcher.take_all()]

    @property
    def fetching(self) -> bool:
        """Whether a command waits for a page."""
        return len(self._fetcher) > 0

    def _make_room(self, command: Command, length: int) -> bool:
        assert self._wal is not None
        try:
            self._wal.reserve(length)
        except WalFailed as failed:
            if failed.final:
                self._executed.append(command)
                self._fail_group(failed)
                return True
            error = NotReady(
                f"the disk has no room for this write: {failed}",
                retry_after_s=5,
                detail={"reason": "no_space", "outcome": "not_applied"},
            )
            self._allowed.forget(command)
            command.answer = Answer.of_error(error)
            self._executed.append(command)
            return True
        self._context.room_bytes = self._wal.room_bytes
        return self.execute(command)

    # -- the group

    def commit(self) -> None:
        """Write what the group logged, in one write; let go of what needs no sync."""
        context = self._context
        if self.must_reload:
            return
        self._wake_waiters()
        written_ns = self._clock.monotonic_ns()
        append_ns = 0
        wrote = bool(context.frames)
        if wrote:
            assert self._wal is not None
            try:
                self._wal.append(context.frames, now_ms=context.now_ms)
            except WalFailed as failed:
                self._fail_group(failed)
                return
            after_ns = self._clock.monotonic_ns()
            append_ns, written_ns = after_ns - written_ns, after_ns
            self._dirty_since_ns = self._dirty_since_ns or written_ns
        self._settle_group(wrote, written_ns, append_ns)
        self._start_group()
        self._maybe_sync(written_ns)
        self._step_keeper()

    def _settle_group(self, wrote: bool, written_ns: int, append_ns: int) -> None:
        batch = self._wal.batch if self._wal is not None else 0
        durable = self._wal.durable if self._wal is not None else 0
        gated = []
        logged, now_ns = answers.log_cost(append_ns), self._clock.monotonic_ns()
        for command in self._executed:
            assert command.answer is not None
            if command.answer.synced and batch > durable:
                gated.append(command)
            else:
                self._finish(command, now_ns, logged)
        if gated or self._parked or self._context.raised:
            group = Group(batch, written_ns, append_ns, gated, self._parked, self._context.raised)
            if batch > durable:
                self._groups.append(group)
            else:
                self._release(group, written_ns)

    def _start_group(self) -> None:
        context = self._context
        self._executed, self._parked = [], []
        context.frames, context.frame_bytes, context.raised, context.appended = [], 0, [], set()
        context.room_bytes = self._wal.room_bytes if self._wal is not None else 0

    def _read_clock(self) -> None:
        """Wall time never goes back here, whatever the clock does: what has expired stays expired."""
        context = self._context
        context.now_ms = max(context.now_ms, self._clock.now_ms())
        context.now_ns = self._clock.monotonic_ns()

    def _fail_group(self, failed: WalFailed) -> None:
        self.must_reload = True
        self._context.writable = False
        self._allowed.detach()
        self.read_only_reason = str(failed) if failed.final else ""
        # What this group logged is abandoned; what earlier groups logged is in the log and may survive.
        outcome = "unknown" if failed.final else "not_applied"
        refused = [(command, outcome) for command in self._executed]
        refused += [(command, "unknown") for group in self._groups for command in group.commands]
        for command, outcome in refused:
            error = NotReady(str(failed), detail={"reason": "log_failed", "outcome": outcome})
            command.answer = Answer.of_error(error)
            self._finish(command, self._context.now_ns)
        for group in self._groups:
            self.ready.topics += group.topics
        self.ready.topics += self._parked
        self._groups.clear()
        self._executed, self._parked = [], []

    def _finish(self, command: Command, now_ns: int, logged: bytes = answers.NO_LOG_COST) -> None:
        answer = command.answer
        assert answer is not None
        if not answer.raw:
            total_ns = max(0, now_ns - command.arrived_ns)
            block = answers.performance(answer, total_ns=total_ns, waited_ns=command.waited_ns, logged=logged)
            answer.parts.append(block)
        self.ready.commands.append(command)

    # -- syncing

    def _maybe_sync(self, now_ns: int) -> None:
        if self._wal is None or self._syncer.busy or self._wal.failure is not None:
            return
        due = self._dirty_since_ns and now_ns - self._dirty_since_ns >= self._sync_interval_ns
        if due or self.pending:
            self._dirty_since_ns = 0
            preparation = self._wal.preparation()
            before = preparation.run if preparation is not None else None
            self._syncer.start(self._wal.batch, self._wal.sync_targets(), before)

    def sync_done(self) -> None:
        """Take the result of a sync that has ended, if one has."""
        done = self._syncer.take_done()
        if done is None or self._wal is None:
            return
        self._fsync_us.add((done.ended_ns - done.started_ns) // 1000)
        if done.error is not None:
            self._fail_group(self._wal.sync_failed(done.error))
            return
        self._wal.synced(done.batch)
        if (failed := self._wal.prepared()) is not None:
            self._fail_group(failed)
            return
        while self._groups and self._groups[0].batch <= done.batch:
            self._release(self._groups.pop(0), done.ended_ns)
        self._maybe_sync(self._clock.monotonic_ns())

    def _release(self, group: Group, ended_ns: int) -> None:
        for topic, ceiling in group.ceilings:
            # A ceiling that was replaced meanwhile says nothing any more.
            if topic.ceiling == ceiling:
                topic.durable_ceiling = ceiling
        logged = answers.log_cost(group.append_ns, max(0, ended_ns - group.written_ns))
        for command in group.commands:
            self._finish(command, self._clock.monotonic_ns(), logged)
        self.ready.topics += group.topics

    # -- looking inside

    def metrics(self, prefixes: list[str]) -> dict[str, object]:
        """Everything this shard counts; per-topic rows for names under `prefixes`."""
        self._read_clock()
        wal, syncs = self._wal, self._fsync_us
        for topic in self.registry:
            self._upkeep.expire(topic)
        rows, truncated = topic_rows(self.registry, prefixes)
        return totals(self.registry) | {
            "wal_frames": wal.frames if wal is not None else 0,
            "wal_batches": wal.batches if wal is not None else 0,
            "wal_bytes_written": wal.bytes_written if wal is not None else 0,
            "wal_rotations": wal.rotations if wal is not None else 0,
            "wal_bytes_on_disk": wal.bytes_on_disk if wal is not None else 0,
            "wal_read_only": not self._context.writable,
            "fsync_us": [list(syncs.bounds), syncs.counts, syncs.total],
            "rows": rows,
            "rows_truncated": truncated,
            **(self._keeper.figures() if self._keeper is not None else {}),
        }

    # -- long-polls

    def _wake_waiters(self) -> None:
        """Run the long-polls again whose topics have changed in this group."""
        appended, self._context.appended = self._context.appended, set()
        for name in appended:
            for command in self.polls.take(name):
                self.execute(command)

    def expire_waiters(self) -> None:
        """Answer the long-polls whose time is over."""
        for command in self.polls.take_expired(self._clock.monotonic_ns()):
            self.execute(command)

    def answer_waiters(self, origin: object) -> None:
        """Answer every long-poll of one peer now, with what there is."""
        for command in self.polls.take_where(lambda command: command.origin is origin):
            command.deadline_ns = self._clock.monotonic_ns()
            self.execute(command)

    def forget(self, command: Command) -> None:
        """Nobody waits for this answer any more."""
        self.polls.forget(command)
        self._allowed.forget(command)
        self._fetcher.forget(command)

    # -- caps over all shards

    def _attach_allowances(self) -> None:
        if self._allowed.topics is not None:
            self._allowed.topics.attach(self.registry.__len__, lambda: None)
        if self._allowed.bytes is not None:
            meter = self.registry.meter
            assert meter is not None, "bytes are to be bounded and nobody counts them"
            self._allowed.bytes.attach(lambda: meter.bytes, self._reclaim)

    def _reclaim(self) -> None:
        self._read_clock()
        self._upkeep.reclaim()

    # -- time and end

    @property
    def pending(self) -> bool:
        """Whether an answer or a topic waits for a sync."""
        return any(group.commands or group.topics for group in self._groups)

    def take_ready(self) -> Ready:
        ready, self.ready = self.ready, Ready()
        return ready

    def next_due_ns(self) -> int | None:
        """When time alone has something to do next; None while everything is at rest."""
        deadline_ns = self.polls.next_deadline_ns
        due = [] if deadline_ns is None else [deadline_ns]
        if self._dirty_since_ns and not self._syncer.busy:
            due.append(self._dirty_since_ns + self._sync_interval_ns)
        if (swept_ns := self._upkeep.next_due_ns()) is not None:
            due.append(swept_ns)
        if self._keeper is not None and (kept_ns := self._keeper.next_due_ns()) is not None:
            due.append(kept_ns)
        return min(due, default=None)

    def tick(self) -> None:
        """What time alone brings: expiry with its floors, clean topics, the periodic sync."""
        context = self._context
        self._read_clock()
        self._upkeep.sweep()
        self.commit()
        if self._keeper is not None and not self._keeper.under_way and not self.must_reload:
            due_ns = self._keeper.next_due_ns()
            if due_ns is not None and due_ns <= context.now_ns:
                self._keeper.start(context.now_ms)

    def close(self) -> None:
        """End the session in order: exact heads, everything synced, the end marked.

        The caller sees to it that no sync is under way.
        """
        if self._wal is None or self._wal.failure is not None or not self._context.writable:
            return
        for topic in self.registry:
            if not topic.clean:
                self._context.log(topic.make_clean())
        try:
            # Everything before the end is durable, and the batch that marks the end says so.
            if self._context.frames:
                self._wal.append(self._context.frames, now_ms=self._context.now_ms)
            self._wal.sync_now()
            self._wal.append([frames.close_frame()], now_ms=self._context.now_ms)
            self._wal.sync_now()
            self._wal.close()
        except (WalFailed, OSError) as error:
            log.error("log.not_closed", extra={"reason": str(error)})
            self._wal.abandon()
