"""Health and readiness.

Health says that this process answers: 200, always. Ready says that every shard takes reads and writes:
it asks them, briefly, and names the ones that do not.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.context import Gateway
from gateway.effects import Ask, AskEach
from gateway.http import Request, Response, json_response
from topics import errors
from topics.protocol.messages import Op, Reply
from topics.protocol.strict_cbor import CborRefused, decode_value

# A probe must answer before its prober gives up, also when a shard hangs.
STATUS_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """What a shard says about itself; UNREACHABLE if it says nothing."""

    state: str
    progress: float
    topics: int
    detail: str


UNREACHABLE: Final = ShardStatus("unreachable", 0.0, 0, "")


async def health(gateway: Gateway, request: Request, path: Mapping[str, str]) -> Response:
    fields = {
        "status": "ok",
        "version": gateway.version,
        "uptime_ms": (time.monotonic_ns() - gateway.started_ns) // 1_000_000,
    }
    return json_response(200, fields, request.arrived_ns)


async def ready(gateway: Gateway, request: Request, path: Mapping[str, str]) -> Response:
    if gateway.draining:
        raise errors.ShuttingDown("the server is shutting down")
    statuses = await _ask_all(gateway, request)
    not_ready = [_shown(index, status) for index, status in enumerate(statuses) if status.state != "ready"]
    if not_ready:
        read_only = [shown["shard"] for shown in not_ready if shown["state"] == "read_only"]
        if read_only:
            message = f"read-only after a disk error: shards {read_only}; a restart recovers them"
        else:
            message = f"{len(not_ready)} of {len(statuses)} shards are not ready"
        progress = sum(status.progress for status in statuses) / len(statuses)
        raise errors.NotReady(message, detail={"replay_progress": round(progress, 4), "shards": not_ready})
    fields = {
        "status": "ready",
        "wal_replay_complete": True,
        "topics": sum(status.topics for status in statuses),
    }
    return json_response(200, fields, request.arrived_ns)


def _shown(index: int, status: ShardStatus) -> dict[str, object]:
    shown: dict[str, object] = {"shard": index, "state": status.state, "progress": status.progress}
    if status.detail:
        shown["detail"] = status.detail
    return shown


async def _ask_all(gateway: Gateway, request: Request) -> list[ShardStatus]:
    asks = [Ask(link, Op.STATUS, "", None, b"", request.arrived_ns) for link in gateway.pool.all()]
    silent = errors.NotReady("the shard did not answer in time")
    answers = await AskEach(asks, STATUS_TIMEOUT_S, silent)
    return [
        read_status(answer.body) if isinstance(answer, Reply) and answer.status == 200 else UNREACHABLE
        for answer in answers
    ]


def read_status(body: bytes) -> ShardStatus:
    """A status that makes no sense counts as none: the shard is not one to send traffic to."""
    try:
        value = decode_value(body)
    except CborRefused:
        return UNREACHABLE
    match value:
        case {
            "state": str() as state,
            "progress": float() | int() as progress,
            "topics": int() as topics,
            "detail": str() as detail,
        }:
            return ShardStatus(state, min(1.0, max(0.0, float(progress))), topics, detail)
    return UNREACHABLE
