"""The engine raced against a plain model: whatever is asked, in whatever order, the answers agree.

A whole shard runs on a simulated disk: requests as JSON bodies, answers as JSON bytes, time that goes
forward and back, orderly restarts, killed processes and power cuts. After every step each topic's state
and its reads from both sides of every edge are compared with the model.

`TOPICS_PROOF=1` runs many more examples, with fresh seeds; a failure prints how to replay it.
"""

import json
import os
from itertools import islice
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.fakes.crash_variants import Limits as CrashLimits
from tests.fakes.model import (
    DEFAULT_CONFIG,
    Config,
    Expected,
    ManualClock,
    Page,
    Record,
    RecordOut,
    Reply,
    Server,
    TagRule,
    Tombstone,
    TopicModel,
    interesting_cursors,
    join_ranges,
    merged_config,
)
from topics.protocol.messages import Op

Fields = dict[str, Any]
Choices = dict[str, list[Any]]


def pool(size: int, fields: Choices, *, always: Choices | None = None) -> list[Fields]:
    """Mixed requests, the same in every run: an index into a pool is quickly drawn and quickly shrunk."""
    rng = Random(size)
    given = always or {}
    mixed: list[Fields] = [{name: values[0] for name, values in given.items()}]
    while len(mixed) < size:
        named = {name: rng.choice(values) for name, values in given.items()}
        mixed.append(named | {k: rng.choice(v) for k, v in fields.items() if rng.random() < 0.4})
    return mixed


NODES = ["n", "n1", "ñ\\", '"', ""]
TAGS = ["t", "t1", "t1:x", "t*", "T", "ä", 'q"', "\\", "\n", ""]
PAYLOADS = [
    b"null", b"0", b"-0", b"1.0", b"1e3", b"1E+400", b"9" * 40, b"true", b'""', b'"x"', b"[]", b"{}",
    b'"\\u0041\\n\\/"', b'"\xc3\xa4\xf0\x9f\x98\x80"', b'"\\ud83d\\ude00"', b"[ 1 ,\t2\r\n]",
    b'{"a":1,"a":2}', b'{ "b" : 1 , "a" : [ {} ] }', b'{"$seq":7,"data":{"meta":1}}', b'"%b"' % (b"y" * 30),
]  # fmt: skip
METAS = [b"{}", b'{"k":"v"}', b'{ "k" : 1.0 }', b'{"k":1,"k":2}']
SPACES = [b"", b" ", b"\n\t"]

NAMES = st.sampled_from(["a", "a", "a", "b"])
RECORDS = st.sampled_from(
    pool(
        300,
        {"node": NODES, "tag": TAGS, "meta": METAS},
        always={"data": PAYLOADS, "before": SPACES, "after": SPACES},
    )
)
CONFIGS = st.sampled_from(
    pool(
        300,
        {
            "ttl_ms": [0, 10, 10, 20, 3000],
            "cap_records": [0, 1, 2, 3, 6],
            "cap_bytes": [0, 5, 12, 40, 80],
            "discard": ["old", "old", "reject"],
            "durable": [False, True],
            "durability": ["ephemeral", "memory", "disk", "fsync"],
            "idempotency_window_ms": [0, 10, 10, 20, 120_000],
            "dedupe_node": [False, True],
            "priority": [None, -2000, 0, 7, 1000, 5000],
            "auto_priority": [False, True],
        },
    )
)
WRITE_FIELDS = st.sampled_from(
    pool(100, {"node": NODES, "idempotency_key": ["k1", "k2"], "create": [True, True, False]})
)
READS = st.sampled_from(
    pool(
        300,
        {
            "from_seq": list(range(25)),
            "limit": [0, 1, 1, 2, 3, 4, 1000, 10**30],
            "max_batch_bytes": [0, 1, 40, 60, 61, 100, 140, 10**12],
            "node": [*NODES, [], NODES[:1], NODES[:2], NODES],
            "include_tags": [False, True],
            "include_meta": [False, True],
        },
    )
)
BOUNDS: list[int | None] = [None, *range(20), 2**64 - 1]
KINDS = ["bare", "Eq", "Glob"]
MATCHES: list[tuple[str, str] | None] = [None, *((kind, tag) for kind in KINDS for tag in TAGS)]


class EngineAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.server = Server(self.clock)
        self.topics: dict[str, TopicModel] = {}
        self.now_ms = self.clock.wall_ms
        self.payloads: dict[tuple[str, int, int], bytes] = {}
        self.lives: dict[str, int] = {}
        self.earliest: dict[str, int] = {}
        self.quiet = False

    # -- requests

    def _call(self, op: Op, name: str, body: bytes, **params: object) -> Reply:
        """Time never goes back inside the server, whatever the wall clock does."""
        self.now_ms = max(self.now_ms, self.clock.wall_ms)
        self.quiet = False
        for topic in self.topics.values():
            topic.expire(self.now_ms)
        return self.server.call(op, name, body, **params)

    def _ask(self, op: Op, name: str, body: object, **params: object) -> Reply:
        return self._call(op, name, json.dumps(body).encode(), **params)

    @initialize(config=CONFIGS)
    def first_topic(self, config: Config) -> None:
        self.put("a", config)

    @rule(name=NAMES, patch=CONFIGS)
    def put(self, name: str, patch: Config) -> None:
        reply = self._ask(Op.PUT_TOPIC, name, patch)
        topic = self.topics.get(name)
        if topic is None:
            assert reply.status == 201
            self._created(name, merged_config(DEFAULT_CONFIG, patch))
        else:
            assert reply.status == 200
            topic.configure(patch, self.now_ms)
        assert reply.json["created"] is (topic is None)
        assert reply.json["config"] == self.topics[name].config

    def _created(self, name: str, config: Config) -> TopicModel:
        topic = self.topics[name] = TopicModel(config)
        self.lives[name] = self.lives.get(name, 0) + 1
        self.earliest[name] = 1
        return topic

    # Named several times, so that a third of all steps are writes.
    @rule(name=NAMES, records=st.lists(RECORDS, min_size=1, max_size=5), fields=WRITE_FIELDS, config=CONFIGS)
    def write(self, name: str, records: list[Fields], fields: Fields, config: Config) -> None:
        self._write(name, records, fields, config)

    @rule(name=NAMES, record=RECORDS, fields=WRITE_FIELDS)
    def write_one(self, name: str, record: Fields, fields: Fields) -> None:
        self._write(name, [record], fields, {})

    @rule(name=NAMES, record=RECORDS, repeat=st.integers(2, 5))
    def write_the_same(self, name: str, record: Fields, repeat: int) -> None:
        self._write(name, [record] * repeat, {}, {})

    def _write(self, name: str, records: list[Fields], fields: Fields, config: Config) -> None:
        inline = {"config": config} if config else {}
        reply = self._call(Op.WRITE, name, _write_body(records, fields | inline))
        topic, key = self.topics.get(name), fields.get("idempotency_key")
        if topic is None and fields.get("create") is False:
            assert (reply.status, reply.error) == (404, "topic_not_found")
            return
        known = topic.known_keys(key, self.now_ms) if topic is not None else []
        if topic is not None and known and (known[0].certain or reply.json.get("deduped")):
            may_be = known[:1] if known[0].certain else known
            found = next((k for k in may_be if k.first == reply.json.get("first_seq")), may_be[0])
            self._check_write(topic, reply, found.first, found.count, created=False, deduped=True)
            return
        target = topic or TopicModel(merged_config(DEFAULT_CONFIG, config))
        refusal = target.refusal([len(r["data"]) + len(r.get("meta", b"")) for r in records])
        if refusal:
            assert (reply.status, reply.error) == (422 if refusal == "topic_full" else 400, refusal)
            return
        if topic is None:
            target = self._created(name, target.config)
        first = target.head + 1
        batch_node = fields.get("node")
        target.append(self._records(records, first, batch_node, target.config["durability"]), key)
        self._check_write(target, reply, first, len(records), created=topic is None, deduped=False)

    def _records(self, given: list[Fields], first: int, node: str | None, durability: str) -> list[Record]:
        return [
            Record(seq, self.now_ms, r.get("node", node), r.get("tag"), r["data"], r.get("meta"), durability)
            for seq, r in enumerate(given, first)
        ]

    def _check_write(
        self, topic: TopicModel, reply: Reply, first: int, count: int, *, created: bool, deduped: bool
    ) -> None:
        answer = reply.json
        assert reply.status == (201 if created else 200), answer
        assert answer["seqs"] == list(range(first, first + count))
        assert (answer["first_seq"], answer["last_seq"], answer["count"]) == (first, first + count - 1, count)
        assert (answer["created"], answer["deduped"]) == (created, deduped)
        assert answer["head_seq"] == topic.head

    @rule(name=NAMES, before_seq=st.sampled_from(BOUNDS), match=st.sampled_from(MATCHES))
    def delete_records(self, name: str, before_seq: int | None, match: tuple[str, str] | None) -> None:
        body: dict[str, object] = {} if before_seq is None else {"before_seq": before_seq}
        rule_for_model = None
        if match is not None:
            kind, text = match
            text = text.rstrip("*") if kind == "Glob" else text
            rule_for_model = TagRule(text, is_prefix=kind == "Glob")
            body["match"] = text if kind == "bare" else ["tag", kind, text + "*" * (kind == "Glob")]
        reply = self._ask(Op.DELETE_RECORDS, name, body)
        if not body:
            assert (reply.status, reply.error) == (400, "invalid_request")
        elif (topic := self.topics.get(name)) is None:
            assert (reply.status, reply.error) == (404, "topic_not_found")
        else:
            deleted = topic.delete(before_seq, rule_for_model)
            assert reply.json["deleted"] == deleted
            wanted = {
                "earliest_seq": topic.earliest, "head_seq": topic.head,
                "count": topic.count, "bytes": topic.bytes,
            }  # fmt: skip
            assert {key: reply.json[key] for key in wanted} == wanted

    @rule(name=NAMES, if_empty=st.sampled_from([True, True, True, False]))
    def delete_topic(self, name: str, if_empty: bool) -> None:
        reply = self._call(Op.DELETE_TOPIC, name, b"", if_empty=if_empty)
        topic = self.topics.get(name)
        if topic is not None and if_empty and topic.count:
            assert (reply.status, reply.error) == (409, "topic_not_empty")
            return
        assert reply.json["deleted"] is (topic is not None)
        self.topics.pop(name, None)

    # -- reading

    @rule(name=NAMES, options=READS)
    def read(self, name: str, options: Fields) -> None:
        reply = self._ask(Op.DIFF, name, options)
        topic = self.topics.get(name)
        if topic is None:
            assert (reply.status, reply.error) == (404, "topic_not_found")
            return
        self._check_page(name, topic, reply.page(), options)
        self._page_through(name, topic, options)

    def _page_through(self, name: str, topic: TopicModel, options: Fields) -> None:
        """Paging with any limit and byte budget visits every live record exactly once, and ends."""
        cursor, seen = 0, []
        for _ in range(2 * len(topic.records) + 2 * len(topic.holes) + 2):
            page = self._ask(Op.DIFF, name, options | {"from_seq": cursor}).page()
            self._check_page(name, topic, page, options | {"from_seq": cursor})
            seen += [record.seq for record in page.records]
            assert page.next_from_seq > cursor or page.caught_up
            cursor = page.next_from_seq
            if page.caught_up:
                break
        assert cursor == topic.head
        unwanted = _nodes(options) if topic.config["dedupe_node"] else frozenset[str]()
        assert seen == [record.seq for record in topic.live if record.node not in unwanted]

    def _check_page(self, name: str, topic: TopicModel, page: Page, options: Fields) -> None:
        expected = topic.read(options.get("from_seq", 0), _nodes(options))
        _check_tombstone(topic, page.tombstone, expected)
        taken = len(page.records)
        for record, wanted in zip(page.records, expected.records, strict=False):
            _check_record(record, wanted, options)
            known = self.payloads.setdefault((name, self.lives[name], record.seq), bytes(record.data))
            assert known == bytes(record.data), "a seq was seen with two payloads"
        assert taken <= len(expected.records)
        _check_length(taken, expected, options)
        if taken < len(expected.records):
            last = page.records[-1].seq
            assert last <= page.next_from_seq < expected.records[taken].seq
        else:
            assert page.next_from_seq == expected.stop
        assert (page.topic, page.head_seq, page.earliest_seq) == (name, topic.head, topic.earliest)
        assert page.caught_up is (page.next_from_seq == topic.head)
        assert page.lag == topic.head - page.next_from_seq

    # -- time

    @rule(ms=st.sampled_from([1, 9, 10, 10, 10, 11, 20, 1100, -5, -60_000]), tick=st.booleans())
    def let_time_pass(self, ms: int, tick: bool) -> None:
        """Nobody looks at the topics at once, so that whatever comes next is the first to notice."""
        self.clock.pass_ms(ms)
        if tick:
            self.now_ms = max(self.now_ms, self.clock.wall_ms)
            self.server.tick()
        self.quiet = True

    # -- the end of a process

    @rule()
    def checkpoint(self) -> None:
        self.now_ms = max(self.now_ms, self.clock.wall_ms)
        self.server.checkpoint()

    @rule(
        how=st.sampled_from(["in order", "killed", "power cut"]),
        seed=st.integers(0, 2**16),
        pick=st.integers(0, 30),
    )
    def restart(self, how: str, seed: int, pick: int) -> None:
        # Across a restart only what was logged keeps the time; a clock behind that is not promised.
        self.clock.wall_ms = max(self.clock.wall_ms, self.now_ms)
        if how == "power cut":
            self._cut_the_power(seed, pick)
            return
        self.server.restart() if how == "in order" else self.server.kill()
        for name, topic in self.topics.items():
            head = self._state(name)["head_seq"]
            # Seqs that may have been handed out are lost with the records that had them.
            may_jump = how == "killed" and topic.config["durability"] == "ephemeral"
            assert head == topic.head or (may_jump and head > topic.head)
            self._process_ended(name, topic, head)

    def _process_ended(self, name: str, topic: TopicModel, head: int) -> None:
        lasting = [r for r in topic.records.values() if r.durability != "ephemeral"]
        below = [record.seq for record in lasting if record.state in ("evicted", "expired")]
        if len(lasting) == len(topic.records):
            assert self.server.evict_floor(name) == topic.evict_floor
        topic.lose_ephemeral(head)
        self._adopt_floor(name, topic, below)
        self.earliest[name] = min(self.earliest[name], topic.earliest)

    def _adopt_floor(self, name: str, topic: TopicModel, below: list[int]) -> None:
        """The floor stays above what is gone in any case; the rest of the old one may be a hole now."""
        floor = self.server.evict_floor(name)
        assert max(below, default=0) < floor
        assert floor == 1 or topic.records[floor - 1].state != "live"
        topic.cap_evicted, topic.ttl_expired, topic.reasons_known = floor - 1, 0, False

    def _cut_the_power(self, seed: int, pick: int) -> None:
        """What a class promises is there; everything else is under a tombstone."""
        limits = CrashLimits(torn_ops_max=4, torn_cuts_max=3, subset_ops_max=3, product_max=16, states_max=64)
        plan = list(islice(self.server.disk.crash_plan(Random(seed), limits), 31))
        self.server.power_cut(plan[pick % len(plan)].build())
        for name, topic in self.topics.items():
            self._power_was_cut(name, topic)

    def _power_was_cut(self, name: str, topic: TopicModel) -> None:
        before = {record.seq for record in topic.live}
        head = self._state(name)["head_seq"]
        assert head >= topic.head
        found, holes = self._walk(name, max(0, self.server.evict_floor(name) - 1))
        for seq, record in topic.records.items():
            if seq in found:
                assert not record.gone_for_good, f"{record} came back"
                assert record.state != "lost", f"{record} came back"
                assert record.durability != "ephemeral", f"{record} came back"
                _check_record(found[seq], record, {"include_tags": True})
                record.state = "live"
            elif record.state == "live":
                assert record.durability != "fsync", f"{record} was promised"
                record.state = "lost"
        assert found.keys() <= topic.records.keys()
        topic.head = head
        for seq in before - found.keys():
            told = self._ask(Op.DIFF, name, {"from_seq": seq - 1}).page().tombstone
            assert told is not None, f"{seq} was lost silently"
            assert told.gap_from <= seq <= told.gap_to
        topic.holes = join_ranges(holes)
        for record in topic.records.values():
            if record.state != "live" and any(first <= record.seq <= last for first, last in holes):
                record.state = "lost"
        topic.last_write_ts = None
        topic.forget_lost_keys(certain=("fsync",))
        gone = [record for record in topic.records.values() if record.gone_for_good]
        self._adopt_floor(name, topic, [r.seq for r in gone if r.state in ("evicted", "expired")])
        self.earliest[name] = 1

    def _walk(self, name: str, cursor: int) -> tuple[dict[int, RecordOut], list[tuple[int, int]]]:
        """Everything there is to read, and every hole that a reader from the floor is told."""
        found: dict[int, RecordOut] = {}
        gaps: list[tuple[int, int]] = []
        for _ in range(1000):
            page = self._ask(Op.DIFF, name, {"from_seq": cursor, "include_tags": True}).page()
            found |= {record.seq: record for record in page.records}
            if page.tombstone is not None:
                gaps.append((page.tombstone.gap_from, page.tombstone.gap_to))
            cursor = page.next_from_seq
            if page.caught_up:
                return found, gaps
        raise AssertionError("reading does not end")

    # -- what holds after every step

    def _state(self, name: str) -> Fields:
        reply = self._call(Op.GET_TOPIC, name, b"")
        assert reply.status == 200, reply
        return reply.json

    @invariant()
    def states_and_reads_agree(self) -> None:
        if self.quiet:
            return
        for name in ("a", "b"):
            topic = self.topics.get(name)
            if topic is None:
                reply = self._call(Op.GET_TOPIC, name, b"")
                assert (reply.status, reply.error) == (404, "topic_not_found")
                continue
            self._check_state(name, topic)
            for cursor in interesting_cursors(topic):
                options = {"from_seq": cursor, "include_tags": True}
                self._check_page(name, topic, self._ask(Op.DIFF, name, options).page(), options)

    def _check_state(self, name: str, topic: TopicModel) -> None:
        state = self._state(name)
        wanted = {
            "head_seq": topic.head, "earliest_seq": topic.earliest, "next_seq": topic.head + 1,
            "count": topic.count, "bytes": topic.bytes, "config": topic.config,
        }  # fmt: skip
        assert {key: state[key] for key in wanted} == wanted
        if topic.last_write_ts is not None:
            assert state["last_write_ts"] == topic.last_write_ts
        assert state["last_read_ts"] == self.now_ms
        manual, automatic = topic.config["priority"], 500 if topic.config["auto_priority"] else 0
        assert state["effective_priority"] == (automatic if manual is None else manual)
        assert self.server.evict_floor(name) == topic.evict_floor <= topic.earliest
        assert state["earliest_seq"] >= self.earliest[name], "earliest_seq went back"
        self.earliest[name] = state["earliest_seq"]


def _write_body(records: list[Fields], fields: dict[str, object]) -> bytes:
    """The request as a client with its own taste in whitespace would send it."""
    rendered = []
    for record in records:
        parts = [b'"data":' + record["before"] + record["data"] + record["after"]]
        parts += [b'"%b": %b' % (k.encode(), _json(record[k])) for k in ("node", "tag") if k in record]
        if "meta" in record:
            parts.append(b'"meta":' + record["before"] + record["meta"] + record["after"])
        rendered.append(b"{" + b",".join(parts) + b"}")
    rest = b"".join(b',"%b":%b' % (k.encode(), _json(v)) for k, v in fields.items())
    return b'{"records":[' + b",\n".join(rendered) + b"]" + rest + b"}"


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _nodes(options: Fields) -> frozenset[str]:
    node = options.get("node", [])
    return frozenset([node] if isinstance(node, str) else node)


def _check_tombstone(topic: TopicModel, found: Tombstone | None, expected: Expected) -> None:
    if expected.gap is None:
        assert found is None
        return
    assert found is not None, f"no tombstone for {expected.gap}"
    assert (found.gap_from, found.gap_to) == (expected.gap.first, expected.gap.last)
    assert found.reason in expected.gap.reasons
    assert 0 <= found.missed_estimate <= max(0, found.gap_to - found.gap_from + 1)
    assert (found.earliest_seq, found.head_seq) == (topic.earliest, topic.head)


def _check_record(found: RecordOut, wanted: Record, options: Fields) -> None:
    assert (found.seq, found.ts) == (wanted.seq, wanted.ts)
    assert bytes(found.data) == wanted.data
    node = found.node if isinstance(found.node, str) else None
    tag = found.tag if isinstance(found.tag, str) else None
    meta = None if not isinstance(found.meta, msgspec.Raw) else bytes(found.meta)
    assert node == wanted.node
    assert tag == (wanted.tag if options.get("include_tags", False) else None)
    assert meta == (wanted.meta if options.get("include_meta", True) else None)


def _check_length(taken: int, expected: Expected, options: Fields) -> None:
    """A page ends at its limit, at its byte budget, or where there is nothing more; never empty before."""
    limit = min(options.get("limit", 0) or 256, 1000)
    budget = min(options.get("max_batch_bytes", 0) or 2**20, 2**23)
    assert taken <= limit
    if taken > 1:
        assert sum(record.size for record in expected.records[: taken - 1]) < budget
    if taken < min(limit, len(expected.records)):
        assert taken >= 1
        assert sum(record.wire_bytes + 1 for record in expected.records[: taken + 1]) > budget


PROOF = os.environ.get("TOPICS_PROOF") == "1"
# A found failure is shrunk before it is shown, which takes longer than finding it.
TIMEOUT_S = 3600 if PROOF else 300
EXAMPLES = settings(
    max_examples=3000 if PROOF else 200,
    stateful_step_count=60 if PROOF else 40,
    derandomize=not PROOF,
    deadline=None,
    print_blob=True,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@pytest.mark.timeout(TIMEOUT_S)
def test_the_engine_and_the_model_agree_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of three records, ceilings four seqs ahead, a tag index that is merged at once."""
    monkeypatch.setattr("topics.engine.chunk.CHUNK_RECORDS", 3)
    monkeypatch.setattr("shards.rewriting.SMALL_PAGES", 2)
    monkeypatch.setattr("topics.engine.tags._UNSORTED_MAX", 2)
    monkeypatch.setattr("shards.state.CEILING_STEP", 4)
    monkeypatch.setattr("shards.state.CEILING_STEP_MAX", 16)
    run_state_machine_as_test(EngineAgainstModel, settings=EXAMPLES)


@pytest.mark.timeout(TIMEOUT_S)
def test_the_engine_and_the_model_agree_as_shipped() -> None:
    run_state_machine_as_test(EngineAgainstModel, settings=EXAMPLES)
