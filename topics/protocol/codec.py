"""Bytes to messages and back. No sockets, no clock, no trio.

Kept here and nowhere else:
  * A message is `length u32 big-endian` and one CBOR item of that many bytes: an array whose first
    element is the kind.
  * REQUEST, REPLY and PART have one fixed layout, packed by hand, so that the bulk passes no encoder.
    Other CBOR that means the same is refused: nothing is guessed.
  * The decoder is total: any bytes, split anywhere, give messages or a ProtocolError, never another
    exception. A decoder that raised stays dead, because the place of the next message is unknown.
Decided elsewhere: when to send, whom to credit, what an unknown id means.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final

from topics.protocol import plain
from topics.protocol.messages import (
    INLINE_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PARAMS_BYTES_MAX,
    PART_BYTES,
    STATUS_MAX,
    STATUS_MIN,
    Kind,
    Message,
    Op,
    Part,
    ProtocolError,
    Reply,
    Request,
    VersionMismatch,
)
from topics.protocol.strict_cbor import CborRefused, decode_value, encode_value

__all__ = [
    "Decoder",
    "ProtocolError",
    "VersionMismatch",
    "decode_params",
    "encode",
    "encode_params",
    "encode_request",
    "part_head",
    "reply_head",
]

# CBOR initial bytes of the fixed layouts.
_ARRAY_3, _ARRAY_5, _ARRAY_7 = 0x83, 0x85, 0x87
_U8, _U16, _U32, _U64 = 0x18, 0x19, 0x1A, 0x1B
_BYTES_U16, _BYTES_U32 = 0x59, 0x5A

_LENGTH = Struct(">I")
# length | array(7) REQUEST | u32 id | u8 op | bytes topic … | u64 arrived_ns | bytes params … | bytes body …
_REQUEST_HEAD = Struct(">IBBBIBBBH")
_REQUEST_MIDDLE = Struct(">BQBH")
_REQUEST_TAIL = Struct(">BI")
# length | array(5) REPLY | u32 id | u16 status | u16 retry_after_s | bytes body …
_REPLY_HEAD = Struct(">IBBBIBHBHBI")
# length | array(3) PART | u32 id | bytes data …
_PART_HEAD = Struct(">IBBBIBI")

_REQUEST_FIXED_BYTES: Final = _REQUEST_HEAD.size + _REQUEST_MIDDLE.size + _REQUEST_TAIL.size
# Kind byte of a message: behind the length and the array head.
_KIND_AT: Final = _LENGTH.size + 1
_OPS: Final = {int(op): op for op in Op}
# An attribute of an enum, or of a Struct, costs as much as the packing it stands beside.
_REQUEST, _REPLY, _PART = int(Kind.REQUEST), int(Kind.REPLY), int(Kind.PART)
_REQUEST_HEAD_BYTES: Final = _REQUEST_HEAD.size
_REQUEST_MIDDLE_BYTES: Final = _REQUEST_MIDDLE.size
_REQUEST_TAIL_BYTES: Final = _REQUEST_TAIL.size
_REPLY_HEAD_BYTES: Final = _REPLY_HEAD.size
_FIXED_REQUEST: Final = (_ARRAY_7, _U32, _U8, _BYTES_U16, _U64, _BYTES_U16, _BYTES_U32)
_FIXED_REPLY: Final = (_ARRAY_5, _U32, _U16, _U16, _BYTES_U32)


def encode_request(id: int, op: int, topic: bytes, arrived_ns: int, params: bytes, body: bytes) -> bytes:
    """A whole REQUEST. A body beyond INLINE_BYTES_MAX must go as BODY_OPEN and parts."""
    if len(body) > INLINE_BYTES_MAX or len(params) > PARAMS_BYTES_MAX:
        raise ValueError(f"too large for one message: body {len(body)}, params {len(params)} bytes")
    length = _REQUEST_FIXED_BYTES - _LENGTH.size + len(topic) + len(params) + len(body)
    return b"".join(
        (
            _REQUEST_HEAD.pack(length, _ARRAY_7, _REQUEST, _U32, id, _U8, op, _BYTES_U16, len(topic)),
            topic,
            _REQUEST_MIDDLE.pack(_U64, arrived_ns, _BYTES_U16, len(params)),
            params,
            _REQUEST_TAIL.pack(_BYTES_U32, len(body)),
            body,
        )
    )


def reply_head(id: int, status: int, retry_after_s: int, body_length: int) -> bytes:
    """What goes before the body of a REPLY; the caller sends the body beside it."""
    if body_length > INLINE_BYTES_MAX:
        raise ValueError(f"a reply of {body_length} bytes must go in parts")
    return _REPLY_HEAD.pack(
        _REPLY_HEAD.size - _LENGTH.size + body_length,
        _ARRAY_5, _REPLY, _U32, id, _U16, status, _U16, retry_after_s, _BYTES_U32, body_length,
    )  # fmt: skip


def part_head(id: int, length: int) -> bytes:
    """What goes before the data of a PART; the caller sends the data beside it."""
    if not 1 <= length <= PART_BYTES:
        raise ValueError(f"a part has 1 to {PART_BYTES} bytes, not {length}")
    return _PART_HEAD.pack(
        _PART_HEAD.size - _LENGTH.size + length, _ARRAY_3, Kind.PART, _U32, id, _BYTES_U32, length
    )


def encode(message: Message) -> bytes:
    """Any message, whole."""
    match message:
        case Request():
            return encode_request(
                message.id, message.op, message.topic, message.arrived_ns, message.params, message.body
            )
        case Reply():
            head = reply_head(message.id, message.status, message.retry_after_s, len(message.body))
            return head + message.body
        case Part():
            return part_head(message.id, len(message.data)) + message.data
    item = plain.encode_item(message)
    return _LENGTH.pack(len(item)) + item


def encode_params(params: Mapping[str, object]) -> bytes:
    """The parameters of a request; no parameters are no bytes."""
    if not params:
        return b""
    encoded = encode_value(dict(params))
    if len(encoded) > PARAMS_BYTES_MAX:
        raise ValueError(f"parameters of {len(encoded)} bytes; at most {PARAMS_BYTES_MAX}")
    return encoded


def decode_params(data: bytes) -> dict[str, object]:
    """Raises ProtocolError unless the bytes are one small map with text keys."""
    if not data:
        return {}
    if len(data) > PARAMS_BYTES_MAX:
        raise ProtocolError(f"parameters of {len(data)} bytes; at most {PARAMS_BYTES_MAX}")
    try:
        value = decode_value(data)
    except CborRefused as refused:
        raise ProtocolError(f"parameters: {refused.reason}") from None
    if not isinstance(value, dict):
        raise ProtocolError("parameters are not a map")
    return value


class Decoder:
    """The messages of one stream, from chunks as they arrive.

    A chunk that ends inside a message is kept as it is, and the pieces are put together once, when the
    message is complete: the work is linear in the bytes, however they are split.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._have = 0
        # Bytes of the unfinished message, its length prefix included; only the prefix while unknown.
        self._need = _LENGTH.size
        self._dead: str | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes of a message that has begun and not ended."""
        return self._have

    def feed(self, data: bytes | memoryview) -> list[Message]:
        if self._dead is not None:
            raise ProtocolError(f"after an earlier error: {self._dead}")
        chunk = data if isinstance(data, bytes) else bytes(data)
        messages: list[Message] = []
        try:
            at = self._finish_pending(chunk, messages) if self._have else 0
            self._decode_from(chunk, at, messages)
        except ProtocolError as error:
            self._dead = error.reason
            self._pieces.clear()
            raise
        return messages

    def _finish_pending(self, chunk: bytes, messages: list[Message]) -> int:
        """Adds to the unfinished message; returns where the rest of the chunk begins."""
        at = 0
        while at < len(chunk):
            taken = chunk[at : at + self._need - self._have]
            self._pieces.append(taken)
            self._have += len(taken)
            at += len(taken)
            if self._have < self._need:
                return at
            if self._need == _LENGTH.size:
                self._pieces = [b"".join(self._pieces)]
                self._need = _whole_length(self._pieces[0], 0)
                continue
            messages.append(_decode_pieces(self._pieces))
            self._pieces, self._have, self._need = [], 0, _LENGTH.size
            return at
        return at

    def _decode_from(self, chunk: bytes, at: int, messages: list[Message]) -> None:
        """Decodes every whole message from `at` on, and keeps what is left."""
        size = len(chunk)
        while at < size:
            if size - at < _LENGTH.size:
                break
            end = at + _whole_length(chunk, at)
            if end > size:
                self._need = end - at
                break
            messages.append(_decode_one(chunk, at, end))
            at = end
        if at < size:
            self._pieces = [chunk[at:]]
            self._have = size - at


def _whole_length(data: bytes, at: int) -> int:
    """Bytes of the message that starts at `at`, its length prefix included."""
    (length,) = _LENGTH.unpack_from(data, at)
    if not 2 <= length <= MESSAGE_BYTES_MAX:
        raise ProtocolError(f"a message of {length} bytes; 2 to {MESSAGE_BYTES_MAX} are allowed")
    whole: int = _LENGTH.size + length
    return whole


def _decode_pieces(pieces: list[bytes]) -> Message:
    """One message from the pieces it came in. The bulk of a part or reply is copied once, not twice."""
    first, size = pieces[0], sum(map(len, pieces))
    if len(first) >= _REPLY_HEAD.size:
        kind = first[_KIND_AT]
        if kind == _PART:
            id = _part_head(first, 0, size)
            return Part(id, b"".join((memoryview(first)[_PART_HEAD.size :], *pieces[1:])))
        if kind == _REPLY:
            id, status, retry_after_s = _reply_head(first, 0, size)
            body = b"".join((memoryview(first)[_REPLY_HEAD.size :], *pieces[1:]))
            return Reply(id, status, retry_after_s, body)
    return _decode_one(b"".join(pieces), 0, size)


def _decode_one(data: bytes, at: int, end: int) -> Message:
    kind = data[at + _KIND_AT]
    if kind == _REPLY:
        return Reply(*_reply_head(data, at, end), data[at + _REPLY_HEAD_BYTES : end])
    if kind == _REQUEST:
        return _decode_request(data, at, end)
    if kind == _PART:
        return Part(_part_head(data, at, end), data[at + _PART_HEAD.size : end])
    return plain.decode_item(data[at + _LENGTH.size : end])


def _decode_request(data: bytes, at: int, end: int) -> Request:
    if end - at < _REQUEST_FIXED_BYTES:
        raise ProtocolError("a request shorter than its head")
    _, array, _, u32, id, u8, op, bytes_topic, topic_length = _REQUEST_HEAD.unpack_from(data, at)
    topic_at = at + _REQUEST_HEAD_BYTES
    middle_at = topic_at + topic_length
    if end - middle_at < _REQUEST_MIDDLE_BYTES + _REQUEST_TAIL_BYTES:
        raise ProtocolError("a request's topic runs over its end")
    u64, arrived_ns, bytes_params, params_length = _REQUEST_MIDDLE.unpack_from(data, middle_at)
    params_at = middle_at + _REQUEST_MIDDLE_BYTES
    tail_at = params_at + params_length
    if end - tail_at < _REQUEST_TAIL_BYTES:
        raise ProtocolError("a request's parameters run over its end")
    bytes_body, body_length = _REQUEST_TAIL.unpack_from(data, tail_at)
    body_at = tail_at + _REQUEST_TAIL_BYTES
    given = (array, u32, u8, bytes_topic, u64, bytes_params, bytes_body)
    if given != _FIXED_REQUEST or body_at + body_length != end:
        raise ProtocolError("a request that is not in the fixed layout")
    known_op = _OPS.get(op)
    if known_op is None or body_length > INLINE_BYTES_MAX or params_length > PARAMS_BYTES_MAX:
        raise ProtocolError(f"a request with op {op}, {body_length} and {params_length} bytes")
    return Request(
        id, known_op, data[topic_at:middle_at], arrived_ns, data[params_at:tail_at], data[body_at:end]
    )


def _reply_head(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Id, status and retry_after_s of the REPLY from `at` to `end`; only its head need be in `data`."""
    body_at = at + _REPLY_HEAD_BYTES
    if body_at > end:
        raise ProtocolError("a reply shorter than its head")
    (_, array, _, u32, id, u16_status, status, u16_retry, retry_after_s, bytes_body, body_length) = (
        _REPLY_HEAD.unpack_from(data, at)
    )
    given = (array, u32, u16_status, u16_retry, bytes_body)
    if given != _FIXED_REPLY or body_at + body_length != end:
        raise ProtocolError("a reply that is not in the fixed layout")
    if not STATUS_MIN <= status <= STATUS_MAX or body_length > INLINE_BYTES_MAX:
        raise ProtocolError(f"a reply with status {status} and {body_length} bytes")
    return id, status, retry_after_s


def _part_head(data: bytes, at: int, end: int) -> int:
    """The id of the PART from `at` to `end`; only its head need be in `data`."""
    if end - at <= _PART_HEAD.size:
        raise ProtocolError("a part without data")
    _, array, _, u32, id, bytes_data, length = _PART_HEAD.unpack_from(data, at)
    if (array, u32, bytes_data) != (_ARRAY_3, _U32, _BYTES_U32) or at + _PART_HEAD.size + length != end:
        raise ProtocolError("a part that is not in the fixed layout")
    if length > PART_BYTES:
        raise ProtocolError(f"a part of {length} bytes; at most {PART_BYTES}")
    checked: int = id
    return checked
