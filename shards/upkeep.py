"""What time alone does to topics: records expire, floors are logged, idle topics become clean."""

from shards.commands import Context
from shards.fetching import Fetcher
from shards.state import CLEAN_AFTER_MS, TopicState
from shards.store.segments import PageLost

# How often topics that are dirty or expiring are looked at; the others cost nothing.
SWEEP_TOPICS_EVERY_NS = 1_000_000_000
# While bytes are short, all topics are looked at for expired records this often, not for every write.
RECLAIM_EVERY_NS = 50_000_000


class Upkeep:
    """Works on the topics of a context, by the context's clock."""

    def __init__(self, context: Context, fetcher: Fetcher, now_ns: int) -> None:
        self._context = context
        self._fetcher = fetcher
        self._swept_ns = now_ns
        self._reclaimed_ns = 0

    def next_due_ns(self) -> int | None:
        if self._context.restless and self._context.writable:
            return self._swept_ns + SWEEP_TOPICS_EVERY_NS
        return None

    def expire(self, topic: TopicState) -> None:
        while True:
            try:
                topic.log.expire(self._context.now_ms)
                return
            except PageLost as lost:
                self._fetcher.take_out(lost)

    def sweep(self) -> None:
        """Look at the topics that time changes, if it is time to."""
        context = self._context
        if context.writable and context.now_ns - self._swept_ns >= SWEEP_TOPICS_EVERY_NS:
            self._swept_ns = context.now_ns
            for topic in list(context.restless):
                self._sweep_topic(topic)

    def _sweep_topic(self, topic: TopicState) -> None:
        context = self._context
        if context.registry.by_id(topic.log.topic_id) is None:
            context.restless.discard(topic)
            return
        self.expire(topic)
        for frame in topic.floor_frames():
            context.log(frame)
        if not topic.clean and context.now_ms - topic.written_ms >= CLEAN_AFTER_MS:
            context.log(topic.make_clean())
        if topic.clean and not (topic.log.config.ttl_ms and topic.log.count):
            context.restless.discard(topic)

    def reclaim(self) -> None:
        """What has expired does not count, even if nobody has looked at its topic since."""
        context = self._context
        if context.now_ns - self._reclaimed_ns >= RECLAIM_EVERY_NS:
            self._reclaimed_ns = context.now_ns
            for topic in context.restless:
                if context.registry.by_id(topic.log.topic_id) is not None:
                    self.expire(topic)
