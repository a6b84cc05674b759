"""Write, diff and delete of records. Bodies go to the shard as they came."""

from collections.abc import Mapping

from gateway import query
from gateway.body import read_json
from gateway.context import Gateway
from gateway.handlers.relay import relay
from gateway.http import Request, Response
from topics.engine.ids import check_topic_name
from topics.engine.limits import IDEMPOTENCY_KEY_CHARS_MAX
from topics.errors import InvalidRequest
from topics.protocol.messages import Op


async def write(gateway: Gateway, request: Request, path: Mapping[str, str]) -> Response:
    body = await read_json(gateway, request)
    topic = path["topic"]
    check_topic_name(topic)
    params: dict[str, object] = {}
    if (return_seqs := query.boolean(request, "return_seqs")) is not None:
        params["return_seqs"] = return_seqs
    if (key := _idempotency_key(request)) is not None:
        params["idempotency_key"] = key
    return await relay(gateway, request, Op.WRITE, topic, params=params, body=body)


async def diff(gateway: Gateway, request: Request, path: Mapping[str, str]) -> Response:
    body = await read_json(gateway, request, empty_is_object=True)
    check_topic_name(path["topic"])
    return await relay(gateway, request, Op.DIFF, path["topic"], body=body)


async def delete(gateway: Gateway, request: Request, path: Mapping[str, str]) -> Response:
    body = await read_json(gateway, request)
    check_topic_name(path["topic"])
    return await relay(gateway, request, Op.DELETE_RECORDS, path["topic"], body=body)


def _idempotency_key(request: Request) -> str | None:
    raw = request.headers.get("idempotency-key")
    if raw is None:
        return None
    try:
        # Header bytes were read as Latin-1; a client that sends UTF-8 must mean the same key in a body.
        key = raw.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("Idempotency-Key is not valid UTF-8", field="Idempotency-Key") from None
    if not 1 <= len(key) <= IDEMPOTENCY_KEY_CHARS_MAX:
        raise InvalidRequest(
            f"Idempotency-Key must have 1 to {IDEMPOTENCY_KEY_CHARS_MAX} characters, not {len(key)}",
            field="Idempotency-Key",
            limit=IDEMPOTENCY_KEY_CHARS_MAX,
        )
    return key
