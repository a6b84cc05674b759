"""The route table, and the way from a request to its handler.

One table for every front door. A path is split before it is decoded, so that an escaped slash never
makes a segment. Checks come in the contract's order: 401, 403, 405, 413, 415, 400, then what the shard
says (404, 409, 422). Whatever happens, `dispatch` returns a response.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from gateway import auth
from gateway.compression import compressed
from gateway.context import Gateway
from gateway.effects import Handling
from gateway.handlers import probes, records, topics
from gateway.http import BadEscape, Request, Response, error_response, percent_decode
from gateway.origin import CHANGING_SCOPES, check_origin
from topics import errors

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Gateway, Request, Mapping[str, str]], Handling[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    # Segments; one that begins with ":" takes any value and gives it that name.
    pattern: tuple[str, ...]
    handler: Handler
    # The right a key needs for it; "none" for what a load balancer may ask without a key.
    scope: str


def _route(method: str, path: str, handler: Handler, scope: str) -> Route:
    return Route(method, tuple(path.strip("/").split("/")), handler, scope)


ROUTES: Final = (
    _route("GET", "/v0/topics", topics.list_all, "read"),
    _route("PUT", "/v0/topics/:topic", topics.put, "admin"),
    _route("GET", "/v0/topics/:topic", topics.get, "read"),
    _route("DELETE", "/v0/topics/:topic", topics.delete, "delete"),
    _route("POST", "/v0/topics/:topic", records.write, "write"),
    _route("POST", "/v0/topics/:topic/diff", records.diff, "read"),
    _route("POST", "/v0/topics/:topic/delete", records.delete, "delete"),
    *(_route("GET", path, probes.health, "none") for path in ("/v0/health", "/healthz", "/health")),
    *(_route("GET", path, probes.ready, "none") for path in ("/v0/ready", "/readyz", "/ready")),
)


async def dispatch(gateway: Gateway, request: Request) -> Response:
    """The response to any request. What is left of its body is the front door's business."""
    try:
        response = await _answer(gateway, request)
    except errors.TopicsError as error:
        response = error_response(error, request.arrived_ns)
    except Exception:
        log.exception("request.failed", extra={"method": request.method, "path": request.shown_path})
        internal = errors.Internal("an error inside the server; its log has the details")
        response = error_response(internal, request.arrived_ns)
    response = await compressed(gateway, request, response)
    response.headers.append(("content-length", str(len(response.body))))
    if request.method == "HEAD":
        response.body = b""
    return response


async def _answer(gateway: Gateway, request: Request) -> Response:
    segments = _segments(request)
    found = [(route, path) for route in ROUTES if (path := _match(route.pattern, segments)) is not None]
    if not found:
        raise errors.RouteNotFound(request.shown_path)
    method = "GET" if request.method == "HEAD" else request.method
    chosen = next((pair for pair in found if pair[0].method == method), None)
    # Before anything else is looked at: 401, then 403.
    scope = chosen[0].scope if chosen else auth.scope_of_path(route.scope for route, _ in found)
    names = auth.names_in(path for _, path in found)
    try:
        caller = auth.authorise(gateway.keys, auth.bearer_token(request.headers), scope, names)
    except errors.Unauthorized as error:
        return auth.challenge(error, request.arrived_ns)
    if chosen is None:
        raise errors.MethodNotAllowed(request.method, _allowed(route for route, _ in found))
    route, path = chosen
    if route.scope in CHANGING_SCOPES:
        check_origin(request.headers.get("origin"), request.headers.get("host"), gateway.own_names)
    if gateway.draining and route.scope != "none":
        raise errors.ShuttingDown("the server is shutting down; the request was not applied")
    if request.headers.get("transfer-encoding") and request.headers.get("content-length"):
        raise errors.InvalidRequest(
            "Content-Length and Transfer-Encoding exclude each other", field="Content-Length"
        )
    return await auth.guarded(caller, route.handler(gateway, request, path))


def _segments(request: Request) -> tuple[str, ...]:
    """The decoded segments; an empty tuple for a path that cannot be a route."""
    if not request.raw_path.startswith(b"/"):
        return ()
    try:
        return tuple(percent_decode(segment) for segment in request.raw_path[1:].split(b"/"))
    except BadEscape as error:
        raise errors.InvalidRequest(f"the path is not percent-encoded UTF-8: {error}", field="path") from None


def _match(pattern: tuple[str, ...], segments: tuple[str, ...]) -> dict[str, str] | None:
    """The named segments, or None if the path is not of this pattern."""
    if len(pattern) != len(segments):
        return None
    named: dict[str, str] = {}
    for expected, segment in zip(pattern, segments, strict=True):
        if expected.startswith(":"):
            if not segment:
                return None
            named[expected[1:]] = segment
        elif expected != segment:
            return None
    return named


def _allowed(routes: Iterable[Route]) -> str:
    methods = {route.method for route in routes}
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods))
