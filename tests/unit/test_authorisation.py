"""Who may do what: the whole table of routes and scopes, and what a prefix-limited key can learn."""

import base64
import gzip
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway import auth
from gateway.effects import Effect
from gateway.handlers.topics import encode_cursor
from gateway.http import Headers, Response
from gateway.keys import EVERYONE, NOBODY, KeyStore
from gateway.routes import ROUTES, Route
from tests.fakes.direct_client import JSON, LIMIT, Client, gateway_over, header
from tests.fakes.fake_shard import Answer, FakeShard, by_op, list_answer, status_answer
from topics import errors
from topics.engine.placement import shard_of
from topics.keys import SCOPES, parse_keys
from topics.protocol.messages import Op
from topics.protocol.messages import Request as ShardRequest

SHARDS = 3
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


def bearer(token: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", **more}


def path_of(route: Route, topic: str = "jobs") -> str:
    return "/" + "/".join(topic if segment == ":topic" else segment for segment in route.pattern)


def route_id(route: Route) -> str:
    return f"{route.method} {path_of(route, ':topic')}"


def listing_shards(tmp_path: Path, names: Sequence[str] = ()) -> list[FakeShard]:
    shards = []
    for index in range(SHARDS):
        own = [name for name in names if shard_of(name, SHARDS) == index]
        answers: dict[Op, Callable[[ShardRequest], Answer]] = {
            Op.LIST_TOPICS: partial(list_answer, own),
            Op.STATUS: lambda _: status_answer(),
        }
        shards.append(FakeShard(tmp_path / str(index), index, by_op(answers)))
    return shards


def lock(client: Client, keys: str, *, probe_auth: bool = False) -> None:
    client.gateway.keys = KeyStore(parse_keys(keys), probe_auth=probe_auth)


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Client]:
    async with gateway_over(listing_shards(tmp_path)) as client:
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
    assert auth.authorise(KeyStore(), "anything", "admin", ["x"]) is EVERYONE


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
    paths = [{"topic": "a"}, {"router": "b", "wid": "w"}, {"unheard_of": "c"}]
    assert list(auth.names_in(paths)) == ["a", "b", "c"]


def test_a_caller_is_known_by_its_key_and_the_same_after_a_restart() -> None:
    first, again = (KeyStore(parse_keys(text)) for text in ("a:r,b", "c,b,a:w"))
    one, other = first.bearer_of("a"), again.bearer_of("a")
    assert one is not None
    assert other is not None
    assert one.key_digest == other.key_digest
    assert len({caller.key_digest for caller in (one, first.bearer_of("b"), EVERYONE) if caller}) == 3


# -- prefixes


LIMITED = "k::own.|tenant42:,all"
OWN = ("own.", "own.x", "tenant42:", "tenant42:jobs")
FOREIGN = (
    "jobs",
    "own",
    "ownx",
    "OWN.x",
    "tenant42",
    "tenant4",
    "tenant421:x",
    "x.own.",
    "!",
    "%C3%A9",
    "..",
)


@pytest.mark.parametrize("route", [route for route in KEYED if ":topic" in route.pattern], ids=route_id)
async def test_a_foreign_name_is_403_and_no_shard_hears_of_it(call: Client, route: Route) -> None:
    lock(call, LIMITED)
    for name in FOREIGN:
        response = await send(call, route, bearer("k"), topic=name)
        assert (response.status, code(response)) == (403, "forbidden")
    assert reached(call) == 0, "so the answer cannot depend on what exists"
    for name in OWN:
        assert (await send(call, route, bearer("k"), topic=name)).status == 200
    assert reached(call) == len(OWN)


async def test_a_name_is_checked_as_it_is_decoded(call: Client) -> None:
    lock(call, LIMITED)
    assert (await call("GET", "/v0/topics/%6fwn%2ex", headers=bearer("k"))).status == 200
    assert (await call("GET", "/v0/topics/own.x%2F..%2Fjobs", headers=bearer("k"))).status == 400
    assert (await call("GET", "/v0/topics/%6Aobs", headers=bearer("k"))).status == 403


NAMES = sorted(
    [f"own.{n}" for n in range(40)]
    + [f"tenant42:{n}" for n in range(30)]
    + [f"jobs{n}" for n in range(50)]
    + ["a", "own", "ownx", "tenant4", "tenant42", "tenant420", "tenant43:x", "zz"]
)
SEEN = [name for name in NAMES if name.startswith(("own.", "tenant42:"))]


async def all_pages(call: Client, query: str, page_size: int) -> list[str]:
    seen: list[str] = []
    cursor = ""
    for _ in range(200):
        target = f"/v0/topics?page_size={page_size}{query}{cursor}"
        page = json.loads((await call("GET", target, headers=bearer("k"))).body)
        names = [topic["topic"] for topic in page["topics"]]
        seen += names
        if "next_cursor" not in page:
            assert len(names) <= page_size
            return seen
        assert len(names) == page_size, "a page that is not the last is full"
        after = json.loads(base64.urlsafe_b64decode(page["next_cursor"]))["after"]
        assert after == names[-1], "a cursor names nothing but what was shown"
        cursor = f"&cursor={page['next_cursor']}"
    raise AssertionError("a list without an end")


@pytest.mark.parametrize("page_size", [1, 2, 7, 39, 40, 41, 69, 70, 71, 1000])
async def test_a_list_holds_the_keys_own_names_in_full_pages(tmp_path: Path, page_size: int) -> None:
    async with gateway_over(listing_shards(tmp_path, NAMES)) as call:
        lock(call, LIMITED)
        assert await all_pages(call, "", page_size) == SEEN
        for prefix in ("o", "own", "own.", "own.1", "own.17", "t", "tenant42:2"):
            expected = [name for name in SEEN if name.startswith(prefix)]
            assert await all_pages(call, f"&prefix={prefix}", page_size) == expected


async def test_a_list_by_a_foreign_prefix_is_empty_and_asks_nobody(tmp_path: Path) -> None:
    async with gateway_over(listing_shards(tmp_path, NAMES)) as call:
        lock(call, LIMITED)
        for prefix in ("jobs", "ownx", "tenant420", "z"):
            response = await call("GET", f"/v0/topics?prefix={prefix}", headers=bearer("k"))
            assert json.loads(response.body)["topics"] == []
        assert reached(call) == 0


async def test_overlapping_prefixes_show_no_name_twice(tmp_path: Path) -> None:
    async with gateway_over(listing_shards(tmp_path, NAMES)) as call:
        lock(call, "k::own.1|own|own.|t")
        expected = [name for name in NAMES if name.startswith(("own", "t"))]
        assert await all_pages(call, "", 9) == expected


async def test_a_cursor_to_a_foreign_name_tells_nothing(tmp_path: Path) -> None:
    """The same page follows whether the name in it exists or not, and no foreign name is on it."""
    async with gateway_over(listing_shards(tmp_path, NAMES)) as call:
        lock(call, LIMITED)
        for existing, absent in (("jobs7", "jobs7x"), ("ownx", "owny"), ("a", "b"), ("zz", "zzz")):
            pages = []
            for name in (existing, absent):
                cursor = encode_cursor(name.encode()).decode()
                response = await call("GET", f"/v0/topics?page_size=5&cursor={cursor}", headers=bearer("k"))
                page = json.loads(response.body)
                del page["performance"]
                pages.append(page)
            assert pages[0] == pages[1]
            shown = [topic["topic"] for topic in pages[0]["topics"]]
            assert shown == [name for name in SEEN if name > existing][:5]


async def test_a_key_without_prefixes_sees_every_name(tmp_path: Path) -> None:
    async with gateway_over(listing_shards(tmp_path, NAMES)) as call:
        lock(call, "k:read:")
        assert await all_pages(call, "", 50) == NAMES


async def test_a_shard_that_fails_fails_the_limited_list_too(tmp_path: Path) -> None:
    shards = listing_shards(tmp_path, NAMES)
    refusal = Answer(503, b'{"error":{"code":"not_ready"}}', 2)
    shards[1].answer = by_op({Op.LIST_TOPICS: lambda _: refusal})
    async with gateway_over(shards) as call:
        lock(call, LIMITED)
        response = await call("GET", "/v0/topics", headers=bearer("k"))
        assert (response.status, response.body) == (503, refusal.body)
        shards[1].answer = by_op({Op.LIST_TOPICS: lambda _: Answer(200, b"\xff")})
        assert (await call("GET", "/v0/topics", headers=bearer("k"))).status == 500


# -- names in bodies


def config(dead_letter: object) -> bytes:
    return json.dumps({"type": "queue", "dead_letter": dead_letter}).encode()


def write(dead_letter: object) -> bytes:
    fields = {"records": [{"data": 1}], "config": {"dead_letter": dead_letter}}
    return json.dumps(fields).encode()


DEAD_LETTER_BODIES = [
    ("PUT", config("jobs"), 403),
    ("PUT", config("own.dlq"), 200),
    ("PUT", config(None), 200),
    ("PUT", b'{"dead_letter":"own.dlq","dead_letter":"jobs"}', 403),
    ("PUT", b'{"dead\\u005fletter":"jobs"}', 403),
    ("PUT", b'{"dead_l\\u0065tter":"own.dlq"}', 200),
    ("PUT", b'{"dead_letter":"\\u006aobs"}', 403),
    ("PUT", b'{"dead_letter" :\n"jobs"}', 403),
    ("PUT", b'{"dead_letter":7}', 400),
    ("PUT", b'{"dead_letter":"jobs"', 400),
    ("PUT", b'{"other":{"dead_letter":"jobs"}}', 200),
    ("POST", write("jobs"), 403),
    ("POST", write("own.dlq"), 200),
    ("POST", write(None), 200),
    ("POST", b'{"config":{"dead_letter":"own.d"},"config":{"dead_letter":"jobs"},"records":[]}', 403),
    ("POST", b'{"\\u0063onfig":{"\\u0064ead_letter":"jobs"},"records":[{"data":1}]}', 403),
    ("POST", b'{"config":{"\\u0064\\u0065\\u0061\\u0064\\u005F\\u006C\\u0065tter":"jobs"}}', 403),
    ("POST", b'{"records":[{"data":{"config":{"dead_letter":"jobs"}}}]}', 200),
    ("POST", b'{"records":[{"data":"\\"dead_letter\\"","meta":{"dead_letter":"jobs"}}]}', 200),
    ("POST", b'{"config":{"dead_letter":["jobs"]}}', 400),
]


@pytest.mark.parametrize(("method", "body", "status"), DEAD_LETTER_BODIES, ids=range(len(DEAD_LETTER_BODIES)))
async def test_dead_letters_cannot_be_sent_to_a_foreign_topic(
    call: Client, method: str, body: bytes, status: int
) -> None:
    lock(call, LIMITED)
    response = await call(method, "/v0/topics/own.q", body, JSON | bearer("k"))
    assert response.status == status
    assert reached(call) == int(status == 200)
    zipped = await call(
        method, "/v0/topics/own.q", gzip.compress(body), JSON | bearer("k") | {"content-encoding": "gzip"}
    )
    assert zipped.status == status
    if status == 403:
        field = "dead_letter" if method == "PUT" else "config.dead_letter"
        assert json.loads(response.body)["error"]["detail"] == {"field": field, "name": "jobs"}
    unlimited = await call(method, "/v0/topics/own.q", body, JSON | bearer("all"))
    assert unlimited.status == 200, "what the shard makes of it is the shard's business"


@pytest.mark.parametrize("letter", sorted(set("dead_letter")))
def test_every_letter_of_the_field_is_recognised_when_it_is_escaped(letter: str) -> None:
    caller = KeyStore(parse_keys(LIMITED)).bearer_of("k")
    assert caller is not None
    for escape in (f"\\u{ord(letter):04x}", f"\\u{ord(letter):04X}"):
        body = ('{"' + "dead_letter".replace(letter, escape) + '":"jobs"}').encode()
        with pytest.raises(errors.Forbidden):
            auth.check_dead_letter(caller, Op.PUT_TOPIC, body)


async def test_a_new_way_to_reach_a_shard_is_closed_to_limited_keys_until_it_is_taught() -> None:
    class Unheard(Effect[int]):
        pass

    async def handler() -> int:
        return await Unheard()

    caller = KeyStore(parse_keys(LIMITED)).bearer_of("k")
    assert caller is not None
    guarded: Any = auth.guarded(caller, handler())
    with pytest.raises(errors.Internal, match="Unheard"):
        guarded.send(None)
