"""Damaged segments and snapshots: never a wrong payload, never a silent gap, and the rest is served.

Every byte of every file after three checkpoints, one flipped bit each (sampled; TOPICS_PROOF=1 takes all).
A flag that is no longer exactly the sentinel makes its record live again: that is never a loss.
"""

import os
from collections import Counter
from collections.abc import Iterator
from functools import cache
from random import Random

import pytest

from shards import checkpoint, commands
from shards.wal.writer import WalOptions
from tests.fakes.shard_harness import FakeClock, ShardHarness
from tests.fakes.sim_disk import SimDisk
from tests.simulation.log_view import TopicView, view_of
from tests.simulation.test_log_corruption import Files, contents
from topics.protocol.messages import Op

PROOF = os.environ.get("TOPICS_PROOF") == "1"
SEED = int(os.environ.get("TOPICS_SEED", "7"))
OPTIONS = WalOptions(file_bytes=1800, step_bytes=1024)


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "RESERVE_BYTES", 0)
    monkeypatch.setattr(commands, "_FRAME_OVERHEAD_BYTES", 128)
    monkeypatch.setattr(checkpoint, "OWN_FILE_BYTES", 300)


@cache
def past() -> tuple[Files, dict[str, TopicView], dict[str, set[int]]]:
    """Files, what readers knew, and what was deleted."""
    disk = SimDisk()
    shard = ShardHarness(disk, FakeClock(), options=OPTIONS)
    shard.do(Op.PUT_TOPIC, "f", {"durability": "fsync"})
    for turn in range(3):
        for at in range(3):
            shard.write("f", f"f{turn}-{at}" + "x" * 60, node="n")
            tagged = [{"data": f"d{turn}-{n}", "tag": "t", "meta": {"m": n}} for n in range(2)]
            shard.do(Op.WRITE, "d", {"records": tagged})
        if turn == 1:
            shard.do(Op.DELETE_RECORDS, "f", {"before_seq": 3})
            shard.do(Op.DELETE_RECORDS, "d", {"match": "t", "before_seq": 4})
        shard.checkpoint()
    shard.write("f", "tail")
    topics = {topic.log.name: view_of(topic) for topic in shard.shard.registry}
    return contents(disk), topics, {"f": {1, 2}, "d": {1, 2, 3}}


def disk_of(files: Files) -> SimDisk:
    disk = SimDisk()
    for directory in ("wal", "segments", "snap"):
        disk.mkdir(directory)
    for path, data in files.items():
        fd = disk.open(path, create=True)
        disk.pwrite(fd, data, 0)
        disk.truncate(fd, len(data))
        disk.close(fd)
    return disk


def judge(files: Files) -> str:
    _, topics, deleted = past()
    shard = ShardHarness(disk_of(files), FakeClock(), options=OPTIONS)
    found = {topic.log.name: view_of(topic, cursors=True) for topic in shard.shard.registry}
    back: set[int] = set()
    for name, view in found.items():
        assert name in topics, f"topic {name!r} is made up"
        for seq, text in view.records.items():
            known = topics[name].records.get(seq)
            assert known == text or seq in deleted[name], f"seq {seq} of {name} is {text}"
            back |= {seq} & deleted[name]
    if shard.loaded.problems:
        assert shard.write("f", "more").status == 503
        return "read-only"
    assert found.keys() == topics.keys()
    lost = False
    for name, known_view in topics.items():
        view = found[name]
        assert view.head >= known_view.head
        missing = known_view.records.keys() - view.records.keys()
        silent = {seq for seq in missing if not view.in_gap(seq)} | (view.silent - deleted[name])
        assert not silent, f"{name}: seqs {sorted(silent)} are gone without a word"
        lost = lost or bool(missing)
        state = shard.do(Op.GET_TOPIC, name).body
        assert state["count"] == len(view.records) or back, f"{name}: count {state['count']}"
        assert shard.write(name, "new").body["first_seq"] > known_view.head
    if lost:
        causes = {cause for view in found.values() for _, _, _, cause in view.gaps} - {""}
        return "tombstone: " + "+".join(sorted(causes))
    return "deleted records are back" if back else "whole"


def cases(kind: str) -> Iterator[tuple[str, Files]]:
    files, _, _ = past()
    rng = Random(SEED)
    places = [(path, at) for path, data in files.items() if kind in path for at in range(len(data))]
    for path, at in places if PROOF else rng.sample(places, min(len(places), 400)):
        damaged = bytearray(files[path])
        damaged[at] ^= 1 << rng.randrange(8)
        yield f"byte {at} of {path}", files | {path: bytes(damaged)}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("segments/", {"tombstone: corruption", "whole"}),
        ("snap/", {"whole"}),
        # The last batch was not called durable yet, so damage in it looks like a write that was cut short.
        ("wal/", {"whole", "tombstone: crash"}),
    ],
)
def test_a_flipped_bit_is_never_served_and_never_a_silent_loss(kind: str, expected: set[str]) -> None:
    outcomes: Counter[str] = Counter()
    wrong = []
    for name, files in cases(kind):
        try:
            outcomes[judge(files)] += 1
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    print(f"\n{kind} {dict(outcomes)}, seed {SEED}")
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:12])
    assert expected <= outcomes.keys()


def test_a_segment_that_is_missing_is_a_tombstone_and_the_rest_is_served() -> None:
    files, _, _ = past()
    outcomes = Counter(
        judge({other: data for other, data in files.items() if other != path})
        for path in files
        if path.startswith("segments/")
    )
    # One that only the older snapshot needs is missed by nobody.
    assert outcomes.keys() <= {"tombstone: corruption", "whole"}
    assert outcomes["tombstone: corruption"] >= 2


def test_one_damaged_snapshot_costs_nothing_and_two_make_the_shard_read_only() -> None:
    files, _, _ = past()
    old, new = sorted(path for path in files if path.startswith("snap/"))
    assert judge(files | {new: files[new][:-1]}) == "whole"
    assert judge(files | {old: b""}) == "whole"
    assert judge(files | {old: b"", new: b""}) == "read-only"


def test_a_file_with_a_damaged_page_is_kept_for_whoever_looks_into_it() -> None:
    files, _, _ = past()
    path = min(path for path in files if path.startswith("segments/"))
    damaged = files[path][:40] + b"\0" * 40 + files[path][80:]
    shard = ShardHarness(disk_of(files | {path: damaged}), FakeClock(), options=OPTIONS)
    for name in ("f", "d"):
        shard.read(name)
    for _ in range(3):
        shard.write("f", "more")
        shard.checkpoint()
    assert isinstance(shard.disk, SimDisk)
    assert path in shard.disk.tree()
