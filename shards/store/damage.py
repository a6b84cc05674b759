"""What to do about a page that cannot be read: its records become holes, the rest of it stays."""

from shards.store.segments import PageLost, SegmentStore
from topics.engine.topic import TopicLog


def quarantine(log: TopicLog, segments: SegmentStore, lost: PageLost) -> None:
    """Take what was lost out of the topic. Readers get a tombstone for exactly that."""
    page, left = lost.page, lost.chunk
    segments.drop(page)
    if left is not None:
        # What is counted next is asked of it.
        segments.keep(page, left)
    try:
        log.quarantine(page, lost.ranges, left)
    except PageLost as another:
        # The next page in the row, met while looking for the first live record.
        quarantine(log, segments, another)
