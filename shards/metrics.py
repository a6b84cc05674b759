"""What a shard counts about itself. Plain numbers; the gateway adds up shards and renders them."""

from collections.abc import Iterable, Iterator

from shards.state import Registry, TopicState
from topics.engine.config import DURABILITY_CLASSES

# Upper bounds in microseconds: from a fast local disk to one that is about to fail.
FSYNC_BUCKETS_US = (50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000)
# Per-topic series of one shard; beyond this the block is cut and says so.
TOPICS_SHOWN_MAX = 1000


def totals(registry: Registry) -> dict[str, object]:
    """The sums over all topics of a shard."""
    by_class = dict.fromkeys(DURABILITY_CLASSES, 0)
    records = size = queues = 0
    for topic in registry:
        log = topic.log
        by_class[log.config.durability] += 1
        records += log.count
        size += log.bytes
        queues += log.config.type == "queue"
    return {
        "topics": len(registry),
        "topics_by_class": by_class,
        "records_live": records,
        "bytes_live": size,
        "queue_topics": queues,
    }


def topic_rows(registry: Registry, prefixes: list[str]) -> tuple[list[list[object]], bool]:
    """Per topic: name, head, earliest, records, bytes, ready jobs. And whether any is left out."""
    rows: list[list[object]] = []
    for topic in _chosen(registry, prefixes):
        if len(rows) == TOPICS_SHOWN_MAX:
            return rows, True
        log = topic.log
        ready = log.count if log.config.type == "queue" else None
        rows.append([log.name, log.head, log.earliest, log.count, log.bytes, ready])
    return rows, False


def _chosen(registry: Registry, prefixes: Iterable[str]) -> Iterator[TopicState]:
    for prefix in prefixes:
        yield from registry.page(prefix=prefix, after="", limit=TOPICS_SHOWN_MAX + 1)
