"""Listing topics over all shards: complete, sorted, in pages that end."""

import base64
import json
from functools import partial
from pathlib import Path

import pytest
import trio

from gateway.handlers.topics import decode_cursor, encode_cursor
from tests.fakes.direct_client import gateway_over
from tests.fakes.fake_shard import Answer, FakeShard, by_op, list_answer, never
from topics import errors
from topics.engine.placement import shard_of
from topics.protocol.messages import Op


def listing_shards(tmp_path: Path, names: list[str], count: int = 3) -> list[FakeShard]:
    shards = []
    for index in range(count):
        own = [name for name in names if shard_of(name, count) == index]
        answers = {Op.LIST_TOPICS: partial(list_answer, own)}
        shards.append(FakeShard(tmp_path / str(index), index, by_op(answers)))
    return shards


@pytest.mark.parametrize("shard_count", [1, 3])
async def test_pages_of_a_list_are_complete_sorted_and_end(tmp_path: Path, shard_count: int) -> None:
    names = sorted(f"t{n}:{n % 7}" for n in range(250))
    async with gateway_over(listing_shards(tmp_path, names, shard_count)) as call:
        for page_size in (1, 7, 50, 125, 249, 250, 251):
            seen: list[str] = []
            target = f"/v0/topics?page_size={page_size}"
            for _ in range(300):
                page = json.loads((await call("GET", target)).body)
                assert page["performance"]["server_total_ms"] > 0
                seen += [topic["topic"] for topic in page["topics"]]
                assert len(page["topics"]) <= page_size
                if "next_cursor" not in page:
                    break
                assert len(page["topics"]) == page_size
                target = f"/v0/topics?page_size={page_size}&cursor={page['next_cursor']}"
            assert seen == names


async def test_page_size_zero_is_the_default_and_large_ones_are_clamped(tmp_path: Path) -> None:
    names = [f"t{n:05}" for n in range(1500)]
    async with gateway_over(listing_shards(tmp_path, names)) as call:
        for query, count in (
            ("", 100),
            ("page_size=0", 100),
            ("page_size=" + "9" * 40, 1000),
            ("page_size=1001", 1000),
        ):
            page = json.loads((await call("GET", f"/v0/topics?{query}")).body)
            assert len(page["topics"]) == count
            assert base64.urlsafe_b64decode(page["next_cursor"]) == b'{"after":"t%05d"}' % (count - 1)
        page = json.loads((await call("GET", "/v0/topics?prefix=t0007&touch=true")).body)
        assert [topic["topic"] for topic in page["topics"]] == [f"t{n:05}" for n in range(70, 80)]
        assert "next_cursor" not in page


async def test_a_list_with_a_shard_missing_fails_instead_of_looking_complete(tmp_path: Path) -> None:
    shards = listing_shards(tmp_path, ["a", "b", "c"])
    refusal = Answer(503, b'{"error":{"code":"not_ready"}}', 2)
    async with gateway_over(shards) as call:
        shards[1].answer = by_op({Op.LIST_TOPICS: lambda _: refusal})
        response = await call("GET", "/v0/topics")
        assert (response.status, response.body) == (503, refusal.body)
        shards[1].answer = never
        async with trio.open_nursery() as nursery:

            async def lose() -> None:
                await shards[1].wait_until(lambda: len(shards[1].requests) == 2)
                await shards[1].drop_links()

            nursery.start_soon(lose)
            response = await call("GET", "/v0/topics")
        assert response.status == 503
        assert json.loads(response.body)["error"]["detail"] == {"shard": 1, "outcome": "unknown"}


def test_a_cursor_is_url_safe_base64_as_in_the_contract() -> None:
    assert encode_cursor(b"jobs") == b"eyJhZnRlciI6ImpvYnMifQ=="
    assert decode_cursor("eyJhZnRlciI6ImpvYnMifQ==") == "jobs"


@pytest.mark.parametrize(
    "cursor",
    [
        "eyJhZnRlciI6ImpvYnMifQ",
        "eyJhZnRlciI6ImpvYnMifQ=",
        "eyJhZnRlciI6ImpvYnMifR==",
        " eyJhZnRlciI6ImpvYnMifQ==",
        "é",
        base64.urlsafe_b64encode(b'{"after":7}').decode(),
        base64.urlsafe_b64encode(b'{"after":"a b"}').decode(),
        base64.urlsafe_b64encode(b'{"before":"a"}').decode(),
        base64.urlsafe_b64encode(b"[]").decode(),
        base64.urlsafe_b64encode(b'{"after":"\xff"}').decode(),
    ],
)
def test_a_damaged_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        decode_cursor(cursor)
    assert caught.value.detail["field"] == "cursor"
