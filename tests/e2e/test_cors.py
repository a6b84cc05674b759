"""`TOPICS_CORS_ORIGINS` and `TOPICS_ALLOWED_HOSTS` through every door: what a browser is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.hostile import DOORS
from tests.e2e.server import JSON_TYPE, Server, Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.server import Answer

APP = "https://app.example.com"
FOREIGN = "https://elsewhere.example"
KEY = {"Authorization": "Bearer full"}
SETTINGS = {
    "TOPICS_CORS_ORIGINS": f"http://localhost:5173,{APP}",
    "TOPICS_ALLOWED_HOSTS": "topics.example.com",
    "TOPICS_API_KEYS": "full",
}


@pytest.fixture(scope="module", params=[*DOORS, "h2c"])
def cors_server(request: pytest.FixtureRequest, start_server: Callable[..., Server]) -> Server:
    return start_server(SETTINGS | DOORS.get(request.param, {}), http2=request.param == "h2c")


def granted(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def preflight(server: Server, path: str, origin: str) -> Answer:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    return server.request("OPTIONS", path, headers={"Origin": origin, **asked})


def test_a_page_that_is_let_in_asks_writes_and_reads_like_a_browser_would(
    cors_server: Server, name: str
) -> None:
    path = Topic(cors_server, name).path
    asked = preflight(cors_server, path, APP)
    assert (asked.status, asked.body) == (204, b"")
    assert granted(asked)["access-control-allow-origin"] == APP
    assert "POST" in granted(asked)["access-control-allow-methods"]
    assert "authorization" in granted(asked)["access-control-allow-headers"]
    page = {"Origin": APP, **KEY}
    for method, target, body, status in (
        ("POST", path, {"records": [{"data": 1}]}, 201),
        ("POST", f"{path}/diff", {}, 200),
        ("DELETE", path, None, 200),
        ("GET", path, None, 404),
    ):
        answer = cors_server.request(method, target, body, headers=page)
        assert answer.status == status
        assert granted(answer)["access-control-allow-origin"] == APP
        assert "Origin" in answer.headers["vary"]
    refused = cors_server.get(path, headers={"Origin": APP})
    refused.failed(401, "unauthorized")
    assert granted(refused)["access-control-allow-origin"] == APP


def test_a_page_that_is_not_let_in_is_told_nothing(cors_server: Server, name: str) -> None:
    path = Topic(cors_server, name).path
    page = {"Origin": FOREIGN, **KEY, **JSON_TYPE}
    asked = preflight(cors_server, path, FOREIGN)
    asked.failed(403, "forbidden")
    write = cors_server.post(path, raw=b'{"records":[{"data":1}]}', headers=page)
    write.failed(403, "forbidden")
    read = cors_server.get(path, headers=page)
    read.failed(404, "topic_not_found")
    assert [granted(answer) for answer in (asked, write, read)] == [{}, {}, {}]


def test_a_connection_serves_on_after_a_preflight(cors_server: Server) -> None:
    """A 204 has no body and no length; the next answer must not be taken for it."""
    for _ in range(3):
        asked = preflight(cors_server, "/v0/topics", APP)
        assert (asked.status, asked.headers.get("content-length")) == (204, None)
        assert cors_server.get("/v0/health").ok()["status"] == "ok"


def test_pages_of_an_allowed_host_are_the_servers_own(cors_server: Server, name: str) -> None:
    path = Topic(cors_server, name).path
    own = {"Host": "topics.example.com", **KEY, **JSON_TYPE}
    cors_server.put(path, raw=b"{}", headers={**own, "Origin": "https://topics.example.com"}).ok(201)
    for host, origin in (
        ("topics.example.com", "https://other.example.com"),
        ("other.example.com", "https://other.example.com"),
        ("127.0.0.1", "https://topics.example.com"),
    ):
        headers = {**own, "Host": host, "Origin": origin}
        cors_server.put(path, raw=b"{}", headers=headers).failed(403, "forbidden")


@pytest.mark.parametrize("door", DOORS)
def test_with_a_star_every_page_is_let_in_without_its_credentials(
    start_server: Callable[..., Server], name: str, door: str
) -> None:
    server = start_server({"TOPICS_CORS_ORIGINS": "*", **DOORS[door]})
    path = Topic(server, name).path
    for origin in (FOREIGN, "null"):
        asked = preflight(server, path, origin)
        written = server.put(path, {}, headers={"Origin": origin})
        assert (asked.status, written.status // 100) == (204, 2)
        for answer in (asked, written):
            assert granted(answer)["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in answer.headers
