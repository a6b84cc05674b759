"""Damaged log files: never a wrong payload, never a silent gap.

What a damaged log may do: give every record back; put what it lost under a tombstone; or refuse to write and
name the problem. Positions are sampled with a printed seed; TOPICS_PROOF=1 takes every byte.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

import pytest

from shards import commands
from shards.wal import batch as codec
from shards.wal.recovery import find_batches
from shards.wal.writer import WalOptions
from tests.fakes.shard_harness import FakeClock, ShardHarness
from tests.fakes.sim_disk import SimDisk
from tests.simulation.log_view import TopicView, view_of
from topics.protocol.messages import Op

PROOF = os.environ.get("TOPICS_PROOF") == "1"
SEED = int(os.environ.get("TOPICS_SEED", "7"))
OPTIONS = WalOptions(file_bytes=1800, step_bytes=1024)
SAME_BOOT, OTHER_BOOT = "boot-1", "boot-2"

Files = dict[str, bytes]


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "RESERVE_BYTES", 0)
    monkeypatch.setattr(commands, "_FRAME_OVERHEAD_BYTES", 128)


@dataclass(frozen=True)
class Past:
    """The files of a log, and what its readers knew when it ended."""

    files: Files
    topics: dict[str, TopicView]
    deleted: dict[str, set[int]]


@cache
def past(end: str) -> Past:
    """Two sessions of a few topics over several files; the second is closed, or killed, at work or idle."""
    disk = SimDisk()
    shard = ShardHarness(disk, FakeClock(boot_id=SAME_BOOT), options=OPTIONS, deferred=True)
    shard.do(Op.PUT_TOPIC, "f", {"durability": "fsync"})
    for turn in range(5):
        shard.write("f", f"f{turn}" + "x" * 60 * turn)
        shard.submit(Op.WRITE, "d", {"records": [{"data": f"d{turn}-{at}", "tag": "t"} for at in range(3)]})
        shard.submit(Op.WRITE, "f", {"records": [{"data": f"g{turn}"}], "idempotency_key": f"k{turn}"})
        shard.settle()
    shard.do(Op.PUT_TOPIC, "gone", {})
    shard.do(Op.DELETE_TOPIC, "gone")
    shard = shard.reopen()
    shard.do(Op.PUT_TOPIC, "gone", {"priority": 5})
    for turn in range(6):
        shard.write("f", f"s{turn}" + "y" * 50)
        shard.write("d", f"later{turn}" + "z" * 100)
    deleted = {"f": {1, 2, 3}, "d": {4, 5, 6}, "gone": set[int]()}
    shard.do(Op.DELETE_RECORDS, "f", {"before_seq": 4})
    assert shard.do(Op.DELETE_RECORDS, "d", {"match": "t", "before_seq": 7}).body["deleted"] == 6
    deleted["d"] = {1, 2, 3, 4, 5, 6}
    shard.do(Op.PUT_TOPIC, "d", {"priority": 9})
    shard.write("f", "last f")
    shard.write("d", "last d")
    topics = {topic.log.name: view_of(topic) for topic in shard.shard.registry}
    if end == "closed":
        shard.close()
    elif end == "idle":
        shard.tick(1500)
        shard.settle()
    return Past(contents(disk), topics, deleted)


def contents(disk: SimDisk) -> Files:
    found = {}
    for path, size in disk.tree().items():
        fd = disk.open(path)
        found[path] = disk.pread(fd, size, 0)
        disk.close(fd)
    return found


def disk_of(files: Files) -> SimDisk:
    disk = SimDisk()
    disk.mkdir("wal")
    for path, data in files.items():
        fd = disk.open(path, create=True)
        disk.pwrite(fd, data, 0)
        disk.truncate(fd, len(data))
        disk.close(fd)
    return disk


def judge(files: Files, before: Past, boot_id: str) -> str:
    """How the damage was handled; raises AssertionError if it was not."""
    shard = ShardHarness(disk_of(files), FakeClock(boot_id=boot_id), options=OPTIONS)
    found = {topic.log.name: view_of(topic, cursors=True) for topic in shard.shard.registry}
    for name, view in found.items():
        for seq, text in view.records.items():
            assert name in before.topics, f"topic {name!r} is made up"
            assert before.topics[name].records.get(seq) == text or seq in before.deleted[name], (
                f"seq {seq} of {name} is {text}"
            )
    if shard.loaded.problems:
        assert shard.wal is None
        assert shard.write("f", "more").status == 503
        return "read-only"
    assert found.keys() == before.topics.keys(), f"topics {sorted(found)}"
    causes: set[str] = set()
    for name, known in before.topics.items():
        view, deleted = found[name], before.deleted[name]
        assert view.head >= known.head, f"{name}: head {known.head} moved back to {view.head}"
        assert view.config == known.config, f"{name}: config {view.config}"
        assert not view.records.keys() & deleted, f"{name}: deletes are undone"
        missing = known.records.keys() - view.records.keys()
        silent = {seq for seq in missing if not view.in_gap(seq)} | (view.silent - deleted)
        assert not silent, f"{name}: seqs {sorted(silent)} are gone without a word"
        causes |= {
            cause for first, last, _, cause in view.gaps if any(first <= seq <= last for seq in missing)
        }
        new_seq = shard.write(name, "new").body["first_seq"]
        assert new_seq > known.head, f"{name}: seq {new_seq} is handed out again"
    if not causes:
        return "whole"
    return "tombstone: " + "+".join(sorted(causes))


def flips(files: Files, rng: Random, count: int) -> Iterator[tuple[str, Files]]:
    """One flipped bit: `count` of them anywhere, and then one in each field of each batch's head and end."""
    places = [(path, at) for path, data in files.items() for at in range(len(data.rstrip(b"\0")) + 16)]
    chosen = places if PROOF else rng.sample(places, count)
    for path, at in [*chosen, *telling_places(files)]:
        if at < len(files[path]):
            bit = rng.randrange(8)
            damaged = bytearray(files[path])
            damaged[at] ^= 1 << bit
            yield f"bit {bit} of byte {at} of {path}", files | {path: bytes(damaged)}


def telling_places(files: Files) -> Iterator[tuple[str, int]]:
    """Magic, version, number, predecessor, checksums, directories and trailers of every batch."""
    for path, data in files.items():
        for batch in find_batches(data):
            for at in (0, 4, 6, 8, 12, 16, 24, 32, 40, 48):
                yield path, batch.start + at
            yield path, batch.directory_at
            yield path, batch.bodies_at - 1
            yield path, batch.bodies_at
            yield path, batch.end - 1
            yield path, batch.end - 9
            yield path, batch.end - codec.TRAILER_BYTES


def examine(cases: Iterable[tuple[str, Files]], before: Past, boots: Iterable[str]) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for name, files in cases:
        for boot_id in boots:
            try:
                outcomes[judge(files, before, boot_id)] += 1
            except Exception as error:
                wrong.append(f"{name}, {boot_id}: {type(error).__name__}: {error}")
    assert not wrong, f"{len(wrong)} wrong of {outcomes.total() + len(wrong)}:\n" + "\n".join(wrong[:12])
    return outcomes


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_flipped_bit_is_never_served_and_never_a_silent_loss(end: str) -> None:
    before = past(end)
    cases = list(flips(before.files, Random(SEED), 300))
    # Half of them in the same boot and half after a power cut; the proof takes all of them both ways.
    same, other = (cases, cases) if PROOF else (cases[::2], cases[1::2])
    outcomes = examine(same, before, (SAME_BOOT,)) + examine(other, before, (OTHER_BOOT,))
    print(f"\nflipped bits, {end}, seed {SEED}: {dict(outcomes)}")
    assert outcomes.total() == len(same) + len(other) > 600
    assert outcomes["tombstone: corruption"] > 20
    assert outcomes["whole"] > 20
    assert outcomes["read-only"] > 20


@pytest.mark.timeout(600)
@pytest.mark.parametrize("end", ["closed", "idle", "killed"])
@pytest.mark.parametrize("fill", [b"\0", b"\xa5"])
def test_a_lost_sector_is_never_a_silent_loss(end: str, fill: bytes) -> None:
    before = past(end)
    # Zeros in place of the last batches are what a log looks like that never got them: only a closed log
    # says where it ends, and after a power cut the ceilings cover what may have been there.
    boots = (OTHER_BOOT,) if end != "closed" and fill == b"\0" else (SAME_BOOT, OTHER_BOOT)

    def cases() -> Iterator[tuple[str, Files]]:
        for path, data in before.files.items():
            for at in range(0, len(data), 512):
                if any(data[at : at + 512]):
                    damaged = data[:at] + fill * len(data[at : at + 512]) + data[at + 512 :]
                    yield f"sector at {at} of {path}", before.files | {path: damaged}

    outcomes = examine(cases(), before, boots)
    print(f"\nlost sectors, {end}: {dict(outcomes)}")
    assert outcomes.total() > 20


@pytest.mark.timeout(600)
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_file_that_was_cut_off_is_never_a_silent_loss(end: str) -> None:
    before = past(end)

    def cases() -> Iterator[tuple[str, Files]]:
        for path, data in before.files.items():
            ends = {batch.end for batch in find_batches(data)} | {batch.start for batch in find_batches(data)}
            # Nothing was written yet to a file that was made ahead.
            odd = Random(SEED).sample(range(1, len(data)), 20) if data else []
            for length in sorted({*ends, *odd}):
                # A file of no bytes, or of whole steps of zeros, is what a crash leaves of a new one.
                if length % OPTIONS.step_bytes and length < len(data):
                    yield f"{path} cut to {length}", before.files | {path: data[:length]}

    outcomes = examine(cases(), before, (SAME_BOOT, OTHER_BOOT))
    print(f"\ncut files, {end}: {dict(outcomes)}")
    assert outcomes.total() > 60


def test_a_damaged_batch_that_nothing_calls_durable_is_a_cut_tail_under_a_tombstone() -> None:
    before = past("killed")
    path = max(before.files)
    *_, last = find_batches(before.files[path])
    for at in range(last.bodies_at, last.bodies_at + 20):
        damaged = bytearray(before.files[path])
        damaged[at] ^= 4
        for boot_id in (SAME_BOOT, OTHER_BOOT):
            assert judge(before.files | {path: bytes(damaged)}, before, boot_id) == "tombstone: crash"


def test_a_batch_of_an_abandoned_session_never_comes_back() -> None:
    """A batch that a recovery had cut is put back intact beside the session that went on without it."""
    disk = SimDisk()
    shard = ShardHarness(disk, FakeClock(boot_id=SAME_BOOT), options=OPTIONS, deferred=True)
    shard.do(Op.PUT_TOPIC, "f", {"durability": "fsync"})
    shard.write("f", "kept")
    whole = contents(disk)
    shard.submit(Op.WRITE, "f", {"records": [{"data": "stale"}]})
    shard.commit()
    stale = contents(disk)
    ((path, _),) = stale.items()

    # The power is cut before the sync: the batch is not there, and its number is given to another one.
    after = ShardHarness(disk_of(whole), FakeClock(boot_id=OTHER_BOOT), options=OPTIONS)
    new_seq = after.write("f", "new").body["first_seq"]
    assert isinstance(after.disk, SimDisk)
    files = contents(after.disk)
    stale_end = len(stale[path].rstrip(b"\0"))
    for resurrected in (stale[path], stale[path][:stale_end], stale[path][: stale_end - 60]):
        again = ShardHarness(
            disk_of(files | {path: resurrected}), FakeClock(boot_id="boot-3"), options=OPTIONS
        )
        seen = {record["$seq"]: record["data"] for record in again.read("f")["records"]}
        tail = again.read("f", new_seq - 1)["records"]
        assert seen == {1: "kept"}
        assert [(record["$seq"], record["data"]) for record in tail] == [(new_seq, "new")]
        assert not again.loaded.problems


def test_a_stale_batch_does_not_come_back_when_the_session_after_it_is_damaged_at_its_start() -> None:
    """The first sector of the later session is lost, so nothing says where it went on from."""
    disk = SimDisk()
    shard = ShardHarness(disk, FakeClock(boot_id=SAME_BOOT), options=OPTIONS, deferred=True)
    shard.do(Op.PUT_TOPIC, "d", {})
    shard.write("d", "kept")
    whole = contents(disk)
    shard.submit(Op.WRITE, "d", {"records": [{"data": "stale"}]})
    shard.commit()
    stale = contents(disk)
    ((path, _),) = stale.items()
    end = len(whole[path].rstrip(b"\0"))
    torn = stale[path][: end + 120].ljust(len(stale[path]), b"\0")

    # A kill in the middle of the write: the seq was never seen, so the next record gets it.
    after = ShardHarness(disk_of({path: torn}), FakeClock(boot_id=SAME_BOOT), options=OPTIONS)
    assert not after.loaded.problems
    for at in range(12):
        reply = after.write("d", f"new{at}")
        assert reply.status == 200, reply
        assert reply.body["first_seq"] == 2 + at
    assert isinstance(after.disk, SimDisk)
    files = contents(after.disk)
    second = sorted(files)[1]
    for resurrected in (torn, stale[path]):
        for lost in range(512, 1025, 512):
            damaged = files | {path: resurrected, second: bytes(lost) + files[second][lost:]}
            again = ShardHarness(disk_of(damaged), FakeClock(boot_id=SAME_BOOT), options=OPTIONS)
            assert again.loaded.problems
            assert again.wal is None
            state = again.shard.registry.find("d")
            assert state is not None
            records = view_of(state).records
            assert "stale" not in "".join(records.values())
            assert all(f'"new{seq - 2}"' in text for seq, text in records.items() if seq > 1)
