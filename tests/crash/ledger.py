"""What was sent, answered and seen of one topic, and the judgement over a full read of it.

The rules, for topics without caps, deletes or filters:
  * What was acked is there with its payload. Only `ephemeral` may have lost it, under a tombstone.
  * A seq never had two payloads, neither in answers nor in any read at any time, and was acked once.
  * A payload is there once at most, also when its write was sent several times with the same key.
  * What was refused as not applied is not there, and nothing is there that was not sent.
  * A read leaves no seq out without a tombstone for it.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.crash.client import Connection, Reply
from topics.engine.placement import shard_of

Durability = Literal["fsync", "disk", "memory", "ephemeral"]
CLASSES: tuple[Durability, ...] = ("fsync", "disk", "memory", "ephemeral")
READ_LIMIT = 1000


def topic_on(shard: int, shards: int, stem: str) -> str:
    """A topic name that the placement gives to `shard`."""
    return next(name for n in range(1000) if shard_of(name := f"{stem}-{n}", shards) == shard)


@dataclass(slots=True)
class Reading:
    """One pass over a topic, from its beginning to its head."""

    records: dict[int, str] = field(default_factory=dict)
    holes: list[tuple[int, int]] = field(default_factory=list)
    cursor: int = 0
    # What the rules forbid, in words.
    gaps: list[str] = field(default_factory=list)

    def take(self, reply: Reply) -> None:
        """Go on by one answer of diff."""
        expected = self.cursor + 1
        tombstone = reply.body["tombstone"]
        if tombstone is not None:
            if tombstone["gap_from"] != expected or tombstone["gap_to"] < expected:
                self.gaps.append(f"after {self.cursor} came the tombstone {tombstone}")
            self.holes.append((tombstone["gap_from"], tombstone["gap_to"]))
            expected = tombstone["gap_to"] + 1
        for record in reply.body["records"]:
            if record["$seq"] != expected:
                self.gaps.append(f"after {expected - 1} came {record['$seq']}")
            self.records[record["$seq"]] = record["data"]
            expected = record["$seq"] + 1
        if reply.body["next_from_seq"] != expected - 1:
            self.gaps.append(f"the cursor went to {reply.body['next_from_seq']}, not to {expected - 1}")
        self.cursor = reply.body["next_from_seq"]

    def lost(self, seq: int) -> bool:
        return any(first <= seq <= last for first, last in self.holes)


class Ledger:
    """The book of one topic. Many threads write it; it is judged by one."""

    def __init__(self, name: str, durability: Durability, shard: int) -> None:
        self.name = name
        self.durability = durability
        self.shard = shard
        self.acked: dict[int, str] = {}
        self.deduped = 0
        self.violations: list[str] = []
        self._lock = threading.Lock()
        self._sent: set[str] = set()
        self._refused: set[str] = set()
        self._ever: dict[int, str] = {}
        self._settled_holes: list[tuple[int, int]] = []

    def will_send(self, payloads: Sequence[str]) -> None:
        with self._lock:
            self._sent.update(payloads)

    def not_applied(self, payloads: Sequence[str]) -> None:
        with self._lock:
            self._refused.update(payloads)

    def take_ack(self, payloads: Sequence[str], reply: Reply) -> None:
        body = reply.body
        seqs = list(range(body["first_seq"], body["last_seq"] + 1))
        with self._lock:
            if len(seqs) != len(payloads) or body.get("seqs", seqs) != seqs or body["head_seq"] < seqs[-1]:
                self.violations.append(f"{len(payloads)} records were acked with {body}")
            self.deduped += bool(body["deduped"])
            for seq, payload in zip(seqs, payloads, strict=False):
                if seq in self.acked:
                    self.violations.append(f"seq {seq} was acked for {self.acked[seq]} and for {payload}")
                self.acked[seq] = payload
                self._compare(seq, payload)

    def saw(self, records: Mapping[int, str]) -> None:
        with self._lock:
            for seq, payload in records.items():
                self._compare(seq, payload)

    def complain(self, violation: str) -> None:
        with self._lock:
            self.violations.append(violation)

    def _compare(self, seq: int, payload: str) -> None:
        first = self._ever.setdefault(seq, payload)
        if first != payload:
            self.violations.append(f"seq {seq} had the payload {first} and then {payload}")

    def acked_now(self) -> dict[int, str]:
        with self._lock:
            return dict(self.acked)

    def judge(self, acked_before: Mapping[int, str], reading: Reading, *, shard_died: bool) -> "Verdict":
        """Hold a full read against what had been acked before it began."""
        self.saw(reading.records)
        verdict = Verdict(silent_gaps=len(reading.gaps))
        for seq, payload in acked_before.items():
            if reading.records.get(seq) == payload:
                continue
            if self.durability == "ephemeral" and seq not in reading.records and reading.lost(seq):
                verdict.lost_under_tombstone += 1
            else:
                verdict.lost.append((seq, payload))
        counted = Counter(reading.records.values())
        verdict.duplicates = [payload for payload, times in counted.items() if times > 1]
        with self._lock:
            found = set(reading.records.values())
            self.violations += [f"not applied, yet there: {payload}" for payload in self._refused & found]
            self.violations += [f"never sent, yet there: {payload}" for payload in found - self._sent]
            self.violations += reading.gaps
            if self.durability != "ephemeral" and reading.holes:
                self.violations.append(f"tombstones for {reading.holes} though only processes died")
            if not shard_died and reading.holes != self._settled_holes:
                self.violations.append(f"holes {self._settled_holes} became {reading.holes} without a death")
            self._settled_holes = list(reading.holes)
        return verdict


@dataclass(slots=True)
class Verdict:
    lost: list[tuple[int, str]] = field(default_factory=list)
    lost_under_tombstone: int = 0
    duplicates: list[str] = field(default_factory=list)
    silent_gaps: int = 0


def read_all(connection: Connection, topic: str) -> Reading:
    """Everything from 0 to the head."""
    reading = Reading()
    while True:
        before = reading.cursor
        reply = connection.ask(
            "POST", f"/v0/topics/{topic}/diff", {"from_seq": reading.cursor, "limit": READ_LIMIT}
        )
        assert reply.status == 200, f"{topic}: {reply}"
        reading.take(reply)
        if reply.body["caught_up"]:
            return reading
        assert reading.cursor > before, f"{topic}: the cursor does not move from {before}"
