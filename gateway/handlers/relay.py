"""Passing a request to the shard that owns the topic, and its answer back.

The shard's bytes are the response: the gateway adds no field and parses no record.
"""

from collections.abc import Mapping

from gateway.context import Gateway
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
    link = gateway.pool.link_for(topic)
    return as_response(await link.request(op, topic, params, body, arrived_ns=request.arrived_ns))


def as_response(reply: Reply) -> Response:
    return json_bytes(reply.status, reply.body, retry_after_s=reply.retry_after_s)
