"""Write, diff and delete of records. Bodies go to the shard as they came."""

from collections.abc import Mapping
from typing import Final

from gateway import query
from gateway.context import Gateway
from gateway.effects import Ask
from gateway.handlers.relay import Relay, relay
from gateway.http import Request
from topics.engine.limits import IDEMPOTENCY_KEY_CHARS_MAX
from topics.errors import InvalidRequest
from topics.protocol.messages import Op


def _write(gateway: Gateway, request: Request, path: Mapping[str, str], body: bytes) -> Ask:
    params: dict[str, object] | None = None
    if request.query_string and (return_seqs := query.boolean(request, "return_seqs")) is not None:
        params = {"return_seqs": return_seqs}
    if (key := _idempotency_key(request)) is not None:
        params = {**(params or {}), "idempotency_key": key}
    return relay(gateway, request, Op.WRITE, path["topic"], body, params)


def _diff(gateway: Gateway, request: Request, path: Mapping[str, str], body: bytes) -> Ask:
    return relay(gateway, request, Op.DIFF, path["topic"], body)


def _delete(gateway: Gateway, request: Request, path: Mapping[str, str], body: bytes) -> Ask:
    return relay(gateway, request, Op.DELETE_RECORDS, path["topic"], body)


write: Final = Relay(_write)
diff: Final = Relay(_diff, empty_is_object=True)
delete: Final = Relay(_delete)


def _idempotency_key(request: Request) -> str | None:
    raw = request.headers.raw(b"idempotency-key")
    if raw is None:
        return None
    try:
        # A client that sends UTF-8 must mean the same key in a body.
        key = raw.strip().decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("Idempotency-Key is not valid UTF-8", field="Idempotency-Key") from None
    if not 1 <= len(key) <= IDEMPOTENCY_KEY_CHARS_MAX:
        raise InvalidRequest(
            f"Idempotency-Key must have 1 to {IDEMPOTENCY_KEY_CHARS_MAX} characters, not {len(key)}",
            field="Idempotency-Key",
            limit=IDEMPOTENCY_KEY_CHARS_MAX,
        )
    return key
