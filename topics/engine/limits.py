"""Every maximum of the API, with its unit and its reason. Pure numbers, no parsing.

`Limits` holds what an operator may change (the `TOPICS_MAX_*` variables); the defaults here are the
documented ones and `topics.settings` shows the same numbers. The module constants are fixed: they are
part of the contract or protect the server from one request, and no variable moves them.
"""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

# A topic name must fit a length byte, and is checked against a charset before anything else sees it.
TOPIC_NAME_BYTES_MAX = 255

# The nodes of a write are numbered in 16 bits, and one number means none.
BATCH_RECORDS_MAX = 2**16 - 2

# Only a digest of the key is kept, in memory and in the log; the bound keeps a request head small.
IDEMPOTENCY_KEY_CHARS_MAX = 256

# `meta` is for headers; a map of many keys is data and belongs into `data`.
META_KEYS_MAX = 64

# Long enough to make polling cheap, short enough for every proxy's idle timeout.
WAIT_MS_MAX = 30_000

# What a read returns when it does not say how much it wants.
READ_LIMIT_DEFAULT = 256

# A read stops at this many bytes even below its record limit, so that one answer never grows to
# the record limit times the record size. One record is always delivered, whatever its size.
READ_BYTES_DEFAULT = 1 * MIB
READ_BYTES_MAX = 8 * MIB

# Deeper JSON could overflow the stack of a parser further down the line, ours or a reader's.
JSON_NESTING_MAX = 128

# A list page is answered from memory in one sweep of the shard.
LIST_PAGE_DEFAULT = 100
LIST_PAGE_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one server, decided at its start."""

    batch_records: int = 10_000  # records in one write: all of them commit together, in one log batch
    record_bytes: int = 1 * MIB  # `data` + `meta` of one record, as sent
    body_bytes: int = 64 * MIB  # a request body, after gunzip: a small upload must not inflate past it
    meta_bytes: int = 16 * KIB  # `meta` of one record, as sent: it is carried by every read
    meta_keys: int = META_KEYS_MAX  # keys of one `meta` object
    tag_bytes: int = 256  # UTF-8 bytes of a tag: the tag index holds it in memory
    node_bytes: int = 128  # UTF-8 bytes of a node name: it is repeated on every record
    read_limit: int = 1000  # records in one answer; a larger `limit` is clamped, not refused
