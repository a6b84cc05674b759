"""Topics: create or configure, state, list, delete.

A list asks every shard for its part of the page and merges by name. If one shard cannot answer, the
whole page fails: a list that silently left topics out would look complete.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Final

import msgspec

from gateway import query
from gateway.context import Gateway
from gateway.effects import Ask, AskEach
from gateway.handlers.relay import Relay, as_response, relay
from gateway.http import Request, Response, json_bytes, performance_block
from topics import errors
from topics.engine.ids import is_topic_name
from topics.engine.limits import LIST_PAGE_DEFAULT, LIST_PAGE_MAX, TOPIC_NAME_BYTES_MAX
from topics.protocol.messages import Op, Reply
from topics.protocol.strict_cbor import CborRefused, decode_value

# A page is a moment's work for a shard that works at all.
LIST_TIMEOUT_S: Final = 30.0
# A name and an item per topic, an array around both, and the array around all of it.
_PAGE_CBOR_ITEMS_MAX: Final = 3 * (LIST_PAGE_MAX + 1) + 1


def _put(gateway: Gateway, request: Request, path: Mapping[str, str], body: bytes) -> Ask:
    return relay(gateway, request, Op.PUT_TOPIC, path["topic"], body)


def _get(gateway: Gateway, request: Request, path: Mapping[str, str], body: bytes) -> Ask:
    touch = query.boolean(request, "touch")
    params = None if touch is None else {"touch": touch}
    return relay(gateway, request, Op.GET_TOPIC, path["topic"], params=params)


def _delete(gateway: Gateway, request: Request, path: Mapping[str, str], body: bytes) -> Ask:
    if_empty = query.boolean(request, "if_empty")
    params = None if if_empty is None else {"if_empty": if_empty}
    return relay(gateway, request, Op.DELETE_TOPIC, path["topic"], params=params)


put: Final = Relay(_put, empty_is_object=True)
get: Final = Relay(_get, takes_body=False)
delete: Final = Relay(_delete, takes_body=False)


async def list_all(gateway: Gateway, request: Request, path: Mapping[str, str]) -> Response:
    page_size = min(query.natural(request, "page_size") or LIST_PAGE_DEFAULT, LIST_PAGE_MAX)
    # One more than is shown tells whether there is another page.
    params: dict[str, object] = {"limit": page_size + 1, "touch": query.boolean(request, "touch") or False}
    if prefix := _prefix(request):
        params["prefix"] = prefix
    if after := _position(request):
        params["after"] = after
    replies = await _ask_all(gateway, request, params)
    for reply in replies:
        if reply.status >= 400:
            return as_response(reply)
    merged = sorted(item for reply in replies for item in _items(reply))
    page, more = merged[:page_size], len(merged) > page_size
    body = [b'{"topics":[', b",".join(item for _, item in page), b"],"]
    if more:
        body.append(b'"next_cursor":"%s",' % encode_cursor(page[-1][0]))
    body.append(performance_block(request.arrived_ns))
    return json_bytes(200, b"".join(body))


async def _ask_all(gateway: Gateway, request: Request, params: Mapping[str, object]) -> list[Reply]:
    """Every shard's reply. Raises the first error, in shard order."""
    asks = [Ask(link, Op.LIST_TOPICS, "", params, b"", request.arrived_ns) for link in gateway.pool.all()]
    slow = errors.NotReady(f"a shard did not answer within {LIST_TIMEOUT_S:.0f} s")
    replies: list[Reply] = []
    for result in await AskEach(asks, LIST_TIMEOUT_S, slow):
        if isinstance(result, errors.TopicsError):
            raise result
        replies.append(result)
    return replies


def _items(reply: Reply) -> list[tuple[bytes, bytes]]:
    """Name and JSON of each topic in a shard's part of the page."""
    try:
        value = decode_value(reply.body, items_max=_PAGE_CBOR_ITEMS_MAX)
    except CborRefused as refused:
        raise errors.Internal(f"a shard's list could not be read: {refused.reason}") from None
    if not isinstance(value, list):
        raise errors.Internal("a shard's list is not a list")
    items: list[tuple[bytes, bytes]] = []
    for pair in value:
        match pair:
            case [str() as name, bytes() as item]:
                items.append((name.encode(), item))
            case _:
                raise errors.Internal("a shard's list holds something that is not a name and an item")
    return items


def _prefix(request: Request) -> str | None:
    prefix = query.text(request, "prefix")
    if prefix is not None and len(prefix) > TOPIC_NAME_BYTES_MAX:
        raise errors.InvalidRequest(
            f"prefix is longer than any name: at most {TOPIC_NAME_BYTES_MAX} characters",
            field="prefix",
            limit=TOPIC_NAME_BYTES_MAX,
        )
    return prefix


def _position(request: Request) -> str | None:
    cursor = query.text(request, "cursor")
    return decode_cursor(cursor) if cursor else None


def encode_cursor(after: bytes) -> bytes:
    return base64.urlsafe_b64encode(b'{"after":"%s"}' % after)


def decode_cursor(cursor: str) -> str:
    """The name behind which the page begins. Anything that we did not make raises InvalidRequest."""
    refused = errors.InvalidRequest("cursor is damaged; pass next_cursor back as it was", field="cursor")
    try:
        decoded = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
        fields = msgspec.json.decode(decoded, type=dict[str, str])
    except (UnicodeEncodeError, binascii.Error, ValueError, msgspec.MsgspecError):
        raise refused from None
    after = fields.get("after", "")
    if not is_topic_name(after) or encode_cursor(after.encode()) != cursor.encode():
        raise refused
    return after
