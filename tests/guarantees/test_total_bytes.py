"""The bytes of all topics together are the sum of theirs, and a write grows them as foreseen.

A whole shard on a simulated disk; whatever is asked of it, time and restarts included.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shards.allowance import Allowance, Allowances
from shards.load import load
from shards.shard import Shard
from tests.fakes.shard_harness import FakeClock, Reply, ShardHarness
from tests.fakes.sim_disk import SimDisk
from topics.engine.metering import Meter
from topics.engine.quota import Holding
from topics.protocol.messages import Op

MAXIMUM = 200


class MeteredShard(ShardHarness):
    """The only shard of a server, with a cap on all bytes."""

    def __init__(self, disk: SimDisk, clock: FakeClock, *, maximum: int = MAXIMUM) -> None:
        super().__init__(disk, clock)
        self.meter = Meter()
        self.allowance = Allowance("max_total_bytes", maximum, Holding(granted=maximum), alone=True)
        self.loaded, self.wal = load(disk, self.options, clock, meter=self.meter)
        self.shard = Shard(
            self.loaded, self.wal, self.syncer, clock, self.limits,
            sync_interval_ms=50, allowed=Allowances(bytes=self.allowance),
        )  # fmt: skip

    def bytes_of_all(self) -> int:
        return sum(topic.log.bytes for topic in self.shard.registry)


NAMES = st.sampled_from(["a", "b", "c"])
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "ttl_ms": st.sampled_from([0, 20, 100]),
        "cap_records": st.sampled_from([0, 1, 3]),
        "cap_bytes": st.sampled_from([0, 30, 60]),
        "discard": st.sampled_from(["old", "old", "reject"]),
        "durability": st.sampled_from(["ephemeral", "disk", "fsync"]),
    },
)
RECORDS = st.lists(
    st.builds(
        lambda size, meta, tag: {"data": "x" * size} | meta | tag,
        st.integers(0, 40),
        st.sampled_from([{}, {"meta": {"k": "v"}}]),
        st.sampled_from([{}, {"tag": "t"}, {"node": "n"}]),
    ),
    min_size=1,
    max_size=6,
)
Step = Callable[[MeteredShard], object]


def step(op: Op) -> Callable[..., Step]:
    def made(name: str, body: Any) -> Step:
        return lambda shard: shard.do(op, name, body)

    return made


STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(step(Op.WRITE), NAMES, st.builds(lambda records: {"records": records}, RECORDS)),
    st.builds(step(Op.WRITE), NAMES, st.builds(lambda records: {"records": records}, RECORDS)),
    st.builds(step(Op.PUT_TOPIC), NAMES, CONFIGS),
    st.builds(step(Op.DIFF), NAMES, st.just({})),
    st.builds(step(Op.DELETE_RECORDS), NAMES, st.builds(lambda seq: {"before_seq": seq}, st.integers(1, 20))),
    st.builds(step(Op.DELETE_RECORDS), NAMES, st.just({"match": "t"})),
    st.builds(step(Op.DELETE_TOPIC), NAMES, st.just({})),
    st.builds(lambda ms: lambda shard: shard.tick(ms), st.sampled_from([1, 30, 1100])),
)


@settings(max_examples=250)
@given(steps=st.lists(STEPS, max_size=40), restart_at=st.integers(0, 40))
def test_the_total_is_the_sum_over_all_topics_and_never_above_its_cap(
    steps: list[Step], restart_at: int
) -> None:
    disk, clock = SimDisk(), FakeClock()
    shard = MeteredShard(disk, clock)
    for number, do in enumerate(steps):
        if number == restart_at:
            shard.close()
            shard = MeteredShard(disk, clock)
        do(shard)
        assert shard.meter.bytes == shard.bytes_of_all() <= MAXIMUM
        assert shard.allowance.holding.room(0) == MAXIMUM, "nothing stays set aside"


@settings(max_examples=150)
@given(config=CONFIGS, before=st.lists(RECORDS, max_size=4), records=RECORDS)
def test_a_write_is_refused_exactly_when_it_would_end_above_the_cap(
    config: dict[str, object], before: list[Any], records: Any
) -> None:
    """The same write is tried with caps just at and just below what it leads to."""

    def written(maximum: int) -> tuple[int, int, Reply]:
        """The bytes before and after it, and the answer."""
        shard = MeteredShard(SimDisk(), FakeClock(), maximum=10**6)
        shard.do(Op.PUT_TOPIC, "a", config)
        for earlier in before:
            shard.do(Op.WRITE, "a", {"records": earlier})
        shard.allowance.maximum = shard.allowance.holding.granted = maximum
        bytes_before = shard.meter.bytes
        reply = shard.do(Op.WRITE, "a", {"records": records})
        return bytes_before, shard.meter.bytes, reply

    bytes_before, reached, reply = written(10**6)
    if reply.status != 200:
        return
    assert (written(reached)[1], written(reached)[2].status) == (reached, 200)
    _, ended_at, reply = written(reached - 1)
    if bytes_before >= reached:
        assert (ended_at, reply.status) == (reached, 200)
    else:
        assert (ended_at, reply.status) == (bytes_before, 429)
        assert reply.body["error"]["detail"] == {"limit": "max_total_bytes", "max": reached - 1}


def test_what_has_expired_makes_room_before_anybody_looks_at_it() -> None:
    shard = MeteredShard(SimDisk(), FakeClock(), maximum=12)
    shard.do(Op.PUT_TOPIC, "short", {"ttl_ms": 100})
    assert shard.write("short", "12345678").status == 200
    assert shard.write("other", "12345678").status == 429
    shard.clock.advance(150)
    assert shard.write("other", "12345678").status == 201


def test_a_refused_write_creates_no_topic() -> None:
    shard = MeteredShard(SimDisk(), FakeClock(), maximum=4)
    reply = shard.write("new", "12345678")
    assert (reply.status, reply.body["error"]["code"]) == (429, "throttled")
    assert shard.do(Op.GET_TOPIC, "new").status == 404


def test_a_duplicate_is_recognised_when_nothing_more_fits() -> None:
    shard = MeteredShard(SimDisk(), FakeClock(), maximum=10)
    first = shard.write("a", "12345678", idempotency_key="k")
    again = shard.write("a", "12345678", idempotency_key="k")
    assert (first.status, again.status, again.body["deduped"]) == (201, 200, True)
    assert shard.write("a", "1").status == 429


def test_a_write_that_is_given_up_while_its_topic_is_created_leaves_nothing_set_aside() -> None:
    shard = MeteredShard(SimDisk(), FakeClock(), maximum=10)
    body = {"records": [{"data": "12345678"}]}
    given_up = shard.submit(Op.WRITE, "new", body)
    refused = shard.submit(Op.WRITE, "other", body)
    assert refused.answer is not None
    assert refused.answer.status == 429
    shard.shard.forget(given_up)
    assert shard.submit(Op.WRITE, "other", body).answer is None, "its topic is being created"
