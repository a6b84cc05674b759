"""What each request does to a shard's state: decide, change memory, name the frames to log.

Synchronous and without I/O. A handler either changes nothing and raises, or changes memory and
returns an answer; the frames it leaves in the context are written before the answer leaves.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import cbor2
import msgspec

from shards import answers, requests
from shards.allowance import Allowances, claim_bytes, claim_for_creation
from shards.command import Answer, Command
from shards.requests import Delete, Diff, Write
from shards.state import Registry, TopicState
from shards.wal import frame as frames
from shards.wal.batch import Frame
from topics.engine.config import ConfigPatch, TopicConfig, merged
from topics.engine.idempotency import Remembered
from topics.engine.limits import Limits
from topics.engine.reading import read
from topics.engine.run import Run, render
from topics.engine.sealed import Sealed
from topics.engine.tags import TagMatch
from topics.engine.topic import TopicLog
from topics.errors import InvalidRequest, NotReady, RecordTooLarge, TopicFull, TopicNotEmpty, TopicNotFound
from topics.protocol.messages import Op

# A frame costs at most this much beyond the bytes of its records and tables.
_FRAME_OVERHEAD_BYTES = 4096
# Room that writes leave for deletes and control frames when the disk is full.
RESERVE_BYTES = 256 * 1024
# A read that has waited for so many pages is answered with what there is.
FETCHES_MAX = 32


class NeedsSync(Exception):
    """The command must be run again when what it logged is durable; its topic waits with it."""


class NeedsRoom(Exception):
    """The command must be run again when the log has this much room; nothing was changed."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length


class NeedsSearch(Exception):
    """The command must be run again with the records of these pages whose tags match; nothing was changed."""

    def __init__(self, pages: list[Sealed], match: TagMatch) -> None:
        super().__init__(len(pages))
        self.pages = pages
        self.match = match


class Waits(Exception):
    """A long-poll with nothing to give yet."""


class Continues(Exception):
    """A long-poll that has examined its share and has more to look at: run it again soon."""


@dataclass(slots=True)
class Context:
    """What a handler may use. `frames` is what the current group will log."""

    registry: Registry
    limits: Limits
    now_ms: int = 0
    now_ns: int = 0
    room_bytes: int = 0
    frames: list[Frame] = field(default_factory=list)
    frame_bytes: int = 0
    raised: list[tuple[TopicState, int]] = field(default_factory=list)  # ceilings to be synced
    appended: set[str] = field(default_factory=set)  # topics whose long-polls have something to see
    restless: set[TopicState] = field(default_factory=set)  # topics that time changes
    writable: bool = True
    allowed: Allowances = field(default_factory=Allowances)

    def log(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.frame_bytes += len(frame.body) + _FRAME_OVERHEAD_BYTES

    def raise_ceiling(self, topic: TopicState, needed: int) -> None:
        self.log(topic.raise_ceiling(needed, now_ms=self.now_ms))
        self.raised.append((topic, topic.ceiling))


def handle(context: Context, command: Command) -> Answer:
    """Run one command. Raises TopicsError, NeedsSync, NeedsRoom, NeedsQuota, Waits or Continues."""
    return _HANDLERS[command.op](context, command)


def _existing(context: Context, name: str) -> TopicState:
    topic = context.registry.find(name)
    if topic is None:
        raise TopicNotFound(name)
    topic.log.expire(context.now_ms)
    # What a reader was told has expired must not come back, not even if the clock goes back.
    if context.writable and context.room_bytes - context.frame_bytes > _FRAME_OVERHEAD_BYTES:
        for frame in topic.floor_frames():
            context.log(frame)
    return topic


def _may_write(context: Context, length: int = 0) -> None:
    if not context.writable:
        raise NotReady(
            "this shard cannot write to its log; it is read-only until it was restarted",
            detail={"reason": "read_only", "outcome": "not_applied"},
        )
    if not has_room(context, length):
        raise NeedsRoom(context.frame_bytes + length + _FRAME_OVERHEAD_BYTES)


def has_room(context: Context, length: int) -> bool:
    """Whether the log has room for a frame of this length, beside those of the group."""
    return context.room_bytes - context.frame_bytes >= length + _FRAME_OVERHEAD_BYTES


def _write(context: Context, command: Command) -> Answer:
    if command.decoded is None:
        command.decoded = requests.decode_write(
            command.body, command.params.get("idempotency_key"), context.limits
        )
        command.body = b""
    request = command.decoded
    assert isinstance(request, Write)
    topic = context.registry.find(command.topic)
    if topic is None:
        _create_for_write(context, command, request)
        raise NeedsSync
    log = topic.log
    log.expire(context.now_ms)
    seqs = command.params.get("return_seqs") is not False
    window_ms = log.config.idempotency_window_ms
    known = log.keys.find(request.key, now_ms=context.now_ms, window_ms=window_ms) if request.key else None
    if known is not None:
        return answers.write_answer(
            topic, first_seq=known.first_seq, count=known.count, created=False, deduped=True, seqs=seqs,
            synced=log.config.durable,
        )  # fmt: skip
    needed = log.head + len(request.records)
    if needed > topic.durable_ceiling:
        _may_write(context)
        if topic.ceiling < needed:
            context.raise_ceiling(topic, needed)
        raise NeedsSync
    run = _rendered(context, request, first_seq=log.head + 1, ts=max(context.now_ms, log.last_ts))
    check_fits(log.config, run, count=log.count, bytes_=log.bytes, topic=log.name)
    _may_write(context, 0 if topic.ephemeral else run.stored_bytes_max() + RESERVE_BYTES)
    log.foresee_eviction(log.config, run)
    if context.allowed.bytes is not None:
        claim_bytes(context.allowed.bytes, command, log, run)
    append_run(context, topic, run, request.key)
    return answers.write_answer(
        topic, first_seq=run.first_seq, count=run.count, created=command.created, deduped=False, seqs=seqs,
        synced=log.config.durable,
    )  # fmt: skip


def _rendered(context: Context, request: Write, *, first_seq: int, ts: int) -> Run:
    return render(
        request.records,
        first_seq=first_seq,
        ts=ts,
        node=request.node,
        plain=request.plain,
        limits=context.limits,
    )


def _create_for_write(context: Context, command: Command, request: Write) -> None:
    if not request.create:
        raise TopicNotFound(command.topic)
    config = merged(command.topic, request.config, None, at="config.")
    run = _rendered(context, request, first_seq=1, ts=context.now_ms)
    check_fits(config, run, count=0, bytes_=0, topic=command.topic)
    _may_write(context, run.stored_bytes_max() + RESERVE_BYTES)
    claim_for_creation(context.allowed, command, TopicLog(0, command.topic, config), run)
    topic = _create(context, command.topic, config)
    context.raise_ceiling(topic, run.count)
    command.created = True


def _create(context: Context, name: str, config: TopicConfig) -> TopicState:
    topic = context.registry.add(context.registry.new_id(), name, config)
    context.log(frames.create_frame(topic.log.topic_id, name, config))
    return topic


def check_fits(config: TopicConfig, run: Run, *, count: int, bytes_: int, topic: str) -> None:
    """Refuse what can never fit, and what does not fit now into a topic that evicts nothing."""
    if not config.cap_bytes and not config.cap_records:
        return
    size = run.payload_bytes()
    largest = run.payload_bytes_max() if 0 < config.cap_bytes < size else 0
    if largest > config.cap_bytes:
        raise RecordTooLarge(
            f"a record of {largest} bytes is larger than the whole cap_bytes of {config.cap_bytes}",
            field="records",
            value=largest,
            limit=config.cap_bytes,
        )
    if config.discard != "reject":
        return
    caps = [
        ("cap_records", count, run.count, config.cap_records),
        ("cap_bytes", bytes_, size, config.cap_bytes),
    ]
    for name, _, added, cap in caps:
        if cap and added > cap:
            raise RecordTooLarge(
                f"{added} can never fit into a {name} of {cap}", field="records", value=added, limit=cap
            )
    for name, used, added, cap in caps:
        if cap and used + added > cap:
            raise TopicFull(
                f'topic "{topic}" is full: {name} is {cap}, {used} are used, {added} were to be added',
                detail={"topic": topic, "limit": name, "max": cap, "used": used},
            )


def append_run(context: Context, topic: TopicState, run: Run, key: bytes) -> None:
    """Add what was checked; nothing can be refused any more."""
    log = topic.log
    log.append(run, logged=not topic.ephemeral)
    log.evict_to_caps()
    topic.written_ms = context.now_ms
    context.appended.add(log.name)
    context.restless.add(topic)
    if key:
        remembered = Remembered(run.first_seq, run.count, run.ts)
        log.keys.remember(key, remembered, window_ms=log.config.idempotency_window_ms)
    if topic.ephemeral:
        for frame in topic.floor_frames():
            context.log(frame)
    else:
        evicted = log.marks.cap_evicted if log.marks.cap_evicted != topic.logged_cap else 0
        topic.logged_cap, topic.logged_head = log.marks.cap_evicted, log.head
        topic.replayed_head = log.head
        context.log(frames.append_frame(log.topic_id, run, key=key, cap_evicted=evicted))
    if topic.ceiling_is_near:
        context.raise_ceiling(topic, log.head)


def _diff(context: Context, command: Command) -> Answer:
    if command.decoded is None:
        command.decoded = requests.decode_diff(command.body, context.limits)
    request = command.decoded
    assert isinstance(request, Diff)
    log = _existing(context, command.topic).log
    log.last_read_ts = context.now_ms
    options = request.options
    if options.nodes and not log.config.dedupe_node:
        options = msgspec.structs.replace(options, nodes=frozenset())
    result = read(log, request.from_seq, options, patient=command.fetches < FETCHES_MAX)
    if request.wait_ms and not result.count and result.gap is None:
        if command.deadline_ns == 0:
            command.deadline_ns = context.now_ns + request.wait_ms * 1_000_000
        if context.now_ns < command.deadline_ns:
            # What was filtered out now need not be looked at again.
            command.decoded = Diff(result.next_from_seq, request.wait_ms, request.options)
            raise Waits if result.next_from_seq == log.head else Continues
    return answers.diff_answer(log, result)


def _delete_records(context: Context, command: Command) -> Answer:
    if command.decoded is None:
        command.decoded = requests.decode_delete(command.body)
    request = command.decoded
    assert isinstance(request, Delete)
    topic = _existing(context, command.topic)
    log = topic.log
    _may_write(context)
    bound = log.head + 1 if request.before_seq is None else min(request.before_seq, log.head + 1)
    if request.match is None:
        ranges = [(log.earliest, bound - 1)] if bound > log.earliest else []
    else:
        if command.found is None and (pages := log.pages_to_search(request.match, below=bound)):
            # What is written while they are searched is not meant.
            command.decoded = Delete(bound, request.match)
            raise NeedsSearch(pages, request.match)
        ranges = as_ranges(log.matching(request.match, below=bound, found=command.found or {}))
    _may_write(context, 16 * len(ranges))
    deleted = log.delete(ranges) if ranges else 0
    logged = bool(deleted) and ranges[0][0] <= topic.logged_head
    if logged:
        context.log(frames.delete_frame(log.topic_id, ranges))
    return answers.delete_answer(log, deleted, synced=logged and log.config.durable)


def as_ranges(seqs: list[int]) -> list[tuple[int, int]]:
    """Ascending seqs as inclusive ranges."""
    ranges: list[tuple[int, int]] = []
    for seq in seqs:
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return ranges


def _put_topic(context: Context, command: Command) -> Answer:
    if command.decoded is None:
        command.decoded = requests.decode_config(command.body)
    patch = command.decoded
    assert isinstance(patch, ConfigPatch)
    topic = context.registry.find(command.topic)
    config = merged(command.topic, patch, topic.log.config if topic is not None else None)
    if topic is None:
        _may_write(context)
        if context.allowed.topics is not None:
            context.allowed.topics.claim(command, 1)
        topic = _create(context, command.topic, config)
        return answers.config_answer(topic.log, created=True, synced=True)
    if config == topic.log.config:
        return answers.config_answer(topic.log, created=False, synced=True)
    _may_write(context)
    log = topic.log
    # What the old TTL has taken stays taken, whatever the new one says.
    log.expire(context.now_ms)
    log.foresee_eviction(config)
    log.foresee_expiry(config, context.now_ms)
    log.config = config
    context.restless.add(topic)
    context.log(frames.config_frame(log.topic_id, config, log.head))
    topic.replayed_head = log.head
    log.expire(context.now_ms)
    log.evict_to_caps()
    for frame in topic.floor_frames():
        context.log(frame)
    return answers.config_answer(log, created=False, synced=True)


def _get_topic(context: Context, command: Command) -> Answer:
    log = _existing(context, command.topic).log
    if command.params.get("touch") is not False:
        log.last_read_ts = context.now_ms
    return answers.state_answer(log, now_ms=context.now_ms, waited_ms=command.waited_ns / 1e6)


def _delete_topic(context: Context, command: Command) -> Answer:
    topic = context.registry.find(command.topic)
    if topic is None:
        return answers.drop_answer(command.topic, deleted=False)
    topic.log.expire(context.now_ms)
    if command.params.get("if_empty") is True and topic.log.count:
        raise TopicNotEmpty(
            f'topic "{command.topic}" has {topic.log.count} records',
            detail={"topic": command.topic, "count": topic.log.count},
        )
    _may_write(context)
    context.registry.remove(topic)
    context.log(frames.drop_frame(topic.log.topic_id))
    context.appended.add(command.topic)
    return answers.drop_answer(command.topic, deleted=True)


def _list_topics(context: Context, command: Command) -> Answer:
    params = command.params
    prefix, after, limit = params.get("prefix", ""), params.get("after", ""), params.get("limit", 0)
    if not (isinstance(prefix, str) and isinstance(after, str) and isinstance(limit, int)):
        raise InvalidRequest("list parameters have wrong types", field="prefix")
    page = []
    for topic in context.registry.page(prefix=prefix, after=after, limit=limit):
        topic.log.expire(context.now_ms)
        if params.get("touch") is True:
            topic.log.last_read_ts = context.now_ms
        page.append([topic.log.name, answers.list_item(topic.log, now_ms=context.now_ms)])
    return Answer(200, [cbor2.dumps(page)], raw=True)


_HANDLERS: dict[Op, Callable[[Context, Command], Answer]] = {
    Op.WRITE: _write,
    Op.DIFF: _diff,
    Op.DELETE_RECORDS: _delete_records,
    Op.PUT_TOPIC: _put_topic,
    Op.GET_TOPIC: _get_topic,
    Op.DELETE_TOPIC: _delete_topic,
    Op.LIST_TOPICS: _list_topics,
}
