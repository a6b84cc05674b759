"""The IPC codec: frozen bytes, plain CBOR, and a decoder that no input can surprise."""

from pathlib import Path

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.protocol import codec
from topics.protocol.codec import Decoder, ProtocolError, VersionMismatch
from topics.protocol.messages import (
    INLINE_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PARAMS_BYTES_MAX,
    PART_BYTES,
    BodyOpen,
    Cancel,
    Credit,
    Drain,
    Hello,
    Message,
    Op,
    Part,
    Reply,
    ReplyOpen,
    Request,
)

GOLDEN = Path(__file__).parent.parent / "golden"

PARAMS = codec.encode_params({"return_seqs": False, "idempotency_key": "k-1"})
EXAMPLES: dict[str, Message] = {
    "hello": Hello(1, "gateway", 3, 1_748_450_000_123),
    "request": Request(7, Op.WRITE, b"jobs:eu", 123_456_789_000, PARAMS, b'{"records":[{"data":1}]}'),
    "reply": Reply(7, 503, 1, b'{"error":{"code":"not_ready"}}'),
    "body-open": BodyOpen(8, Op.WRITE, b"jobs:eu", 123_456_789_000, PARAMS, 300_000),
    "part": Part(8, b"0123456789"),
    "credit": Credit(8, 4),
    "cancel": Cancel(4_294_967_295),
    "reply-open": ReplyOpen(8, 200, 0, 1_000_000),
    "drain": Drain(),
}
# What plain CBOR must show for each example, so that any CBOR tool can read a capture of the link.
AS_CBOR: dict[str, list[object]] = {
    "hello": [1, {"version": 1, "role": "gateway", "shard": 3, "epoch": 1_748_450_000_123}],
    "request": [2, 7, 1, b"jobs:eu", 123_456_789_000, PARAMS, b'{"records":[{"data":1}]}'],
    "reply": [3, 7, 503, 1, b'{"error":{"code":"not_ready"}}'],
    "body-open": [4, 8, 1, b"jobs:eu", 123_456_789_000, PARAMS, 300_000],
    "part": [5, 8, b"0123456789"],
    "credit": [6, 8, 4],
    "cancel": [7, 4_294_967_295],
    "reply-open": [8, 8, 200, 0, 1_000_000],
    "drain": [9],
}

ids = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
ops = st.sampled_from(list(Op))
statuses = st.integers(200, 599)
small_bytes = st.binary(max_size=40)
messages = st.one_of(
    st.builds(
        Hello, st.just(1), st.sampled_from(["gateway", "shard", "router", "cli"]), st.integers(0, 9), u64
    ),
    st.builds(Request, ids, ops, small_bytes, u64, small_bytes, small_bytes),
    st.builds(Reply, ids, statuses, st.integers(0, 65_535), small_bytes),
    st.builds(BodyOpen, ids, ops, small_bytes, u64, small_bytes, st.integers(1, 2**30)),
    st.builds(Part, ids, st.binary(min_size=1, max_size=40)),
    st.builds(Credit, ids, st.integers(1, 65_535)),
    st.builds(Cancel, ids),
    st.builds(ReplyOpen, ids, statuses, st.integers(0, 65_535), st.integers(1, 2**30)),
    st.just(Drain()),
)


def framed(item: bytes) -> bytes:
    return len(item).to_bytes(4, "big") + item


def fed_in_pieces(stream: bytes, sizes: list[int]) -> list[Message]:
    decoder = Decoder()
    got: list[Message] = []
    at, turn = 0, 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        got += decoder.feed(memoryview(stream)[at : at + size] if turn % 2 else stream[at : at + size])
        at, turn = at + size, turn + 1
    return got


def outcome(stream: bytes, sizes: list[int]) -> list[Message] | str:
    try:
        return fed_in_pieces(stream, sizes)
    except ProtocolError as error:
        return error.reason


@pytest.mark.parametrize("name", EXAMPLES)
def test_ipc_v1_bytes_never_change(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"ipc-v1-{name}.hex").read_text())
    assert codec.encode(EXAMPLES[name]) == golden
    assert Decoder().feed(golden) == [EXAMPLES[name]]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_message_is_plain_cbor(name: str) -> None:
    encoded = codec.encode(EXAMPLES[name])
    assert int.from_bytes(encoded[:4], "big") == len(encoded) - 4
    assert cbor2.loads(encoded[4:]) == AS_CBOR[name]


def test_heads_and_bulk_sent_beside_each_other_are_the_whole_message() -> None:
    reply, part = Reply(1, 200, 0, b"body"), Part(2, b"data")
    assert codec.reply_head(1, 200, 0, 4) + b"body" == codec.encode(reply)
    assert codec.part_head(2, 4) + b"data" == codec.encode(part)


def test_a_hello_from_the_future_is_refused_with_both_versions_named() -> None:
    golden = bytes.fromhex((GOLDEN / "ipc-v2-hello.hex").read_text())
    with pytest.raises(VersionMismatch, match="version 2, this side speaks 1") as caught:
        Decoder().feed(golden)
    assert caught.value.theirs == 2


@given(st.lists(messages, max_size=8), st.lists(st.integers(1, 64), min_size=1, max_size=6))
def test_messages_survive_any_split_of_the_stream(sent: list[Message], sizes: list[int]) -> None:
    stream = b"".join(map(codec.encode, sent))
    assert fed_in_pieces(stream, sizes) == sent
    assert fed_in_pieces(stream, [1]) == sent
    assert Decoder().feed(stream) == sent


@given(st.binary(max_size=200))
@settings(max_examples=500)
def test_random_bytes_never_raise_anything_but_a_protocol_error(noise: bytes) -> None:
    for stream in (noise, framed(noise), framed(b"\x87\x02" + noise), framed(b"\x82\x01" + noise)):
        whole, split = outcome(stream, [len(stream) or 1]), outcome(stream, [1])
        assert whole == split


@given(st.lists(messages, min_size=1, max_size=4), st.data())
@settings(max_examples=500)
def test_a_damaged_stream_means_the_same_whole_and_byte_by_byte(
    sent: list[Message], data: st.DataObject
) -> None:
    stream = bytearray(b"".join(map(codec.encode, sent)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream[at] = data.draw(st.integers(0, 255))
    damaged = bytes(stream[: data.draw(st.integers(1, len(stream)))])
    assert outcome(damaged, [len(damaged)]) == outcome(damaged, [1])


def test_a_decoder_that_raised_stays_dead() -> None:
    decoder = Decoder()
    with pytest.raises(ProtocolError, match="tag 0"):
        decoder.feed(framed(bytes.fromhex("c000")))
    with pytest.raises(ProtocolError, match=r"after an earlier error: .*tag 0"):
        decoder.feed(codec.encode(Drain()))


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ("d81c81d81d00", "tag 28"),  # a list that contains itself
        ("d8236161", "tag 35"),  # a regular expression
        ("9f09ff", "indefinite"),
        ("8201a2616101616102", "Duplicate"),
        ("8201a1016161", "not text"),
        ("8201f7", "simple value 23"),
        ("810a", "kind 10"),
        ("8107", "kind 7 with 1 elements"),
        ("820861", "ends inside"),
        ("82070000", "behind the item"),
        ("8207f5", "id is not an integer"),
        ("820720", "id is not an integer"),
        ("82071b0000000100000000", "id is not an integer"),
        ("83060100", "parts is not an integer"),
        ("8181818181818181", "nested deeper"),
        ("830501410a", "not in the fixed layout|without data"),  # a part in its shortest CBOR form
        ("8501", "longer than its message"),
        ("00", "2 to"),
    ],
)
def test_what_is_not_exactly_the_protocol_is_refused(item: str, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        Decoder().feed(framed(bytes.fromhex(item)))


def test_hot_messages_in_another_valid_cbor_form_are_refused() -> None:
    for name in ("request", "reply", "part"):
        with pytest.raises(ProtocolError):
            Decoder().feed(framed(cbor2.dumps(AS_CBOR[name])))


@pytest.mark.parametrize(("name", "length_at"), [("request", -25), ("reply", -31), ("part", -11)])
def test_a_bulk_length_that_disagrees_with_the_message_is_refused(name: str, length_at: int) -> None:
    golden = codec.encode(EXAMPLES[name])
    for step in (-1, 1):
        damaged = bytearray(golden)
        damaged[length_at] += step
        with pytest.raises(ProtocolError, match="fixed layout"):
            Decoder().feed(bytes(damaged))


def test_a_length_beyond_the_maximum_is_refused_before_its_bytes_arrive() -> None:
    with pytest.raises(ProtocolError, match=str(MESSAGE_BYTES_MAX)):
        Decoder().feed((MESSAGE_BYTES_MAX + 1).to_bytes(4, "big"))


def test_unknown_ops_and_impossible_statuses_are_refused() -> None:
    request = bytearray(codec.encode(EXAMPLES["request"]))
    assert request[11:13] == b"\x18\x01"
    request[12] = 200
    with pytest.raises(ProtocolError, match="op 200"):
        Decoder().feed(bytes(request))
    with pytest.raises(ProtocolError, match="status 99"):
        Decoder().feed(codec.reply_head(1, 99, 0, 0))


def test_the_largest_bodies_fit_and_one_byte_more_does_not() -> None:
    body = bytes(INLINE_BYTES_MAX)
    request = codec.encode_request(1, Op.WRITE, b"t" * 255, 1, PARAMS, body)
    assert len(request) <= MESSAGE_BYTES_MAX
    for whole in (request, codec.encode(Reply(1, 200, 0, body)), codec.encode(Part(1, body))):
        (whole_fed,) = Decoder().feed(whole)
        (split_fed,) = fed_in_pieces(whole, [60_000])
        assert whole_fed == split_fed
    with pytest.raises(ValueError, match="too large"):
        codec.encode_request(1, Op.WRITE, b"t", 1, b"", body + b"x")
    with pytest.raises(ValueError, match="must go in parts"):
        codec.reply_head(1, 200, 0, INLINE_BYTES_MAX + 1)
    with pytest.raises(ValueError, match="a part has"):
        codec.part_head(1, PART_BYTES + 1)


def test_params_are_one_small_map_with_text_keys() -> None:
    params: dict[str, object] = {"limit": 100, "touch": False, "prefix": "tenant:"}
    assert codec.decode_params(codec.encode_params(params)) == params
    assert codec.encode_params({}) == b""
    assert codec.decode_params(b"") == {}
    for bad in (
        b"\x80",
        b"\xa1\x01\x01",
        b"\xa2\x61a\x01\x61a\x02",
        b"\xa0\x00",
        b"\xff",
        b"\xa1\x61a\xc0\x61b",
    ):
        with pytest.raises(ProtocolError, match="param"):
            codec.decode_params(bad)
    with pytest.raises(ProtocolError, match="at most"):
        codec.decode_params(bytes(PARAMS_BYTES_MAX + 1))
    with pytest.raises(ValueError, match="at most"):
        codec.encode_params({"prefix": "x" * PARAMS_BYTES_MAX})


@given(st.binary(max_size=80))
@settings(max_examples=500)
def test_params_from_random_bytes_never_raise_anything_but_a_protocol_error(noise: bytes) -> None:
    for data in (noise, b"\xa1\x61a" + noise):
        try:
            assert isinstance(codec.decode_params(data), dict)
        except ProtocolError:
            continue


def test_a_small_tail_does_not_keep_its_large_chunk_alive() -> None:
    decoder = Decoder()
    one = codec.encode(Reply(1, 200, 0, b"x" * 1000))
    assert len(decoder.feed(one * 50 + one[:3])) == 50
    assert decoder.pending_bytes == 3
    assert len(decoder.feed(one[3:])) == 1
    assert decoder.pending_bytes == 0
