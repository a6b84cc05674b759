"""The live bytes of many topics together: counted where they change, foreseen before a write.

Only a server with a cap on all bytes counts them; the others use `TopicLog` as it is.
"""

from collections.abc import Iterator

from topics.engine.chunk import Chunk
from topics.engine.config import TopicConfig
from topics.engine.run import Run
from topics.engine.topic import TopicLog


class Meter:
    """The sum of `bytes` over the topics that were made with it."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class MeteredLog(TopicLog):
    """A topic whose `bytes` cannot change, by whatever operation, without the meter."""

    __slots__ = ("_bytes", "_meter")

    def __init__(self, topic_id: int, name: str, config: TopicConfig, meter: Meter) -> None:
        self._bytes = 0
        self._meter = meter
        super().__init__(topic_id, name, config)

    @property
    def bytes(self) -> int:
        return self._bytes

    @bytes.setter
    def bytes(self, value: int) -> None:
        self._meter.bytes += value - self._bytes
        self._bytes = value


def growth(log: TopicLog, run: Run) -> int:
    """By how much the topic's live bytes would change: what is added, without what its caps evict."""
    config, added = log.config, run.payload_bytes()
    if config.discard != "old":
        return added
    records_over = log.count + run.count - config.cap_records if config.cap_records else 0
    bytes_over = log.bytes + added - config.cap_bytes if config.cap_bytes else 0
    evicted = 0
    for size in _oldest_first(log, run):
        if records_over <= 0 and bytes_over <= evicted:
            break
        evicted += size
        records_over -= 1
    return added - evicted


def _oldest_first(log: TopicLog, run: Run) -> Iterator[int]:
    """The size of each record that would be live with the run appended."""
    for chunk in log.chunks:
        first = max(0, log.earliest - chunk.first_seq)
        for start, stop in chunk.live_runs(first, chunk.count):
            for index in range(start, stop):
                yield chunk.payload_bytes(index, index + 1)
    appended = Chunk(run.first_seq)
    appended.absorb(run)
    for index in range(run.count):
        yield appended.payload_bytes(index, index + 1)
