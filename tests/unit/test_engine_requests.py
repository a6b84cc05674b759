"""Request bodies: unknown fields are ignored, known fields of a wrong type are refused by name."""

from collections.abc import Callable

import pytest

from shards.requests import decode_config, decode_delete, decode_diff, decode_write
from topics.engine.limits import Limits
from topics.errors import InvalidRequest

WRONG_INTEGERS = ["-1", "1.0", "1e2", '"1"', "null", "true", "[]", "{}"]
WRONG_BOOLS = ["0", "1", '"true"', "null", "[]"]
WRONG_STRINGS = ["0", "null", "true", "[]", "{}"]


def write(body: bytes) -> object:
    return decode_write(body, None, Limits())


def diff(body: bytes) -> object:
    return decode_diff(body, Limits())


def field_of(decode: Callable[[bytes], object], body: str) -> object:
    with pytest.raises(InvalidRequest) as refused:
        decode(body.encode())
    assert refused.value.code == "invalid_request"
    return refused.value.detail["field"]


@pytest.mark.parametrize("field", ["from_seq", "limit", "wait_ms", "max_batch_bytes"])
@pytest.mark.parametrize("value", WRONG_INTEGERS)
def test_a_read_refuses_a_number_of_the_wrong_kind(field: str, value: str) -> None:
    assert field_of(diff, f'{{"{field}":{value}}}') == field


@pytest.mark.parametrize("field", ["include_tags", "include_meta"])
@pytest.mark.parametrize("value", WRONG_BOOLS)
def test_a_read_refuses_a_flag_of_the_wrong_kind(field: str, value: str) -> None:
    assert field_of(diff, f'{{"{field}":{value}}}') == field


@pytest.mark.parametrize(
    ("value", "field"),
    [("1", "node"), ("null", "node"), ("{}", "node"), ('["a",1]', "node[1]"), ("[null]", "node[0]")],
)
def test_a_read_refuses_a_node_of_the_wrong_kind(value: str, field: str) -> None:
    assert field_of(diff, f'{{"node":{value}}}') == field


@pytest.mark.parametrize(
    ("given", "limit"), [("0", 256), ("1", 1), ("999", 999), ("1000", 1000), ("1001", 1000), ("9" * 40, 1000)]
)
def test_a_limit_is_clamped_and_zero_means_the_default(given: str, limit: int) -> None:
    assert decode_diff(f'{{"limit":{given}}}'.encode(), Limits()).options.limit == limit


def test_the_default_limit_is_clamped_to_the_servers_maximum_too() -> None:
    assert decode_diff(b"{}", Limits(read_limit=10)).options.limit == 10


@pytest.mark.parametrize(
    ("given", "wait_ms"),
    [("0", 0), ("29999", 29_999), ("30000", 30_000), ("30001", 30_000), ("9" * 40, 30_000)],
)
def test_waiting_is_clamped(given: str, wait_ms: int) -> None:
    assert decode_diff(f'{{"wait_ms":{given}}}'.encode(), Limits()).wait_ms == wait_ms


@pytest.mark.parametrize(
    ("given", "budget"),
    [("0", 2**20), ("1", 1), (str(2**23), 2**23), (str(2**23 + 1), 2**23), ("9" * 40, 2**23)],
)
def test_a_byte_budget_is_clamped_and_zero_means_the_default(given: str, budget: int) -> None:
    assert decode_diff(f'{{"max_batch_bytes":{given}}}'.encode(), Limits()).options.bytes_max == budget


def test_a_cursor_is_a_u64() -> None:
    assert decode_diff(b'{"from_seq":18446744073709551615}', Limits()).from_seq == 2**64 - 1
    assert field_of(diff, '{"from_seq":18446744073709551616}') == "from_seq"


def test_an_empty_read_takes_the_documented_defaults() -> None:
    request = decode_diff(b"{}", Limits())
    assert (request.from_seq, request.wait_ms) == (0, 0)
    options = request.options
    assert (options.limit, options.bytes_max, options.nodes) == (256, 2**20, frozenset())
    assert (options.include_tags, options.include_meta, options.include_data) == (False, True, True)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        *[(f'"idempotency_key":{value}', "idempotency_key") for value in WRONG_STRINGS],
        *[(f'"node":{value}', "node") for value in WRONG_STRINGS],
        *[(f'"create":{value}', "create") for value in WRONG_BOOLS],
        *[(f'"disable_backpressure":{value}', "disable_backpressure") for value in WRONG_BOOLS],
        *[(f'"config":{value}', "config") for value in ("null", "1", "[]", '"x"')],
        ('"config":{"cap_records":"1"}', "config.cap_records"),
        ('"config":{"type":"stream"}', "config.type"),
    ],
)
def test_a_write_refuses_a_field_of_the_wrong_kind(fields: str, field: str) -> None:
    assert field_of(write, f'{{"records":[{{"data":1}}],{fields}}}') == field


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ("{}", "records[1].data"),
        ('{"tag":"t"}', "records[1].data"),
        ("1", "records[1]"),
        ("null", "records[1]"),
        ("[]", "records[1]"),
        *[(f'{{"data":1,"tag":{value}}}', "records[1].tag") for value in WRONG_STRINGS],
        *[(f'{{"data":1,"node":{value}}}', "records[1].node") for value in WRONG_STRINGS],
        *[(f'{{"data":1,"meta":{value}}}', "records[1].meta") for value in ("0", "null", "[]", '"x"')],
    ],
)
def test_a_record_is_blamed_by_its_place(record: str, field: str) -> None:
    assert field_of(write, f'{{"records":[{{"data":1}},{record}]}}') == field


@pytest.mark.parametrize("value", ["null", "{}", "1", '"x"'])
def test_records_are_a_list(value: str) -> None:
    assert field_of(write, f'{{"records":{value}}}') == "records"
    assert field_of(write, "{}") == "records"


@pytest.mark.parametrize("length", [1, 255, 256])
@pytest.mark.parametrize("char", ["k", "ä", "😀"])
def test_an_idempotency_key_has_1_to_256_characters(length: int, char: str) -> None:
    body = f'{{"records":[{{"data":1}}],"idempotency_key":"{char * length}"}}'.encode()
    assert len(decode_write(body, None, Limits()).key) == 16


@pytest.mark.parametrize("key", ["", "k" * 257, "😀" * 257])
def test_an_empty_or_longer_key_is_refused(key: str) -> None:
    body = f'{{"records":[{{"data":1}}],"idempotency_key":"{key}"}}'
    assert field_of(write, body) == "idempotency_key"
    with pytest.raises(InvalidRequest):
        decode_write(b'{"records":[{"data":1}]}', key, Limits())


def test_the_key_in_the_body_wins_over_the_header() -> None:
    plain = b'{"records":[{"data":1}]}'
    keyed = b'{"records":[{"data":1}],"idempotency_key":"body"}'
    assert decode_write(plain, None, Limits()).key == b""
    assert decode_write(plain, "body", Limits()).key == decode_write(keyed, None, Limits()).key
    assert decode_write(keyed, "header", Limits()).key == decode_write(keyed, None, Limits()).key
    assert decode_write(plain, "header", Limits()).key != decode_write(keyed, None, Limits()).key


def test_unknown_fields_are_ignored() -> None:
    unknown = b'"$x":{"deep":[1]},"future":null'
    assert decode_diff(b"{" + unknown + b"}", Limits()) == decode_diff(b"{}", Limits())
    decode_write(b'{"records":[{"data":1,' + unknown + b"}]," + unknown + b"}", None, Limits())
    decode_delete(b'{"before_seq":1,' + unknown + b"}")
    assert decode_config(b"{" + unknown + b"}") == decode_config(b"{}")


def test_a_repeated_key_is_last_one_wins_and_never_a_mixture() -> None:
    assert decode_diff(b'{"from_seq":1,"from_seq":2}', Limits()).from_seq == 2
    request = decode_write(b'{"records":[{"data":1,"data":2}],"records":[{"data":3}]}', None, Limits())
    assert [bytes(record.data) for record in request.records] == [b"3"]
