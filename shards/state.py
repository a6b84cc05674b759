"""What a shard knows: its topics, and per topic what the log says about it.

Plain state with the bookkeeping that decides which frames must be logged. No I/O, no clock.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from shards.wal.batch import Frame
from shards.wal.frame import ceiling_frame, floor_frame
from topics.engine.config import TopicConfig
from topics.engine.metering import Meter, MeteredLog
from topics.engine.topic import TopicLog

# How far ahead of the head a synced ceiling stands. After a machine crash the range between them is
# reported as lost, so it starts small and grows only while a topic uses it up quickly.
CEILING_STEP = 4096
CEILING_STEP_MAX = 4 * 1024 * 1024
CEILING_QUICK_MS = 1000
# A topic without writes for this long is made clean: its ceiling becomes its head again.
CLEAN_AFTER_MS = 1000


class TopicState:
    """A topic and its relation to the log.

    No seq above `ceiling` was ever handed out, and `durable_ceiling` says the same on stable storage:
    a write above it waits. So a seq that somebody may have seen is never given to another record.
    """

    __slots__ = (
        "as_of",
        "ceiling",
        "ceiling_step",
        "durable_ceiling",
        "log",
        "logged_cap",
        "logged_head",
        "logged_ttl",
        "raised_ms",
        "replayed_head",
        "written_ms",
    )

    def __init__(self, log: TopicLog) -> None:
        self.log = log
        # Everything up to this batch of the log is in it already, by a snapshot.
        self.as_of = 0
        self.ceiling = 0
        self.durable_ceiling = 0
        self.ceiling_step = CEILING_STEP
        self.raised_ms = 0
        self.logged_head = 0  # the last record that the log has
        self.replayed_head = 0  # where the head would be after a replay of the log, ceilings aside
        self.logged_cap = 0
        self.logged_ttl = 0
        self.written_ms = 0

    @property
    def ephemeral(self) -> bool:
        return self.log.config.durability == "ephemeral"

    @property
    def clean(self) -> bool:
        return self.ceiling == self.log.head

    @property
    def ceiling_is_near(self) -> bool:
        return self.ceiling - self.log.head < self.ceiling_step // 2

    def raise_ceiling(self, needed: int, *, now_ms: int) -> Frame:
        quick = now_ms - self.raised_ms < CEILING_QUICK_MS
        self.ceiling_step = min(self.ceiling_step * 4, CEILING_STEP_MAX) if quick else CEILING_STEP
        self.raised_ms = now_ms
        self.ceiling = needed + self.ceiling_step
        return ceiling_frame(self.log.topic_id, self.ceiling)

    def make_clean(self) -> Frame:
        """Everything before this frame in the log is all there is; effective before it is synced."""
        self.ceiling = self.durable_ceiling = self.log.head
        return ceiling_frame(self.log.topic_id, self.ceiling)

    def floor_frames(self) -> Iterator[Frame]:
        """The floors, if they moved over records that are in the log."""
        marks = self.log.marks
        moved = (marks.cap_evicted, marks.ttl_expired) != (self.logged_cap, self.logged_ttl)
        if moved and max(self.logged_cap, self.logged_ttl) < self.logged_head:
            self.logged_cap, self.logged_ttl = marks.cap_evicted, marks.ttl_expired
            yield floor_frame(self.log.topic_id, cap_evicted=marks.cap_evicted, ttl_expired=marks.ttl_expired)


class Registry:
    """The topics of a shard, by name and by id, with their names in byte order.

    With a `meter` the live bytes of all topics together are counted.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self.meter = meter
        self._by_name: dict[str, TopicState] = {}
        self._by_id: dict[int, TopicState] = {}
        self._names: list[str] = []
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[TopicState]:
        return iter(self._by_name.values())

    def find(self, name: str) -> TopicState | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: int) -> TopicState | None:
        return self._by_id.get(topic_id)

    @property
    def next_id(self) -> int:
        return self._next_id

    def skip_ids(self, next_id: int) -> None:
        """Ids below this one may have been given out, whatever is left of their topics."""
        self._next_id = max(self._next_id, next_id)

    def new_id(self) -> int:
        """An id is never reused once its topic's creation is durable, and before that nobody hears of it."""
        self._next_id += 1
        return self._next_id - 1

    def add(self, topic_id: int, name: str, config: TopicConfig) -> TopicState:
        assert name not in self._by_name, name
        self._next_id = max(self._next_id, topic_id + 1)
        if self.meter is None:
            topic = TopicState(TopicLog(topic_id, name, config))
        else:
            topic = TopicState(MeteredLog(topic_id, name, config, self.meter))
        self._by_name[name] = topic
        self._by_id[topic_id] = topic
        # Names are ASCII, so their order as text is their order in bytes.
        insort(self._names, name)
        return topic

    def remove(self, topic: TopicState) -> None:
        name = topic.log.name
        del self._by_name[name], self._by_id[topic.log.topic_id]
        del self._names[bisect_left(self._names, name)]
        if self.meter is not None:
            self.meter.bytes -= topic.log.bytes

    def page(self, *, prefix: str, after: str, limit: int) -> Iterator[TopicState]:
        """Topics whose name starts with `prefix`, behind `after`, in byte order."""
        at = bisect_left(self._names, max(prefix, after))
        for name in self._names[at : at + limit + 1]:
            if not name.startswith(prefix):
                return
            if name != after and limit > 0:
                limit -= 1
                yield self._by_name[name]
