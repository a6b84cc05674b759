"""The config object: fields checked by name, clamped where the contract clamps, merged one by one."""

import json

import pytest

from shards.requests import decode_config
from tests.fakes.model import DEFAULT_CONFIG
from topics.engine.config import TopicConfig, merged
from topics.errors import InvalidRequest, TopicExistsIncompatible

INTEGERS = ["ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "lease_ms", "claim_jitter_ms",
            "max_deliveries"]  # fmt: skip
CLAMPED = {"lease_ms", "claim_jitter_ms"}
BOOLS = ["durable", "auto_priority", "auto_create", "dedupe_node", "leases_durable"]
CHOICES = {
    "type": ["log", "queue"],
    "discard": ["old", "reject"],
    "durability": ["ephemeral", "memory", "disk", "fsync"],
}


def put(body: str, base: TopicConfig | None = None) -> TopicConfig:
    return merged("a", decode_config(body.encode()), base)


def refused(body: str, base: TopicConfig | None = None) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        put(body, base)
    assert (caught.value.http_status, caught.value.code) == (400, "invalid_request")
    return caught.value


def test_an_empty_body_gives_the_documented_config_in_its_documented_order() -> None:
    shown = json.loads(put("{}").json())
    assert shown == DEFAULT_CONFIG
    assert list(shown) == list(DEFAULT_CONFIG)


@pytest.mark.parametrize("field", INTEGERS)
@pytest.mark.parametrize("value", ["-1", "1.0", "1e3", '"1"', "null", "true", "[]", "{}", "-" + "9" * 30])
def test_a_number_is_an_integer_that_is_not_negative(field: str, value: str) -> None:
    assert refused(f'{{"{field}":{value}}}').detail["field"] == field


@pytest.mark.parametrize("field", sorted(set(INTEGERS) - CLAMPED))
def test_a_number_fits_into_64_bits(field: str) -> None:
    assert getattr(put(f'{{"{field}":0}}'), field) == 0
    assert getattr(put(f'{{"{field}":18446744073709551615}}'), field) == 2**64 - 1
    assert refused(f'{{"{field}":18446744073709551616}}').detail["field"] == field
    assert refused(f'{{"{field}":{"9" * 40}}}').detail["field"] == field


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("lease_ms", "0", 100),
        ("lease_ms", "99", 100),
        ("lease_ms", "100", 100),
        ("lease_ms", "86400000", 86_400_000),
        ("lease_ms", "86400001", 86_400_000),
        ("lease_ms", "9" * 40, 86_400_000),
        ("claim_jitter_ms", "0", 0),
        ("claim_jitter_ms", "5000", 5000),
        ("claim_jitter_ms", "5001", 5000),
        ("claim_jitter_ms", "9" * 40, 5000),
        ("priority", "-1001", -1000),
        ("priority", "-1000", -1000),
        ("priority", "0", 0),
        ("priority", "1000", 1000),
        ("priority", "1001", 1000),
        ("priority", "-" + "9" * 40, -1000),
        ("priority", "null", None),
    ],
)
def test_what_is_clamped_is_echoed_clamped(field: str, given: str, kept: int | None) -> None:
    assert json.loads(put(f'{{"{field}":{given}}}').json())[field] == kept


@pytest.mark.parametrize("value", ["1.0", '"1"', "true", "[]", "{}"])
def test_a_priority_is_an_integer_or_null(value: str) -> None:
    assert refused(f'{{"priority":{value}}}').detail["field"] == "priority"


@pytest.mark.parametrize("field", BOOLS)
@pytest.mark.parametrize("value", ["0", "1", '"true"', "null", "[]"])
def test_a_flag_is_a_bool(field: str, value: str) -> None:
    assert refused(f'{{"{field}":{value}}}').detail["field"] == field


@pytest.mark.parametrize("field", CHOICES)
@pytest.mark.parametrize("value", ['"other"', '""', '"LOG"', "null", "1", "true", "[]"])
def test_a_choice_is_one_of_its_words(field: str, value: str) -> None:
    assert refused(f'{{"{field}":{value}}}').detail["field"] == field


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in CHOICES.items() for v in values])
def test_every_word_of_a_choice_is_taken(field: str, value: str) -> None:
    assert getattr(put(f'{{"{field}":"{value}"}}'), field) == value


@pytest.mark.parametrize("body", ["[]", "null", "1", '"x"', "", "{", '{"ttl_ms":1}x'])
def test_a_config_is_an_object(body: str) -> None:
    assert refused(body).detail["field"] == "body"


# -- durable and durability


@pytest.mark.parametrize(
    ("body", "durability"),
    [
        ("{}", "disk"),
        ('{"durable":false}', "disk"),
        ('{"durable":true}', "fsync"),
        ('{"durability":"memory"}', "memory"),
        ('{"durability":"ephemeral","durable":true}', "ephemeral"),
        ('{"durability":"fsync","durable":false}', "fsync"),
        ('{"durability":"disk","durable":true}', "disk"),
    ],
)
def test_an_explicit_class_wins_over_the_shorthand(body: str, durability: str) -> None:
    config = put(body)
    assert (config.durability, config.durable) == (durability, durability == "fsync")


@pytest.mark.parametrize(
    ("before", "body", "after"),
    [
        ("disk", '{"durable":true}', "fsync"),
        ("fsync", '{"durable":false}', "disk"),
        ("memory", '{"durable":true}', "fsync"),
        ("memory", '{"ttl_ms":1}', "memory"),
        ("fsync", '{"durability":"ephemeral"}', "ephemeral"),
        ("ephemeral", '{"durability":"fsync","durable":false}', "fsync"),
    ],
)
def test_the_class_is_mutable_in_place(before: str, body: str, after: str) -> None:
    config = put(body, put(f'{{"durability":"{before}"}}'))
    assert (config.durability, config.durable) == (after, after == "fsync")


# -- merging


def test_a_put_changes_the_fields_it_names_and_keeps_the_others() -> None:
    base = put(
        '{"ttl_ms":1,"cap_records":2,"cap_bytes":3,"discard":"reject","durability":"memory","priority":4,'
        '"auto_priority":false,"auto_create":false,"idempotency_window_ms":5,"dedupe_node":false,'
        '"lease_ms":600,"claim_jitter_ms":7,"max_deliveries":8,"dead_letter":"dlq","leases_durable":true}'
    )
    assert put("{}", base) == base
    for field, value in json.loads(base.json()).items():
        if field not in ("type", "durable", "durability"):
            changed = put(json.dumps({field: DEFAULT_CONFIG[field]}), base)
            assert json.loads(changed.json()) == json.loads(base.json()) | {field: DEFAULT_CONFIG[field]}
            assert put(json.dumps({field: value}), changed) == base


def test_null_takes_a_priority_and_a_dead_letter_away() -> None:
    base = put('{"priority":5,"dead_letter":"dlq"}')
    assert put('{"priority":null}', base).priority is None
    assert put('{"dead_letter":null}', base).dead_letter is None


@pytest.mark.parametrize(("before", "after"), [("log", "queue"), ("queue", "log")])
def test_the_type_never_changes(before: str, after: str) -> None:
    base = put(f'{{"type":"{before}"}}')
    assert put(f'{{"type":"{before}","ttl_ms":1}}', base).ttl_ms == 1
    with pytest.raises(TopicExistsIncompatible) as caught:
        put(f'{{"type":"{after}"}}', base)
    assert (caught.value.http_status, caught.value.code) == (409, "topic_exists_incompatible")


def test_a_wrong_value_comes_before_a_conflict() -> None:
    assert refused('{"type":"queue","ttl_ms":-1}', put("{}")).detail["field"] == "ttl_ms"


# -- dead letters


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "ä", "a\\n", "x" * 256, ".a"])
def test_a_dead_letter_names_a_topic_that_could_exist(name: str) -> None:
    assert refused(f'{{"dead_letter":"{name}"}}').detail["field"] == "dead_letter"


@pytest.mark.parametrize("value", ["1", "true", "[]", "{}"])
def test_a_dead_letter_is_a_string_or_null(value: str) -> None:
    assert refused(f'{{"dead_letter":{value}}}').detail["field"] == "dead_letter"


def test_a_topic_is_not_its_own_dead_letter() -> None:
    assert refused('{"dead_letter":"a"}').detail["field"] == "dead_letter"
    assert put('{"dead_letter":"A"}').dead_letter == "A"


def test_a_config_inside_a_write_is_blamed_by_its_path() -> None:
    for body, field in (('{"ttl_ms":-1}', "config.ttl_ms"), ('{"dead_letter":"a"}', "config.dead_letter")):
        with pytest.raises(InvalidRequest) as caught:
            merged("a", decode_config(body.encode()), None, at="config.")
        assert caught.value.detail["field"] == field
