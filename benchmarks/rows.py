"""The rows of the table: what is measured, beside what, and how good it shall be.

A row's name carries its parameters: records per request x bytes, connections, durability class.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from benchmarks import influence, payloads, redis_work, topics_work
from benchmarks.redis_server import Fsync
from benchmarks.samples import Headline, Work

SUSTAINED_CAP_RECORDS = 1_000_000
# The log of a minute at full speed, with room: it is not shortened while it grows.
SUSTAINED_FREE_BYTES_MIN = 40 * 2**30


@dataclass(frozen=True, slots=True)
class Target:
    """`of` says what is held against floor and aim: the ratio to the peer, to the base row, or the figure."""

    of: Literal["redis", "base", "figure"]
    floor: float
    aim: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    title: str
    ours: Work
    redis: Work | None = None
    peer: str  # what Redis does here, or why it does nothing
    headline: Headline = "per_second"
    base: str | None = None  # the row whose figure this one is also compared to
    target: Target | None = None
    uses_wrk: bool = True
    quick: bool = False  # part of --quick
    long: bool = False  # only with --long
    free_bytes_min: int = 0


def _single(
    connections: int, durability: str, fsync: Fsync, *, target: Target | None = None, quick: bool = False
) -> Row:
    plural = "s" if connections > 1 else ""
    return Row(
        name=f"write_1x200B_c{connections}_{durability}",
        title=f"1-record writes, {connections} connection{plural}, {durability}",
        ours=topics_work.writes(1, connections, {"durability": durability}),
        redis=redis_work.writes(1, connections, fsync),
        peer=f"XADD, appendfsync {fsync}",
        target=target,
        quick=quick,
    )


def _batch(
    records: int, durability: str, fsync: Fsync, *, target: Target | None = None, quick: bool = False
) -> Row:
    return Row(
        name=f"write_{records}x200B_c32_{durability}",
        title=f"{records}-record batches, 32 connections, {durability}",
        ours=topics_work.writes(records, 32, {"durability": durability}),
        redis=redis_work.writes(records, 32, fsync),
        peer=f"XADD pipelined by {records}, appendfsync {fsync}",
        target=target,
        quick=quick,
    )


def _while_sealing(connections: int) -> Row:
    """Look at its p99 beside that of the row it is based on."""
    base = f"write_1x200B_c{connections}_disk"
    return Row(
        name=f"{base}_checkpoints",
        title=f"the same as `{base}`, with a checkpoint after every 4 MiB of log",
        ours=topics_work.writes(1, connections, {}, settings={"TOPICS_CHECKPOINT_BYTES": "4MiB"}),
        peer="-",
        base=base,
    )


def _capped(*, sustained: bool) -> Row:
    burst = "write_100x200B_c32_disk_capped"
    return Row(
        name=f"{burst}_sustained" if sustained else burst,
        title="the same sustained for a minute"
        if sustained
        else "100-record batches, cap of 1 M records, burst",
        ours=topics_work.writes(100, 32, {"cap_records": SUSTAINED_CAP_RECORDS}, sustained=sustained),
        redis=redis_work.writes(100, 32, "everysec", maxlen=SUSTAINED_CAP_RECORDS, sustained=sustained),
        peer="XADD MAXLEN ~ 1 M pipelined by 100, appendfsync everysec",
        base=burst if sustained else None,
        target=Target("base", 0.6, 0.9) if sustained else None,
        long=True,
        free_bytes_min=SUSTAINED_FREE_BYTES_MIN,
    )


_PLAIN_DIFF = "diff_1000x200B_c32"
_OF_PLAIN = Target("base", 0.25, 0.5)
_ALONE = "influence_alone"

ROWS: tuple[Row, ...] = (
    _single(1, "disk", "everysec", quick=True),
    _single(32, "disk", "everysec", target=Target("redis", 0.45, 0.8), quick=True),
    _while_sealing(32),
    _single(256, "disk", "everysec"),
    _single(1, "fsync", "always"),
    _single(32, "fsync", "always"),
    _single(256, "fsync", "always", target=Target("redis", 0.6, 1.0), quick=True),
    _batch(100, "disk", "everysec", target=Target("redis", 2, 4), quick=True),
    _batch(100, "fsync", "always"),
    _batch(1000, "disk", "everysec"),
    _capped(sustained=False),
    _capped(sustained=True),
    Row(
        name=_PLAIN_DIFF,
        title="diff limit 1000, 32 connections",
        ours=topics_work.reads({}),
        redis=redis_work.reads(),
        peer="XRANGE COUNT 1000",
        target=Target("redis", 2, 3.5),
        quick=True,
    ),
    Row(
        name=f"{_PLAIN_DIFF}_include_tags",
        title="diff with include_tags, each record with a tag",
        ours=topics_work.reads({"include_tags": True}, payloads.own_tag),
        redis=redis_work.reads(redis_work.own_tag),
        peer="XRANGE COUNT 1000, entries of two fields",
        base=_PLAIN_DIFF,
        target=_OF_PLAIN,
        quick=True,
    ),
    Row(
        name=f"{_PLAIN_DIFF}_node_half",
        title="diff with a node filter that matches half",
        ours=topics_work.reads({"node": "odd"}, payloads.alternating_node),
        peer="none: Redis has no such filter",
        base=_PLAIN_DIFF,
        target=_OF_PLAIN,
        quick=True,
    ),
    Row(
        name=f"{_PLAIN_DIFF}_deleted_tenth",
        title="diff over 10 % deleted records",
        ours=topics_work.reads({}, payloads.every_tenth_tagged, delete_tenth=True),
        redis=redis_work.reads(delete_tenth=True),
        peer="XRANGE COUNT 1000 after XDEL of every tenth",
        base=_PLAIN_DIFF,
        target=_OF_PLAIN,
        quick=True,
    ),
    Row(
        name=_ALONE,
        title="400 single writes/s, nobody else: latency",
        uses_wrk=False,
        ours=influence.on_topics(loud=False, priority=0),
        redis=influence.on_redis(loud=False),
        peer="XADD",
        headline="p99_us",
        quick=True,
    ),
    Row(
        name="influence_equal_priority",
        title="the same beside a client at full speed on another topic, equal priority",
        ours=influence.on_topics(loud=True, priority=0),
        redis=influence.on_redis(loud=True),
        peer="XADD beside XADD pipelined by 100",
        headline="p99_us",
        base=_ALONE,
        quick=True,
    ),
    Row(
        name="influence_priority_1000",
        title="the same at priority 1000",
        ours=influence.on_topics(loud=True, priority=1000),
        peer="none: Redis has no priorities",
        headline="p99_us",
        base=_ALONE,
        quick=True,
    ),
    Row(
        name="replay_1000x200B",
        title="replay of batched writes after SIGKILL, one shard",
        ours=topics_work.replay,
        redis=redis_work.replay,
        peer="load of the append-only file",
        target=Target("figure", 1e6, 4e6),
        uses_wrk=False,
        quick=True,
    ),
)


def chosen(pattern: str | None, *, quick: bool, long: bool) -> list[Row]:
    """The rows of a run, in the table's order; a row brings its base along.

    `pattern` matches any part of a name, or the whole name where it has wildcards; with one, --quick leaves
    no row out. Rows that take minutes come with --long alone.
    """
    wanted = pattern or "*"
    if not any(sign in wanted for sign in "*?["):
        wanted = f"*{wanted}*"
    rows = [
        row
        for row in ROWS
        if fnmatchcase(row.name, wanted)
        and (long or not row.long)
        and (row.quick or not quick or pattern is not None)
    ]
    names = {row.name for row in rows} | {row.base for row in rows}
    return [row for row in ROWS if row.name in names]
