"""What to do about a page that cannot be read: its records become holes, the rest of it stays."""

from shards.store.segments import PageLost, SegmentStore
from topics.engine.topic import TopicLog


def quarantine(log: TopicLog, segments: SegmentStore, lost: PageLost) -> None:
    """Take what was lost out of the topic. Readers get a tombstone for exactly that."""
    page, left = lost.page, lost.chunk
    if left is not None:
        page.apply_pending(left)
    segments.drop(page)
    log.quarantine(page, lost.ranges, left)
    if left is not None and page.live:
        segments.keep(page, left)
