"""The actor loop of a shard: one task that owns all its state, in sweeps.

A sweep takes what has arrived on every link, runs commands by priority within its budget, writes
their frames with one write, and sends what is ready with one send per link. Nothing here blocks:
syncs run in their own thread and come back through an eventfd.
"""

import logging
import os
import select
import socket
from itertools import islice
from typing import TYPE_CHECKING

import cbor2
import trio

from shards.admission import Status, pressure
from shards.answers import performance
from shards.clock import Clock
from shards.command import Answer, Command
from shards.link import OUTGOING_BYTES_MAX, Link, Upload
from shards.mailbox import TURN_COMMANDS, Mailbox
from shards.shard import Shard
from shards.wal.sync import ThreadSyncer
from topics.engine.priority import effective_priority, waiting_bonus
from topics.errors import NotReady, PayloadTooLarge
from topics.protocol.codec import decode_params, encode
from topics.protocol.messages import (
    PROTOCOL_VERSION,
    BodyOpen,
    Cancel,
    Credit,
    Drain,
    Hello,
    Message,
    Op,
    Part,
    ProtocolError,
    Request,
)
from topics.protocol.peer import peer_uid, widen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shards.background import ThreadBackground

log = logging.getLogger("shard")

# A sweep stops running commands after this long, so that fresh arrivals get their turn by priority.
SWEEP_NS = 2_000_000
RECEIVES_PER_SWEEP = 16
# Looking again costs far less than falling asleep and being woken.
SWEEPS_PER_TURN = 4
# Beyond this the shard stops reading its links; peers feel it as backpressure.
MAILBOX_COMMANDS_MAX = 20_000
MAILBOX_BYTES_MAX = 256 * 1024 * 1024


class Actor:
    def __init__(
        self, listener: socket.socket, syncer: ThreadSyncer, clock: Clock, *, index: int, epoch: int,
        body_bytes_max: int, backgrounds: "Sequence[ThreadBackground]" = (),
    ) -> None:  # fmt: skip
        self.status = Status()
        self.shard: Shard | None = None
        self.on_must_reload: Callable[[], None] = lambda: None
        # The answer, or None if it comes later by `answer_quota`.
        self.on_quota: Callable[[Command], Answer | None] = lambda _: Answer.of_error(NotReady("no quota"))
        self.mailbox = Mailbox()
        self._listener = listener
        self._syncer = syncer
        self._clock = clock
        self._index, self._epoch = index, epoch
        self._body_bytes_max = body_bytes_max
        self._links: dict[int, Link] = {}
        self._timer = trio.CancelScope()
        self._due_ns: int | None = None
        self._stepped = trio.lowlevel.ParkingLot()
        self._router_epoch = 0  # no link of the router yet
        self._busy_ns = 0
        self._depth_peak = 0
        self._pauses = 0
        self._full = False
        self._epoll = select.epoll()
        self._epoll.register(listener.fileno(), select.EPOLLIN)
        self._epoll.register(syncer.event_fd, select.EPOLLIN)
        self._backgrounds = {background.event_fd: background for background in backgrounds}
        for event_fd in self._backgrounds:
            self._epoll.register(event_fd, select.EPOLLIN)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)

    # -- the loop

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run_timer)
                while True:
                    if not self.mailbox.runnable or self.shard is None:
                        await trio.lowlevel.wait_readable(self._epoll.fileno())
                    else:
                        await trio.lowlevel.checkpoint()
                    for _ in range(SWEEPS_PER_TURN):
                        if not self._sweep():
                            break
        finally:
            for link in self._links.values():
                link.sock.close()
            self._epoll.close()
            os.close(self._wake_fd)

    async def _run_timer(self) -> None:
        """Wake up exactly when time has something to bring: a deadline, a sync, an expiry."""
        while True:
            with trio.CancelScope(deadline=self._due()) as self._timer:
                await trio.sleep_forever()
            if self.shard is not None:
                self.shard.expire_waiters()
                self.shard.tick()
                self._after_step()

    def _due(self) -> float:
        if self._due_ns is None:
            return float("inf")
        return trio.current_time() + max(0, self._due_ns - self._clock.monotonic_ns()) / 1e9

    def _set_timer(self) -> None:
        """Moving a deadline costs more than asking whether it has moved."""
        due_ns = self.shard.next_due_ns() if self.shard is not None else None
        if due_ns != self._due_ns:
            self._due_ns = due_ns
            self._timer.deadline = self._due()

    def _sweep(self) -> bool:
        """Serve what is ready; whether anything was."""
        started_ns = self._clock.monotonic_ns()
        events = self._epoll.poll(0)
        if not events and not self.mailbox.runnable:
            return False
        for fd, event in events:
            if fd == self._listener.fileno():
                self._accept()
            elif fd == self._syncer.event_fd:
                if self.shard is not None:
                    self.shard.sync_done()
                else:
                    self._syncer.take_done()
            elif fd == self._wake_fd:
                os.eventfd_read(self._wake_fd)
            elif (background := self._backgrounds.get(fd)) is not None:
                background.take_done()
                if self.shard is not None:
                    self.shard.background_done()
            elif (link := self._links.get(fd)) is not None:
                self._serve_link(link, event)
        self._depth_peak = max(self._depth_peak, self.mailbox.commands)
        if self.shard is not None:
            self._run_commands(self.shard)
            self.shard.commit()
        self._after_step()
        self._busy_ns += self._clock.monotonic_ns() - started_ns
        return True

    def _run_commands(self, shard: Shard) -> None:
        clock = self._clock.monotonic_ns
        end_ns = clock() + SWEEP_NS
        ran = 0
        now_ms = self._clock.now_ms()

        def priority(name: str, first: Command) -> float:
            topic = shard.registry.find(name)
            waited_ms = (end_ns - SWEEP_NS - first.taken_ns) / 1e6
            if topic is None:
                return waiting_bonus(waited_ms)
            return effective_priority(
                topic.log.config, last_read_ms=topic.log.last_read_ts, now_ms=now_ms, waited_ms=waited_ms
            )

        for name, queue in self.mailbox.turns(priority):
            turn = min(len(queue), TURN_COMMANDS)
            if turn > 1:
                run = shard.execute_row(name, list(islice(queue, turn)))
                self.mailbox.take(name, run)
                turn -= run
                ran += run
            for _ in range(turn):
                command = queue[0]
                now_ns = clock()
                # However long a look at the queue has taken, something is run.
                if now_ns > end_ns and ran:
                    return
                ran += 1
                command.waited_ns = now_ns - command.taken_ns
                if not command.cancelled and not shard.execute(command):
                    self.mailbox.hold(name)
                    break
                self.mailbox.take(name)
            if shard.must_reload:
                return

    def _after_step(self) -> None:
        """Hand out what a step made ready."""
        shard = self.shard
        if shard is not None:
            ready = shard.take_ready()
            for name in ready.topics:
                self.mailbox.let_go(name)
            for command in ready.again:
                self.mailbox.put(command)
            for command in ready.commands:
                self._reply(command)
            if shard.must_reload:
                self.let_go_of_shard()
                self.on_must_reload()
        for link in list(self._links.values()):
            if link.blocked and not link.interest & select.EPOLLOUT and not link.flush():
                self._drop(link, "the peer is gone")
            else:
                self._arm(link)
        self._set_timer()
        self._stepped.unpark_all()

    def let_go_of_shard(self) -> None:
        """Whoever waits in the shard waits for the next one."""
        shard, self.shard = self.shard, None
        if shard is not None:
            self.mailbox.let_go_all()
            for command in shard.take_waiting():
                self.mailbox.put(command)

    # -- links

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        if peer_uid(sock) != os.getuid():
            log.warning("link.foreign_user", extra={"shard": self._index})
            sock.close()
            return
        sock.setblocking(False)
        widen(sock)
        link = Link(sock)
        self._links[link.fd] = link
        link.interest = select.EPOLLIN
        self._epoll.register(link.fd, link.interest)
        link.push(encode(Hello(PROTOCOL_VERSION, "shard", self._index, self._epoch)))

    def _arm(self, link: Link) -> None:
        """Listen for what the link needs now: something to read, unless too much waits; room to write."""
        mailbox = self.mailbox
        full = mailbox.commands > MAILBOX_COMMANDS_MAX or mailbox.bytes > MAILBOX_BYTES_MAX
        self._pauses += full and not self._full
        self._full = full
        interest = select.EPOLLOUT if link.blocked else 0
        if not full and link.out_bytes < OUTGOING_BYTES_MAX:
            interest |= select.EPOLLIN
        if interest != link.interest:
            link.interest = interest
            self._epoll.modify(link.fd, interest)

    def _serve_link(self, link: Link, event: int) -> None:
        if event & select.EPOLLOUT and not link.flush():
            self._drop(link, "the peer is gone")
            return
        if not event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return
        try:
            # All that is there: what is urgent may stand behind what is not.
            for _ in range(RECEIVES_PER_SWEEP):
                received = link.receive()
                if received is None:
                    self._drop(link, "the peer is gone")
                    return
                for message in received.messages:
                    self._take(link, message)
                if received.all:
                    return
        except ProtocolError as error:
            self._drop(link, error.reason)

    def _drop(self, link: Link, reason: str) -> None:
        log.info("link.closed", extra={"shard": self._index, "peer": link.role, "reason": reason})
        self._links.pop(link.fd, None)
        self._epoll.unregister(link.fd)
        link.sock.close()
        for command in link.commands.values():
            command.cancelled = True
            if self.shard is not None:
                self.shard.forget(command)

    def _take(self, link: Link, message: Message) -> None:
        if isinstance(message, Request) and link.greeted:
            self._request(link, message, message.body)
        elif not link.greeted:
            if not isinstance(message, Hello):
                raise ProtocolError("the first message is not a hello")
            link.greeted, link.role = True, message.role
            if message.role == "router":
                self._router_epoch = message.epoch
        elif isinstance(message, BodyOpen):
            self._open_body(link, message)
        elif isinstance(message, Part):
            upload = link.add_part(message)
            if upload is not None:
                self._request(link, upload.opened, upload.body())
        elif isinstance(message, Credit):
            link.credit(message)
        elif isinstance(message, Cancel):
            self._cancel(link, message)
        elif isinstance(message, Drain):
            if self.shard is not None:
                self.shard.answer_waiters(link)
        else:
            raise ProtocolError(f"a shard does not take {type(message).__name__}")

    def _open_body(self, link: Link, opened: BodyOpen) -> None:
        if link.upload is not None:
            raise ProtocolError("a second body before the first was complete")
        if opened.length > self._body_bytes_max:
            raise ProtocolError(str(PayloadTooLarge(self._body_bytes_max)))
        link.upload = Upload(opened)

    def _cancel(self, link: Link, cancel: Cancel) -> None:
        link.forget(cancel.id)
        if link.upload is not None and link.upload.opened.id == cancel.id:
            link.upload = None
        command = link.commands.pop(cancel.id, None)
        if command is not None:
            command.cancelled = True
            if self.shard is not None:
                self.shard.forget(command)

    # -- requests

    def _request(self, link: Link, head: Request | BodyOpen, body: bytes) -> None:
        command = Command(
            link, head.id, head.op, head.topic.decode("ascii", "replace"), decode_params(head.params), body,
            head.arrived_ns, size_bytes=len(body), taken_ns=self._clock.monotonic_ns(),
        )  # fmt: skip
        link.commands[head.id] = command
        if head.op == Op.STATUS:
            self._answer(command, Answer(200, [self._status()], raw=True))
        elif head.op == Op.METRICS:
            self._answer(command, Answer(200, [self._metrics(command)], raw=True))
        elif head.op in (Op.QUOTA_ASK, Op.QUOTA_STATE):
            if (answer := self.on_quota(command)) is not None:
                self._answer(command, answer)
        elif (refusal := self.status.refusal() or pressure(self.mailbox, command)) is not None:
            answer = Answer.of_error(refusal)
            total_ns = max(0, command.taken_ns - command.arrived_ns)
            answer.parts.append(performance(answer, total_ns=total_ns, waited_ns=0))
            self._answer(command, answer)
        else:
            self.mailbox.put(command)

    def _status(self) -> bytes:
        return cbor2.dumps(
            {
                "state": self.status.state,
                "progress": self.status.progress,
                "topics": len(self.shard.registry) if self.shard is not None else 0,
                "epoch": self._epoch,
                "detail": self.status.detail,
            }
        )

    def _metrics(self, command: Command) -> bytes:
        """Always an answer, also while the log is replayed: then it has only the shard's own state."""
        figures: dict[str, object] = {
            "state": self.status.state,
            "progress": self.status.progress,
            "epoch": self._epoch,
            "router_epoch": self._router_epoch,
            "queue_depth": self.mailbox.commands,
            "queue_depth_peak": self._depth_peak,
            "submit_full": self._pauses,
            "busy_ns": self._busy_ns,
        }
        if self.shard is not None:
            prefixes = command.params.get("prefixes", [""])
            figures |= self.shard.metrics([str(p) for p in prefixes] if isinstance(prefixes, list) else [""])
        return cbor2.dumps(figures)

    def _reply(self, command: Command) -> None:
        if not command.cancelled:
            assert command.answer is not None
            self._answer(command, command.answer)

    def _answer(self, command: Command, answer: Answer) -> None:
        link = command.origin
        assert isinstance(link, Link)
        link.commands.pop(command.id, None)
        if link.fd in self._links:
            link.answer(command.id, answer)

    # -- caps over all shards

    def answer_quota(self, command: Command, answer: Answer) -> None:
        self._answer(command, answer)
        self._after_step()

    def let_go(self, topics: list[str]) -> None:
        """These topics waited for quota and may go on."""
        for topic in topics:
            self.mailbox.let_go(topic)
        os.eventfd_write(self._wake_fd, 1)

    # -- the end

    async def drained(self) -> None:
        """Wait until every command taken has been answered; long-polls are answered as they are."""
        if self.shard is not None:
            for link in self._links.values():
                self.shard.answer_waiters(link)
            self.shard.commit()
            self._after_step()
        while self.mailbox or (self.shard is not None and (self.shard.pending or self.shard.fetching)):
            await self._stepped.park()

    async def threads_idle(self) -> None:
        """Wait until no sync and nothing else is under way beside the loop."""
        while self._syncer.busy or any(background.busy for background in self._backgrounds.values()):
            await self._stepped.park()
