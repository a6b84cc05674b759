"""A write's records as they arrive: decoded once, payloads kept as raw bytes and never parsed.

`data` and `meta` travel as `msgspec.Raw`, so what a client sent is what a reader gets, byte for byte.
msgspec checks JSON grammar and escapes inside raw values; it does not check UTF-8 or bound the
nesting, so both are checked here.
"""

import re
from itertools import accumulate
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from topics.engine.limits import JSON_NESTING_MAX, Limits
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge

# `Raw | None` would accept only null, so absence is an empty Raw, compared by identity.
NO_META = Raw(b"")

T = TypeVar("T")

# A character takes at most this much, so a short enough text needs no encoding to be measured.
_UTF8_BYTES_MAX = 4
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in _STEPS)
_PATH = re.compile(r" - at `\$?\.?(.*?)`$")
_MISSING = re.compile(r"missing required field `(.*?)`")


class WriteRecord(msgspec.Struct, gc=False):
    """One record of a write request."""

    data: Raw
    tag: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    meta: Raw = NO_META


def decode_body(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """Decode a JSON request body; every way it can be wrong becomes an `InvalidRequest` with a field."""
    try:
        if not body.isascii():
            str(body, "utf-8")
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", field="body") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply", field="body") from None


def _named(reason: str) -> InvalidRequest:
    path = _PATH.search(reason)
    field = path.group(1) if path else ""
    message = reason[: path.start()] if path else reason
    missing = _MISSING.search(message)
    if missing:
        field = f"{field}.{missing.group(1)}" if field else missing.group(1)
    return InvalidRequest(f"{field or 'body'}: {message}", field=field or "body")


def nesting_depth(value: bytes) -> int:
    """How many arrays and objects are open at once, at most, in one JSON value."""
    brackets = _STRINGS.sub(b"", value).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def may_be_deep(value: bytes) -> bool:
    """Whether there are brackets enough to be nested too deeply; only then it needs a real look."""
    return value.count(b"[") + value.count(b"{") > JSON_NESTING_MAX


def check_nesting(value: bytes, field: str) -> None:
    """Refuse a value that is nested too deeply."""
    if may_be_deep(value) and nesting_depth(value) > JSON_NESTING_MAX:
        raise InvalidRequest(
            f"{field} is nested deeper than {JSON_NESTING_MAX}", field=field, limit=JSON_NESTING_MAX
        )


def check_records(records: list[WriteRecord], limits: Limits) -> bool:
    """Everything about a write that does not depend on the topic, except the payload sizes.

    True if no record has a tag, a node or a meta.
    """
    if not records:
        raise InvalidRequest("records is empty; a write has at least one record", field="records")
    if len(records) > limits.batch_records:
        raise BatchTooLarge(
            f"records has {len(records)} entries, at most {limits.batch_records} are allowed "
            "(TOPICS_MAX_BATCH_RECORDS)",
            field="records",
            value=len(records),
            limit=limits.batch_records,
        )
    for record in records:
        if record.tag is not UNSET or record.node is not UNSET or record.meta is not NO_META:
            _check_sections(records, limits)
            return False
    return True


def _check_sections(records: list[WriteRecord], limits: Limits) -> None:
    """Tags, nodes and metas. What is clearly within its limit is passed over without a call."""
    tag_chars, node_chars = limits.tag_bytes // _UTF8_BYTES_MAX, limits.node_bytes // _UTF8_BYTES_MAX
    for index, record in enumerate(records):
        tag, node = record.tag, record.node
        if tag is not UNSET and len(tag) > tag_chars:
            check_text(tag, f"records[{index}].tag", limits.tag_bytes, "TOPICS_MAX_TAG_BYTES")
        if node is not UNSET and len(node) > node_chars:
            check_text(node, f"records[{index}].node", limits.node_bytes, "TOPICS_MAX_NODE_BYTES")
        if record.meta is not NO_META:
            _check_meta(bytes(record.meta), index, limits)


def check_text(value: str, field: str, limit_bytes: int, variable: str) -> None:
    """A tag or a node: bounded in bytes, not in characters."""
    if len(value) > limit_bytes // _UTF8_BYTES_MAX and len(value.encode()) > limit_bytes:
        raise InvalidRequest(
            f"{field} has {len(value.encode())} bytes, at most {limit_bytes} are allowed ({variable})",
            field=field,
            value=len(value.encode()),
            limit=limit_bytes,
        )


def _check_meta(meta: bytes, index: int, limits: Limits) -> None:
    # Every key has a colon, so only a value with more colons than keys allowed needs a real look.
    many_colons = meta.count(b":") > limits.meta_keys
    if meta.startswith(b"{") and len(meta) <= limits.meta_bytes and not many_colons:
        return
    field = f"records[{index}].meta"
    if not meta.startswith(b"{"):
        raise InvalidRequest(f"{field}: expected `object`", field=field)
    if len(meta) > limits.meta_bytes:
        raise InvalidRequest(
            f"{field} has {len(meta)} bytes, at most {limits.meta_bytes} are allowed (TOPICS_MAX_META_BYTES)",
            field=field,
            value=len(meta),
            limit=limits.meta_bytes,
        )
    keys = len(msgspec.json.decode(meta, type=dict[str, Raw]))
    if keys > limits.meta_keys:
        raise InvalidRequest(
            f"{field} has {keys} keys, at most {limits.meta_keys} are allowed",
            field=field,
            value=keys,
            limit=limits.meta_keys,
        )


def check_payload(record: WriteRecord, index: int, limits: Limits) -> None:
    """The size and the nesting of one record that is large enough to break a limit."""
    data, meta = bytes(record.data), bytes(record.meta)
    size = len(data) + len(meta)
    if size > limits.record_bytes:
        raise RecordTooLarge(
            f"records[{index}] has {size} bytes of data and meta, at most {limits.record_bytes} are allowed "
            "(TOPICS_MAX_RECORD_BYTES)",
            field=f"records[{index}]",
            value=size,
            limit=limits.record_bytes,
        )
    check_nesting(data, f"records[{index}].data")
    check_nesting(meta, f"records[{index}].meta")
