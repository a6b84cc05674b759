"""Payloads come back as they were sent; what is no JSON, too deep or too large is refused with its field."""

import json

import msgspec
import pytest

from shards.requests import decode_write
from tests.fakes.model import ManualClock, Reply, Server
from topics.engine.limits import BATCH_RECORDS_MAX, MIB, Limits
from topics.engine.record import nesting_depth
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.protocol.messages import Op

VERBATIM = [
    b"1.0", b"1e3", b"1E+3", b"-0", b"-0.0", b"0.10", b"1e999", b"9" * 40, b"-" + b"9" * 400, b"1e-400",
    b'{"b":1,"a":2}', b'{"a":1,"a":2,"a":[]}', b'"\\u0041\\/\\b\\f\\n\\r\\t\\"\\\\"', b'"\\ud83d\\ude00"',
    b'"\\u0000"', b"[ 1 ,\t2 ,\r\n3 ]", b'{ "a" : { } }', '"äöü 😀 \u2028"'.encode(), b'"\x7f"', b'""',
    b"null", b"true", b"false", b"[]", b"{}", b'"</script>"', b'{"$seq":1,"data":2,"meta":3}', b'"}],\\"x"',
]  # fmt: skip

NO_JSON = [
    b"NaN", b"Infinity", b"-Infinity", b"nan", b"01", b"+1", b".5", b"1.", b"1e", b"-", b"0x1", b"tru",
    b"None", b"'a'", b"{'a':1}", b'{"a":1,}', b"[1,]", b"[1 2]", b'{"a" 1}', b'{a:1}', b'{1:2}', b'"',
    b'"\\x"', b'"\\u12"', b'"a\nb"', b'"a\x00b"', b'"a\tb"', b"[", b"]", b"{", b"", b"1 2", b"/* */1",
]  # fmt: skip

NO_UTF8 = [b'"\xff"', b'"\xc3"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xe4"']

LONE_SURROGATES = [b'"\\ud800"', b'"\\udc00"', b'"\\ud800x"', b'"\\udc00\\ud800"', b'"\\ud800\\ud800"']


def write(data: bytes = b"1", *, meta: bytes | None = None, rest: bytes = b"") -> bytes:
    named = b"" if meta is None else b',"meta":' + meta
    return b'{"records":[{"data":' + data + named + rest + b"}]}"


def refused(body: bytes, limits: Limits | None = None) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        decode_write(body, None, limits or Limits())
    assert caught.value.http_status == 400
    assert caught.value.detail["field"]
    return caught.value


@pytest.fixture
def server() -> Server:
    return Server(ManualClock())


def post(server: Server, body: bytes) -> Reply:
    return server.call(Op.WRITE, "a", body)


def field_of(reply: Reply) -> object:
    assert reply.status == 400, reply
    return reply.json["error"]["detail"]["field"]


# -- verbatim


@pytest.mark.parametrize("data", VERBATIM)
@pytest.mark.parametrize("around", [b"", b" \n\t\r "])
def test_data_comes_back_byte_for_byte(server: Server, data: bytes, around: bytes) -> None:
    assert post(server, write(around + data + around)).status == 201
    server.kill()
    (record,) = server.request(Op.DIFF, "a", {}).page().records
    assert bytes(record.data) == data


@pytest.mark.parametrize("value", VERBATIM)
def test_meta_comes_back_byte_for_byte(server: Server, value: bytes) -> None:
    meta = b'{ "k":' + value + b" }"
    assert post(server, write(meta=b" " + meta + b" ")).status == 201
    server.kill()
    (record,) = server.request(Op.DIFF, "a", {}).page().records
    assert isinstance(record.meta, msgspec.Raw)
    assert bytes(record.meta) == meta


# -- what is no JSON


@pytest.mark.parametrize("data", NO_JSON + NO_UTF8 + LONE_SURROGATES)
def test_what_is_no_json_is_refused_wherever_it_stands(data: bytes) -> None:
    refused(write(data))
    refused(write(meta=b'{"k":' + data + b"}"))
    refused(b'{"records":[{"data":1}],"unknown":' + data + b"}")


@pytest.mark.parametrize("text", NO_UTF8 + LONE_SURROGATES)
def test_names_are_utf_8_too(text: bytes) -> None:
    for name in (b"tag", b"node"):
        refused(write(rest=b',"' + name + b'":' + text))
    refused(b'{"records":[{"data":1}],"idempotency_key":' + text + b"}")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"1",
        b"\xef\xbb\xbf" + write(),
        write().decode().encode("utf-16"),
        write() + b"x",
        write() + write(),
        write()[:-1],
    ],
)
def test_a_body_is_one_json_object_and_nothing_else(body: bytes) -> None:
    assert refused(body).detail["field"] == "body"


def test_whitespace_around_a_body_is_nothing() -> None:
    assert len(decode_write(b" \r\n" + write() + b"\t ", None, Limits()).records) == 1


# -- nesting


def nested(depth: int, opened: bytes = b"[", closed: bytes = b"]", core: bytes = b"") -> bytes:
    return opened * depth + core + closed * depth


@pytest.mark.parametrize("shape", [(b"[", b"]", b""), (b'{"a":', b"}", b"1"), (b'[{"a":', b"}]", b"1")])
def test_data_may_be_nested_128_deep_and_no_deeper(server: Server, shape: tuple[bytes, bytes, bytes]) -> None:
    levels = 2 if shape[0].startswith(b"[{") else 1
    assert post(server, write(nested(128 // levels, *shape))).status == 201
    deeper = b"[" + nested(128 // levels, *shape) + b"]"
    assert field_of(post(server, write(deeper))) == "records[0].data"
    ok = write(nested(3, *shape))
    second = b'{"records":[{"data":1},' + ok.removeprefix(b'{"records":[').removesuffix(b"]}") + b"]}"
    assert post(server, second).status == 200


def test_meta_may_be_nested_128_deep_and_no_deeper(server: Server) -> None:
    assert post(server, write(meta=nested(128, b'{"a":', b"}", b"1"))).status == 201
    assert field_of(post(server, write(meta=nested(129, b'{"a":', b"}", b"1")))) == "records[0].meta"


def test_brackets_inside_strings_are_no_nesting(server: Server) -> None:
    flat = json.dumps({"a": "[" * 500 + '"\\' + "{" * 500}).encode()
    assert post(server, write(flat)).status == 201
    assert nesting_depth(flat) == 1
    assert nesting_depth(b'["\\"[[[",[]]') == 2
    assert nesting_depth(b'["\\\\",[]]') == 2
    assert nesting_depth(b"1") == 0


@pytest.mark.parametrize("depth", [1000, 100_000])
def test_absurd_nesting_is_refused_and_harms_nobody(server: Server, depth: int) -> None:
    for data in (nested(depth), nested(depth, b'{"a":', b"}", b"1")):
        assert field_of(post(server, write(data)))
        assert field_of(post(server, write(meta=b'{"k":' + data + b"}")))
        body = b'{"unknown":' + data + b',"records":[{"data":1}]}'
        assert depth < 1000 or field_of(post(server, body))
    assert server.request(Op.GET_TOPIC, "a", {}).status == 404, "nothing was created on the way"


def test_data_unfinished_in_depth_is_refused() -> None:
    refused(write(b"[" * 100_000))


# -- limits, each at its value and one beyond


def test_a_write_has_one_record_to_as_many_as_the_limit() -> None:
    limits = Limits(batch_records=3)
    assert refused(b'{"records":[]}').detail["field"] == "records"
    assert len(decode_write(b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 3), None, limits).records) == 3
    with pytest.raises(BatchTooLarge) as caught:
        decode_write(b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 4), None, limits)
    assert caught.value.code == "batch_too_large"
    assert caught.value.detail == {"field": "records", "value": 4, "limit": 3}


def test_the_largest_write_that_can_be_allowed_may_have_a_node_on_every_record() -> None:
    server = Server(ManualClock(), Limits(batch_records=BATCH_RECORDS_MAX))
    records = b",".join(b'{"data":1,"node":"%d"}' % n for n in range(BATCH_RECORDS_MAX))
    assert post(server, b'{"records":[' + records + b"]}").status == 201
    server.kill()
    page = server.request(Op.DIFF, "a", {"from_seq": BATCH_RECORDS_MAX - 1}).page()
    assert [record.node for record in page.records] == [str(BATCH_RECORDS_MAX - 1)]


def test_the_documented_limits_are_the_defaults() -> None:
    assert Limits() == Limits(
        batch_records=10_000, record_bytes=MIB, body_bytes=64 * MIB, meta_bytes=16_384, meta_keys=64,
        tag_bytes=256, node_bytes=128, read_limit=1000,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "limit"), [("tag", 256), ("node", 128)])
@pytest.mark.parametrize(
    ("char", "width"), [("x", 1), ("ä", 2), ("€", 3), ("😀", 4), ("\\n", 1), ("\\u00e4", 2)]
)
def test_tags_and_nodes_are_bounded_in_bytes_not_in_characters(
    name: str, limit: int, char: str, width: int
) -> None:
    fits = char * (limit // width) + "y" * (limit % width)
    decode_write(write(rest=f',"{name}":"{fits}"'.encode()), None, Limits())
    error = refused(write(rest=f',"{name}":"{fits}y"'.encode()))
    assert error.detail == {"field": f"records[0].{name}", "value": limit + 1, "limit": limit}


def test_the_node_of_a_batch_is_bounded_too() -> None:
    body = '{"records":[{"data":1}],"node":"%s"}'
    decode_write((body % ("ä" * 64)).encode(), None, Limits())
    assert refused((body % ("ä" * 64 + "x")).encode()).detail["field"] == "node"


def meta_of(length: int) -> bytes:
    return b'{"k":"' + b"x" * (length - 8) + b'"}'


def test_meta_is_bounded_in_bytes_as_sent() -> None:
    decode_write(write(meta=meta_of(16_384)), None, Limits())
    error = refused(write(meta=meta_of(16_385)))
    assert error.detail == {"field": "records[0].meta", "value": 16_385, "limit": 16_384}


def test_meta_has_at_most_64_keys_of_its_own() -> None:
    keys = {f"k{i}": {"a:b": "c:d:e"} for i in range(64)}
    decode_write(write(meta=json.dumps(keys).encode()), None, Limits())
    error = refused(write(meta=json.dumps(keys | {"one more": 1}).encode()))
    assert error.detail == {"field": "records[0].meta", "value": 65, "limit": 64}


@pytest.mark.parametrize("meta", [b"null", b"[]", b"1", b'"x"', b"true"])
def test_meta_is_an_object(meta: bytes) -> None:
    assert refused(write(meta=meta)).detail["field"] == "records[0].meta"


@pytest.mark.parametrize("meta", [None, b'{"k":"' + b"x" * 100 + b'"}'])
@pytest.mark.parametrize("filler", ["x", "ä", "😀"])
def test_a_record_is_bounded_by_data_and_meta_together(meta: bytes | None, filler: str) -> None:
    server = Server(ManualClock(), Limits(record_bytes=1000))
    room = 1000 - len(meta or b"") - 2
    width = len(filler.encode())
    text = filler * (room // width) + "y" * (room % width)
    assert post(server, write(f'"{text}"'.encode(), meta=meta)).status == 201
    reply = post(server, write(f'"{text}y"'.encode(), meta=meta))
    assert (reply.status, reply.error) == (400, "record_too_large")
    assert reply.json["error"]["detail"] == {"field": "records[0]", "value": 1001, "limit": 1000}


def test_a_record_limit_below_any_frame_still_holds() -> None:
    server = Server(ManualClock(), Limits(record_bytes=3))
    assert post(server, write(b"123")).status == 201
    assert post(server, write(b"1234")).error == "record_too_large"


def test_one_record_too_large_refuses_the_whole_write() -> None:
    server = Server(ManualClock(), Limits(record_bytes=10))
    body = b'{"records":[{"data":1},{"data":"xxxxxxxxxxxxxx"}]}'
    reply = post(server, body)
    assert reply.json["error"]["detail"]["field"] == "records[1]"
    assert server.request(Op.GET_TOPIC, "a", {}).status == 404


def test_record_too_large_is_an_invalid_request_of_its_own_code() -> None:
    assert issubclass(RecordTooLarge, InvalidRequest)
    assert (RecordTooLarge.code, RecordTooLarge.http_status) == ("record_too_large", 400)
