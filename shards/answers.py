"""Response bodies as bytes, each without its closing brace: the performance block follows later."""

import msgspec

from shards.command import Answer
from shards.state import TopicState
from topics.engine.priority import effective_priority
from topics.engine.reading import ReadResult
from topics.engine.topic import TopicLog
from topics.engine.watermarks import Gap


def _bool(value: bool) -> bytes:
    return b"true" if value else b"false"


def _number(value: int | None) -> bytes:
    return b"null" if value is None else b"%d" % value


def write_answer(
    topic: TopicState, *, first_seq: int, count: int, created: bool, deduped: bool, seqs: bool, synced: bool
) -> Answer:
    log = topic.log
    last_seq = first_seq + count - 1
    listed = b""
    if seqs:
        listed = b'"seqs":%b,' % (
            b"[%d]" % first_seq if count == 1 else msgspec.json.encode(list(range(first_seq, last_seq + 1)))
        )
    body = (
        b'{"topic":"%b","first_seq":%d,"last_seq":%d,%b"head_seq":%d,"count":%d,"created":%b,"deduped":%b'
        % (log.name.encode(), first_seq, last_seq, listed, log.head, count, _bool(created), _bool(deduped))
    )
    return Answer(201 if created else 200, [body], logged=True, synced=synced)


def single_write_answer(log: TopicLog, seq: int) -> Answer:
    """To a write of one record, as if nothing had been written behind it yet."""
    body = (
        b'{"topic":"%b","first_seq":%d,"last_seq":%d,"seqs":[%d],"head_seq":%d,"count":1,"created":false,'
        b'"deduped":false'
    ) % (log.name.encode(), seq, seq, seq, seq)
    return Answer(200, [body], logged=True, synced=log.config.durable)


def diff_answer(log: TopicLog, result: ReadResult) -> Answer:
    head = b'{"topic":"%b","records":[' % log.name.encode()
    tombstone = b"null" if result.gap is None else _tombstone(log, result.gap)
    following = result.next_from_seq
    tail = b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,"tombstone":%b,"lag":%d' % (
        following,
        log.head,
        log.earliest,
        _bool(following == log.head),
        tombstone,
        log.head - following,
    )
    parts: list[bytes | memoryview] = [head]
    for part in result.parts:
        parts += (part, b",")
    if result.parts:
        parts.pop()
    parts.append(tail)
    return Answer(200, parts, records_scanned=result.examined)


def _tombstone(log: TopicLog, gap: Gap) -> bytes:
    cause = b',"cause":"%b"' % gap.cause.encode() if gap.cause else b""
    return (
        b'{"gap_from":%d,"gap_to":%d,"reason":"%b","missed_estimate":%d,"earliest_seq":%d,"head_seq":%d%b}'
        % (gap.first, gap.last, gap.reason.encode(), gap.missed_estimate, log.earliest, log.head, cause)
    )


def delete_answer(log: TopicLog, deleted: int, *, synced: bool) -> Answer:
    body = b'{"topic":"%b","deleted":%d,"earliest_seq":%d,"head_seq":%d,"count":%d,"bytes":%d' % (
        log.name.encode(), deleted, log.earliest, log.head, log.count, log.bytes,
    )  # fmt: skip
    return Answer(200, [body], logged=True, synced=synced)


def config_answer(log: TopicLog, *, created: bool, synced: bool) -> Answer:
    body = b'{"topic":"%b","created":%b,"config":%b' % (log.name.encode(), _bool(created), log.config.json())
    return Answer(201 if created else 200, [body], logged=True, synced=synced)


def state_answer(log: TopicLog, *, now_ms: int, waited_ms: float) -> Answer:
    queue = b""
    if log.config.type == "queue":
        # Nothing can be claimed in this release, so every live job is ready.
        queue = b',"queue":{"ready":%d,"in_flight":0,"dead_lettered":0}' % log.count
    body = (
        b'{"topic":"%b","type":"%b","head_seq":%d,"earliest_seq":%d,"next_seq":%d,"count":%d,"bytes":%d,'
        b'"config":%b%b,"effective_priority":%d,"last_write_ts":%b,"last_read_ts":%b'
    ) % (
        log.name.encode(), log.config.type.encode(), log.head, log.earliest, log.head + 1, log.count,
        log.bytes, log.config.json(), queue, _priority(log, now_ms, waited_ms),
        _number(log.last_write_ts), _number(log.last_read_ts),
    )  # fmt: skip
    return Answer(200, [body])


def drop_answer(name: str, *, deleted: bool) -> Answer:
    body = b'{"topic":"%b","deleted":%b,"routers_removed":[]' % (name.encode(), _bool(deleted))
    return Answer(200, [body], logged=True, synced=deleted)


def list_item(log: TopicLog, *, now_ms: int) -> bytes:
    return (
        b'{"topic":"%b","head_seq":%d,"earliest_seq":%d,"count":%d,"bytes":%d,"durable":%b,'
        b'"effective_priority":%d}'
    ) % (
        log.name.encode(), log.head, log.earliest, log.count, log.bytes, _bool(log.config.durable),
        _priority(log, now_ms, 0.0),
    )  # fmt: skip


def _priority(log: TopicLog, now_ms: int, waited_ms: float) -> int:
    return round(
        effective_priority(log.config, last_read_ms=log.last_read_ts, now_ms=now_ms, waited_ms=waited_ms)
    )


def log_cost(append_ns: int = 0, sync_ns: int = 0) -> bytes:
    """What writing to the log has cost, for the performance block."""
    return b',"wal_append_ms":%.3f,"fsync_ms":%.3f' % (append_ns / 1e6, sync_ns / 1e6)


NO_LOG_COST = log_cost()


def performance(answer: Answer, *, total_ns: int, waited_ns: int, logged: bytes = NO_LOG_COST) -> bytes:
    """The block that ends every JSON body, brace included."""
    extra = logged if answer.logged else b""
    if answer.records_scanned is not None:
        extra = b',"records_scanned":%d' % answer.records_scanned
    return b',"performance":{"server_total_ms":%.3f%b,"throttle_wait_ms":%.3f}}' % (
        total_ns / 1e6,
        extra,
        waited_ns / 1e6,
    )
