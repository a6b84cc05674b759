"""The messages that cross a process boundary, and the numbers both sides must agree on.

Values only: no bytes are packed here (codec.py does that), nothing is sent here.
A message is immutable. Its fields were checked by the decoder, so that a receiver may trust their
types and ranges, but not what they mean: whether an id is known, or a topic exists, is the receiver's
question.
"""

from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

KIB = 1024
MIB = 1024 * KIB

# Changed whenever an old peer could misread a new one. A peer with another version is refused.
PROTOCOL_VERSION: Final = 1

# A body up to this size travels inside its message; a larger one in parts, so that it cannot hold up
# the small messages behind it for longer than one part takes.
INLINE_BYTES_MAX: Final = 256 * KIB
PART_BYTES: Final = 256 * KIB
# Parts that may be on their way unacknowledged: enough to keep a Unix socket busy, and 1 MiB at most
# waiting in the receiver per body.
PART_CREDITS: Final = 4
# A full inline body beside its topic name and parameters.
MESSAGE_BYTES_MAX: Final = INLINE_BYTES_MAX + 64 * KIB
# An idempotency key, a name prefix and a list position, each in its largest encoding, fit many times over.
PARAMS_BYTES_MAX: Final = 16 * KIB
# The largest body that can be configured; a longer one is a broken peer, not a request.
BULK_BYTES_MAX: Final = 1024 * MIB
CREDIT_PARTS_MAX: Final = 65_535
# What an answer over HTTP may carry; 1xx is the transport's own business.
STATUS_MIN: Final = 200
STATUS_MAX: Final = 599
U32_MAX: Final = 2**32 - 1
U64_MAX: Final = 2**64 - 1

ROLES: Final = frozenset({"gateway", "shard", "router", "cli"})


class ProtocolError(Exception):
    """The peer sent something that is not this protocol: the link is dropped."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class VersionMismatch(ProtocolError):
    """The peer is well-behaved but speaks another version of the protocol."""

    def __init__(self, theirs: int) -> None:
        super().__init__(f"the peer speaks protocol version {theirs}, this side speaks {PROTOCOL_VERSION}")
        self.theirs = theirs


class Kind(IntEnum):
    HELLO = 1
    REQUEST = 2
    REPLY = 3
    BODY_OPEN = 4
    PART = 5
    CREDIT = 6
    CANCEL = 7
    REPLY_OPEN = 8
    DRAIN = 9


class Op(IntEnum):
    """What a request asks of a shard."""

    WRITE = 1
    DIFF = 2
    DELETE_RECORDS = 3
    PUT_TOPIC = 4
    GET_TOPIC = 5
    DELETE_TOPIC = 6
    LIST_TOPICS = 7
    STATUS = 8
    METRICS = 9
    QUOTA_ASK = 10  # between shards, see quota.py
    QUOTA_STATE = 11


class Hello(msgspec.Struct, frozen=True, gc=False):
    """The first message in either direction; the shard speaks first."""

    version: int
    role: str
    shard: int
    epoch: int


class Request(msgspec.Struct, frozen=True, gc=False):
    id: int
    op: Op
    topic: bytes
    # CLOCK_MONOTONIC at the gateway, which all processes of a machine share.
    arrived_ns: int
    # A CBOR map with text keys, see codec.decode_params; empty bytes are an empty map.
    params: bytes
    body: bytes


class Reply(msgspec.Struct, frozen=True, gc=False):
    id: int
    status: int
    # 0: no Retry-After.
    retry_after_s: int
    body: bytes


class BodyOpen(msgspec.Struct, frozen=True, gc=False):
    """A request whose body of `length` bytes follows in parts. At most one is open per link."""

    id: int
    op: Op
    topic: bytes
    arrived_ns: int
    params: bytes
    length: int


class Part(msgspec.Struct, frozen=True, gc=False):
    id: int
    data: bytes


class Credit(msgspec.Struct, frozen=True, gc=False):
    """The receiver of parts allows this many more."""

    id: int
    parts: int


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """The requester is gone: no reply is wanted. It does not undo anything."""

    id: int


class ReplyOpen(msgspec.Struct, frozen=True, gc=False):
    """A reply whose body of `length` bytes follows in parts, between other replies."""

    id: int
    status: int
    retry_after_s: int
    length: int


class Drain(msgspec.Struct, frozen=True, gc=False):
    """Client to shard: answer every parked long-poll of this link now."""


Message: TypeAlias = Hello | Request | Reply | BodyOpen | Part | Credit | Cancel | ReplyOpen | Drain
