"""Web pages of other origins: who is let in, what a browser is told, and that nobody is by default."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.http import Headers, Response
from gateway.keys import KeyStore
from gateway.origin import LOOPBACK_NAMES, OriginPolicy
from gateway.routes import ROUTES
from tests.fakes.direct_client import JSON, LIMIT, Client, gateway_over, header
from tests.fakes.fake_shard import FakeShard
from topics.errors import Forbidden
from topics.keys import parse_keys

APP, OTHER, OWN = "https://app.example.com", "https://elsewhere.example", "https://topics.example.com"
ASKING = {"access-control-request-method": "POST"}
OPEN = OriginPolicy(
    own_names=LOOPBACK_NAMES | {"topics.example.com"}, cors_origins=frozenset({APP, "http://localhost:5173"})
)
ANYONE = OriginPolicy(cors_origins=frozenset({"*"}))


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Client]:
    async with gateway_over([FakeShard(tmp_path / "0")]) as client:
        client.gateway.origins = OPEN
        yield client


def cors(response: Response) -> dict[str, str]:
    return {name: value for name, value in response.headers if name.startswith("access-control-")}


def path_of(pattern: tuple[str, ...]) -> str:
    return "/" + "/".join("x" if segment.startswith(":") else segment for segment in pattern)


@pytest.mark.parametrize(
    ("policy", "origin", "host", "passes"),
    [
        (OPEN, None, "anything", True),
        (OPEN, APP, "127.0.0.1:4000", True),
        (OPEN, APP, "topics.example.com", True),
        (OPEN, OWN, "topics.example.com", True),
        (OPEN, OWN, "TOPICS.example.com", True),
        (OPEN, OWN, "127.0.0.1:4000", False),
        (OPEN, f"{OWN}:8443", "topics.example.com", False),
        (OPEN, OTHER, "127.0.0.1:4000", False),
        (OPEN, "null", "127.0.0.1:4000", False),
        (OPEN, "", "127.0.0.1:4000", False),
        (OPEN, "*", "127.0.0.1:4000", False),
        (OPEN, f"{APP}.elsewhere.example", "127.0.0.1:4000", False),
        (OPEN, f"{APP}:444", "127.0.0.1:4000", False),
        (OPEN, "http://app.example.com", "127.0.0.1:4000", False),
        (OPEN, f"{APP}, {OTHER}", "127.0.0.1:4000", False),
        (OriginPolicy(), OWN, "topics.example.com", False),
        (OriginPolicy(), APP, "127.0.0.1:4000", False),
        (ANYONE, OTHER, "127.0.0.1:4000", True),
        (ANYONE, "null", None, True),
    ],
)
def test_own_pages_and_those_that_are_let_in_may_change_things(
    policy: OriginPolicy, origin: str | None, host: str | None, passes: bool
) -> None:
    pairs = [("origin", origin), ("host", host)]
    headers = Headers([(name.encode(), value.encode()) for name, value in pairs if value is not None])
    if passes:
        policy.check(headers)
    else:
        with pytest.raises(Forbidden):
            policy.check(headers)


async def test_every_answer_to_an_origin_that_is_let_in_can_be_read_by_its_page(call: Client) -> None:
    call.gateway.keys = KeyStore(parse_keys("full,reader:read"))
    full = {"authorization": "Bearer full", "origin": APP}
    seen = []
    for method, target, body, headers in (
        ("GET", "/v0/topics/a", b"", full),
        ("HEAD", "/v0/topics/a", b"", full),
        ("POST", "/v0/topics/a", b"{}", full | JSON),
        ("GET", "/v0/health", b"", full),
        ("GET", "/v0/topics/a", b"", {"origin": APP}),
        ("PUT", "/v0/topics/a", b"{}", full | JSON | {"authorization": "Bearer reader"}),
        ("GET", "/nowhere", b"", full),
        ("PATCH", "/v0/topics/a", b"", full),
        ("OPTIONS", "/v0/topics/a", b"", full),
        ("POST", "/v0/topics/a", b"x" * (LIMIT + 1), full | JSON),
        ("POST", "/v0/topics/a", b"{}", full),
        ("GET", "/v0/topics/%zz", b"", full),
    ):
        response = await call(method, target, body, headers)
        seen.append(response.status)
        assert cors(response) == {
            "access-control-allow-origin": APP,
            "access-control-expose-headers": "retry-after",
        }
        assert "Origin" in (header(response, "vary") or "").split(", ")
    assert seen == [200, 200, 200, 200, 401, 403, 404, 405, 405, 413, 415, 400]


async def test_nobody_else_gets_a_cors_header_and_caches_are_told(call: Client) -> None:
    for origin in (OTHER, "null", OWN, f"{APP}/", APP.upper()):
        response = await call("GET", "/v0/topics/a", b"", {"origin": origin})
        assert (response.status, cors(response)) == (200, {})
        assert "Origin" in (header(response, "vary") or "")
    without = await call("GET", "/v0/topics/a")
    assert cors(without) == {}
    assert header(without, "vary") == "Origin"


async def test_without_the_setting_there_is_no_cors_header_and_no_preflight(call: Client) -> None:
    call.gateway.origins = OriginPolicy()
    for origin in (APP, OTHER, "null", "*"):
        for method in ("GET", "POST", "OPTIONS"):
            response = await call(method, "/v0/topics/a", b"", {"origin": origin} | ASKING)
            assert response.status == {"GET": 200, "POST": 403, "OPTIONS": 405}[method]
            assert cors(response) == {}
            assert "Origin" not in (header(response, "vary") or "")


async def test_a_preflight_is_granted_at_every_path_with_its_methods_and_without_a_key(call: Client) -> None:
    call.gateway.keys = KeyStore(parse_keys("full"), probe_auth=True)
    for route in ROUTES:
        path = path_of(route.pattern)
        response = await call("OPTIONS", path, b"", {"origin": APP} | ASKING)
        assert (response.status, response.body) == (204, b"")
        assert header(response, "content-length") is None
        methods = {one.method for one in ROUTES if one.pattern == route.pattern}
        assert cors(response) == {
            "access-control-allow-origin": APP,
            "access-control-expose-headers": "retry-after",
            "access-control-allow-methods": ", ".join(
                sorted(methods | ({"HEAD"} if "GET" in methods else set()))
            ),
            "access-control-allow-headers": "authorization, content-type, idempotency-key, last-event-id",
            "access-control-max-age": "600",
        }
    assert call.shards[0].requests == []


async def test_a_preflight_of_a_foreign_page_is_403_and_says_nothing(call: Client) -> None:
    for origin in (OTHER, "null", f"{APP}.elsewhere.example"):
        response = await call("OPTIONS", "/v0/topics/a", b"", {"origin": origin} | ASKING)
        assert (response.status, json.loads(response.body)["error"]["code"]) == (403, "forbidden")
        assert cors(response) == {}


async def test_other_options_requests_stay_405_and_unknown_paths_404(call: Client) -> None:
    for headers in ({}, {"origin": APP}, ASKING, ASKING | {"origin": OWN, "host": "topics.example.com"}):
        response = await call("OPTIONS", "/v0/topics/a", b"", headers)
        assert response.status == 405
        assert "access-control-allow-methods" not in cors(response)
    missing = await call("OPTIONS", "/nowhere", b"", {"origin": APP} | ASKING)
    assert (missing.status, cors(missing)["access-control-allow-origin"]) == (404, APP)
    # Nor does a page get through by saying that it asks.
    assert (await call("PATCH", "/v0/topics/a", b"", {"origin": APP} | ASKING)).status == 405


async def test_a_star_is_said_only_where_it_is_configured_and_never_with_credentials(call: Client) -> None:
    for policy, shown in ((OPEN, APP), (ANYONE, "*")):
        call.gateway.origins = policy
        for method in ("GET", "OPTIONS"):
            response = await call(method, "/v0/topics/a", b"", {"origin": APP} | ASKING)
            assert header(response, "access-control-allow-origin") == shown
            assert header(response, "access-control-allow-credentials") is None
    assert cors(await call("GET", "/v0/topics/a")) == {}
