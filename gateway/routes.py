"""The route table, and the way from a request to its handler.

One table for every front door. A path is split before it is decoded, so that an escaped slash never
makes a segment. Checks come in the contract's order: 401, 403, 405, 413, 415, 400, then what the shard
says (404, 409, 422). Whatever happens, `dispatch` returns a response.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from gateway import auth, slots
from gateway.compression import compressed
from gateway.context import Gateway
from gateway.effects import Ask, Handling
from gateway.handlers import metrics, probes, records, topics
from gateway.handlers.relay import Relay
from gateway.http import BadEscape, Headers, Request, Response, error_response, percent_decode, with_length
from gateway.keys import EVERYONE
from gateway.origin import CHANGING_SCOPES
from topics import errors
from topics.histogram import Histogram
from topics.protocol.codec import encode_params

log = logging.getLogger(__name__)

# From an answer out of memory to a long-poll's end.
LATENCY_BUCKETS_US: Final = (100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 100_000, 1_000_000, 30_000_000)

Handler: TypeAlias = Callable[[Gateway, Request, Mapping[str, str]], Handling[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    # Segments; one that begins with ":" takes any value and gives it that name.
    pattern: tuple[str, ...]
    handler: Handler
    # The right a key needs for it; "none" for what a load balancer may ask without a key.
    scope: str
    title: str
    # Whether it changes anything: then a web page of another site may not use it.
    changing: bool


def _route(method: str, path: str, handler: Handler, scope: str) -> Route:
    changing = bool(auth.needed_scopes(scope) & CHANGING_SCOPES)
    return Route(method, tuple(path.strip("/").split("/")), handler, scope, f"{method} {path}", changing)


ROUTES: Final = (
    _route("GET", "/v0/topics", topics.list_all, "read"),
    _route("PUT", "/v0/topics/:topic", topics.put, "admin"),
    _route("GET", "/v0/topics/:topic", topics.get, "read"),
    _route("DELETE", "/v0/topics/:topic", topics.delete, "delete"),
    _route("POST", "/v0/topics/:topic", records.write, "write"),
    _route("POST", "/v0/topics/:topic/diff", records.diff, "read"),
    _route("POST", "/v0/topics/:topic/delete", records.delete, "delete"),
    _route("GET", "/v0/metrics", metrics.metrics, "read"),
    *(_route("GET", path, probes.health, "none") for path in ("/v0/health", "/healthz", "/health")),
    *(_route("GET", path, probes.ready, "none") for path in ("/v0/ready", "/readyz", "/ready")),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Everything that stands at one path."""

    routes: dict[str, Route]
    names: tuple[tuple[int, str], ...]  # position and name of the segments that take any value
    scope: str  # what is needed to be told that a method is not there
    allowed: str


def _shape(segments: tuple[str, ...], positions: tuple[int, ...]) -> tuple[str | None, ...]:
    """The path with its named segments left open."""
    if not positions:
        return segments
    return tuple(None if at in positions else segment for at, segment in enumerate(segments))


def _places(routes: Iterable[Route]) -> dict[tuple[str | None, ...], Place]:
    grouped: dict[tuple[str, ...], dict[str, Route]] = {}
    for route in routes:
        grouped.setdefault(route.pattern, {})[route.method] = route
    places = {}
    for pattern, methods in grouped.items():
        names = tuple((at, segment[1:]) for at, segment in enumerate(pattern) if segment.startswith(":"))
        allowed = {*methods, "HEAD"} if "GET" in methods else set(methods)
        places[_shape(pattern, tuple(at for at, _ in names))] = Place(
            methods,
            names,
            auth.scope_of_path(route.scope for route in methods.values()),
            ", ".join(sorted(allowed)),
        )
    return places


_PLACES: Final = _places(ROUTES)
_NAMED_POSITIONS: Final = tuple(sorted({tuple(at for at, _ in place.names) for place in _PLACES.values()}))


# Headers that make more of a request than one question and its answer; `dispatch` knows them all.
_UNUSUAL: Final = frozenset(
    {b"accept-encoding", b"content-encoding", b"expect", b"origin", b"transfer-encoding"}
)
# A route with the longest name; what is longer is not worth remembering.
_REMEMBERED_BYTES_MAX: Final = 300


class Short(NamedTuple):
    """A request that is one question to a shard, as far as its head says; its body is the question's."""

    route: Route
    path: Mapping[str, str]
    ask: Ask  # without a body
    topic: bytes
    params: bytes


def short_way(gateway: Gateway, request: Request) -> Short | None:
    """The short way for a request, judged by its head. None: anything else, also every refusal.

    The same checks as in `dispatch`, which is to be used when there is no short way.
    """
    if gateway.origins.cors_origins or request.headers.any_of(_UNUSUAL):
        return None
    try:
        place, path = _locate(request.raw_path)
        route = place.routes.get(request.method) if place is not None else None
        if route is None or not isinstance(route.handler, Relay):
            return None
        ask = route.handler.ask(gateway, request, path)
    except errors.TopicsError:
        return None
    return Short(route, path, ask, ask.topic.encode(), encode_params(ask.params or {}))


def admitted(gateway: Gateway, short: Short, headers: Headers, body: bytes) -> slots.Place | None:
    """The place of a request that goes the short way; whoever has it gives it back. None: the long way."""
    relay = short.route.handler
    assert isinstance(relay, Relay)
    if gateway.draining or (relay.takes_body and not 0 < len(body) <= gateway.limits.body_bytes):
        return None
    if not gateway.keys.enabled:
        return gateway.slots.request(EVERYONE.key_digest)
    try:
        token = auth.bearer_token(headers)
        caller = auth.authorise(gateway.keys, token, short.route.scope, short.path)
        if caller.limited:
            auth.check_ask(caller, replace(short.ask, body=body))
        return gateway.slots.request(caller.key_digest)
    except errors.TopicsError:
        return None


def note_latency(gateway: Gateway, request: Request) -> None:
    histogram = gateway.latencies.get(request.route)
    if histogram is None:
        histogram = gateway.latencies[request.route] = Histogram(LATENCY_BUCKETS_US)
    histogram.add((time.monotonic_ns() - request.arrived_ns) // 1000)


async def dispatch(gateway: Gateway, request: Request) -> Response:
    """The response to any request. What is left of its body is the front door's business."""
    try:
        response = await _answer(gateway, request)
    except errors.TopicsError as error:
        response = error_response(error, request.arrived_ns)
        # Its traceback holds the frames it passed, and with them a body that was refused for its size.
        error.__traceback__ = error.__context__ = None
    except Exception:
        log.exception("request.failed", extra={"method": request.method, "path": request.shown_path})
        internal = errors.Internal("an error inside the server; its log has the details")
        response = error_response(internal, request.arrived_ns)
    response = await compressed(gateway, request, response)
    gateway.origins.mark(request.headers, response)
    if request.route:
        note_latency(gateway, request)
    if response.status != 204:
        with_length(response)
    if request.method == "HEAD":
        response.body = b""
    return response


async def _answer(gateway: Gateway, request: Request) -> Response:
    place, path = _locate(request.raw_path)
    if place is None:
        raise errors.RouteNotFound(request.shown_path)
    route = place.routes.get("GET" if request.method == "HEAD" else request.method)
    headers = request.headers
    if route is None and (granted := gateway.origins.preflight(request, place.allowed)) is not None:
        return granted
    # Before anything else is looked at: 401, then 403.
    scope = route.scope if route is not None else place.scope
    try:
        caller = auth.authorise(gateway.keys, auth.bearer_token(headers), scope, path)
    except errors.Unauthorized as error:
        return auth.challenge(error, request.arrived_ns)
    if route is None:
        raise errors.MethodNotAllowed(request.method, place.allowed)
    request.route = route.title
    if route.changing:
        gateway.origins.check(headers)
    # The probes speak for themselves, and metrics are 200 always.
    if gateway.draining and route.scope != "none" and route.handler is not metrics.metrics:
        raise errors.ShuttingDown(
            "the server is shutting down; the request was not applied", detail={"outcome": "not_applied"}
        )
    if headers.get("transfer-encoding") and headers.get("content-length"):
        raise errors.InvalidRequest(
            "Content-Length and Transfer-Encoding exclude each other", field="Content-Length"
        )
    with gateway.slots.request(caller.key_digest):
        return await auth.guarded(caller, route.handler(gateway, request, path))


def _locate(raw_path: bytes) -> tuple[Place | None, Mapping[str, str]]:
    """The place of a path in the table, and its named segments. Raises InvalidRequest."""
    if len(raw_path) > _REMEMBERED_BYTES_MAX:
        return _find(_segments(raw_path))
    return _known(raw_path)


# Names of topics and routers are no secrets; nothing else of a request is remembered.
@lru_cache(maxsize=8192)
def _known(raw_path: bytes) -> tuple[Place | None, Mapping[str, str]]:
    return _find(_segments(raw_path))


def _segments(raw_path: bytes) -> tuple[str, ...]:
    """The decoded segments; an empty tuple for a path that cannot be a route."""
    if not raw_path.startswith(b"/"):
        return ()
    try:
        return tuple(percent_decode(segment) for segment in raw_path[1:].split(b"/"))
    except BadEscape as error:
        raise errors.InvalidRequest(f"the path is not percent-encoded UTF-8: {error}", field="path") from None


def _find(segments: tuple[str, ...]) -> tuple[Place | None, dict[str, str]]:
    for positions in _NAMED_POSITIONS:
        place = _PLACES.get(_shape(segments, positions))
        if place is not None and all(segments[at] for at in positions):
            return place, {name: segments[at] for at, name in place.names}
    return None, {}
