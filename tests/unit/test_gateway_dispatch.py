"""The gateway's rules without a server: routes, order of checks, bodies, compression, lists, probes."""

import gzip
import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from gateway import door
from gateway.compression import accepts_gzip
from gateway.context import Gateway
from gateway.routes import ROUTES
from gateway.slots import BODY_FREE_BYTES
from shards.client import ShardLink, ShardPool
from tests.fakes.direct_client import JSON, LIMIT, Chunks, Client, gateway_over, header
from tests.fakes.fake_shard import Answer, FakeShard
from topics import errors
from topics.engine.ids import check_topic_name
from topics.engine.limits import Limits
from topics.engine.placement import shard_of
from topics.protocol.messages import Request as ShardRequest


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Client]:
    async with gateway_over([FakeShard(tmp_path / str(index), index) for index in range(3)]) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "target", "body", "seen"),
    [
        ("PUT", "/v0/topics/jobs", b'{"ttl_ms":1}', ("PUT_TOPIC", {}, '{"ttl_ms":1}')),
        ("PUT", "/v0/topics/jobs", b"", ("PUT_TOPIC", {}, "{}")),
        ("GET", "/v0/topics/jobs", b"", ("GET_TOPIC", {}, "")),
        ("GET", "/v0/topics/jobs?touch=false", b"", ("GET_TOPIC", {"touch": False}, "")),
        ("GET", "/v0/topics/jobs?touch=1&unknown=%zz", b"", ("GET_TOPIC", {"touch": True}, "")),
        ("DELETE", "/v0/topics/jobs", b"", ("DELETE_TOPIC", {}, "")),
        ("DELETE", "/v0/topics/jobs?if_empty=true", b"", ("DELETE_TOPIC", {"if_empty": True}, "")),
        ("POST", "/v0/topics/jobs", b'{"records":[]}', ("WRITE", {}, '{"records":[]}')),
        ("POST", "/v0/topics/jobs?return_seqs=false", b"[1]", ("WRITE", {"return_seqs": False}, "[1]")),
        ("POST", "/v0/topics/%6aobs/diff", b"", ("DIFF", {}, "{}")),
        ("POST", "/v0/topics/jobs/diff", b'{"from_seq":3}', ("DIFF", {}, '{"from_seq":3}')),
        ("POST", "/v0/topics/jobs/delete", b'{"before_seq":3}', ("DELETE_RECORDS", {}, '{"before_seq":3}')),
    ],
)
async def test_each_route_reaches_the_owning_shard_with_its_parameters(
    call: Client, method: str, target: str, body: bytes, seen: tuple[str, dict[str, object], str]
) -> None:
    response = await call(method, target, body, JSON if body else {})
    answer = json.loads(response.body)
    assert response.status == 200
    assert header(response, "content-type") == "application/json"
    assert header(response, "content-length") == str(len(response.body))
    assert (answer["op"], answer["params"], answer["body"]) == seen
    assert answer["topic"] == "jobs"
    owner = shard_of("jobs", 3)
    assert [len(shard.requests) for shard in call.shards] == [int(index == owner) for index in range(3)]


async def test_the_idempotency_key_header_is_passed_on_and_checked(call: Client) -> None:
    answer = await call("POST", "/v0/topics/jobs", b"{}", JSON | {"Idempotency-Key": "clé-1"})
    assert json.loads(answer.body)["params"] == {"idempotency_key": "clé-1"}
    longest = await call("POST", "/v0/topics/jobs", b"{}", JSON | {"idempotency-key": "k" * 256})
    assert longest.status == 200
    for bad in ("", "k" * 257):
        got = await call.error("POST", "/v0/topics/jobs", b"{}", JSON | {"idempotency-key": bad})
        assert got == (400, "invalid_request", "Idempotency-Key")


async def test_an_answer_of_the_shard_is_relayed_byte_for_byte(tmp_path: Path) -> None:
    shard = FakeShard(tmp_path / "0")

    async def answer(_: ShardRequest) -> Answer:
        return Answer(429, b'{"error":{"code":"throttled"} , "odd":1.0}', 7)

    shard.answer = answer
    async with gateway_over([shard]) as call:
        response = await call("GET", "/v0/topics/jobs")
    assert (response.status, response.body) == (429, b'{"error":{"code":"throttled"} , "odd":1.0}')
    assert header(response, "retry-after") == "7"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "*",
        "/v0",
        "/v0/",
        "/v0/topics/",
        "/v0/topics/jobs/",
        "/v0/topics//diff",
        "/v1/topics",
        "/v0/nope",
    ],
)
async def test_an_unknown_route_or_a_trailing_slash_is_404(call: Client, path: str) -> None:
    for method in ("GET", "POST", "BREW"):
        assert (await call.error(method, path))[:2] == (404, "not_found")


async def test_a_wrong_method_is_405_with_allow_before_any_look_at_the_topic(call: Client) -> None:
    response = await call("PATCH", "/v0/topics/!bad!", b"x" * (LIMIT * 2))
    assert response.status == 405
    assert header(response, "allow") == "DELETE, GET, HEAD, POST, PUT"
    assert header(await call("HEAD", "/v0/topics/jobs/diff"), "allow") == "POST"
    assert header(await call("POST", "/v0/health"), "allow") == "GET, HEAD"


async def test_head_is_get_without_a_body_and_keeps_its_length(call: Client) -> None:
    got = await call("GET", "/v0/topics/jobs")
    head = await call("HEAD", "/v0/topics/jobs")
    assert (head.status, head.body) == (200, b"")
    assert header(head, "content-length") == header(got, "content-length")


@pytest.mark.parametrize("name", ["%zz", "%", "%4", "%ff", "a%c3"])
async def test_a_broken_escape_in_the_path_is_400(call: Client, name: str) -> None:
    assert await call.error("GET", f"/v0/topics/{name}") == (400, "invalid_request", "path")


@pytest.mark.parametrize(
    "name", ["%2e%2e%2f", "..", "a%2Fb", "a%00", "a%0A", "a%0d", "-a", "a%20b", "%C3%A9", "a" * 256, "a%25"]
)
async def test_a_name_outside_the_charset_is_400_on_every_route(call: Client, name: str) -> None:
    for method, tail in (
        ("GET", ""),
        ("PUT", ""),
        ("DELETE", ""),
        ("POST", ""),
        ("POST", "/diff"),
        ("POST", "/delete"),
    ):
        got = await call.error(method, f"/v0/topics/{name}{tail}", b"{}", JSON)
        assert got == (400, "invalid_request", "topic")
    assert not any(shard.requests for shard in call.shards)


def test_topic_names_are_matched_to_their_last_character() -> None:
    for good in ("a", "7", "A.b_c:d-e", "a" * 255):
        check_topic_name(good)
    for bad in ("a\n", "", ".a", "a" * 256, "é", "a/b"):
        with pytest.raises(errors.InvalidRequest):
            check_topic_name(bad)


async def test_checks_come_in_the_order_of_the_contract(call: Client) -> None:
    big, bad_name = b"x" * (LIMIT + 1), "/v0/topics/!"
    assert (await call("PATCH", bad_name, big)).status == 405
    assert (await call("POST", bad_name, big, {"content-type": "text/plain"})).status == 413
    assert (await call("POST", bad_name, b"x", {"content-type": "text/plain"})).status == 415
    assert (await call("POST", bad_name, b"{}", JSON)).status == 400


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; Charset=UTF-8", 200),
        ('application/json;charset="utf-8"', 200),
        ("application/json; profile=x", 200),
        ("application/json; charset=latin-1", 415),
        ("application/json, text/plain", 415),
        ("application/jsonp", 415),
        ("text/plain", 415),
        ("", 415),
        (None, 415),
    ],
)
async def test_a_body_must_be_json_by_its_content_type(
    call: Client, content_type: str | None, status: int
) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    for method, target in (("PUT", "/v0/topics/a"), ("POST", "/v0/topics/a"), ("POST", "/v0/topics/a/diff")):
        response = await call(method, target, b"{}", headers)
        assert response.status == status
        if status == 415:
            assert json.loads(response.body)["error"]["code"] == "unsupported_media_type"


async def test_an_empty_body_is_an_object_only_where_the_contract_says_so(call: Client) -> None:
    for method, target in (("PUT", "/v0/topics/a"), ("POST", "/v0/topics/a/diff")):
        assert (await call(method, target)).status == 200
    for target in ("/v0/topics/a", "/v0/topics/a/delete"):
        assert (await call("POST", target)).status == 415
        assert await call.error("POST", target, b"", JSON) == (400, "invalid_request", "body")


async def test_a_declared_length_over_the_limit_is_413_before_reading(call: Client) -> None:
    chunks = Chunks(b"x" * 100)
    headers = JSON | {"content-length": str(LIMIT + 1)}
    response = await call("POST", "/v0/topics/a", chunks, headers)
    assert response.status == 413
    assert json.loads(response.body)["error"]["detail"] == {
        "limit": LIMIT,
        "variable": "TOPICS_MAX_BODY_BYTES",
    }
    assert chunks.read_bytes == 100, "what was sent is read away, or HTTP/2 breaks"
    assert (
        await call("POST", "/v0/topics/a", b"1" * LIMIT, JSON | {"content-length": str(LIMIT)})
    ).status == 200


async def test_an_endless_body_is_413_and_not_read_for_ever(
    call: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "DRAIN_BYTES_MAX", 5 * LIMIT)
    for method, status in (("POST", 413), ("GET", 200)):
        chunks = Chunks(b"x" * 1000, endless=True)
        assert (await call(method, "/v0/topics/a", chunks, JSON)).status == status
        assert chunks.read_bytes <= 7 * LIMIT


async def test_a_body_that_stops_arriving_is_given_up(call: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "BODY_IDLE_S", 0.05)
    monkeypatch.setattr(door, "DRAIN_S", 0.05)

    class Stalled(Chunks):
        async def __anext__(self) -> bytes:
            await trio.sleep_forever()
            raise AssertionError("unreachable")

    assert await call.error("POST", "/v0/topics/a", Stalled(), JSON) == (400, "invalid_request", "body")


async def test_a_body_without_room_among_the_others_is_429_and_comes_through_later(call: Client) -> None:
    call.gateway.limits = replace(Limits(), body_bytes=2 * BODY_FREE_BYTES)
    body = b" " * BODY_FREE_BYTES + b"{}"
    filling = call.gateway.bodies.open()
    filling.add(call.gateway.bodies.bytes_max + BODY_FREE_BYTES)
    chunks = Chunks(body[:BODY_FREE_BYTES], body[BODY_FREE_BYTES:], b"rest")
    refused = await call("POST", "/v0/topics/a", chunks, JSON)
    error = json.loads(refused.body)["error"]
    assert (refused.status, error["code"], header(refused, "retry-after")) == (429, "throttled", "1")
    assert error["detail"] == {"retry_after_ms": 1000}
    assert chunks.read_bytes == len(body) + 4, "what was sent is read away"
    assert (await call("POST", "/v0/topics/a", b"{}", JSON)).status == 200
    filling.close()
    assert (await call("POST", "/v0/topics/a", body, JSON)).status == 200


@pytest.mark.parametrize("ending", ["answered", "too large", "not json", "gone"])
async def test_the_room_of_a_body_is_given_back_however_its_request_ends(call: Client, ending: str) -> None:
    call.gateway.limits = replace(Limits(), body_bytes=3 * BODY_FREE_BYTES)
    headers = {"content-type": "text/plain"} if ending == "not json" else JSON
    seen: list[int] = []

    class Watched(Chunks):
        async def __anext__(self) -> bytes:
            seen.append(call.gateway.bodies.bytes_held)
            if ending == "gone" and len(seen) == 3:
                leaving.cancel()
            return await super().__anext__()

    chunks = Watched(*[b"1" * BODY_FREE_BYTES] * (4 if ending == "too large" else 3))
    status = {"answered": 200, "too large": 413, "not json": 415, "gone": 0}[ending]
    with trio.CancelScope() as leaving:
        assert (await call("POST", "/v0/topics/a", chunks, headers)).status == status
    assert BODY_FREE_BYTES in seen
    assert call.gateway.bodies.bytes_held == 0


async def test_length_and_transfer_encoding_together_are_refused(call: Client) -> None:
    headers = JSON | {"content-length": "2", "transfer-encoding": "chunked"}
    assert await call.error("POST", "/v0/topics/a", b"{}", headers) == (
        400,
        "invalid_request",
        "Content-Length",
    )


async def test_gzip_bodies_are_inflated_with_a_bound(call: Client) -> None:
    zipped = JSON | {"Content-Encoding": "GZIP"}
    response = await call("POST", "/v0/topics/a", gzip.compress(b'{"records":[]}'), zipped)
    assert json.loads(response.body)["body"] == '{"records":[]}'
    exact = await call("POST", "/v0/topics/a", gzip.compress(b"1" * LIMIT), zipped)
    assert exact.status == 200
    assert (await call("POST", "/v0/topics/a", gzip.compress(b"1" * (LIMIT + 1)), zipped)).status == 413
    empty = await call("POST", "/v0/topics/a/diff", gzip.compress(b""), zipped)
    assert json.loads(empty.body)["body"] == "{}"


async def test_a_gzip_bomb_is_413_and_inflated_no_further_than_the_limit(call: Client) -> None:
    call.gateway.limits = replace(Limits(), body_bytes=4 * 1024 * 1024)
    bomb = gzip.compress(bytes(64 * 1024 * 1024))
    assert len(bomb) < 70_000
    response = await call("POST", "/v0/topics/a", bomb, JSON | {"content-encoding": "gzip"})
    assert response.status == 413
    legal = gzip.compress(b"1" * 4 * 1024 * 1024)
    assert (await call("POST", "/v0/topics/a", legal, JSON | {"content-encoding": "gzip"})).status == 200


async def test_large_gzip_bodies_are_inflated_beside_the_loop(call: Client) -> None:
    call.gateway.limits = replace(Limits(), body_bytes=1024 * 1024)
    noise = random.Random(1).randbytes(150_000).hex().encode()
    zipped = gzip.compress(noise)
    assert len(zipped) > 64 * 1024
    response = await call("POST", "/v0/topics/a", zipped, JSON | {"content-encoding": "gzip"})
    assert json.loads(response.body)["body"] == noise.decode()


@pytest.mark.parametrize(
    "body",
    [
        b"not gzip at all",
        gzip.compress(b"{}")[:-1],
        gzip.compress(b"{}")[:12],
        gzip.compress(b"{}") + b"garbage",
        gzip.compress(b"{}")[:-8] + b"\0\0\0\0\2\0\0\0",
        gzip.compress(random.Random(2).randbytes(200_000))[:-5],
    ],
)
async def test_damaged_gzip_is_400(call: Client, body: bytes) -> None:
    call.gateway.limits = Limits()
    headers = JSON | {"content-encoding": "gzip"}
    assert await call.error("POST", "/v0/topics/a", body, headers) == (400, "invalid_request", "body")


async def test_other_content_encodings_are_415(call: Client) -> None:
    for encoding, status in (("br", 415), ("gzip, gzip", 415), ("identity", 200), ("", 200)):
        headers = JSON | {"content-encoding": encoding}
        assert (await call("POST", "/v0/topics/a", b"{}", headers)).status == status


@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        (None, False),
        ("", False),
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("identity;q=1, gzip;q=0.5", False),
        ("identity;q=0.5, gzip;q=1.0", True),
        ("gzip;q=banana", False),
        ("br", False),
    ],
)
def test_accept_encoding_is_honoured_with_its_weights(value: str | None, accepted: bool) -> None:
    assert accepts_gzip(value) is accepted


@pytest.mark.parametrize("size", [500, 300_000])
async def test_answers_are_compressed_when_asked_and_worth_it(tmp_path: Path, size: int) -> None:
    shard = FakeShard(tmp_path / "0")

    async def answer(request: ShardRequest) -> Answer:
        return Answer(body=b"{" + b" " * (size if request.topic == b"large" else 10) + b"}")

    shard.answer = answer
    async with gateway_over([shard]) as call:
        plain = await call("GET", "/v0/topics/large")
        zipped = await call("GET", "/v0/topics/large", headers={"Accept-Encoding": "gzip"})
        head = await call("HEAD", "/v0/topics/large", headers={"Accept-Encoding": "gzip"})
        small = await call("GET", "/v0/topics/small", headers={"Accept-Encoding": "gzip"})
    assert header(plain, "content-encoding") is None
    assert header(plain, "vary") == "Accept-Encoding"
    assert header(zipped, "content-encoding") == "gzip"
    assert header(zipped, "vary") == "Accept-Encoding"
    assert gzip.decompress(zipped.body) == plain.body
    assert header(head, "content-length") == str(len(zipped.body))
    assert header(small, "content-encoding") is None


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ("/v0/topics/a?touch=yes", "touch"),
        ("/v0/topics/a?touch=", "touch"),
        ("/v0/topics/a?touch=TRUE", "touch"),
        ("/v0/topics/a?touch=%zz", "touch"),
        ("/v0/topics/a?touch=true&touch=false", "touch"),
        ("/v0/topics?page_size=-1", "page_size"),
        ("/v0/topics?page_size=1.0", "page_size"),
        ("/v0/topics?page_size=ten", "page_size"),
        ("/v0/topics?page_size=%C2%B2", "page_size"),
        ("/v0/topics?prefix=%ff", "prefix"),
        ("/v0/topics?prefix=" + "p" * 256, "prefix"),
        ("/v0/topics?cursor=!!!", "cursor"),
    ],
)
async def test_garbage_in_a_query_parameter_is_400_and_named(call: Client, target: str, field: str) -> None:
    assert await call.error("GET", target) == (400, "invalid_request", field)


async def test_while_draining_probes_and_data_say_shutting_down(call: Client) -> None:
    call.gateway.draining = True
    for method, target in (("GET", "/v0/ready"), ("GET", "/v0/topics"), ("POST", "/v0/topics/a")):
        response = await call(method, target, b"{}", JSON)
        assert json.loads(response.body)["error"]["code"] == "shutting_down"
        assert (response.status, header(response, "retry-after")) == (503, "1")


async def test_a_lost_shard_is_503_with_the_outcome_and_retry_after(tmp_path: Path) -> None:
    gateway = Gateway(
        pool=ShardPool([ShardLink(tmp_path / "nobody", shard=0)]), limits=Limits(), version="1", started_ns=0
    )
    response = await Client(gateway, [])("POST", "/v0/topics/a", b"{}", JSON)
    error = json.loads(response.body)["error"]
    assert (response.status, error["code"], header(response, "retry-after")) == (503, "not_ready", "1")
    assert error["detail"] == {"shard": 0, "outcome": "not_applied"}
    assert json.loads(response.body)["performance"]["server_total_ms"] > 0


async def test_a_bug_is_500_internal_without_its_text(
    call: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret inner text")

    monkeypatch.setattr(ShardLink, "request", broken)
    response = await call("GET", "/v0/topics/jobs?token=hidden")
    assert (response.status, json.loads(response.body)["error"]["code"]) == (500, "internal")
    assert b"secret" not in response.body
    assert b"Traceback" not in response.body
    (record,) = [record for record in caplog.records if record.message == "request.failed"]
    assert record.exc_info is not None
    assert "hidden" not in str(vars(record))


def test_every_route_says_which_right_it_needs() -> None:
    scopes = {(route.method, "/" + "/".join(route.pattern)): route.scope for route in ROUTES}
    assert scopes[("PUT", "/v0/topics/:topic")] == "admin"
    assert scopes[("POST", "/v0/topics/:topic/delete")] == "delete"
    assert scopes.pop(("GET", "/v0/metrics")) == "read"
    assert {scope for (_, path), scope in scopes.items() if not path.startswith("/v0/topics")} == {"none"}
    assert len(scopes) == len(ROUTES) - 1
