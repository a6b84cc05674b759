"""Bodies that are no JSON, or no Unicode, are 400 and never 500, and nothing of them is written."""

from __future__ import annotations

import pytest

from tests.e2e.server import BODIES, JSON_TYPE, Topic

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
