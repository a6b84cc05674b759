"""Routes that are one question to the shard that owns the topic.

The shard's bytes are the response: the gateway adds no field and parses no record. Such a route is
described, not programmed, so that a front door that has the whole body may ask without a coroutine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gateway.body import check_content_type, read_json
from gateway.context import Gateway
from gateway.effects import Ask
from gateway.http import Request, Response, json_bytes
from topics.engine.ids import check_topic_name
from topics.protocol.messages import Op, Reply

# Of a request, its path and its body; raises TopicsError.
Question: TypeAlias = Callable[[Gateway, Request, Mapping[str, str], bytes], Ask]


@dataclass(frozen=True, slots=True)
class Relay:
    question: Question
    takes_body: bool = True
    empty_is_object: bool = False  # no body means `{}`, and then no content type is needed

    async def __call__(self, gateway: Gateway, request: Request, path: Mapping[str, str]) -> Response:
        body = b""
        if self.takes_body:
            body = await read_json(gateway, request, empty_is_object=self.empty_is_object)
        return as_response(await self.question(gateway, request, path, body))

    def ask(self, gateway: Gateway, request: Request, path: Mapping[str, str]) -> Ask:
        """The question without its body, for a body that is there and not encoded. Raises TopicsError."""
        if self.takes_body:
            check_content_type(request)
        return self.question(gateway, request, path, b"")


def relay(
    gateway: Gateway,
    request: Request,
    op: Op,
    topic: str,
    body: bytes = b"",
    params: Mapping[str, object] | None = None,
) -> Ask:
    check_topic_name(topic)
    return Ask(gateway.pool.link_for(topic), op, topic, params, body, request.arrived_ns)


def as_response(reply: Reply) -> Response:
    return json_bytes(reply.status, reply.body, retry_after_s=reply.retry_after_s)
