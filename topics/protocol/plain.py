"""The messages that are not hot: built and read with cbor2, every field checked for type and range.

An array of the exact length that the kind has, nothing more and nothing less; see codec.py for the
kinds that have a fixed layout instead, which are refused here.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from topics.protocol.messages import (
    BULK_BYTES_MAX,
    CREDIT_PARTS_MAX,
    PARAMS_BYTES_MAX,
    PROTOCOL_VERSION,
    ROLES,
    STATUS_MAX,
    STATUS_MIN,
    U32_MAX,
    U64_MAX,
    BodyOpen,
    Cancel,
    Credit,
    Drain,
    Hello,
    Kind,
    Message,
    Op,
    ProtocolError,
    ReplyOpen,
    VersionMismatch,
)
from topics.protocol.strict_cbor import CborRefused, decode_value, encode_value

PlainMessage: TypeAlias = Hello | BodyOpen | Credit | Cancel | ReplyOpen | Drain

_SHARD_MAX: Final = 65_535
_OPS: Final = {int(op): op for op in Op}


def encode_item(message: PlainMessage) -> bytes:
    return encode_value(_elements(message))


def _elements(message: PlainMessage) -> list[object]:
    match message:
        case Hello(version, role, shard, epoch):
            fields = {"version": version, "role": role, "shard": shard, "epoch": epoch}
            return [int(Kind.HELLO), fields]
        case BodyOpen(id, op, topic, arrived_ns, params, length):
            return [int(Kind.BODY_OPEN), id, int(op), topic, arrived_ns, params, length]
        case Credit(id, parts):
            return [int(Kind.CREDIT), id, parts]
        case Cancel(id):
            return [int(Kind.CANCEL), id]
        case ReplyOpen(id, status, retry_after_s, length):
            return [int(Kind.REPLY_OPEN), id, status, retry_after_s, length]
        case Drain():
            return [int(Kind.DRAIN)]


def decode_item(item: bytes) -> Message:
    """The message in one CBOR item. Raises ProtocolError and nothing else."""
    try:
        value = decode_value(item)
    except CborRefused as refused:
        raise ProtocolError(f"not plain CBOR: {refused.reason}") from None
    if not isinstance(value, list) or not value or type(value[0]) is not int:
        raise ProtocolError("not an array that begins with its kind")
    decode_fields = _PLAIN_KINDS.get(value[0])
    if decode_fields is None:
        raise ProtocolError(f"a message of kind {value[0]}, which is unknown or not in its fixed layout")
    arity, build = decode_fields
    if len(value) != arity:
        raise ProtocolError(f"kind {value[0]} with {len(value)} elements, not {arity}")
    return build(value)


def _number(value: object, low: int, high: int, what: str) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ProtocolError(f"{what} is not an integer from {low} to {high}")
    return value


def _byte_string(value: object, bytes_max: int, what: str) -> bytes:
    if type(value) is not bytes or len(value) > bytes_max:
        raise ProtocolError(f"{what} is not a byte string of at most {bytes_max} bytes")
    return value


def _decode_hello(value: list[object]) -> Hello:
    fields = value[1]
    if not isinstance(fields, dict):
        raise ProtocolError("a hello without a map")
    version = _number(fields.get("version"), 0, U32_MAX, "version")
    if version != PROTOCOL_VERSION:
        raise VersionMismatch(version)
    role = fields.get("role")
    if (
        fields.keys() != {"version", "role", "shard", "epoch"}
        or not isinstance(role, str)
        or role not in ROLES
    ):
        raise ProtocolError("a hello with missing, unknown or wrong fields")
    return Hello(
        version,
        role,
        _number(fields["shard"], 0, _SHARD_MAX, "shard"),
        _number(fields["epoch"], 0, U64_MAX, "epoch"),
    )


def _decode_body_open(value: list[object]) -> BodyOpen:
    _, id, op, topic, arrived_ns, params, length = value
    known_op = _OPS.get(_number(op, 0, 255, "op"))
    if known_op is None:
        raise ProtocolError(f"unknown op {op}")
    return BodyOpen(
        _number(id, 0, U32_MAX, "id"),
        known_op,
        _byte_string(topic, 65_535, "topic"),
        _number(arrived_ns, 0, U64_MAX, "arrived_ns"),
        _byte_string(params, PARAMS_BYTES_MAX, "params"),
        _number(length, 1, BULK_BYTES_MAX, "length"),
    )


def _decode_reply_open(value: list[object]) -> ReplyOpen:
    _, id, status, retry_after_s, length = value
    return ReplyOpen(
        _number(id, 0, U32_MAX, "id"),
        _number(status, STATUS_MIN, STATUS_MAX, "status"),
        _number(retry_after_s, 0, 65_535, "retry_after_s"),
        _number(length, 1, BULK_BYTES_MAX, "length"),
    )


def _decode_credit(value: list[object]) -> Credit:
    return Credit(_number(value[1], 0, U32_MAX, "id"), _number(value[2], 1, CREDIT_PARTS_MAX, "parts"))


def _decode_cancel(value: list[object]) -> Cancel:
    return Cancel(_number(value[1], 0, U32_MAX, "id"))


def _decode_drain(_: list[object]) -> Drain:
    return Drain()


# Kind -> number of elements, and what builds the message from them.
_PLAIN_KINDS: Final[Mapping[int, tuple[int, Callable[[list[object]], Message]]]] = {
    Kind.HELLO: (2, _decode_hello),
    Kind.BODY_OPEN: (7, _decode_body_open),
    Kind.CREDIT: (3, _decode_credit),
    Kind.CANCEL: (2, _decode_cancel),
    Kind.REPLY_OPEN: (5, _decode_reply_open),
    Kind.DRAIN: (1, _decode_drain),
}
