"""Authorisation: who may use which route, for which names. The same for every front door.

Promises:
  * `authorise` is the one decision: 401 without a key that we know, then 403 without the route's scope or
    for a name outside the key's prefixes, before anything else of a request is looked at.
  * For a caller with prefixes, `guarded` stands between the handler and the shards: a request for a
    foreign name does not get through, a list holds no foreign name, and no topic is configured to send
    its dead letters to one. The answer never depends on what exists.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from gateway.effects import Ask, AskEach, Effect, Handling, InThread, ReadBody, drive
from gateway.http import Headers, Response, error_response
from gateway.keys import EVERYONE, NOBODY, Caller, KeyStore
from topics import errors
from topics.engine.config import ConfigPatch, config_decoder
from topics.engine.limits import LIST_PAGE_MAX
from topics.engine.record import decode_body
from topics.keys import ALL_SCOPES
from topics.protocol.messages import Op, Reply
from topics.protocol.strict_cbor import CborRefused, decode_value, encode_value

T = TypeVar("T")

# What a load balancer may ask without a key, unless TOPICS_PROBE_AUTH.
OPEN_SCOPE: Final = "none"
# A known key is needed, and no scope of it: a method the path does not have, or a WebSocket's opening.
ANY_KEY: Final = "any"

# Segments of a path that name neither a topic nor a router. What is not listed here is checked as a name.
_NOT_NAMES: Final = frozenset({"wid"})
# Requests to a shard that concern no topic and tell nothing about any.
_NAMELESS_OPS: Final = frozenset({Op.STATUS})
_PAGE_CBOR_ITEMS_MAX: Final = 3 * (LIST_PAGE_MAX + 1) + 1
# A letter of "dead_letter", or its underscore, spelt as an escape: such a key is the same key.
_ESCAPED_LETTER: Final = re.compile(rb"\\u00(?:5[fF]|6[145cC]|7[24])")


def authorise(keys: KeyStore, token: str | None, scope: str, path: Mapping[str, str] = {}) -> Caller:
    """The caller, if they may use a route of this scope for the names in this path.

    Raises Unauthorized or Forbidden.
    """
    if not keys.enabled:
        return EVERYONE
    if scope == OPEN_SCOPE and not keys.probe_auth:
        return NOBODY
    caller = None if token is None else keys.bearer_of(token)
    if caller is None:
        raise errors.Unauthorized("a valid API key is needed: Authorization: Bearer <key>")
    caller.check_scopes(needed_scopes(scope))
    if caller.limited:
        for name in names_in(path):
            caller.check_name(name, field="path")
    return caller


@cache
def needed_scopes(scope: str) -> frozenset[str]:
    """The scopes in a route's `scope`; two of them are joined by a plus."""
    if scope in (OPEN_SCOPE, ANY_KEY):
        return frozenset()
    needed = frozenset(scope.split("+"))
    if not needed <= ALL_SCOPES:
        raise ValueError(f"{scope!r} is no set of scopes")
    return needed


def scope_of_path(scopes: Iterable[str]) -> str:
    """What is needed to be told that a path has no such method, when its methods have these scopes."""
    return OPEN_SCOPE if set(scopes) == {OPEN_SCOPE} else ANY_KEY


def names_in(path: Mapping[str, str]) -> list[str]:
    """The topics and routers that the segments of a path name."""
    return [value for segment, value in path.items() if segment not in _NOT_NAMES]


def bearer_token(headers: Headers) -> str | None:
    """The token of `Authorization: Bearer`, None if there is none."""
    given = headers.raw(b"authorization")
    if given is None:
        return None
    scheme, _, token = given.decode("latin-1").strip().partition(" ")
    return token.strip(" ") or None if scheme.lower() == "bearer" else None


def challenge(error: errors.Unauthorized, arrived_ns: int) -> Response:
    """The 401, with the header that says how to do better."""
    response = error_response(error, arrived_ns)
    response.headers.append(("www-authenticate", "Bearer"))
    return response


def guarded(caller: Caller, handling: Handling[T]) -> Handling[T]:
    """A handler's work as far as this caller may have it done."""
    return drive(handling, partial(_perform, caller)) if caller.limited else handling


async def _perform(caller: Caller, effect: Effect[Any]) -> Any:
    """Pass on what a handler waits for, if it concerns no name but the caller's own."""
    match effect:
        case Ask():
            check_ask(caller, effect)
        case AskEach():
            return await _ask_each(caller, effect)
        case ReadBody() | InThread():
            pass
        case _:
            # A new way to reach a shard has to be taught here first.
            raise errors.Internal(f"{type(effect).__name__} is not prepared for callers with prefixes")
    return await effect


def check_ask(caller: Caller, ask: Ask) -> None:
    """Raises Forbidden if this question concerns a name that is not the caller's."""
    if caller.limited and ask.op not in _NAMELESS_OPS:
        # The names of the path were checked before; one that came another way was not.
        caller.check_name(ask.topic, field="topic")
        check_dead_letter(caller, ask.op, ask.body)


async def _ask_each(caller: Caller, effect: AskEach) -> list[Reply | errors.TopicsError]:
    """A list is asked for once per prefix; everything else as it is."""
    plans = [_plan(caller, ask) for ask in effect.asks]
    asks = [ask for plan in plans for ask in plan]
    answers = iter(await AskEach(asks, effect.timeout_s, effect.otherwise))
    merged: list[Reply | errors.TopicsError] = []
    for ask, plan in zip(effect.asks, plans, strict=True):
        own = list(islice(answers, len(plan)))
        merged.append(_one_page(ask, own) if ask.op is Op.LIST_TOPICS else own[0])
    return merged


def _plan(caller: Caller, ask: Ask) -> list[Ask]:
    if ask.op is Op.METRICS:
        return [replace(ask, params={"prefixes": list(caller.prefixes)})]
    if ask.op is not Op.LIST_TOPICS:
        check_ask(caller, ask)
        return [ask]
    params = ask.params or {}
    prefix = params.get("prefix", "")
    assert isinstance(prefix, str), prefix
    return [replace(ask, params={**params, "prefix": own}) for own in caller.within(prefix)]


def _one_page(ask: Ask, answers: Iterable[Reply | errors.TopicsError]) -> Reply | errors.TopicsError:
    """What a shard would have answered if it had only the caller's topics.

    The prefixes are in order and none covers another, so their parts in a row are in the order of names.
    """
    limit = (ask.params or {}).get("limit", 0)
    assert isinstance(limit, int), limit
    page: list[object] = []
    for answer in answers:
        if isinstance(answer, errors.TopicsError) or answer.status != 200:
            return answer
        page += _entries(answer)
    return Reply(0, 200, 0, encode_value(page[:limit]))


def _entries(reply: Reply) -> list[object]:
    try:
        entries = decode_value(reply.body, items_max=_PAGE_CBOR_ITEMS_MAX)
    except CborRefused as refused:
        raise errors.Internal(f"a shard's list could not be read: {refused.reason}") from None
    if not isinstance(entries, list):
        raise errors.Internal("a shard's list is not a list")
    return entries


class _InlineConfig(msgspec.Struct, gc=False):
    """Of a write's body, what creates a topic. The shard reads it by the same type."""

    config: ConfigPatch | UnsetType = UNSET


_inline_config_decoder = msgspec.json.Decoder(_InlineConfig)


def check_dead_letter(caller: Caller, op: Op, body: bytes) -> None:
    """Refuses a configuration that would have the server write to a foreign topic.

    Bodies of writes hold records and can be large, so only one that may name the field is decoded.
    """
    if not caller.limited or op not in (Op.PUT_TOPIC, Op.WRITE) or not _may_name_dead_letter(body):
        return
    if op is Op.PUT_TOPIC:
        config, field = decode_body(config_decoder, body), "dead_letter"
    else:
        inline = decode_body(_inline_config_decoder, body).config
        if inline is UNSET:
            return
        config, field = inline, "config.dead_letter"
    if isinstance(config.dead_letter, str):
        caller.check_name(config.dead_letter, field=field)


def _may_name_dead_letter(body: bytes) -> bool:
    return b'"dead_letter"' in body or _ESCAPED_LETTER.search(body) is not None
