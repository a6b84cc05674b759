"""Request bodies of the data routes: JSON in, checked values out."""

from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from topics.engine import idempotency
from topics.engine.config import U64_MAX, ConfigPatch, config_decoder
from topics.engine.limits import (
    IDEMPOTENCY_KEY_CHARS_MAX,
    READ_BYTES_DEFAULT,
    READ_BYTES_MAX,
    READ_LIMIT_DEFAULT,
    WAIT_MS_MAX,
    Limits,
)
from topics.engine.reading import ReadOptions
from topics.engine.record import WriteRecord, check_nesting, check_records, check_text, decode_body
from topics.engine.run import node_section
from topics.engine.tags import TagMatch, parse_match
from topics.errors import InvalidRequest


class WriteBody(msgspec.Struct, gc=False):
    records: list[WriteRecord]
    node: str | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET
    create: bool | UnsetType = UNSET
    config: ConfigPatch | UnsetType = UNSET
    disable_backpressure: bool = False


class DiffBody(msgspec.Struct, gc=False):
    from_seq: int = 0
    limit: int = 0
    node: str | list[str] | UnsetType = UNSET
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    max_batch_bytes: int = 0


class DeleteBody(msgspec.Struct, gc=False):
    before_seq: int | UnsetType = UNSET
    match: str | list[str] | UnsetType = UNSET


write_decoder = msgspec.json.Decoder(WriteBody)
_diff_decoder = msgspec.json.Decoder(DiffBody)
_delete_decoder = msgspec.json.Decoder(DeleteBody)


class Write(msgspec.Struct, frozen=True, gc=False):
    records: list[WriteRecord]
    plain: bool  # no record has a tag, a node or a meta
    node: str | UnsetType
    key: bytes  # digest of the idempotency key; empty if there is none
    create: bool
    config: ConfigPatch


class Diff(msgspec.Struct, frozen=True, gc=False):
    from_seq: int
    wait_ms: int
    options: ReadOptions


class Delete(msgspec.Struct, frozen=True, gc=False):
    before_seq: int | None
    match: TagMatch | None


Decoded: TypeAlias = Write | Diff | Delete | ConfigPatch


def decode_write(body: bytes, header_key: object, limits: Limits) -> Write:
    parsed = decode_body(write_decoder, body)
    plain = check_records(parsed.records, limits)
    if parsed.node is not UNSET:
        check_text(parsed.node, "node", limits.node_bytes, "TOPICS_MAX_NODE_BYTES")
    key = parsed.idempotency_key
    if key is UNSET and isinstance(header_key, str):
        key = header_key
    return Write(
        parsed.records,
        plain,
        parsed.node,
        _key_digest(key),
        parsed.create is not False,
        parsed.config if parsed.config is not UNSET else ConfigPatch(),
    )


def _key_digest(key: str | UnsetType) -> bytes:
    if key is UNSET:
        return b""
    # An empty key would make unrelated writes duplicates of each other.
    if not 1 <= len(key) <= IDEMPOTENCY_KEY_CHARS_MAX:
        raise InvalidRequest(
            f"idempotency_key has {len(key)} characters, 1 to {IDEMPOTENCY_KEY_CHARS_MAX} are allowed",
            field="idempotency_key",
            value=len(key),
            limit=IDEMPOTENCY_KEY_CHARS_MAX,
        )
    return idempotency.digest(key)


class _Queueing(msgspec.Struct, gc=False):
    disable_backpressure: bool = False


_queueing_decoder = msgspec.json.Decoder(_Queueing)


def wants_queueing(body: bytes) -> bool:
    """Whether a write asks to be queued rather than refused; one that cannot be read does not."""
    try:
        return _queueing_decoder.decode(body).disable_backpressure
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def decode_diff(body: bytes, limits: Limits) -> Diff:
    parsed = decode_body(_diff_decoder, body)
    check_nesting(body, "body")
    _u64("from_seq", parsed.from_seq)
    for field in ("limit", "wait_ms", "max_batch_bytes"):
        if getattr(parsed, field) < 0:
            _u64(field, getattr(parsed, field))
    nodes: list[str] = []
    if parsed.node is not UNSET:
        nodes = [parsed.node] if isinstance(parsed.node, str) else parsed.node
    options = ReadOptions(
        limit=min(parsed.limit or READ_LIMIT_DEFAULT, limits.read_limit),
        bytes_max=min(parsed.max_batch_bytes or READ_BYTES_DEFAULT, READ_BYTES_MAX),
        nodes=frozenset(map(node_section, nodes)),
        include_tags=parsed.include_tags,
        include_meta=parsed.include_meta,
    )
    return Diff(parsed.from_seq, min(parsed.wait_ms, WAIT_MS_MAX), options)


def decode_delete(body: bytes) -> Delete:
    parsed = decode_body(_delete_decoder, body)
    check_nesting(body, "body")
    if parsed.before_seq is UNSET and parsed.match is UNSET:
        raise InvalidRequest("before_seq or match is required", field="before_seq")
    before_seq = None if parsed.before_seq is UNSET else _u64("before_seq", parsed.before_seq)
    match = None if parsed.match is UNSET else parse_match(parsed.match, field="match")
    return Delete(before_seq, match)


def decode_config(body: bytes) -> ConfigPatch:
    patch = decode_body(config_decoder, body)
    check_nesting(body, "body")
    return patch


def _u64(field: str, value: int) -> int:
    if not 0 <= value <= U64_MAX:
        raise InvalidRequest(f"{field} is {value}, allowed are 0 to {U64_MAX}", field=field, limit=U64_MAX)
    return value
