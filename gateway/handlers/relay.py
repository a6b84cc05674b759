"""Passing a request to the shard that owns the topic, and its answer back.

The shard's bytes are the response: the gateway adds no field and parses no record.
"""

from collections.abc import Mapping

from gateway.context import Gateway
from gateway.effects import Ask
from gateway.http import Request, Response, json_bytes
from topics.protocol.messages import Op, Reply


async def relay(
    gateway: Gateway,
    request: Request,
    op: Op,
    topic: str,
    *,
    params: Mapping[str, object] | None = None,
    body: bytes = b"",
) -> Response:
    return as_response(await Ask(gateway.pool.link_for(topic), op, topic, params, body, request.arrived_ns))


def as_response(reply: Reply) -> Response:
    return json_bytes(reply.status, reply.body, retry_after_s=reply.retry_after_s)
