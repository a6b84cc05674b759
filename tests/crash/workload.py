"""Load on a server that is being hurt: writers and followers on every class and every shard.

A writer knows of each write whether it was acked, refused as not applied, or of unknown outcome. A write
with an idempotency key is sent again with the same key until it is acked. A follower reads by diff with
long-polls and keeps its cursor over every failure, as a consumer would.
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from tests.crash.client import Address, Connection, Reply
from tests.crash.ledger import CLASSES, READ_LIMIT, Ledger, Reading, Verdict, read_all, topic_on
from tests.crash.processes import SHARDS, eventually

WRITERS_PER_TOPIC = 2
# Between two writes of one writer, so that a machine with two cores has time for the server too.
PACE_S = 0.02
# Before a failed request is tried again. Servers ask for more, but here the outage is the point.
RETRY_S = 0.02
POLL_MS = 1000
REQUEST_TIMEOUT_S = 20.0
FILLER = "x" * 64


@dataclass(frozen=True, slots=True)
class Failure:
    """A request without success: when, on which shard's topic, and how it was told."""

    at_s: float
    shard: int
    how: str  # "unknown" or "not_applied" as the server said, or the name of the connection's error


class Workload:
    """Starts with the block and ends with it; `address` may be changed when the server moves."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.ledgers = [
            Ledger(topic_on(shard, SHARDS, f"{durability}-{shard}"), durability, shard)
            for shard in range(SHARDS)
            for durability in CLASSES
        ]
        self.failures: list[Failure] = []
        self.retries_with_key = 0
        self._cursors = {ledger.name: 0 for ledger in self.ledgers}
        self._crashed: list[BaseException] = []
        self._stopping = threading.Event()
        self._following = threading.Event()
        self._writers = [
            threading.Thread(target=self._guarded, args=(self._write_on, ledger, f"{ledger.name}/{n}"))
            for ledger in self.ledgers
            for n in range(WRITERS_PER_TOPIC)
        ]
        self._followers = [
            threading.Thread(target=self._guarded, args=(self._follow, ledger)) for ledger in self.ledgers
        ]

    def __enter__(self) -> "Workload":
        with self.connect() as connection:
            for ledger in self.ledgers:
                config = {"durability": ledger.durability}
                reply = connection.ask("PUT", f"/v0/topics/{ledger.name}", config)
                assert reply.status in (200, 201), reply
        for thread in (*self._writers, *self._followers):
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_writing()
        self._following.set()
        for thread in self._followers:
            thread.join(REQUEST_TIMEOUT_S + 5)

    def stop_writing(self) -> None:
        self._stopping.set()
        for thread in self._writers:
            thread.join(REQUEST_TIMEOUT_S + 5)
            assert not thread.is_alive(), "a writer hangs"

    def connect(self) -> Connection:
        return Connection(self.address, timeout_s=REQUEST_TIMEOUT_S)

    # -- what can be asked of it

    def acked(self, shards: Iterable[int] = range(SHARDS)) -> dict[str, int]:
        """Records acked so far, by topic."""
        return {ledger.name: len(ledger.acked) for ledger in self.ledgers if ledger.shard in shards}

    def wait_flow(self, shards: Iterable[int] = range(SHARDS)) -> None:
        """Wait until every topic of `shards` has acked more than now."""
        before = self.acked(shards)

        def flows() -> bool:
            self.check_alive()
            now = self.acked(before_shards)
            return all(now[name] > count for name, count in before.items())

        before_shards = tuple(shards)
        eventually(f"acks on all of {sorted(before)}", flows)

    def check_alive(self) -> None:
        assert not self._crashed, self._crashed

    def wait_followed(self) -> None:
        """Wait until every follower is at its topic's head; writing must have stopped."""
        with self.connect() as connection:
            heads = {
                ledger.name: connection.ask("GET", f"/v0/topics/{ledger.name}?touch=false").body["head_seq"]
                for ledger in self.ledgers
            }
        eventually("followers at the heads", lambda: self._cursors == heads)

    def audit(self, died: Iterable[int]) -> dict[str, Verdict]:
        """Read every topic from 0 and judge it. `died`: the shards that were killed since the last audit."""
        self.check_alive()
        dead = set(died)
        verdicts = {}
        with self.connect() as connection:
            for ledger in self.ledgers:
                acked = ledger.acked_now()
                reading = read_all(connection, ledger.name)
                verdicts[ledger.name] = ledger.judge(acked, reading, shard_died=ledger.shard in dead)
        violations = [f"{ledger.name}: {text}" for ledger in self.ledgers for text in ledger.violations]
        assert not violations, "\n".join(violations[:20])
        for name, verdict in verdicts.items():
            assert not verdict.lost, f"{name} lost what was acked: {verdict.lost[:10]}"
            assert not verdict.duplicates, f"{name} has twice: {verdict.duplicates[:10]}"
        return verdicts

    def failures_between(self, since_s: float, until_s: float) -> list[Failure]:
        return [failure for failure in list(self.failures) if since_s <= failure.at_s <= until_s]

    def how_it_failed(self) -> Counter[str]:
        return Counter(failure.how for failure in self.failures)

    # -- writers and followers

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self._crashed.append(error)
            raise

    def _write_on(self, ledger: Ledger, writer: str) -> None:
        connection = self.connect()
        try:
            for n in itertools.count():
                records = 1 if n % 2 else 5
                payloads = [f"{writer}/{n}/{i}/{FILLER}" for i in range(records)]
                key = f"{writer}/{n}" if n % 4 >= 2 else None
                connection = self._write(connection, ledger, payloads, key, short=n % 8 == 0)
                if self._stopping.wait(PACE_S):
                    return
        finally:
            connection.close()

    def _write(
        self, connection: Connection, ledger: Ledger, payloads: Sequence[str], key: str | None, *, short: bool
    ) -> Connection:
        """One write, with a key until it is acked. The connection to go on with."""
        body: dict[str, object] = {"records": [{"data": payload} for payload in payloads]}
        if key is not None:
            body["idempotency_key"] = key
        path = f"/v0/topics/{ledger.name}" + ("?return_seqs=false" if short else "")
        may_be_applied = False
        ledger.will_send(payloads)
        while True:
            reply, connection = self._ask(connection, ledger, path, body)
            if reply is not None and reply.status in (200, 201):
                ledger.take_ack(payloads, reply)
                return connection
            may_be_applied = may_be_applied or reply is None or reply.detail.get("outcome") != "not_applied"
            if key is None or self._stopping.wait(RETRY_S):
                break
            self.retries_with_key += 1
        if not may_be_applied:
            ledger.not_applied(payloads)
        return connection

    def _follow(self, ledger: Ledger) -> None:
        reading = Reading()
        connection = self.connect()
        path = f"/v0/topics/{ledger.name}/diff"
        try:
            while not self._following.is_set():
                body = {"from_seq": reading.cursor, "limit": READ_LIMIT, "wait_ms": POLL_MS}
                reply, connection = self._ask(connection, ledger, path, body)
                if reply is None or reply.status != 200:
                    self._following.wait(RETRY_S)
                    continue
                reading.take(reply)
                ledger.saw(reading.records)
                reading.records.clear()
                self._cursors[ledger.name] = reading.cursor
            for gap in reading.gaps:
                ledger.complain(f"a follower met a silent gap: {gap}")
        finally:
            connection.close()

    def _ask(
        self, connection: Connection, ledger: Ledger, path: str, body: object
    ) -> tuple[Reply | None, Connection]:
        """The reply if there was one, and the connection to go on with."""
        try:
            reply = connection.ask("POST", path, body)
        except OSError as error:
            self.failures.append(Failure(time.monotonic(), ledger.shard, type(error).__name__))
            if isinstance(error, TimeoutError):
                ledger.complain(f"{path} had no answer within {REQUEST_TIMEOUT_S} s")
            with suppress(OSError):
                connection.close()
            return None, self.connect()
        if reply.status not in (200, 201):
            how = str(reply.detail.get("outcome", reply.code))
            self.failures.append(Failure(time.monotonic(), ledger.shard, how))
            if reply.status != 503 or reply.retry_after_s < 1:
                ledger.complain(f"{path} was answered with {reply}")
        return reply, connection
