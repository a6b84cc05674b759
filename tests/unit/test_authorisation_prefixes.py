"""A prefix-limited key: what it may touch, what its lists show, and that no answer tells of foreign names."""

import base64
import gzip
import json
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway import auth
from gateway.effects import Effect
from gateway.handlers.topics import encode_cursor
from gateway.keys import KeyStore
from tests.fakes.direct_client import JSON, Client, gateway_over
from tests.fakes.fake_shard import Answer, FakeShard, by_op, list_answer
from topics import errors
from topics.engine.placement import shard_of
from topics.keys import parse_keys
from topics.protocol.messages import Op
from topics.protocol.messages import Request as ShardRequest

SHARDS = 3
# Every way to name a topic in a path.
ON_A_TOPIC = [
    ("GET", ""),
    ("PUT", ""),
    ("DELETE", ""),
    ("POST", ""),
    ("POST", "/diff"),
    ("POST", "/delete"),
]


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def listing_shards(tmp_path: Path, names: Sequence[str] = ()) -> list[FakeShard]:
    shards = []
    for index in range(SHARDS):
        own = [name for name in names if shard_of(name, SHARDS) == index]
        answers: dict[Op, Callable[[ShardRequest], Answer]] = {Op.LIST_TOPICS: partial(list_answer, own)}
        shards.append(FakeShard(tmp_path / str(index), index, by_op(answers)))
    return shards


def lock(client: Client, keys: str) -> None:
    client.gateway.keys = KeyStore(parse_keys(keys))


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Client]:
    async with gateway_over(listing_shards(tmp_path)) as client:
        yield client


def reached(call: Client) -> int:
    return sum(len(shard.requests) for shard in call.shards)


LIMITED = "k::own.|tenant42:,all"
OWN = ("own.", "own.x", "tenant42:", "tenant42:jobs")
FOREIGN = (
    "jobs",
    "own",
    "ownx",
    "OWN.x",
    "tenant42",
    "tenant4",
    "tenant421:x",
    "x.own.",
    "!",
    "%C3%A9",
    "..",
)


@pytest.mark.parametrize(("method", "tail"), ON_A_TOPIC)
async def test_a_foreign_name_is_403_and_no_shard_hears_of_it(call: Client, method: str, tail: str) -> None:
    lock(call, LIMITED)
    for name in FOREIGN:
        refused = await call.error(method, f"/v0/topics/{name}{tail}", b"{}", JSON | bearer("k"))
        assert refused == (403, "forbidden", "path")
    assert reached(call) == 0, "so the answer cannot depend on what exists"
    for name in OWN:
        answer = await call(method, f"/v0/topics/{name}{tail}", b"{}", JSON | bearer("k"))
        assert answer.status == 200
    assert reached(call) == len(OWN)


async def test_a_name_is_checked_as_it_is_decoded(call: Client) -> None:
    lock(call, LIMITED)
    assert (await call("GET", "/v0/topics/%6fwn%2ex", headers=bearer("k"))).status == 200
    assert (await call("GET", "/v0/topics/own.x%2F..%2Fjobs", headers=bearer("k"))).status == 400
    assert (await call("GET", "/v0/topics/%6Aobs", headers=bearer("k"))).status == 403


NAMES = sorted(
    [f"own.{n}" for n in range(40)]
    + [f"tenant42:{n}" for n in range(30)]
    + [f"jobs{n}" for n in range(50)]
    + ["a", "own", "ownx", "tenant4", "tenant42", "tenant420", "tenant43:x", "zz"]
)
SEEN = [name for name in NAMES if name.startswith(("own.", "tenant42:"))]


async def all_pages(call: Client, query: str, page_size: int) -> list[str]:
    seen: list[str] = []
    cursor = ""
    for _ in range(200):
        target = f"/v0/topics?page_size={page_size}{query}{cursor}"
        page = json.loads((await call("GET", target, headers=bearer("k"))).body)
        names = [topic["topic"] for topic in page["topics"]]
        seen += names
        if "next_cursor" not in page:
            assert len(names) <= page_size
            return seen
        assert len(names) == page_size, "a page that is not the last is full"
        after = json.loads(base64.urlsafe_b64decode(page["next_cursor"]))["after"]
        assert after == names[-1], "a cursor names nothing but what was shown"
        cursor = f"&cursor={page['next_cursor']}"
    raise AssertionError("a list without an end")


@pytest.mark.parametrize("page_size", [1, 2, 7, 39, 40, 41, 69, 70, 71, 1000])
async def test_a_list_holds_the_keys_own_names_in_full_pages(tmp_path: Path, page_size: int) -> None:
    async with gateway_over(listing_shards(tmp_path, NAMES)) as call:
        lock(call, LIMITED)
        assert await all_pages(call, "", page_size) == SEEN
        for prefix in ("o", "own", "own.", "own.1", "own.17", "t", "tenant42:2"):
            expected = [name for name in SEEN if name.startswith(prefix)]
            assert await all_pages(call, f"&prefix={prefix}", page_size) == expected


async def test_several_full_prefixes_still_make_one_page(tmp_path: Path) -> None:
    """Each prefix alone has more names than the largest page, so a shard is answered for twice over."""
    names = sorted(f"{prefix}{n:04}" for prefix in ("own.", "tenant42:") for n in range(1100))
    async with gateway_over(listing_shards(tmp_path, names)[:1]) as call:
        call.shards[0].answer = by_op({Op.LIST_TOPICS: partial(list_answer, names)})
        lock(call, LIMITED)
        assert await all_pages(call, "", 1000) == names


async def test_a_list_by_a_foreign_prefix_is_empty_and_asks_nobody(tmp_path: Path) -> None:
    async with gateway_over(listing_shards(tmp_path, NAMES)) as call:
        lock(call, LIMITED)
        for prefix in ("jobs", "ownx", "tenant420", "z"):
            response = await call("GET", f"/v0/topics?prefix={prefix}", headers=bearer("k"))
            assert json.loads(response.body)["topics"] == []
        assert reached(call) == 0


async def test_overlapping_prefixes_show_no_name_twice(tmp_path: Path) -> None:
    async with gateway_over(listing_shards(tmp_path, NAMES)) as call:
        lock(call, "k::own.1|own|own.|t")
        expected = [name for name in NAMES if name.startswith(("own", "t"))]
        assert await all_pages(call, "", 9) == expected


async def test_a_cursor_to_a_foreign_name_tells_nothing(tmp_path: Path) -> None:
    """The same page follows whether the name in it exists or not, and no foreign name is on it."""
    async with gateway_over(listing_shards(tmp_path, NAMES)) as call:
        lock(call, LIMITED)
        for existing, absent in (("jobs7", "jobs7x"), ("ownx", "owny"), ("a", "b"), ("zz", "zzz")):
            pages = []
            for name in (existing, absent):
                cursor = encode_cursor(name.encode()).decode()
                response = await call("GET", f"/v0/topics?page_size=5&cursor={cursor}", headers=bearer("k"))
                page = json.loads(response.body)
                del page["performance"]
                pages.append(page)
            assert pages[0] == pages[1]
            shown = [topic["topic"] for topic in pages[0]["topics"]]
            assert shown == [name for name in SEEN if name > existing][:5]


async def test_a_key_without_prefixes_sees_every_name(tmp_path: Path) -> None:
    async with gateway_over(listing_shards(tmp_path, NAMES)) as call:
        lock(call, "k:read:")
        assert await all_pages(call, "", 50) == NAMES


async def test_a_shard_that_fails_fails_the_limited_list_too(tmp_path: Path) -> None:
    shards = listing_shards(tmp_path, NAMES)
    refusal = Answer(503, b'{"error":{"code":"not_ready"}}', 2)
    shards[1].answer = by_op({Op.LIST_TOPICS: lambda _: refusal})
    async with gateway_over(shards) as call:
        lock(call, LIMITED)
        response = await call("GET", "/v0/topics", headers=bearer("k"))
        assert (response.status, response.body) == (503, refusal.body)
        shards[1].answer = by_op({Op.LIST_TOPICS: lambda _: Answer(200, b"\xff")})
        assert (await call("GET", "/v0/topics", headers=bearer("k"))).status == 500


# -- names in bodies


def config(dead_letter: object) -> bytes:
    return json.dumps({"type": "queue", "dead_letter": dead_letter}).encode()


def write(dead_letter: object) -> bytes:
    fields = {"records": [{"data": 1}], "config": {"dead_letter": dead_letter}}
    return json.dumps(fields).encode()


DEAD_LETTER_BODIES = [
    ("PUT", config("jobs"), 403),
    ("PUT", config("own.dlq"), 200),
    ("PUT", config(None), 200),
    ("PUT", b'{"dead_letter":"own.dlq","dead_letter":"jobs"}', 403),
    ("PUT", b'{"dead\\u005fletter":"jobs"}', 403),
    ("PUT", b'{"dead_l\\u0065tter":"own.dlq"}', 200),
    ("PUT", b'{"dead_letter":"\\u006aobs"}', 403),
    ("PUT", b'{"dead_letter" :\n"jobs"}', 403),
    ("PUT", b'{"dead_letter":7}', 400),
    ("PUT", b'{"dead_letter":"jobs"', 400),
    ("PUT", b'{"other":{"dead_letter":"jobs"}}', 200),
    ("POST", write("jobs"), 403),
    ("POST", write("own.dlq"), 200),
    ("POST", write(None), 200),
    ("POST", b'{"config":{"dead_letter":"own.d"},"config":{"dead_letter":"jobs"},"records":[]}', 403),
    ("POST", b'{"\\u0063onfig":{"\\u0064ead_letter":"jobs"},"records":[{"data":1}]}', 403),
    ("POST", b'{"config":{"\\u0064\\u0065\\u0061\\u0064\\u005F\\u006C\\u0065tter":"jobs"}}', 403),
    ("POST", b'{"records":[{"data":{"config":{"dead_letter":"jobs"}}}]}', 200),
    ("POST", b'{"records":[{"data":"\\"dead_letter\\"","meta":{"dead_letter":"jobs"}}]}', 200),
    ("POST", b'{"config":{"dead_letter":["jobs"]}}', 400),
]


@pytest.mark.parametrize(("method", "body", "status"), DEAD_LETTER_BODIES, ids=range(len(DEAD_LETTER_BODIES)))
async def test_dead_letters_cannot_be_sent_to_a_foreign_topic(
    call: Client, method: str, body: bytes, status: int
) -> None:
    lock(call, LIMITED)
    response = await call(method, "/v0/topics/own.q", body, JSON | bearer("k"))
    assert response.status == status
    assert reached(call) == int(status == 200)
    zipped = await call(
        method, "/v0/topics/own.q", gzip.compress(body), JSON | bearer("k") | {"content-encoding": "gzip"}
    )
    assert zipped.status == status
    if status == 403:
        field = "dead_letter" if method == "PUT" else "config.dead_letter"
        assert json.loads(response.body)["error"]["detail"] == {"field": field, "name": "jobs"}
    unlimited = await call(method, "/v0/topics/own.q", body, JSON | bearer("all"))
    assert unlimited.status == 200, "what the shard makes of it is the shard's business"


@pytest.mark.parametrize("letter", sorted(set("dead_letter")))
def test_every_letter_of_the_field_is_recognised_when_it_is_escaped(letter: str) -> None:
    caller = KeyStore(parse_keys(LIMITED)).bearer_of("k")
    assert caller is not None
    for escape in (f"\\u{ord(letter):04x}", f"\\u{ord(letter):04X}"):
        body = ('{"' + "dead_letter".replace(letter, escape) + '":"jobs"}').encode()
        with pytest.raises(errors.Forbidden):
            auth.check_dead_letter(caller, Op.PUT_TOPIC, body)


async def test_a_new_way_to_reach_a_shard_is_closed_to_limited_keys_until_it_is_taught() -> None:
    class Unheard(Effect[int]):
        pass

    async def handler() -> int:
        return await Unheard()

    caller = KeyStore(parse_keys(LIMITED)).bearer_of("k")
    assert caller is not None
    guarded: Any = auth.guarded(caller, handler())
    with pytest.raises(errors.Internal, match="Unheard"):
        guarded.send(None)
