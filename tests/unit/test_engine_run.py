"""Rendering: one record and many give the same bytes and columns, whatever was sent with them."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from shards.requests import decode_write
from topics.engine.limits import Limits
from topics.engine.run import Run, encode_tag, node_section, render
from topics.errors import InvalidRequest, RecordTooLarge

TEXTS = st.text(st.sampled_from('ab"\\\n\t\x00\x7fä\u2028😀'), max_size=4) | st.sampled_from(
    ["null", "ab" * 30]
)
DATA: st.SearchStrategy[Any] = st.sampled_from(
    [1, None, "}", "x" * 300, {"meta": {}}, ',"data":', ',"$node":""', [[]] * 200]
)
RECORDS = st.fixed_dictionaries(
    {"data": DATA}, optional={"tag": TEXTS, "node": TEXTS, "meta": st.sampled_from([{}, {"k": 1}])}
)


def rendered(
    records: list[dict[str, Any]],
    *,
    first_seq: int = 1,
    ts: int = 77,
    node: str | UnsetType = UNSET,
    limits: Limits | None = None,
) -> Run:
    limits = limits or Limits()
    request = decode_write(json.dumps({"records": records}).encode(), None, limits)
    return render(request.records, first_seq=first_seq, ts=ts, node=node, plain=request.plain, limits=limits)


def record_text(record: dict[str, Any], seq: int, ts: int, node: str | UnsetType) -> bytes:
    """One record as the contract writes it."""
    origin = record.get("node", node)
    text = b'{"$seq":%d,"$ts":%d' % (seq, ts)
    text += node_section(origin) if origin is not UNSET else b""
    text += b',"data":' + json.dumps(record["data"]).encode()
    text += b',"meta":' + json.dumps(record["meta"]).encode() if "meta" in record else b""
    return text + b"}"


def payload(record: dict[str, Any]) -> int:
    return sum(len(json.dumps(record[name])) for name in ("data", "meta") if name in record)


@given(
    records=st.lists(RECORDS, min_size=1, max_size=12),
    first_seq=st.sampled_from([1, 8, 95, 10**15]),
    ts=st.sampled_from([0, 9, 1_748_450_001_000]),
    node=st.just(UNSET) | TEXTS,
)
def test_a_run_is_its_records_and_their_columns(
    records: list[dict[str, Any]], first_seq: int, ts: int, node: str | UnsetType
) -> None:
    run = rendered(records, first_seq=first_seq, ts=ts, node=node)
    texts = [record_text(record, seq, ts, node) for seq, record in enumerate(records, first_seq)]
    assert run.blob == b",".join(texts)
    assert (run.first_seq, run.count, run.ts) == (first_seq, len(records), ts)
    assert list(run.lengths) == list(map(len, texts))
    assert list(run.heads) == [len(f'{{"$seq":{first_seq + at},"$ts":{ts}') for at in range(len(records))]
    tags = [encode_tag(record["tag"]) if "tag" in record else b"" for record in records]
    assert run.tags == b"".join(tags)
    assert list(run.tag_lengths or []) == (list(map(len, tags)) if any(tags) else [])
    metas = [len(json.dumps(record["meta"])) + 8 if "meta" in record else 0 for record in records]
    assert list(run.meta_lengths or []) == (metas if any(metas) else [])
    origins = [record.get("node", node) for record in records]
    sections = [b"" if origin is UNSET else node_section(origin) for origin in origins]
    assert [run.nodes[at] for at in run.node_ids or []] == (sections if any(sections) else [])
    assert run.payload_bytes() == sum(map(payload, records))
    assert run.payload_bytes_max() == max(map(payload, records))


@given(TEXTS)
def test_a_tag_is_stored_as_its_json_string_alone_and_among_others(tag: str) -> None:
    encoded = msgspec.json.encode(tag)
    assert rendered([{"data": 1, "tag": tag}]).tags == encoded
    assert rendered([{"data": 1}, {"data": 1, "tag": tag}, {"data": 1, "tag": "x"}]).tags == encoded + b'"x"'


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("extra", [{}, {"tag": "t", "node": "n", "meta": {"k": 1}}])
def test_the_record_that_breaks_a_limit_is_named(before: int, extra: dict[str, Any]) -> None:
    small = [{"data": 1} | extra] * before
    deep = json.loads("[" * 129 + "]" * 129)
    with pytest.raises(InvalidRequest) as refused:
        rendered([*small, {"data": deep} | extra, {"data": 1}])
    assert refused.value.detail["field"] == f"records[{before}].data"
    with pytest.raises(RecordTooLarge) as too_large:
        rendered([*small, {"data": "x" * 99} | extra, {"data": 1}], limits=Limits(record_bytes=100))
    assert too_large.value.detail["field"] == f"records[{before}]"
    with pytest.raises(RecordTooLarge):
        rendered([{"data": "x" * 99} | extra], limits=Limits(record_bytes=100))
    flat = [*small, {"data": [[]] * 200} | extra, {"data": "x" * 500} | extra]
    assert rendered(flat).count == before + 2
