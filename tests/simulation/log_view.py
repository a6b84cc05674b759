"""What can be seen of a shard: every topic through its readers' eyes, and what a recovery gives back.

`recover` is a function of the disk alone. It opens a session, reads everything, and then, on a copy of the
disk, lives on: it asks for remembered keys, writes to every topic, and is crashed again.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

from shards.state import TopicState
from shards.store.damage import quarantine
from shards.store.segments import PageLost, SegmentStore
from shards.wal.writer import WalOptions
from tests.fakes.crash_variants import Limits as CrashLimits
from tests.fakes.shard_harness import FakeClock, ShardHarness
from tests.fakes.sim_disk import SimDisk
from topics.engine.reading import ReadOptions, ReadResult, read
from topics.engine.sealed import Cold, Sealed
from topics.protocol.messages import Op

WALL_MS = 1_700_000_000_000
# Recoveries happen this long after the workload began, so that what is due to expire has expired.
RECOVERED_AFTER_MS = 100_000
# Small files and steps, so that a short workload rotates and grows files.
TINY = WalOptions(file_bytes=2048, step_bytes=1024)
# Cursors tried in each topic, from 0 on; beyond them only around holes and the head.
CURSORS_MAX = 24
_WITH_TAGS = ReadOptions(limit=1000, include_tags=True)
_FEW = CrashLimits(torn_ops_max=1, torn_cuts_max=1, product_max=4, states_max=4, random_picks=1)

Gap = tuple[int, int, str, str]  # first, last, reason, cause


@dataclass(frozen=True, slots=True)
class TopicView:
    topic_id: int
    name: str
    config: str
    head: int
    earliest: int
    floor: int
    records: dict[int, str]  # by seq, as JSON with tags
    gaps: tuple[Gap, ...]  # as a reader from 0 meets them
    silent: frozenset[int]  # what some reader passed over without a word

    def in_gap(self, seq: int) -> bool:
        return any(first <= seq <= last for first, last, _, _ in self.gaps)


@dataclass(frozen=True, slots=True)
class Recovered:
    problems: tuple[str, ...]
    topics: dict[int, TopicView]
    # Seqs that records written after the recovery got, and what another crash left of them.
    first_new_seqs: dict[int, int]
    complaints: tuple[str, ...]


def same_recovery(first: Recovered, second: Recovered) -> bool:
    return (first.problems, first.topics) == (second.problems, second.topics)


def view_of(topic: TopicState, *, cursors: bool = False) -> TopicView:
    """The topic as readers see it now."""
    log = topic.log
    records: dict[int, str] = {}
    gaps: list[Gap] = []
    cursor = 0
    while True:
        result = _read(topic, cursor)
        records.update((seq, text) for seq, text in _parsed(result.parts))
        if result.gap is not None:
            gap = result.gap
            gaps.append((gap.first, gap.last, gap.reason, gap.cause))
        if result.next_from_seq >= log.head:
            break
        assert result.next_from_seq > cursor, f"a reader at {cursor} of {log.name} gets nowhere"
        cursor = result.next_from_seq
    silent = frozenset(_passed_over(topic, records, gaps)) if cursors else frozenset()
    return TopicView(
        log.topic_id,
        log.name,
        log.config.json().decode(),
        log.head,
        log.earliest,
        log.marks.evict_floor,
        records,
        tuple(gaps),
        silent,
    )


def _read(topic: TopicState, cursor: int) -> ReadResult:
    while True:
        try:
            return read(topic.log, cursor, _WITH_TAGS)
        except Cold as cold:
            bring(topic, cold.page)


def bring(topic: TopicState, page: Sealed) -> None:
    """Have a page in memory, as a shard would; what is damaged of it is taken out."""
    assert isinstance(page.pages, SegmentStore)
    try:
        page.columns()
    except PageLost as lost:
        quarantine(topic.log, page.pages, lost)


def _parsed(parts: list[bytes | memoryview]) -> Iterator[tuple[int, str]]:
    for record in json.loads(b"[" + b",".join(parts) + b"]"):
        yield record["$seq"], json.dumps(record)


def _passed_over(topic: TopicState, records: dict[int, str], gaps: list[Gap]) -> Iterator[int]:
    """Read once from every telling cursor; what is neither delivered nor under its tombstone is silent."""
    log = topic.log
    edges = {edge + near for first, last, _, _ in gaps for edge in (first, last) for near in (-2, -1, 0)}
    for cursor in {*range(min(log.head, CURSORS_MAX) + 1), *edges, log.head - 1, log.head}:
        if not 0 <= cursor <= log.head:
            continue
        result = _read(topic, cursor)
        delivered = [seq for seq, _ in _parsed(result.parts)]
        assert delivered == sorted(delivered), f"out of order at {cursor}: {delivered}"
        assert all(seq > cursor and seq in records for seq in delivered), f"{delivered} at {cursor}"
        known = set(delivered)
        start = cursor + 1
        if result.gap is not None:
            assert result.gap.first >= start, f"a tombstone for what was not asked: {result.gap} at {cursor}"
            yield from range(start, result.gap.first)
            start = result.gap.last + 1
            assert not any(result.gap.first <= seq <= result.gap.last for seq in records), result.gap
        yield from (seq for seq in range(start, result.next_from_seq + 1) if seq not in known)


def views_of(harness: ShardHarness, *, cursors: bool = False) -> dict[int, TopicView]:
    return {topic.log.topic_id: view_of(topic, cursors=cursors) for topic in harness.shard.registry}


def open_session(
    disk: SimDisk, options: WalOptions = TINY, *, wall_ms: int = WALL_MS + RECOVERED_AFTER_MS
) -> ShardHarness:
    clock = FakeClock(wall_ms=wall_ms, boot_id=f"boot-{disk.boot_id}")
    return ShardHarness(disk, clock, options=options)


def recover(disk: SimDisk) -> Recovered:
    harness = open_session(disk)
    for topic in harness.shard.registry:
        reply = harness.do(Op.DIFF, topic.log.name, {"limit": 1000})  # expires what is due
        assert reply.status == 200, reply
    topics = views_of(harness, cursors=True)
    problems = tuple(harness.loaded.problems)
    if harness.wal is None:
        return Recovered(problems, topics, {}, ())
    first_new, complaints = _live_on(disk.process_crash(), topics)
    return Recovered(problems, topics, first_new, tuple(complaints))


def _live_on(disk: SimDisk, topics: dict[int, TopicView]) -> tuple[dict[int, int], list[str]]:
    """Another session: what is remembered, what new records get, and what a further power cut leaves."""
    harness = open_session(disk)
    complaints = [
        f"the key of seq {first} of {view.name} is forgotten"
        for view in topics.values()
        for first, body in _keyed(view)
        if not _is_remembered(harness.do(Op.WRITE, view.name, body).body, first)
    ]
    first_new: dict[int, int] = {}
    for view in topics.values():
        reply = harness.write(view.name, "new")
        if reply.status != 200:
            complaints.append(f"a write to {view.name} after the recovery is refused: {reply.body}")
            continue
        first_new[view.topic_id] = reply.body["first_seq"]
    for view in views_of(harness).values():
        now = {seq: text for seq, text in view.records.items() if seq < first_new[view.topic_id]}
        if any(topics[view.topic_id].records.get(seq) != text for seq, text in now.items()):
            complaints.append(f"{view.name} changed when it was recovered again: {now}")
    complaints += _cut_again(disk, topics, first_new)
    return first_new, complaints


def _keyed(view: TopicView) -> Iterator[tuple[int, dict[str, Any]]]:
    """The surviving writes that had a key: its text is part of their first record."""
    for seq, text in view.records.items():
        data = json.loads(text)["data"]
        if isinstance(data, dict) and "key" in data:
            yield seq, {"records": [{"data": "again"}], "idempotency_key": data["key"]}


def _is_remembered(body: dict[str, Any], first_seq: int) -> bool:
    return body.get("deduped") is True and body["first_seq"] == first_seq


def _cut_again(disk: SimDisk, topics: dict[int, TopicView], first_new: dict[int, int]) -> Iterator[str]:
    # The first state of a plan is that nothing arrived which was not synced: the hardest one here.
    for state in islice(disk.crash_plan(Random(0), _FEW), 2):
        harness = open_session(state.build())
        if harness.loaded.problems:
            yield f"a power cut after the recovery left problems: {harness.loaded.problems}"
        views = views_of(harness)
        for topic_id, before in topics.items():
            after = views.get(topic_id)
            if after is None:
                yield f"{before.name} is gone after a power cut after the recovery"
                continue
            if after.head < first_new.get(topic_id, 0):
                yield f"seq {first_new[topic_id]} of {before.name} can be handed out again"
            evicted = json.loads(before.config)["cap_records"] or json.loads(before.config)["cap_bytes"]
            kept = set() if evicted else before.records.keys() - after.records.keys()
            if kept:
                yield f"seqs {sorted(kept)} of {before.name} were recovered and then lost"
