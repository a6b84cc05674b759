"""A plain model of a topic, written from the contract, and a shard to race it against.

`TopicModel` is a dict of records and the definitions of the text: the dual watermark, the read pipeline
walked seq by seq, caps and TTL applied record by record. It knows nothing of chunks, frames or files.
`Server` drives a whole shard on a simulated disk, one request at a time, as its actor would.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from shards.background import InlineBackground
from shards.checkpoint import CheckpointOptions
from shards.command import Command
from shards.keeper import Keeper
from shards.load import load
from shards.requests import decode_write
from shards.shard import Shard
from shards.wal.sync import InlineSyncer
from shards.wal.writer import WalOptions
from tests.fakes.sim_disk import SimDisk
from topics.engine.limits import Limits
from topics.engine.run import render
from topics.engine.topic import TopicLog
from topics.protocol.messages import Op

Config = dict[str, Any]

# Checkpoints come when a test wants them.
CHECKPOINTS = CheckpointOptions(log_bytes=1 << 60, age_ms=1 << 40, segment_events=6, segment_bytes=1 << 16)

DEFAULT_CONFIG: Config = {
    "type": "log", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old", "durable": False,
    "durability": "disk", "priority": None, "auto_priority": True, "auto_create": True,
    "idempotency_window_ms": 120_000, "dedupe_node": True, "lease_ms": 30_000, "claim_jitter_ms": 0,
    "max_deliveries": 0, "dead_letter": None, "leases_durable": False,
}  # fmt: skip


class ManualClock:
    """Time that passes when a test says so; monotonic time also moves a little at each look."""

    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000
        self._monotonic_ns = 0
        self.boot = 1

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ns(self) -> int:
        self._monotonic_ns += 1000
        return self._monotonic_ns

    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def pass_monotonic_ms(self, ms: int) -> None:
        self._monotonic_ns += ms * 1_000_000

    def pass_ms(self, ms: int) -> None:
        """Wall time may go back; monotonic time never does."""
        self.wall_ms += ms
        self._monotonic_ns += max(0, ms) * 1_000_000


SERVER_FIELDS = {name: f"${name}" for name in ("seq", "ts", "node", "tag")}


class RecordOut(msgspec.Struct, rename=SERVER_FIELDS, forbid_unknown_fields=True):
    """A record as a reader gets it; payloads stay the bytes they are."""

    seq: int
    ts: int
    data: Raw
    node: str | UnsetType = UNSET
    tag: str | UnsetType = UNSET
    meta: Raw | UnsetType = UNSET


class Tombstone(msgspec.Struct):
    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class Page(msgspec.Struct):
    topic: str
    records: list[RecordOut]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    raw: bytes

    @property
    def json(self) -> dict[str, Any]:
        value = json.loads(self.raw)
        assert isinstance(value, dict), value
        return value

    @property
    def error(self) -> str:
        code = self.json["error"]["code"]
        assert isinstance(code, str)
        return code

    def page(self) -> Page:
        assert self.status == 200, self
        return msgspec.json.decode(self.raw, type=Page)


class Server:
    """A shard and its disk. Requests run one at a time; every answer must leave before the next."""

    def __init__(self, clock: ManualClock, limits: Limits | None = None) -> None:
        self.clock = clock
        self.disk = SimDisk()
        self._limits = limits or Limits()
        self._start()

    def _start(self) -> None:
        loaded, wal = load(self.disk, WalOptions(file_bytes=1 << 19, step_bytes=1 << 16), self.clock)
        assert not loaded.problems, loaded.problems
        assert wal is not None
        self.keeper = Keeper(self.disk, loaded, wal, InlineBackground(), self.clock, CHECKPOINTS)
        self.shard = Shard(
            loaded, wal, InlineSyncer(self.disk), self.clock, self._limits, sync_interval_ms=50,
            keeper=self.keeper,
        )  # fmt: skip

    def call(self, op: Op, topic: str, body: bytes = b"{}", **params: object) -> Reply:
        command = Command(None, 1, op, topic, params, body, 0)
        for _ in range(50):
            done = self.shard.execute(command)
            self._settle()
            if done and not self._fetched():
                break
        ready = self.shard.take_ready().commands
        assert ready == [command], "the answer did not leave"
        assert command.answer is not None
        reply = Reply(command.answer.status, b"".join(bytes(part) for part in command.answer.parts))
        assert reply.status != 500, reply
        return reply

    def request(self, op: Op, topic: str, body: object, **params: object) -> Reply:
        return self.call(op, topic, json.dumps(body).encode(), **params)

    def _fetched(self) -> bool:
        """Whether the command waited for a page and is to be run again."""
        self.shard.background_done()
        again, self.shard.ready.again = self.shard.ready.again, []
        return bool(again)

    def tick(self) -> None:
        self.shard.tick()
        self._settle()

    def checkpoint(self) -> None:
        """Seal everything, shorten the log."""
        self.keeper.start(self.clock.now_ms())
        for _ in range(50):
            if not self.keeper.under_way:
                return
            # Time for the periodic sync, and none for anything that the wall clock decides.
            self.clock.pass_monotonic_ms(60)
            self._settle()
            self.shard.background_done()
        raise AssertionError("a checkpoint without end")

    def _settle(self) -> None:
        self.shard.commit()
        self.shard.sync_done()
        assert not self.shard.must_reload, self.shard.read_only_reason

    def evict_floor(self, topic: str) -> int:
        """The one figure that no answer shows."""
        state = self.shard.registry.find(topic)
        assert state is not None
        return state.log.marks.evict_floor

    def restart(self) -> None:
        """Stop in order and start again."""
        self.shard.close()
        self.disk = self.disk.process_crash()
        self._start()

    def kill(self) -> None:
        """Kill the process and start it again on the same machine."""
        self.disk = self.disk.process_crash()
        self._start()

    def power_cut(self, disk: SimDisk) -> None:
        """Start on what the machine's crash left; `disk` is one of `self.disk.crash_states()`."""
        self.disk = disk
        self.clock.boot += 1
        self._start()


@dataclass(slots=True)
class Record:
    """A record that was acknowledged, and what became of it."""

    seq: int
    ts: int
    node: str | None
    tag: str | None
    data: bytes
    meta: bytes | None
    durability: str
    state: str = "live"  # live, deleted, evicted, expired or lost
    gone_for_good: bool = False  # even a power cut does not bring it back

    @property
    def size(self) -> int:
        return len(self.data) + len(self.meta or b"")

    @property
    def wire_bytes(self) -> int:
        """Its bytes in a default answer."""
        node = "" if self.node is None else ',"$node":' + json.dumps(self.node, ensure_ascii=False)
        head = f'{{"$seq":{self.seq},"$ts":{self.ts}{node},"data":}}'
        return len(head.encode()) + len(self.data) + (len(b',"meta":' + self.meta) if self.meta else 0)


@dataclass(frozen=True, slots=True)
class Key:
    """What a first write under an idempotency key got."""

    first: int
    count: int
    ts: int
    certain: bool = True  # False: it may have been forgotten already


@dataclass(frozen=True, slots=True)
class Gap:
    first: int
    last: int
    reasons: frozenset[str]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a read may return: a prefix of `records`, and where the cursor stands when all were taken."""

    gap: Gap | None
    records: list[Record]
    stop: int


@dataclass(slots=True)
class TopicModel:
    config: Config
    head: int = 0
    records: dict[int, Record] = field(default_factory=dict)
    cap_evicted: int = 0
    ttl_expired: int = 0
    holes: list[tuple[int, int]] = field(default_factory=list)
    keys: dict[str, list[Key]] = field(default_factory=dict)  # by name, the newest first
    last_write_ts: int | None = None
    reasons_known: bool = True  # a restart may merge what was lost to caps and to time

    # -- the definitions

    @property
    def live(self) -> list[Record]:
        return [record for record in self.records.values() if record.state == "live"]

    @property
    def earliest(self) -> int:
        return next((record.seq for record in self.live), self.head + 1)

    @property
    def evict_floor(self) -> int:
        return max(self.cap_evicted, self.ttl_expired) + 1

    @property
    def count(self) -> int:
        return len(self.live)

    @property
    def bytes(self) -> int:
        return sum(record.size for record in self.live)

    # -- what happens to it

    def expire(self, now_ms: int) -> None:
        ttl_ms = self.config["ttl_ms"]
        for record in self.live:
            if ttl_ms and now_ms - record.ts > ttl_ms:
                record.state, record.gone_for_good = "expired", record.durability != "ephemeral"
                self.ttl_expired = max(self.ttl_expired, record.seq)

    def evict(self, *, synced: bool) -> None:
        cap_records, cap_bytes = self.config["cap_records"], self.config["cap_bytes"]
        for record in self.live:
            too_many = cap_records and self.count > cap_records
            if not too_many and not (cap_bytes and self.bytes > cap_bytes):
                return
            record.state = "evicted"
            record.gone_for_good = synced and record.durability != "ephemeral"
            self.cap_evicted = record.seq

    def refusal(self, sizes: list[int]) -> str:
        """The error code that a write of records of these sizes must get; empty if it is taken."""
        cap_records, cap_bytes = self.config["cap_records"], self.config["cap_bytes"]
        if cap_bytes and max(sizes) > cap_bytes:
            return "record_too_large"
        if self.config["discard"] == "old":
            return ""
        if (cap_records and len(sizes) > cap_records) or (cap_bytes and sum(sizes) > cap_bytes):
            return "record_too_large"
        too_many = cap_records and self.count + len(sizes) > cap_records
        too_large = cap_bytes and self.bytes + sum(sizes) > cap_bytes
        return "topic_full" if too_many or too_large else ""

    def append(self, records: list[Record], key: str | None) -> None:
        for record in records:
            self.records[record.seq] = record
        self.head = records[-1].seq
        self.last_write_ts = records[0].ts
        if key is not None:
            # An older one was out of its window; a wider window may find it again if this one is lost.
            older = [replace(known, certain=False) for known in self.keys.get(key, [])]
            self.keys[key] = [Key(records[0].seq, len(records), records[0].ts), *older]
        self.evict(synced=self.config["durability"] == "fsync")

    def known_keys(self, key: str | None, now_ms: int) -> list[Key]:
        """What a retry may be answered with; it must be the first one if that is certain."""
        found = self.keys.get(key, []) if key is not None else []
        return [known for known in found if now_ms - known.ts < self.config["idempotency_window_ms"]]

    def delete(self, before_seq: int | None, tags: "TagRule | None") -> int:
        chosen = [
            record
            for record in self.live
            if (before_seq is None or record.seq < before_seq) and (tags is None or tags.covers(record.tag))
        ]
        for record in chosen:
            record.state, record.gone_for_good = "deleted", self.config["durability"] == "fsync"
        return len(chosen)

    def configure(self, patch: Config, now_ms: int) -> None:
        """A PUT on the existing topic: named fields change, and retention follows at once."""
        self.expire(now_ms)
        window_ms = self.config["idempotency_window_ms"]
        self.config = merged_config(self.config, patch)
        if self.config["idempotency_window_ms"] > window_ms:
            for name, keys in self.keys.items():
                self.keys[name] = [
                    replace(key, certain=key.certain and now_ms - key.ts < window_ms) for key in keys
                ]
        self.expire(now_ms)
        if self.config["discard"] == "old":
            self.evict(synced=True)

    # -- reading

    def gap_before(self, from_seq: int) -> tuple[Gap | None, int]:
        """The tombstone that a reader gets, and the cursor it goes on from."""
        if from_seq > self.head:
            return Gap(1, self.head, frozenset({"recreated"})), self.earliest - 1
        if from_seq + 1 < self.evict_floor:
            return Gap(from_seq + 1, self.earliest - 1, self._reasons(from_seq + 1)), self.earliest - 1
        for first, last in self.holes:
            if last > from_seq:
                nothing_before = all(not from_seq < record.seq < first for record in self.live)
                if nothing_before:
                    return Gap(max(first, from_seq + 1), last, frozenset({"cap"})), last
                break
        return None, from_seq

    def _reasons(self, wanted: int) -> frozenset[str]:
        by_cap, by_ttl = self.cap_evicted >= wanted, self.ttl_expired >= wanted
        if not self.reasons_known:
            return frozenset({"cap", "ttl", "mixed"})
        return frozenset({"mixed" if by_cap and by_ttl else "cap" if by_cap else "ttl"})

    def read(self, from_seq: int, nodes: frozenset[str]) -> Expected:
        gap, cursor = self.gap_before(from_seq)
        stop = next((first - 1 for first, last in self.holes if last > cursor), self.head)
        unwanted = nodes if self.config["dedupe_node"] else frozenset[str]()
        wanted = [
            record for record in self.live if cursor < record.seq <= stop and record.node not in unwanted
        ]
        return Expected(gap, wanted, stop)

    # -- restarts

    def lose_ephemeral(self, head: int) -> None:
        """What any end of the process takes: every ephemeral record, as holes up to the new head."""
        gone = [record for record in self.records.values() if record.durability == "ephemeral"]
        for record in gone:
            if record.state != "lost":
                self._add_hole(record.seq, record.seq)
            record.state = "lost"
        if head > self.head:
            self._add_hole(self.head + 1, head)
        self.head = head
        self.forget_lost_keys()
        if gone:
            self.last_write_ts = None

    def forget_lost_keys(self, *, certain: tuple[str, ...] = ("memory", "disk", "fsync")) -> None:
        """A key goes with its ephemeral write; of the others only these classes are sure to be there."""
        for name, keys in self.keys.items():
            written = [(key, self.records[key.first].durability) for key in keys]
            self.keys[name] = [
                replace(key, certain=key.certain and durability in certain)
                for key, durability in written
                if durability != "ephemeral"
            ]

    def _add_hole(self, first: int, last: int) -> None:
        self.holes = join_ranges([*self.holes, (first, last)])


def join_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


@dataclass(frozen=True, slots=True)
class TagRule:
    """`Eq` with a tag, or `Glob` with a literal prefix."""

    text: str
    is_prefix: bool

    def covers(self, tag: str | None) -> bool:
        if tag is None:
            return False
        return tag.startswith(self.text) if self.is_prefix else tag == self.text


def merged_config(base: Config, patch: Config) -> Config:
    config = base | patch
    if "durability" not in patch and "durable" in patch:
        config["durability"] = "fsync" if patch["durable"] else "disk"
    config["durable"] = config["durability"] == "fsync"
    for name, (low, high) in {"lease_ms": (100, 86_400_000), "claim_jitter_ms": (0, 5000)}.items():
        config[name] = min(max(config[name], low), high)
    if config["priority"] is not None:
        config["priority"] = min(max(config["priority"], -1000), 1000)
    return config


def append_json(log: TopicLog, *records: str, ts: int = 1000) -> None:
    """Append records, each given as the JSON object a client would send, straight to a topic's log."""
    limits = Limits()
    request = decode_write(f'{{"records":[{",".join(records)}]}}'.encode(), None, limits)
    log.append(
        render(request.records, first_seq=log.head + 1, ts=ts, node=UNSET, plain=request.plain, limits=limits)
    )


def interesting_cursors(topic: TopicModel) -> Iterator[int]:
    """Both sides of every edge that a tombstone rule could be off by one at."""
    edges = {0, 1, topic.head, topic.earliest, topic.evict_floor}
    edges.update(edge for hole in topic.holes for edge in hole)
    for edge in sorted({edge + step for edge in edges for step in (-2, -1, 0, 1)}):
        if edge >= 0:
            yield edge
