"""`/v0/metrics`: what the shards and this gateway count, as one page.

200 always: while a log is replayed, or a shard is away, the page says so and leaves out what it cannot
know. Per-topic series are bounded, and a caller with prefixes sees those of its own topics only.
"""

import time
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Final

from gateway.context import Gateway
from gateway.effects import Ask, AskEach
from gateway.exposition import Family, as_json, as_text
from gateway.http import Request, Response, json_bytes
from topics import errors
from topics.protocol.messages import Op, Reply
from topics.protocol.strict_cbor import CborRefused, decode_value

METRICS_TIMEOUT_S: Final = 2.0
TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
TOPICS_SHOWN_MAX: Final = 1000
_CBOR_ITEMS_MAX: Final = 20_000

Figures = dict[str, Any]


async def metrics(gateway: Gateway, request: Request, path: Mapping[str, str]) -> Response:
    asks = [Ask(link, Op.METRICS, "", None, b"", request.arrived_ns) for link in gateway.pool.all()]
    silent = errors.NotReady("the shard did not answer in time")
    answers = await AskEach(asks, METRICS_TIMEOUT_S, silent)
    families = _families(gateway, [_figures(answer) for answer in answers])
    if "application/json" in (request.headers.get("accept") or ""):
        return json_bytes(200, as_json(families))
    return Response(200, as_text(families), [("content-type", TEXT_TYPE)])


def _figures(answer: Reply | errors.TopicsError) -> Figures:
    """What a shard said; nothing if it said nothing that makes sense."""
    if not isinstance(answer, Reply) or answer.status != 200:
        return {}
    try:
        value = decode_value(answer.body, items_max=_CBOR_ITEMS_MAX)
    except CborRefused:
        return {}
    return value if isinstance(value, dict) else {}


def _families(gateway: Gateway, shards: list[Figures]) -> list[Family]:
    return [
        *_process(gateway, shards),
        *_topics(shards),
        *_log(shards),
        *_sealed(shards),
        *_inside(gateway, shards),
    ]


def _sum(shards: list[Figures], name: str) -> int:
    return sum(shard.get(name, 0) for shard in shards)


def _process(gateway: Gateway, shards: list[Figures]) -> list[Family]:
    ready = not gateway.draining and all(shard.get("state") == "ready" for shard in shards)
    progress = sum(shard.get("progress", 0.0) for shard in shards) / len(shards)
    by_class = Family("topics_topics_by_class", "gauge", "Topics per durability class.")
    for name in ("ephemeral", "memory", "disk", "fsync"):
        count = sum(shard.get("topics_by_class", {}).get(name, 0) for shard in shards)
        by_class.add(count, **{"class": name})
    uptime_ms = (time.monotonic_ns() - gateway.started_ns) // 1_000_000
    gauges = [
        ("topics_topics", "Topics.", _sum(shards, "topics")),
        ("topics_routers", "Routers.", 0),
        ("topics_records_live", "Records that can be read.", _sum(shards, "records_live")),
        ("topics_bytes_live", "Bytes of data and meta of live records.", _sum(shards, "bytes_live")),
        ("topics_queue_topics", "Topics of type queue.", _sum(shards, "queue_topics")),
        ("topics_queue_leases_in_flight", "Jobs under an active lease.", 0),
        ("topics_sse_connections", "Open event streams.", 0),
        ("topics_watch_sessions", "Watch sessions.", 0),
        ("topics_ready", "1 when every shard takes reads and writes.", int(ready)),
        ("topics_recovery_progress", "Share of the log that has been replayed.", progress),
        ("topics_uptime_ms", "Milliseconds since the gateway started.", uptime_ms),
    ]
    return [by_class, *(Family(name, "gauge", text).add(value) for name, text, value in gauges)]


def _topics(shards: list[Figures]) -> list[Family]:
    rows = sorted(row for shard in shards for row in shard.get("rows", ()))
    truncated = len(rows) > TOPICS_SHOWN_MAX or any(shard.get("rows_truncated") for shard in shards)
    families = [
        Family("topics_topic_head_seq", "gauge", "Highest assigned seq per topic."),
        Family("topics_topic_earliest_seq", "gauge", "First live seq per topic."),
        Family("topics_topic_records_live", "gauge", "Live records per topic."),
        Family("topics_topic_bytes_live", "gauge", "Live bytes per topic."),
        Family("topics_topic_queue_ready", "gauge", "Claimable jobs per queue."),
        Family("topics_topic_queue_in_flight", "gauge", "Leased jobs per queue."),
    ]
    for name, *values, ready in rows[:TOPICS_SHOWN_MAX]:
        for family, value in zip(families, values, strict=False):
            family.add(value, topic=name)
        if ready is not None:
            families[4].add(ready, topic=name)
            families[5].add(0, topic=name)
    cut = Family("topics_topic_metrics_truncated", "gauge", "1 when some topics are left out above.")
    return [*families, cut.add(int(truncated))]


def _log(shards: list[Figures]) -> list[Family]:
    counters = [
        ("topics_wal_frames_total", "Frames written to the logs.", "wal_frames"),
        ("topics_wal_batches_total", "Batches written to the logs.", "wal_batches"),
        ("topics_wal_bytes_written_total", "Bytes written to the logs.", "wal_bytes_written"),
        ("topics_wal_rotations_total", "Log files closed for a new one.", "wal_rotations"),
        ("topics_wal_submit_full_total", "Times a shard stopped reading: its queue was full.", "submit_full"),
    ]
    gauges = [
        ("topics_wal_queue_depth", "Requests waiting in the shards.", _sum(shards, "queue_depth")),
        (
            "topics_wal_queue_depth_peak",
            "The most that have waited in one shard.",
            max(shard.get("queue_depth_peak", 0) for shard in shards),
        ),
        ("topics_wal_read_only", "Shards that cannot write.", _sum(shards, "wal_read_only")),
        ("topics_wal_bytes_on_disk", "Bytes that the log files take.", _sum(shards, "wal_bytes_on_disk")),
    ]
    bounds: list[int] = []
    counts, total_us = [0], 0
    for shard in shards:
        if "fsync_us" in shard:
            bounds, shard_counts, shard_us = shard["fsync_us"]
            counts = [a + b for a, b in zip_longest(counts, shard_counts, fillvalue=0)]
            total_us += shard_us
    latency = Family("topics_wal_fsync_latency_us", "histogram", "Duration of log syncs in microseconds.")
    return [
        *(Family(name, "counter", text).add(_sum(shards, key)) for name, text, key in counters),
        Family("topics_wal_fsyncs_total", "counter", "Syncs of the logs.").add(sum(counts)),
        *(Family(name, "gauge", text).add(value) for name, text, value in gauges),
        latency.add_histogram(bounds, counts, total_us),
    ]


def _sealed(shards: list[Figures]) -> list[Family]:
    """Records that have left the logs. Beyond the contract."""
    counters = [
        ("topics_checkpoints_total", "Checkpoints that succeeded.", "checkpoints"),
        ("topics_checkpoint_failures_total", "Checkpoints that failed.", "checkpoint_failures"),
    ]
    gauges = [
        ("topics_segment_files", "Files of sealed records.", "segment_files"),
        ("topics_segment_bytes_on_disk", "Bytes that these files take.", "segment_bytes"),
        ("topics_cache_bytes", "Sealed records held in memory.", "cache_bytes"),
        ("topics_damaged_files", "Files of sealed records in which damage was found.", "damaged_files"),
    ]
    return [
        *(Family(name, "counter", text).add(_sum(shards, key)) for name, text, key in counters),
        *(Family(name, "gauge", text).add(_sum(shards, key)) for name, text, key in gauges),
    ]


def _inside(gateway: Gateway, shards: list[Figures]) -> list[Family]:
    """What operators need beyond the contract."""
    busy = Family("topics_shard_busy_seconds_total", "counter", "Time a shard's loop has worked.")
    depth = Family("topics_shard_queue_depth", "gauge", "Requests waiting in one shard.")
    starts = Family("topics_process_starts_total", "counter", "Starts of a process; one is no restart.")
    starts.add(gateway.epoch, role="gateway", index="0")
    # Nobody asks the router; the shards know it by its greeting.
    if router_epoch := max(shard.get("router_epoch", 0) for shard in shards):
        starts.add(router_epoch, role="router", index="0")
    for index, shard in enumerate(shards):
        if shard:
            busy.add(shard.get("busy_ns", 0) / 1e9, shard=str(index))
            depth.add(shard.get("queue_depth", 0), shard=str(index))
            starts.add(shard.get("epoch", 0), role="shard", index=str(index))
    under_way = Family("topics_requests_under_way", "gauge", "Requests that are not answered yet.")
    latency = Family(
        "topics_request_duration_seconds",
        "histogram",
        "Time from a request to its response, by route.",
    )
    for route, histogram in sorted(gateway.latencies.items()):
        latency.add_histogram(
            [bound / 1e6 for bound in histogram.bounds], histogram.counts, histogram.total / 1e6, route=route
        )
    return [busy, depth, starts, under_way.add(gateway.under_way), latency]
