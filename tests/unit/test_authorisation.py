"""Who may do what: the whole table of routes and scopes, the order of checks, and the probes."""

import gc
import itertools
import json
import secrets
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from gateway import auth
from gateway.http import Headers, Response
from gateway.keys import EVERYONE, NOBODY, KeyStore
from gateway.routes import ROUTES, Route
from tests.fakes.direct_client import JSON, LIMIT, Client, gateway_over, header
from tests.fakes.fake_shard import Answer, FakeShard, by_op, list_answer, status_answer
from topics import errors
from topics.keys import SCOPES, parse_keys
from topics.protocol.messages import Op
from topics.protocol.messages import Request as ShardRequest

KEYED = [route for route in ROUTES if route.scope != "none"]
PROBES = [route for route in ROUTES if route.scope == "none"]
SCOPE_SETS = [
    "+".join(chosen) for size in range(1, len(SCOPES) + 1) for chosen in itertools.combinations(SCOPES, size)
]

# Written down here a second time, from the contract: the table under test must not prove itself.
CONTRACT = {
    ("GET", "/v0/topics"): "read",
    ("PUT", "/v0/topics/:topic"): "admin",
    ("GET", "/v0/topics/:topic"): "read",
    ("DELETE", "/v0/topics/:topic"): "delete",
    ("POST", "/v0/topics/:topic"): "write",
    ("POST", "/v0/topics/:topic/diff"): "read",
    ("POST", "/v0/topics/:topic/delete"): "delete",
}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def path_of(route: Route, topic: str = "jobs") -> str:
    return "/" + "/".join(topic if segment == ":topic" else segment for segment in route.pattern)


def route_id(route: Route) -> str:
    return f"{route.method} {path_of(route, ':topic')}"


def lock(client: Client, keys: str, *, probe_auth: bool = False) -> None:
    client.gateway.keys = KeyStore(parse_keys(keys), probe_auth=probe_auth)


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Client]:
    answers: dict[Op, Callable[[ShardRequest], Answer]] = {
        Op.LIST_TOPICS: partial(list_answer, []),
        Op.STATUS: lambda _: status_answer(),
    }
    async with gateway_over([FakeShard(tmp_path / str(n), n, by_op(answers)) for n in range(2)]) as client:
        yield client


async def send(call: Client, route: Route, headers: dict[str, str], topic: str = "jobs") -> Response:
    body = b"{}" if route.method in ("PUT", "POST") else b""
    return await call(route.method, path_of(route, topic), body, {**JSON, **headers})


def code(response: Response) -> str:
    return str(json.loads(response.body)["error"]["code"])


def reached(call: Client) -> int:
    return sum(len(shard.requests) for shard in call.shards)


# -- routes and scopes


def test_every_route_needs_the_scope_of_the_contract() -> None:
    table = {(route.method, path_of(route, ":topic")): route.scope for route in KEYED}
    assert CONTRACT.items() <= table.items()
    for route in ROUTES:
        auth.needed_scopes(route.scope)


@pytest.mark.parametrize("granted", SCOPE_SETS)
@pytest.mark.parametrize("route", KEYED, ids=route_id)
async def test_a_key_passes_exactly_where_it_has_the_scope(call: Client, route: Route, granted: str) -> None:
    lock(call, f"k:{granted}")
    response = await send(call, route, bearer("k"))
    if set(route.scope.split("+")) <= set(granted.split("+")):
        assert response.status == 200
        assert reached(call) > 0
    else:
        assert (response.status, code(response)) == (403, "forbidden")
        assert json.loads(response.body)["error"]["detail"]["scope"]
        assert header(response, "www-authenticate") is None
        assert reached(call) == 0


NO_KEYS: list[dict[str, str]] = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer "},
    {"authorization": "Bearer   "},
    {"authorization": "k"},
    {"authorization": "Basic k"},
    {"authorization": "Basic azo="},
    {"authorization": "Bearerk"},
    {"authorization": "Bearer\tk"},
    {"authorization": "Bearer wrong"},
    {"authorization": "Bearer k k"},
    {"authorization": "Bearer k,"},
    {"authorization": "Bearer k, Bearer k"},
    {"authorization": "Bearer K"},
    {"authorization": 'Bearer "k"'},
    {"authorization": "Bearer ké"},
    {"authorization": "Bearer \u00ff"},
    {"authorization": "Bearer k:admin"},
    {"authorization": "Bearer " + "k" * 10_000},
    {"x-api-key": "k"},
    {"cookie": "token=k"},
]


@pytest.mark.parametrize("headers", NO_KEYS, ids=range(len(NO_KEYS)))
async def test_without_a_known_token_every_route_is_401(call: Client, headers: dict[str, str]) -> None:
    lock(call, "k")
    for route in KEYED:
        response = await send(call, route, headers)
        assert (response.status, code(response)) == (401, "unauthorized")
        assert header(response, "www-authenticate") == "Bearer"
        assert b"k:admin" not in response.body
    assert reached(call) == 0


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
@pytest.mark.parametrize("gap", [" ", "   "])
async def test_the_scheme_is_matched_without_regard_to_case(call: Client, scheme: str, gap: str) -> None:
    lock(call, "k")
    assert (await call("GET", "/v0/topics/jobs", headers={"authorization": f"{scheme}{gap}k"})).status == 200


async def test_a_token_in_the_query_is_not_accepted_here(call: Client) -> None:
    lock(call, "k")
    for route in KEYED:
        target = f"{path_of(route)}?token=k"
        assert (await call(route.method, target, b"{}", JSON)).status == 401


async def test_two_authorization_headers_are_no_key() -> None:
    headers = Headers([(b"Authorization", b"Bearer k"), (b"authorization", b"Bearer k")])
    token = auth.bearer_token(headers)
    assert token is not None
    assert KeyStore(parse_keys("k")).bearer_of(token) is None


async def test_without_keys_the_header_is_ignored(call: Client) -> None:
    for headers in NO_KEYS:
        for route in ROUTES:
            assert (await send(call, route, headers)).status == 200
    assert auth.authorise(KeyStore(), "anything", "admin", {"topic": "x"}) is EVERYONE


async def test_checks_come_in_the_order_of_the_contract(call: Client) -> None:
    lock(call, "limited:read:own.,all")
    big, text = b"x" * (LIMIT + 1), {"content-type": "text/plain"}
    for target in ("/v0/topics/jobs", "/v0/topics/!"):
        # Wrong in every way there is.
        assert (await call("PATCH", target, big, text)).status == 401
        assert (await call("PATCH", target, big, text | bearer("limited"))).status == 403
        assert (await call("POST", target, big, text)).status == 401
        assert (await call("POST", target, big, text | bearer("limited"))).status == 403
    assert (await call("PATCH", "/v0/topics/!", big, text | bearer("all"))).status == 405
    assert (await call("PATCH", "/v0/topics/own.x", big, text | bearer("limited"))).status == 405
    assert (await call("POST", "/v0/topics/!", big, text | bearer("all"))).status == 413
    assert (await call("POST", "/v0/topics/!", b"x", text | bearer("all"))).status == 415
    assert (await call("POST", "/v0/topics/!", b"{}", JSON | bearer("all"))).status == 400
    assert reached(call) == 0


async def test_who_has_no_key_is_not_told_that_the_server_is_stopping(call: Client) -> None:
    lock(call, "k")
    call.gateway.draining = True
    assert (await call("GET", "/v0/topics/jobs")).status == 401
    assert (await call("GET", "/v0/topics/jobs", headers=bearer("k"))).status == 503


@pytest.mark.parametrize("known", [True, False])
async def test_nothing_holds_on_to_a_token_after_its_request(call: Client, known: bool) -> None:
    half = secrets.token_hex(16)
    lock(call, f"{half}{half}" if known else "k")
    assert (await call("GET", "/v0/topics/jobs", headers=bearer(half * 2))).status == (200 if known else 401)
    gc.collect()
    found: set[str] = set()
    for holder in gc.get_objects():
        for held in gc.get_referents(holder):
            # Twice the half: the test itself knows only one.
            if (isinstance(held, str) and half + half in held) or (
                isinstance(held, bytes) and (half + half).encode() in held
            ):
                found.add(f"{type(held).__name__} in {type(holder).__name__}")
    assert found == set()


async def test_head_needs_what_get_needs(call: Client) -> None:
    lock(call, "r:read,w:write")
    for token, status in (("r", 200), ("w", 403), ("x", 401)):
        assert (await call("HEAD", "/v0/topics/jobs", headers=bearer(token))).status == status


# -- probes


@pytest.mark.parametrize("route", PROBES, ids=route_id)
async def test_probes_are_open_unless_they_are_closed(call: Client, route: Route) -> None:
    lock(call, "k:write:own.")
    for headers in ({}, bearer("wrong"), bearer("k")):
        assert (await send(call, route, headers)).status == 200
        assert (await call("POST", path_of(route), headers=headers)).status == 405
    lock(call, "k:write:own.", probe_auth=True)
    for headers in ({}, bearer("wrong")):
        response = await send(call, route, headers)
        assert (response.status, header(response, "www-authenticate")) == (401, "Bearer")
        assert (await call("POST", path_of(route), headers=headers)).status == 401
    assert (await send(call, route, bearer("k"))).status == 200, "any scope will do"
    assert (await call("POST", path_of(route), headers=bearer("k"))).status == 405


def test_an_open_route_gives_no_rights() -> None:
    keys = KeyStore(parse_keys("k"))
    assert auth.authorise(keys, "k", "none") is NOBODY
    for scope in SCOPES:
        with pytest.raises(errors.Forbidden):
            NOBODY.check_scopes(frozenset({scope}))


# -- what later routes need


def test_a_route_may_need_two_scopes() -> None:
    keys = KeyStore(parse_keys("r:r,w:w,rw:rw,all,d:d+a"))
    for token, allowed in (("r", False), ("w", False), ("rw", True), ("all", True), ("d", False)):
        if allowed:
            assert auth.authorise(keys, token, "read+write").scopes >= {"read", "write"}
        else:
            with pytest.raises(errors.Forbidden):
                auth.authorise(keys, token, "read+write")
    for token in ("r", "d"):
        auth.authorise(keys, token, auth.ANY_KEY)
    with pytest.raises(errors.Unauthorized):
        auth.authorise(keys, "x", auth.ANY_KEY)


@pytest.mark.parametrize("scope", ["", "raed", "read+", "read,write", "r"])
def test_a_route_with_a_scope_nobody_has_is_a_bug_and_lets_nobody_in(scope: str) -> None:
    with pytest.raises(ValueError, match="no set of scopes"):
        auth.authorise(KeyStore(parse_keys("k")), "k", scope)


def test_every_segment_is_a_name_unless_it_is_known_not_to_be() -> None:
    assert auth.names_in({"router": "a", "wid": "w", "unheard_of": "b"}) == ["a", "b"]


def test_a_caller_is_known_by_its_key_and_the_same_after_a_restart() -> None:
    first, again = (KeyStore(parse_keys(text)) for text in ("a:r,b", "c,b,a:w"))
    one, other = first.bearer_of("a"), again.bearer_of("a")
    assert one is not None
    assert other is not None
    assert one.key_digest == other.key_digest
    assert len({caller.key_digest for caller in (one, first.bearer_of("b"), EVERYONE) if caller}) == 3
