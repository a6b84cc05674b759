"""Writes that stand in a row, applied at once: one run, one frame, as many answers.

Only the ordinary kind: one record without tag, node or meta, for a topic that is there and has room.
The row ends before the first command that is anything else, and that one is run by itself. Records of
a row are committed at the same moment; to their writers it looks as if each had been alone.
"""

from collections.abc import Iterable

from msgspec import UNSET

from shards.answers import single_write_answer
from shards.command import Command
from shards.commands import RESERVE_BYTES, Context, append_run, has_room
from shards.requests import write_decoder
from topics.engine.record import NO_META, WriteRecord, decode_body
from topics.engine.run import render
from topics.errors import TopicsError
from topics.protocol.messages import Op

# A larger body is not a small record, or not alone: looking into it twice would cost more than it gains.
ORDINARY_BYTES_MAX = 4096


def run_in_a_row(context: Context, name: str, commands: Iterable[Command]) -> list[Command]:
    """Run the first commands of one topic, as many as are ordinary writes; they have answers then."""
    topic = context.registry.find(name)
    if topic is None or not context.writable or context.allowed.bytes is not None:
        return []
    log, config = topic.log, topic.log.config
    if config.discard != "old" and (config.cap_bytes or config.cap_records):
        return []
    row: list[Command] = []
    records: list[WriteRecord] = []
    for command in commands:
        record = _ordinary(command)
        if record is None or 0 < config.cap_bytes < len(record.data):
            break
        row.append(command)
        records.append(record)
    if len(row) < 2 or log.head + len(row) > topic.durable_ceiling:
        return []
    log.expire(context.now_ms)
    first_seq, ts = log.head + 1, max(context.now_ms, log.last_ts)
    try:
        run = render(records, first_seq=first_seq, ts=ts, node=UNSET, plain=True, limits=context.limits)
    except TopicsError:
        # One of them is to be refused; it will be found when each is run by itself.
        return []
    if not has_room(context, run.stored_bytes_max() + RESERVE_BYTES):
        return []
    log.foresee_eviction(config, run)
    append_run(context, topic, run, b"")
    for seq, command in enumerate(row, first_seq):
        command.body = b""
        command.answer = single_write_answer(log, seq)
    return row


def _ordinary(command: Command) -> WriteRecord | None:
    """The record of an ordinary write; None if it is anything else, or not a write that can be read."""
    if command.op is not Op.WRITE or command.params or command.cancelled or command.decoded is not None:
        return None
    if len(command.body) > ORDINARY_BYTES_MAX:
        return None
    try:
        body = decode_body(write_decoder, command.body)
    except TopicsError:
        return None
    if len(body.records) != 1 or body.node is not UNSET or body.idempotency_key is not UNSET:
        return None
    record = body.records[0]
    plain = record.tag is UNSET and record.node is UNSET and record.meta is NO_META
    return record if plain else None
