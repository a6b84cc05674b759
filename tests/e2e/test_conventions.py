"""What holds on every route (section 0): methods, statuses and their order, content types, performance."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.server import BODIES, JSON_TYPE, Server, Topic, request_bytes

# -- routes and methods -----------------------------------------------------------------------------------

ALLOWED = {
    "/v0/topics": {"GET"},
    "/v0/topics/some-topic": {"GET", "PUT", "POST", "DELETE"},
    "/v0/topics/some-topic/diff": {"POST"},
    "/v0/topics/some-topic/delete": {"POST"},
    "/v0/health": {"GET"},
    "/v0/ready": {"GET"},
    "/healthz": {"GET"},
    "/readyz": {"GET"},
}
WRONG_METHODS = [
    (method, path)
    for path, allowed in ALLOWED.items()
    for method in ("GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW")
    if method not in allowed
]


@pytest.mark.parametrize(("method", "path"), WRONG_METHODS)
def test_a_wrong_method_is_405_and_names_the_right_ones(server: Server, method: str, path: str) -> None:
    answer = server.raw(f"{method} {path} HTTP/1.1\nContent-Length: 0")
    answer.failed(405, "method_not_allowed")
    allow = {name.strip() for name in answer.headers["allow"].split(",")}
    assert allow - {"HEAD"} == ALLOWED[path]
    assert ("HEAD" in allow) <= ("GET" in ALLOWED[path])


def test_405_comes_before_any_look_at_the_name_the_body_and_its_type(server: Server) -> None:
    for path in ("/v0/topics/-bad-name", "/v0/topics/absent", "/v0/topics/a%20b"):
        answer = server.raw(f"PATCH {path} HTTP/1.1\nContent-Type: text/plain\nContent-Length: 3", b"{x}")
        answer.failed(405, "method_not_allowed")
        server.get(f"{path}/diff").failed(405, "method_not_allowed")


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/",
            "/v0",
            "/v0/",
            "/v1/topics",
            "/v1/topics/a",
            "/topics",
            "/v0/nope",
            "/V0/topics",
            "/v0/Topics",
        ),
        *("/v0/topics/", "/v0/topics/a/", "/v0/topics/a/diff/", "/v0/topics/a/delete/", "/v0/topics/a/nope"),
        *(
            "/v0/topics/a/diff/b",
            "/v0/health/",
            "/v0/ready/",
            "/healthz/",
            "/readyz/",
            "/v0/healthz",
        ),
        *("//v0/topics", "/v0//topics", "/v0/topics//diff", "/favicon.ico", "/index.html", "/static/x"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_an_unknown_route_is_404_not_found(server: Server, method: str, path: str) -> None:
    server.raw(f"{method} {path} HTTP/1.1\nContent-Length: 0").failed(404, "not_found")


def test_head_is_get_without_a_body(topic: Topic) -> None:
    topic.put()
    for path, status in [
        (topic.path, 200),
        ("/v0/topics?prefix=none", 200),
        (f"{topic.path}-absent", 404),
        ("/v0/topics/-bad", 400),
        ("/v0/topics?page_size=x", 400),
        ("/v0/health", 200),
        ("/v0/ready", 200),
        ("/healthz", 200),
        ("/readyz", 200),
        ("/nowhere", 404),
        (f"{topic.path}/diff", 405),
    ]:
        with topic.server.connect() as wire:
            wire.send(request_bytes(f"HEAD {path} HTTP/1.1"))
            answer = wire.answer("HEAD")
            assert answer.status == status, path
            assert answer.body == b""
            assert answer.headers["content-type"].startswith("application/json")
            wire.send(request_bytes("GET /v0/health HTTP/1.1"))
            assert wire.answer().ok()["status"] == "ok", "no byte of a body may follow a HEAD"


def test_head_touches_like_get(topic: Topic) -> None:
    topic.put()
    topic.server.request("HEAD", topic.path)
    assert topic.state()["last_read_ts"] is not None


# -- content types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
@pytest.mark.parametrize(("method", "rest", "body"), BODIES)
def test_a_wrong_content_type_is_415(
    topic: Topic, method: str, rest: str, body: bytes, media_type: str
) -> None:
    answer = topic.server.request(method, topic.path + rest, raw=body, headers={"Content-Type": media_type})
    answer.failed(415, "unsupported_media_type")
    topic.server.get(topic.path).failed(404, "topic_not_found")


@pytest.mark.parametrize(
    "media_type",
    [
        "application/jsonp",
        "application/x-json",
        "json",
        "text/json",
        "application",
        "*/*",
        "x application/json",
    ],
)
def test_what_only_looks_like_json_is_415(topic: Topic, media_type: str) -> None:
    headers = {"Content-Type": media_type}
    topic.server.put(topic.path, raw=b"{}", headers=headers).failed(415, "unsupported_media_type")


@pytest.mark.parametrize(("method", "rest", "body"), BODIES)
def test_a_body_without_content_type_is_415(topic: Topic, method: str, rest: str, body: bytes) -> None:
    head = f"{method} {topic.path}{rest} HTTP/1.1\nContent-Length: {len(body)}"
    topic.server.raw(head, body).failed(415, "unsupported_media_type")


@pytest.mark.parametrize(
    "media_type",
    [
        *(
            "application/json",
            "application/json; charset=utf-8",
            "application/json;charset=UTF-8",
            "APPLICATION/JSON",
        ),
        *("Application/Json ; Charset=utf-8", 'application/json; charset="utf-8"'),
    ],
)
def test_the_json_media_type_is_matched_without_regard_to_case_and_parameters(
    topic: Topic, media_type: str
) -> None:
    topic.server.put(topic.path, raw=b"{}", headers={"Content-Type": media_type}).ok(201)


def test_an_empty_body_needs_no_content_type_where_it_stands_for_an_empty_object(topic: Topic) -> None:
    topic.server.raw(f"PUT {topic.path} HTTP/1.1\nContent-Length: 0").ok(201)
    topic.server.raw(f"PUT {topic.path} HTTP/1.1").ok(200)
    topic.server.raw(f"POST {topic.path}/diff HTTP/1.1\nContent-Length: 0").ok(200)
    topic.server.raw(f"POST {topic.path}/diff HTTP/1.1").ok(200)


@pytest.mark.parametrize("rest", ["", "/delete"])
def test_an_empty_body_is_400_where_fields_are_required(topic: Topic, rest: str) -> None:
    topic.server.post(topic.path + rest, raw=b"", headers=JSON_TYPE).failed(400, "invalid_request")


def test_every_answer_is_json(topic: Topic) -> None:
    topic.write(1)
    for answer in (
        topic.server.get(topic.path),
        topic.try_diff({}),
        topic.server.get("/v0/topics"),
        topic.server.get("/v0/health"),
        topic.server.delete(topic.path),
        topic.server.get(topic.path),
    ):
        assert answer.headers["content-type"].split(";")[0] == "application/json"


# -- order of checks --------------------------------------------------------------------------------------


def test_415_comes_before_400(topic: Topic) -> None:
    text = {"Content-Type": "text/plain"}
    topic.server.post(topic.path, raw=b"{bad", headers=text).failed(415, "unsupported_media_type")
    topic.server.put("/v0/topics/-bad", raw=b"{}", headers=text).failed(415, "unsupported_media_type")
    topic.server.post(f"{topic.path}?return_seqs=x", raw=b"{}", headers=text).failed(
        415, "unsupported_media_type"
    )


def test_400_comes_before_404_and_409(topic: Topic) -> None:
    topic.try_diff({"limit": "x"}).failed(400, "invalid_request", "limit")
    topic.try_delete_records({}).failed(400, "invalid_request")
    topic.write_records([], create=False).failed(400, "invalid_request", "records")
    topic.server.get(topic.path, params={"touch": "x"}).failed(400, "invalid_request", "touch")
    topic.write(1)
    topic.server.delete(topic.path, params={"if_empty": "x"}).failed(400, "invalid_request", "if_empty")
    topic.server.put(topic.path, {"type": "queue", "ttl_ms": None}).failed(400, "invalid_request", "ttl_ms")


# -- the performance block --------------------------------------------------------------------------------


def _performance(body: Any) -> dict[str, float]:
    block = body["performance"]
    assert all(isinstance(value, int | float) and value >= 0 for value in block.values()), block
    assert block["server_total_ms"] > 0
    return dict(block)


def test_every_success_and_error_of_a_topic_carries_the_performance_block(topic: Topic) -> None:
    server = topic.server
    for answer in (
        server.get(topic.path),
        server.put(topic.path, {}),
        server.put(topic.path, {"ttl_ms": "x"}),
        server.post(topic.path, {"records": [{"data": 1}]}),
        server.get(topic.path),
        topic.try_diff({}),
        topic.try_delete_records({"before_seq": 1}),
        server.get("/v0/topics"),
        server.delete(topic.path),
    ):
        _performance(answer.json)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_fsync_ms_is_real_for_the_fsync_class_and_zero_for_the_others(topic: Topic, durability: str) -> None:
    topic.put(durability=durability)
    block = _performance(topic.write("x"))
    assert (block["fsync_ms"] > 0) is (durability == "fsync")
    assert "wal_append_ms" in block
    assert block["wal_append_ms"] + block["fsync_ms"] <= block["server_total_ms"]


def test_server_total_ms_includes_the_time_a_long_poll_waited(topic: Topic) -> None:
    topic.put()
    assert 200 <= _performance(topic.diff(wait_ms=200))["server_total_ms"] < 2000
