"""A request on its way through a shard, and the answer it gets."""

from typing import TYPE_CHECKING

import msgspec

from topics.errors import TopicsError
from topics.protocol.messages import Op

if TYPE_CHECKING:
    from shards.requests import Decoded
    from topics.engine.sealed import Sealed


class Answer(msgspec.Struct, gc=False):
    """A response body up to its performance block. `parts` are sent as they are, one after another."""

    status: int
    parts: list[bytes | memoryview]
    retry_after_s: int = 0
    records_scanned: int | None = None
    logged: bool = False  # reports what the log cost
    synced: bool = False  # must not leave before everything logged so far is durable
    raw: bool = False  # not a JSON object: no performance block

    @classmethod
    def of_error(cls, error: TopicsError) -> "Answer":
        return cls(error.http_status, [error.body()], retry_after_s=error.retry_after_s)


class Command(msgspec.Struct, eq=False):
    """One request. `origin` is whoever gets the answer; the shard never looks inside."""

    origin: object
    id: int
    op: Op
    topic: str
    params: dict[str, object]
    body: bytes
    arrived_ns: int
    size_bytes: int = 0
    taken_ns: int = 0
    waited_ns: int = 0
    decoded: "Decoded | None" = None
    created: bool = False  # this write has created its topic
    cancelled: bool = False
    deadline_ns: int = 0  # of a long-poll
    scheduled: bool = False  # its deadline is being watched
    fetches: int = 0  # how often it has waited for a page
    found: "dict[Sealed, list[int]] | None" = None  # records of pages whose tags match
    answer: Answer | None = None
