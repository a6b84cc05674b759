"""A data directory on a real disk, as a server would leave it, for tools that look into one."""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

from shards.disk import RealDisk
from shards.look.files import Shard, find_pages, segment_numbers
from shards.store.segments import path_of
from shards.wal.writer import MIB, WalOptions
from tests.fakes.shard_harness import FakeClock, ShardHarness
from topics.protocol.messages import Op

# Preallocation in whole MiB, as every server does it.
OPTIONS = WalOptions(file_bytes=MIB, step_bytes=MIB)
SHARD = "shard-00"
LAYOUT = '{"format":1,"shards":1,"instance":"0123456789abcdef0123456789abcdef"}\n'
Tree = dict[str, bytes]


def new_dir(root: Path, *, deferred: bool = False) -> ShardHarness:
    """An empty data directory of one shard, and the first session on it."""
    (root / SHARD).mkdir(parents=True)
    (root / "LAYOUT").write_text(LAYOUT)
    (root / "LOCK").write_text("1\n")
    return ShardHarness(RealDisk(root / SHARD), FakeClock(), options=OPTIONS, deferred=deferred)


def write_turn(shard: ShardHarness, turn: int) -> None:
    """Records of every form, some of them deleted again."""
    for at in range(3):
        shard.write("f", f"f{turn}-{at}" + "x" * 60, node="n")
        tagged = [{"data": f"d{turn}-{n}", "tag": f"t{n}", "meta": {"m": n}} for n in range(2)]
        shard.do(Op.WRITE, "d", {"records": tagged})
        shard.write("large", "y" * 50_000)
    if turn == 1:
        shard.do(Op.DELETE_RECORDS, "f", {"before_seq": 3})
        shard.do(Op.DELETE_RECORDS, "d", {"match": "t1"})


def fill(root: Path, *, close: bool = True) -> ShardHarness:
    """Two sessions with checkpoints in both, and a log that goes on behind the last one."""
    shard = new_dir(root)
    shard.do(Op.PUT_TOPIC, "f", {"durability": "fsync"})
    for turn in range(4):
        write_turn(shard, turn)
        shard.checkpoint()
        if turn == 2:
            shard.close()
            shard = shard.reopen()
    shard.do(Op.DELETE_RECORDS, "d", {"match": "t0", "before_seq": 6})
    for at in range(4):
        shard.write("f", f"tail {at}")
    if close:
        shard.close()
    return shard


def read_tree(root: Path) -> Tree:
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def write_tree(root: Path, tree: Tree) -> Path:
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def mtimes(root: Path) -> dict[str, int]:
    return {str(path): os.stat(path).st_mtime_ns for path in (root, *root.rglob("*"))}


def flags_of(root: Path) -> set[tuple[str, int]]:
    """The places of delete flags, which no checksum covers."""
    shard = Shard.of(root, SHARD)
    found: set[tuple[str, int]] = set()
    for number in segment_numbers(shard):
        with shard.opened(path_of(number)) as file:
            for page in find_pages(file, ()):
                assert page.head is not None
                first = page.offset + page.head.flags_at
                found.update((f"{SHARD}/{path_of(number)}", first + at) for at in range(page.head.count))
    return found


def flips(tree: Tree, kind: str, rng: Random, per_file: int) -> Iterator[tuple[str, int, bytes]]:
    """Path, place, and the file with one flipped bit there; `per_file` places of each."""
    for path, content in tree.items():
        if f"/{kind}/" not in path:
            continue
        places = range(len(content))
        for at in rng.sample(places, min(per_file, len(places))):
            damaged = bytearray(content)
            damaged[at] ^= 1 << rng.randrange(8)
            yield path, at, bytes(damaged)
