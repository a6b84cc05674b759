"""What holds on every route (section 0): envelope, statuses and their order, content types, gzip, framing."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.e2e.server import JSON_TYPE, Server, Topic, gzipped, request_bytes

# Every route of a topic that takes a body, with one that is good.
BODIES = [("PUT", "", b"{}"), ("POST", "", b'{"records":[{"data":1}]}'), ("POST", "/diff", b"{}")]
BODIES += [("POST", "/delete", b'{"before_seq":1}')]


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
            "/health",
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


# -- JSON -------------------------------------------------------------------------------------------------

NOT_JSON_OBJECTS = [
    *(
        b"{",
        b"}",
        b"x",
        b"{'a':1}",
        b"{} x",
        b"{}{}",
        b"{},",
        b'{"a":1,}',
        b"{a:1}",
        b'{"a"}',
        b'{"a":}',
        b"// x\n{}",
    ),
    *(
        b"[]",
        b'"x"',
        b"null",
        b"1",
        b"true",
        b" ",
        b"\n",
        b"\x00",
        b"{}\x00",
        b"\xef\xbb\xbf{}",
        b'{"x":"\xff"}',
        b'{"\xff":1}',
    ),
    *(
        b'{"x":NaN}',
        b'{"x":Infinity}',
        b'{"x":-Infinity}',
        b'{"x":undefined}',
        b'{"x":"\x01"}',
        b'{"x":"a\nb"}',
    ),
    *("{}".encode("utf-16"), "{}".encode("utf-32"), b'{"x":"\xed\xa0\x80"}', b'{"x":"\xc0\xaf"}'),
    *(b'{"x":' + b"[" * 200 + b"]" * 200 + b"}", b"[" * 100_000, b'{"a":' * 100_000, b'{"x":"\\ud800"}'),
]


@pytest.mark.parametrize("body", NOT_JSON_OBJECTS, ids=lambda body: repr(body[:24]))
@pytest.mark.parametrize(("method", "rest"), [(method, rest) for method, rest, _ in BODIES])
def test_a_body_that_is_no_json_object_is_400_on_every_route(
    topic: Topic, method: str, rest: str, body: bytes
) -> None:
    topic.server.request(method, topic.path + rest, raw=body, headers=JSON_TYPE).failed(
        400, "invalid_request"
    )


BAD_VALUES = [
    *(
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"01",
        b"-01",
        b"+1",
        b"1.",
        b".5",
        b"0x10",
        b"1e",
        b"1e+",
        b"-",
        b"--1",
        b"1_0",
    ),
    *(
        b'"\\x41"',
        b'"\\u12"',
        b'"\\u12g4"',
        b'"\\"',
        b'"',
        b'"a\tb"',
        b'"\x00"',
        b'"\x1f"',
        b"'a'",
        b"tru",
        b"nul",
        b"True",
    ),
    *(
        b'"\xff"',
        b'"\xc3"',
        b'"\xc0\x80"',
        b'"\xed\xa0\x80"',
        b'"\xf4\x90\x80\x80"',
        b'"\xf8\x88\x80\x80\x80"',
    ),
    *(
        b'"\\ud800"',
        b'"\\udc00"',
        b'"\\ud800x"',
        b'"\\ud800\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\\ud83d\\u0041"',
    ),
    *(
        b'{"\\ud800":1}',
        b'["\\udfff"]',
        b"[1,]",
        b"[,1]",
        b"[1 2]",
        b'{"a":1,}',
        b'{"a" 1}',
        b"{1:2}",
        b"[1}",
        b'{"a":1]',
    ),
    *(
        b"[" * 129 + b"]" * 129,
        b"[" * 5000 + b"]" * 5000,
        b'{"a":' * 200 + b"1" + b"}" * 200,
        b"",
        b"/**/1",
        b"\xc2\xa01",
    ),
    b'"\\ud83d\\',
]


@pytest.mark.parametrize("value", BAD_VALUES, ids=lambda value: repr(value[:24]))
def test_data_and_meta_that_are_no_json_are_400_and_nothing_is_written(topic: Topic, value: bytes) -> None:
    topic.write("before")
    for body in (
        b'{"records":[{"data":0},{"data":' + value + b"}]}",
        b'{"records":[{"data":' + value + b',"tag":"t"}]}',
        b'{"records":[{"data":0,"meta":{"k":' + value + b"}}]}",
        b'{"records":[{"data":[' + value + b"]}]}" if value else b'{"records":[{"data":}]}',
    ):
        topic.server.post(topic.path, raw=body, headers=JSON_TYPE).failed(400, "invalid_request")
    assert topic.state()["head_seq"] == 1


@pytest.mark.parametrize("bad", [rb'"\ud800"', b'"\xff"', rb'"\udc00"', b'"\xed\xa0\x80"'])
def test_strings_that_are_no_unicode_text_are_400_in_every_string_field(topic: Topic, bad: bytes) -> None:
    topic.write("before")
    for path, body in [
        (topic.path, b'{"records":[{"data":0,"tag":' + bad + b"}]}"),
        (topic.path, b'{"records":[{"data":0,"node":' + bad + b"}]}"),
        (topic.path, b'{"records":[{"data":0}],"node":' + bad + b"}"),
        (topic.path, b'{"records":[{"data":0}],"idempotency_key":' + bad + b"}"),
        (f"{topic.path}/diff", b'{"node":' + bad + b"}"),
        (f"{topic.path}/diff", b'{"node":["a",' + bad + b"]}"),
        (f"{topic.path}/delete", b'{"match":' + bad + b"}"),
        (f"{topic.path}/delete", b'{"match":["tag","Eq",' + bad + b"]}"),
    ]:
        topic.server.post(path, raw=body, headers=JSON_TYPE).failed(400, "invalid_request")
    assert topic.state()["head_seq"] == 1


def test_whitespace_and_unknown_deep_fields_around_a_body_are_fine(topic: Topic) -> None:
    body = b' \r\n\t{ "records" : [ {"data":1} ] , "x" : {"y":[{"z":1e999}]} } \n'
    topic.server.post(topic.path, raw=body, headers=JSON_TYPE).ok(201)


# -- gzip -------------------------------------------------------------------------------------------------

GZIP = {**JSON_TYPE, "Content-Encoding": "gzip"}


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "x-gzip"])
def test_a_gzipped_body_is_read(topic: Topic, coding: str) -> None:
    body = gzipped(json.dumps({"records": [{"data": "x" * 100_000}]}).encode())
    topic.server.post(topic.path, raw=body, headers={**JSON_TYPE, "Content-Encoding": coding}).ok(201)
    assert topic.diff()["records"][0]["data"] == "x" * 100_000


def test_a_gzipped_body_of_several_members_is_read_whole(topic: Topic) -> None:
    body = gzipped(b'{"records":[{"data":1}') + gzipped(b',{"data":2}]}')
    assert topic.server.post(topic.path, raw=body, headers=GZIP).ok(201)["count"] == 2


def test_a_gzipped_nothing_is_an_empty_body(topic: Topic) -> None:
    topic.put()
    topic.server.post(f"{topic.path}/diff", raw=gzipped(b""), headers=GZIP).ok()


def test_the_identity_coding_is_no_coding(topic: Topic) -> None:
    topic.server.put(topic.path, raw=b"{}", headers={**JSON_TYPE, "Content-Encoding": "identity"}).ok(201)


GOOD_GZIP = gzipped(b'{"records":[{"data":1}]}')


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"\x1f\x8b",
        GOOD_GZIP[:-1],
        GOOD_GZIP[:-8],
        GOOD_GZIP[:15],
        GOOD_GZIP[:-5] + b"\x00" + GOOD_GZIP[-4:],
    ],
    ids=["plain", "magic-only", "cut-1", "cut-8", "cut-early", "bad-checksum"],
)
def test_a_damaged_gzip_body_is_400_and_writes_nothing(topic: Topic, body: bytes) -> None:
    topic.server.post(topic.path, raw=body, headers=GZIP).failed(400, "invalid_request")
    topic.server.get(topic.path).failed(404, "topic_not_found")


@pytest.mark.parametrize("coding", ["br", "deflate", "zstd", "nonsense", "gzip, br"])
def test_an_unknown_content_encoding_is_refused(topic: Topic, coding: str) -> None:
    answer = topic.server.post(topic.path, raw=b"{}", headers={**JSON_TYPE, "Content-Encoding": coding})
    assert (answer.status, answer.code) in {(415, "unsupported_media_type"), (400, "invalid_request")}


@pytest.mark.parametrize(
    "accept", ["gzip", "GZIP", "gzip, deflate, br", "br, gzip;q=0.5", "deflate,gzip", "*"]
)
def test_a_large_answer_is_gzipped_for_who_accepts_it(topic: Topic, accept: str) -> None:
    topic.write("x" * 50_000)
    body = b"{}"
    head = (
        f"POST {topic.path}/diff HTTP/1.1\nContent-Type: application/json\n"
        f"Content-Length: {len(body)}\nAccept-Encoding: {accept}"
    )
    answer = topic.server.raw(head, body)
    assert answer.status == 200
    if accept == "*" and "content-encoding" not in answer.headers:
        return  # "anything" includes plain
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.body) < 5000
    page = json.loads(gzip.decompress(answer.body))
    assert page["records"][0]["data"] == "x" * 50_000


@pytest.mark.parametrize(
    "accept", [None, "", "identity", "br", "deflate", "gzip;q=0", "gzip; q=0.0", "gzip;q=0, *", "notgzip"]
)
def test_an_answer_is_plain_for_who_does_not_accept_gzip(topic: Topic, accept: str | None) -> None:
    topic.write("x" * 50_000)
    head = f"POST {topic.path}/diff HTTP/1.1\nContent-Length: 0"
    if accept is not None:
        head += f"\nAccept-Encoding: {accept}"
    answer = topic.server.raw(head)
    assert "content-encoding" not in answer.headers
    assert answer.ok()["records"][0]["data"] == "x" * 50_000


def test_data_comes_back_byte_for_byte_through_gzip_both_ways(topic: Topic) -> None:
    raw = b'{"b":1.0,"a":1e3,"a":' + b"9" * 40 + b',"s":"\\u00e9' + b"y" * 5000 + b'"}'
    topic.server.post(topic.path, raw=gzipped(b'{"records":[{"data":' + raw + b"}]}"), headers=GZIP).ok(201)
    answer = topic.server.raw(f"POST {topic.path}/diff HTTP/1.1\nContent-Length: 0\nAccept-Encoding: gzip")
    assert raw in gzip.decompress(answer.body)


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


# -- framing on the wire ----------------------------------------------------------------------------------


def test_a_chunked_body_is_read(topic: Topic) -> None:
    body = b'{"records":[{"data":"chunked"}]}'
    chunks = (
        b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:5], body[5:6], body[6:]))
        + b"0\r\n\r\n"
    )
    head = f"POST {topic.path} HTTP/1.1\nContent-Type: application/json\nTransfer-Encoding: chunked"
    assert topic.server.raw(head, chunks).ok(201)["count"] == 1


def test_an_empty_chunked_body_is_an_empty_body(topic: Topic) -> None:
    topic.server.raw(f"PUT {topic.path} HTTP/1.1\nTransfer-Encoding: chunked", b"0\r\n\r\n").ok(201)


def test_a_client_that_asks_first_is_told_to_continue(topic: Topic) -> None:
    body = b'{"records":[{"data":1}]}'
    head = (
        f"POST {topic.path} HTTP/1.1\nContent-Type: application/json\n"
        f"Content-Length: {len(body)}\nExpect: 100-continue"
    )
    with topic.server.connect() as wire:
        wire.send(request_bytes(head))
        assert not wire.is_silent_for(5), "no answer to Expect: 100-continue"
        wire.send(body)
        wire.answer().ok(201)


def test_a_connection_stays_usable_after_errors(topic: Topic) -> None:
    with topic.server.connect() as wire:
        for head, body, status in [
            (f"GET {topic.path} HTTP/1.1", b"", 404),
            ("GET /nowhere HTTP/1.1", b"", 404),
            (f"PATCH {topic.path} HTTP/1.1\nContent-Length: 5", b"hello", 405),
            (f"PUT {topic.path} HTTP/1.1\nContent-Length: 2\nContent-Type: text/plain", b"{}", 415),
            (f"PUT {topic.path} HTTP/1.1\nContent-Length: 2\nContent-Type: application/json", b"{x", 400),
            (f"PUT {topic.path} HTTP/1.1\nContent-Length: 2\nContent-Type: application/json", b"{}", 201),
            (f"GET {topic.path} HTTP/1.1", b"", 200),
        ]:
            wire.send(request_bytes(head, body))
            assert wire.answer().status == status, head


@pytest.mark.parametrize(
    "request_text",
    [
        "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 24\r\n"
        'Transfer-Encoding: chunked\r\n\r\n18\r\n{{"records":[{{"data":1}}]}}\r\n0\r\n\r\n',
        "PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json,\r\n x\r\nContent-Length: 0\r\n\r\n",
        "PUT {path} HTTP/1.1\nHost: a\nContent-Length: 0\n\n",
        "PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
        "PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        "PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        "PUT {path} HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        "PUT {path} HTTP/1.1\r\nHost: a\r\nbroken header\r\n\r\n",
        "complete nonsense\r\n\r\n",
    ],
    ids=[
        "cl-and-te",
        "obs-fold",
        "lf-only",
        "two-lengths",
        "negative-length",
        "bad-length",
        "no-host",
        "no-colon",
        "nonsense",
    ],
)
def test_ambiguous_or_broken_framing_is_400_and_the_connection_ends(topic: Topic, request_text: str) -> None:
    with topic.server.connect() as wire:
        wire.send(request_text.format(path=topic.path).encode())
        assert wire.answer().status == 400
        assert wire.is_closed_by_server()
    topic.server.get(topic.path).failed(404, "topic_not_found")


def test_the_server_does_not_advertise_itself_or_open_itself_to_browsers(server: Server) -> None:
    answer = server.get("/v0/health", headers={"Origin": "http://elsewhere.example"})
    assert "server" not in answer.headers
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(("method", "rest", "body"), [*BODIES[:2], BODIES[3], ("DELETE", "", b"")])
def test_a_page_of_another_site_cannot_change_anything(
    topic: Topic, method: str, rest: str, body: bytes
) -> None:
    topic.write("kept")
    for origin, host in [
        ("http://elsewhere.example", "127.0.0.1"),
        ("http://elsewhere.example", "elsewhere.example"),
    ]:
        head = (
            f"{method} {topic.path}{rest} HTTP/1.1\nHost: {host}\nOrigin: {origin}\n"
            f"Content-Type: application/json\nContent-Length: {len(body)}"
        )
        topic.server.raw(head, body).failed(403, "forbidden")
    assert topic.seqs() == [1]


def test_without_an_origin_any_host_name_passes(topic: Topic) -> None:
    topic.server.raw(f"PUT {topic.path} HTTP/1.1\nHost: some.proxy.example\nContent-Length: 0").ok(201)
