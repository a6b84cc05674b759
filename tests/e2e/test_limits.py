"""Every limit of section 2 with its variable, at the edge and one beyond, on a server with small ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.server import JSON_TYPE, Server, Topic, gzipped


@pytest.fixture
def topic(small_server: Server, name: str) -> Topic:
    """A fresh topic of the server with small limits."""
    return Topic(small_server, name)


def test_max_batch_records(topic: Topic) -> None:
    topic.write_records([{"data": n} for n in range(6)]).failed(400, "batch_too_large")
    topic.server.get(topic.path).failed(404, "topic_not_found")
    assert topic.write(*range(5))["count"] == 5


def test_max_record_bytes_counts_data_and_meta_together(topic: Topic) -> None:
    topic.write_records([{"data": "x" * 198}]).ok(201)
    topic.write_records([{"data": "x" * 199}]).failed(400, "record_too_large")
    topic.write_records([{"data": "x" * 188, "meta": {"k": "v"}}]).ok(200)
    topic.write_records([{"data": 0}, {"data": "x" * 189, "meta": {"k": "v"}}]).failed(
        400, "record_too_large"
    )
    assert topic.state()["head_seq"] == 2


def test_record_bytes_are_counted_as_sent(topic: Topic) -> None:
    topic.write_records([{"data": "ä" * 33}]).ok(201)  # json.dumps spells each in six bytes
    topic.write_records([{"data": "ä" * 34}]).failed(400, "record_too_large")
    body = json.dumps({"records": [{"data": "ä" * 99}]}, ensure_ascii=False).encode()
    topic.server.post(topic.path, raw=body, headers=JSON_TYPE).ok(200)


def test_max_meta_bytes(topic: Topic) -> None:
    topic.write_records([{"data": 0, "meta": {"k": "v" * 41}}]).ok(201)
    topic.write_records([{"data": 0, "meta": {"k": "v" * 42}}]).failed(
        400, "invalid_request", "records[0].meta"
    )


@pytest.mark.parametrize(
    ("fits", "too_long"), [("t" * 8, "t" * 9), ("ä" * 4, "ä" * 4 + "t"), ("😀" * 2, "😀😀😀")]
)
def test_max_tag_bytes(topic: Topic, fits: str, too_long: str) -> None:
    topic.write_records([{"data": 0, "tag": fits}]).ok(201)
    topic.write_records([{"data": 0}, {"data": 0, "tag": too_long}]).failed(
        400, "invalid_request", "records[1].tag"
    )


@pytest.mark.parametrize(("fits", "too_long"), [("n" * 6, "n" * 7), ("ä" * 3, "ä" * 3 + "n")])
def test_max_node_bytes_for_records_and_for_the_batch(topic: Topic, fits: str, too_long: str) -> None:
    topic.write_records([{"data": 0, "node": fits}], node=fits).ok(201)
    topic.write_records([{"data": 0, "node": too_long}]).failed(400, "invalid_request", "records[0].node")
    topic.write_records([{"data": 0, "node": "n"}], node=too_long).failed(400, "invalid_request", "node")


def test_max_limit_clamps_and_does_not_refuse(topic: Topic) -> None:
    topic.write(*range(5))
    for limit in ({}, {"limit": 0}, {"limit": 3}, {"limit": 4}, {"limit": 10**30}):
        assert topic.seqs(**limit) == [1, 2, 3]
    assert topic.seqs(limit=2) == [1, 2]


# -- the body ---------------------------------------------------------------------------------------------


def _body_of(size: int) -> bytes:
    """A good write of exactly this many bytes (whitespace is part of the body)."""
    body = b'{"records":[{"data":1}]}'
    return body + b" " * (size - len(body))


def test_max_body_bytes_by_content_length(topic: Topic) -> None:
    topic.server.post(topic.path, raw=_body_of(4097), headers=JSON_TYPE).failed(413, "payload_too_large")
    topic.server.get(topic.path).failed(404, "topic_not_found")
    topic.server.post(topic.path, raw=_body_of(4096), headers=JSON_TYPE).ok(201)


@pytest.mark.parametrize("part_bytes", [1000, 4097, 64])
def test_max_body_bytes_of_a_chunked_body(topic: Topic, part_bytes: int) -> None:
    head = f"POST {topic.path} HTTP/1.1\nContent-Type: application/json\nTransfer-Encoding: chunked"

    def chunked(body: bytes) -> bytes:
        parts = [body[at : at + part_bytes] for at in range(0, len(body), part_bytes)]
        return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"

    topic.server.raw(head, chunked(_body_of(4097))).failed(413, "payload_too_large")
    topic.server.get(topic.path).failed(404, "topic_not_found")
    topic.server.raw(head, chunked(_body_of(4096))).ok(201)


def test_max_body_bytes_bounds_what_gzip_inflates_to(topic: Topic) -> None:
    headers = {**JSON_TYPE, "Content-Encoding": "gzip"}
    topic.server.post(topic.path, raw=gzipped(_body_of(4097)), headers=headers).failed(
        413, "payload_too_large"
    )
    bomb = gzipped(b" " * 3_000_000)
    assert len(bomb) < 4096
    topic.server.post(topic.path, raw=bomb, headers=headers).failed(413, "payload_too_large")
    topic.server.get(topic.path).failed(404, "topic_not_found")
    topic.server.post(topic.path, raw=gzipped(_body_of(4096)), headers=headers).ok(201)


@pytest.mark.parametrize(
    ("method", "rest"), [("PUT", ""), ("POST", ""), ("POST", "/diff"), ("POST", "/delete")]
)
def test_413_comes_before_415_and_400_on_every_route(topic: Topic, method: str, rest: str) -> None:
    too_much = b"not json" + b" " * 5000
    for path in (topic.path, "/v0/topics/-bad"):
        for headers in ({"Content-Type": "text/plain"}, JSON_TYPE):
            answer = topic.server.request(method, path + rest, raw=too_much, headers=headers)
            answer.failed(413, "payload_too_large")


def test_405_comes_before_413(topic: Topic) -> None:
    topic.server.request("PATCH", topic.path, raw=b" " * 5000).failed(405, "method_not_allowed")


def test_a_body_far_beyond_the_limit_is_refused_and_the_server_lives_on(topic: Topic) -> None:
    # The server may close before it has read it all, so the answer is looked at only when it arrived.
    with topic.server.connect() as wire:
        head = f"POST {topic.path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        wire.send(f"{head}Content-Length: 1000000000000\r\n\r\n".encode() + b" " * 5000)
        wire.answer().failed(413, "payload_too_large")
    topic.write(1)


def test_an_error_about_a_limit_names_it_and_the_value(topic: Topic) -> None:
    cases: list[tuple[list[dict[str, Any]], str]] = [
        ([{"data": n} for n in range(6)], "5"),
        ([{"data": "x" * 300}], "200"),
        ([{"data": 0, "tag": "t" * 9}], "8"),
    ]
    for records, limit in cases:
        assert limit in topic.write_records(records).json["error"]["message"]
