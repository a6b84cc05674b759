"""What was written comes back as it was written, byte for byte (section 0.4)."""

from __future__ import annotations

import re

import pytest

from tests.e2e.server import JSON_TYPE, Answer, Topic, now_ms

MIB = 1024 * 1024


def _write_raw(topic: Topic, body: bytes) -> Answer:
    return topic.server.post(topic.path, raw=body, headers=JSON_TYPE)


def test_a_record_comes_back_with_what_was_set_and_without_what_was_not(topic: Topic) -> None:
    before = now_ms()
    topic.write_records([{"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": None}])
    after = now_ms()
    full, bare = topic.diff(include_tags=True)["records"]
    assert before <= full.pop("$ts") <= bare.pop("$ts") <= after
    assert full == {"$seq": 1, "$node": "n", "$tag": "t", "data": {"a": 1}, "meta": {"k": "v"}}
    assert bare == {"$seq": 2, "data": None}


def test_the_batch_node_is_the_default_and_a_record_node_overrides_it(topic: Topic) -> None:
    topic.write_records([{"data": 1}, {"data": 2, "node": "own"}], node="batch")
    assert [record["$node"] for record in topic.diff()["records"]] == ["batch", "own"]


def test_an_empty_meta_is_kept(topic: Topic) -> None:
    topic.write_records([{"data": 1, "meta": {}}]).ok(201)
    assert topic.diff()["records"][0]["meta"] == {}


VERBATIM = [
    *(
        "null",
        "true",
        "false",
        "0",
        "-0",
        "-0.0",
        "1.0",
        "1.10",
        "1e3",
        "1E3",
        "1E+3",
        "1e-7",
        "0.1e1",
        "1e400",
        "-1e400",
    ),
    *(
        "18446744073709551615",
        "18446744073709551616",
        "1" * 40,
        "-" + "9" * 40,
        "0." + "3" * 60,
        "9007199254740993",
    ),
    *(
        '""',
        '"text"',
        r'"\u00e9"',
        '"é"',
        r'"\/"',
        '"/"',
        r'"\ud83d\ude00"',
        '"😀"',
        r'"\u0000"',
        r'"\\"',
        r'"\""',
    ),
    *(r'"\b\f\n\r\t"', '"\u2028\u2029"', '"\x7f"', r'"\uFFFF"', '"\\u00E9"', r'"\ud83d\uDE00"', '"\ufeff"'),
    *(
        "[]",
        "{}",
        "[ ]",
        "{ }",
        "[ 1 , 2 ]",
        '{ "a" : 1 }',
        '{"b":1,"a":2}',
        '{"a":1,"a":2}',
        '{"a":{"a":1,"a":1}}',
    ),
    *(
        '{"":0}',
        '{"$seq":1,"$ts":2}',
        '{"data":{"data":1},"meta":2}',
        '[{"records":[{"data":1}]}]',
        "[\n\t1\r\n]",
    ),
    *(
        '"}],\\"records\\":[{"',
        r'{"d\u0061ta":1}',
        '{"a":[[[]],[{}]]}',
        "[" * 100 + "]" * 100,
        '{"a":' * 60 + "1" + "}" * 60,
    ),
]


@pytest.mark.parametrize("text", VERBATIM, ids=lambda text: text[:16])
def test_data_comes_back_byte_for_byte(topic: Topic, text: str) -> None:
    raw = text.encode()
    _write_raw(topic, b'{"records":[{"data":' + raw + b"}]}").ok(201)
    answer = topic.try_diff({})
    assert re.search(rb'"data":\s*' + re.escape(raw) + rb"\s*[,}]", answer.body), answer.body
    assert topic.state()["bytes"] == len(raw)


@pytest.mark.parametrize(
    "text",
    [
        *(
            '{"a":1.0}',
            '{"a":1e3,"b":-0}',
            '{"b":1,"a":2}',
            '{"a":1,"a":2}',
            '{ "a" : [ 1 ] }',
            r'{"\u00e9":"\/"}',
            "{ }",
        ),
        *(
            '{"big":' + "1" * 40 + "}",
            '{"a":{"nested":{"x":null}}}',
            '{"$dead_letter_from":"x"}',
            '{"\n":0}'.replace("\n", "é"),
        ),
    ],
    ids=lambda text: text[:16],
)
def test_meta_comes_back_byte_for_byte(topic: Topic, text: str) -> None:
    raw = text.encode()
    _write_raw(topic, b'{"records":[{"data":0,"meta":' + raw + b"}]}").ok(201)
    answer = topic.try_diff({})
    assert re.search(rb'"meta":\s*' + re.escape(raw) + rb"\s*[,}]", answer.body), answer.body


def test_whitespace_around_a_value_is_not_part_of_it(topic: Topic) -> None:
    _write_raw(topic, b' { "records" : [ { "data" : \n\t 1.0 \r\n , "meta" :  { "a":1 }  } ] } \n').ok(201)
    assert topic.state()["bytes"] == len("1.0") + len('{ "a":1 }')
    body = topic.try_diff({}).body
    assert re.search(rb'"data":\s?1\.0[,}]', body), body
    assert re.search(rb'"meta":\s?\{ "a":1 \}[,}]', body), body


def test_a_key_spelled_with_escapes_is_the_same_key(topic: Topic) -> None:
    _write_raw(topic, rb'{"r\u0065cords":[{"d\u0061ta":7,"\u0074ag":"x","n\u006fde":"n"}]}').ok(201)
    record = topic.diff(include_tags=True)["records"][0]
    assert (record["data"], record["$tag"], record["$node"]) == (7, "x", "n")


@pytest.mark.parametrize(
    "text", ["ä", "😀", '"quoted"', "back\\slash", "a\nb", "a b", "\x00", "*", "a*", "\u2028"]
)
def test_tags_and_nodes_of_any_text_come_back_unchanged(topic: Topic, text: str) -> None:
    topic.write_records([{"data": 1, "tag": text, "node": text}]).ok(201)
    record = topic.diff(include_tags=True)["records"][0]
    assert (record["$tag"], record["$node"]) == (text, text)


def test_a_doubled_key_is_refused_or_the_last_one_wins_but_never_mixed(topic: Topic) -> None:
    answer = _write_raw(topic, b'{"records":[{"data":1}],"records":[{"data":2},{"data":3}]}')
    if answer.status == 400:
        answer.failed(400, "invalid_request")
    else:
        assert answer.ok(201)["count"] == 2
        assert [record["data"] for record in topic.diff()["records"]] == [2, 3]


def test_unknown_fields_are_ignored(topic: Topic) -> None:
    topic.write_records(
        [{"data": 1, "surprise": [1], "$seq": 99, "$ts": 1, "$tag": "x"}], extra={"a": 1}, seqs=7
    ).ok(201)
    record = topic.diff(include_tags=True)["records"][0]
    assert set(record) == {"$seq", "$ts", "data"}
    assert record["$seq"] == 1
