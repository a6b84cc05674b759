"""Listing topics page by page (section 1.3)."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.server import Server, Topic


def _create(server: Server, *names: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        for answer in pool.map(lambda name: server.put(f"/v0/topics/{name}"), names):
            answer.ok(201)


def _page(server: Server, **params: object) -> Any:
    return server.get("/v0/topics", params={key: str(value) for key, value in params.items()}).ok()


def _names(page: Any) -> list[str]:
    return [entry["topic"] for entry in page["topics"]]


def _all_pages(server: Server, **params: object) -> list[list[str]]:
    page = _page(server, **params)
    pages = [_names(page)]
    while "next_cursor" in page:
        assert len(pages) < 1000, "the pages never end"
        page = _page(server, cursor=page["next_cursor"], **params)
        pages.append(_names(page))
    return pages


def test_a_list_entry_is_the_summary_of_the_state(topic: Topic) -> None:
    topic.put(durability="fsync", priority=7)
    topic.write("abc", "de")
    topic.delete_records(before_seq=2)
    page = _page(topic.server, prefix=topic.name)
    assert set(page) == {"topics", "performance"}
    assert page["topics"] == [
        {
            "topic": topic.name,
            "head_seq": 2,
            "earliest_seq": 2,
            "count": 1,
            "bytes": 4,
            "durable": True,
            "effective_priority": 7,
        }
    ]


def test_only_the_fsync_class_is_listed_as_durable(server: Server, name: str) -> None:
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        Topic(server, f"{name}:{durability}").put(durability=durability)
    listed = {entry["topic"]: entry["durable"] for entry in _page(server, prefix=f"{name}:")["topics"]}
    assert listed == {f"{name}:{d}": d == "fsync" for d in ("ephemeral", "memory", "disk", "fsync")}


def test_names_come_in_byte_order_over_all_shards(server: Server, name: str) -> None:
    rests = ["-", ".", ":", "_", "0", "9", "A", "Z", "a", "z", "a-", "a.", "a0", "aA", "aa", "Aa", "10", "2"]
    names = [f"{name}:{rest}" for rest in rests]
    _create(server, *names)
    assert _names(_page(server, prefix=f"{name}:")) == sorted(names, key=str.encode)


@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 8, 9])
def test_pages_of_any_size_show_every_topic_once_and_end_without_a_cursor(
    server: Server, name: str, page_size: int
) -> None:
    names = [f"{name}:{number}" for number in range(8)]
    _create(server, *names)
    pages = _all_pages(server, prefix=f"{name}:", page_size=page_size)
    assert [shown for page in pages for shown in page] == names
    assert [len(page) for page in pages] == [min(page_size, 8 - start) for start in range(0, 8, page_size)], (
        "an exactly full last page carries no cursor"
    )


def test_a_page_has_100_topics_by_default_and_never_more_than_1000(server: Server, name: str) -> None:
    names = [f"{name}:{number:04}" for number in range(1001)]
    _create(server, *names)
    assert _names(_page(server, prefix=f"{name}:")) == names[:100]
    for page_size in (1000, 1001, 10**30):
        page = _page(server, prefix=f"{name}:", page_size=page_size)
        assert _names(page) == names[:1000]
        assert _names(_page(server, prefix=f"{name}:", cursor=page["next_cursor"])) == names[1000:]


def test_the_prefix_is_literal_and_case_sensitive(server: Server, name: str) -> None:
    _create(server, f"{name}.a", f"{name}.ab", f"{name}.A", f"{name}xa")
    assert _names(_page(server, prefix=f"{name}.a")) == [f"{name}.a", f"{name}.ab"]
    assert _names(_page(server, prefix=f"{name}.ab")) == [f"{name}.ab"]
    assert _names(_page(server, prefix=f"{name}.abc")) == []
    assert _names(_page(server, prefix=f"{name}*")) == []


def test_a_list_without_prefix_shows_everything(server: Server, name: str) -> None:
    _create(server, f"{name}-1", f"{name}-2")
    shown = [name for page in _all_pages(server, page_size=1000) for name in page]
    assert {f"{name}-1", f"{name}-2"} <= set(shown)
    assert shown == sorted(shown, key=str.encode)


def test_a_cursor_is_url_safe_and_survives_the_deletion_of_the_topic_it_names(
    server: Server, name: str
) -> None:
    names = [f"{name}:{number}" for number in range(4)]
    _create(server, *names)
    cursor = _page(server, prefix=f"{name}:", page_size=2)["next_cursor"]
    assert re.fullmatch(r"[A-Za-z0-9_-]+=*", cursor)
    for gone in names[:2]:
        Topic(server, gone).drop()
    assert _names(_page(server, prefix=f"{name}:", page_size=2, cursor=cursor)) == names[2:]


def test_a_topic_created_behind_the_cursor_is_still_met(server: Server, name: str) -> None:
    _create(server, f"{name}:a", f"{name}:c")
    cursor = _page(server, prefix=f"{name}:", page_size=1)["next_cursor"]
    _create(server, f"{name}:b")
    assert _names(_page(server, prefix=f"{name}:", cursor=cursor)) == [f"{name}:b", f"{name}:c"]


@pytest.mark.parametrize(
    "cursor", ["x", "!!!", "%ff", "AAAA", "e30", "e30=", "W10=", "bnVsbA==", "ä", "a b", "=" * 9]
)
def test_a_damaged_cursor_is_400(server: Server, cursor: str) -> None:
    server.get("/v0/topics", params={"cursor": cursor}).failed(400, "invalid_request", "cursor")


def test_a_cursor_cut_or_bent_anywhere_is_400_or_an_honest_cursor_but_never_500(
    server: Server, name: str
) -> None:
    _create(server, f"{name}:a", f"{name}:b")
    cursor = _page(server, prefix=f"{name}:", page_size=1)["next_cursor"]
    bent = [cursor[:cut] for cut in range(1, len(cursor))]
    bent += [
        cursor[:at] + ("A" if cursor[at] != "A" else "B") + cursor[at + 1 :] for at in range(len(cursor))
    ]
    statuses = {server.get("/v0/topics", params={"cursor": text}).status for text in bent}
    assert statuses <= {200, 400}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("page_size=x", "page_size"),
        ("page_size=-1", "page_size"),
        ("page_size=1.0", "page_size"),
        ("page_size=1e2", "page_size"),
        ("page_size=%201", "page_size"),
        ("page_size=0x10", "page_size"),
        ("page_size=%D9%A3", "page_size"),
        ("touch=maybe", "touch"),
    ],
)
def test_garbage_in_a_query_parameter_is_400(server: Server, query: str, field: str) -> None:
    server.get(f"/v0/topics?{query}").failed(400, "invalid_request", field)


def test_listing_touches_only_when_asked(topic: Topic) -> None:
    topic.put()
    entry = _page(topic.server, prefix=topic.name)["topics"][0]
    assert entry["effective_priority"] == 0
    assert topic.state()["last_read_ts"] is None
