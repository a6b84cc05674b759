"""gzip in both directions (section 0.4), and what is no good gzip."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.e2e.server import JSON_TYPE, Topic, gzipped

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
