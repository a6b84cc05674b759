"""The bytes of segment files and snapshots: frozen, versioned, refused when they are not what they were."""

from pathlib import Path

import pytest

from shards.state import Registry
from shards.store import segments, snapshot
from shards.store.segments import SegmentStore
from shards.store.snapshot import SnapshotDamaged, SnapshotHead, UnknownSnapshotFormat
from tests.fakes.sim_disk import SimDisk
from topics.engine.config import TopicConfig
from topics.engine.idempotency import Remembered
from topics.engine.sealed import Sealed
from topics.engine.watermarks import Hole

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
HEAD = SnapshotHead(
    start_batch=7, start_identity=2**63, last_batch=9, time_ms=1_700_000_000_000, boot_id="boot",
    next_topic_id=4, next_file=6, damaged_files=[2],
)  # fmt: skip


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


def entry() -> bytes:
    """A topic in which everything is said."""
    topic = Registry().add(3, "a", TopicConfig(cap_records=5))
    log = topic.log
    log.head, log.earliest, log.count, log.bytes, log.last_ts = 12, 6, 4, 90, 1_700_000_000_001
    log.last_write_ts, log.marks.cap_evicted = 1_700_000_000_001, 5
    log.marks.holes = [Hole(8, 9, "cap", "crash")]
    log.keys.remember(b"0123456789abcdef", Remembered(6, 2, 1_700_000_000_000), window_ms=120_000)
    topic.ceiling, topic.logged_head, topic.logged_cap, topic.replayed_head = 40, 12, 5, 12
    page = Sealed(
        SegmentStore(SimDisk(), cache_bytes=0), topic_id=3, file=5, offset=24, length=900, first_seq=5,
        count=8, live=6, live_payload=100, first_ts=1_700_000_000_000, last_ts=1_700_000_000_001,
        tags_between=(b'"a"', b'"z"'),
    )  # fmt: skip
    page.pending = [(1, 3)]
    return snapshot.entry_of(topic, [page], 8)


def test_a_snapshot_is_the_golden_bytes() -> None:
    assert b"".join(snapshot.encode(HEAD, [entry()])) == golden("snapshot-v1")


def test_a_segment_file_begins_with_the_golden_bytes() -> None:
    assert segments.file_header(5) == golden("segment-header-v1")


def test_a_topic_comes_back_from_its_entry_as_it_was() -> None:
    found = snapshot.decode(1, golden("snapshot-v1"))
    assert found.head == HEAD
    assert found.kept() == (1, 7, {2, 5})
    registry, store = Registry(), SegmentStore(SimDisk(), cache_bytes=0)
    topic = snapshot.restore(registry, store, found.entries[0])
    log = topic.log
    assert (log.name, log.topic_id, log.config.cap_records, topic.as_of) == ("a", 3, 5, 8)
    assert (log.head, log.earliest, log.count, log.bytes) == (12, 6, 4, 90)
    assert (log.marks.cap_evicted, log.marks.ttl_expired) == (5, 0)
    assert log.marks.holes == [Hole(8, 9, "cap", "crash")]
    assert (topic.ceiling, topic.logged_head, topic.logged_cap, topic.replayed_head) == (40, 12, 5, 12)
    (page,) = log.chunks
    assert isinstance(page, Sealed)
    assert (page.file, page.offset, page.length, page.live, page.pending) == (5, 24, 900, 6, [(1, 3)])
    assert page.tags_between == (b'"a"', b'"z"')
    known = log.keys.find(b"0123456789abcdef", now_ms=1_700_000_000_500, window_ms=120_000)
    assert known == Remembered(6, 2, 1_700_000_000_000)
    # What came back says the same again.
    assert snapshot.entry_of(topic, [page], 8) == entry()


def test_every_flipped_bit_makes_a_snapshot_untrusted() -> None:
    data = golden("snapshot-v1")
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(SnapshotDamaged):
                snapshot.decode(1, bytes(damaged))


def test_a_snapshot_that_was_cut_off_is_untrusted() -> None:
    data = golden("snapshot-v1")
    for length in range(len(data)):
        with pytest.raises(SnapshotDamaged):
            snapshot.decode(1, data[:length])


def test_a_snapshot_of_a_later_version_is_refused_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "VERSION", 2)
    later = b"".join(snapshot.encode(HEAD, []))
    monkeypatch.undo()
    with pytest.raises(UnknownSnapshotFormat, match="version 2"):
        snapshot.decode(1, later)
