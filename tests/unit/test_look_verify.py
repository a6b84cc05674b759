"""`topics verify`: damage is a problem of its file, what a crash leaves is a note, nothing is written."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import cbor2
import pytest

from shards.look.__main__ import main
from shards.look.report import Progress
from shards.store import page as pages
from shards.store.snapshot import decode, encode
from shards.wal import batch as batches
from shards.wal.recovery import find_batches
from tests.fakes.look_dir import (
    LAYOUT,
    SHARD,
    Tree,
    fill,
    flags_of,
    flips,
    mtimes,
    new_dir,
    read_tree,
    write_tree,
    write_turn,
)
from topics.protocol.messages import Op

PROOF = os.environ.get("TOPICS_PROOF") == "1"
SEED = int(os.environ.get("TOPICS_SEED", "7"))
Verify = Callable[[Path], tuple[int, list[str]]]


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    def run(root: Path) -> tuple[int, list[str]]:
        code = main(["verify", str(root)])
        return code, capsys.readouterr().out.splitlines()

    return run


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose server has ended in order. Not to be changed."""
    root = tmp_path_factory.mktemp("closed") / "data"
    fill(root)
    return root


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose server has simply stopped. Not to be changed."""
    root = tmp_path_factory.mktemp("killed") / "data"
    fill(root, close=False)
    return root


def of_kind(lines: list[str], kind: str) -> list[str]:
    return [line for line in lines if line.startswith(kind)]


def paths(tree: Tree, kind: str) -> list[str]:
    return sorted(path for path in tree if f"/{kind}/" in path)


def test_a_directory_that_was_closed_has_no_problems_and_no_notes(closed: Path, verify: Verify) -> None:
    code, lines = verify(closed)
    assert (code, lines[-1]) == (0, "0 problems, 0 notes")
    assert lines[0].startswith("shard-00: ")


def test_a_directory_after_a_kill_has_no_problems(killed: Path, verify: Verify) -> None:
    code, lines = verify(killed)
    assert (code, of_kind(lines, "problem")) == (0, [])


def test_a_new_directory_has_no_problems(tmp_path: Path, verify: Verify) -> None:
    new_dir(tmp_path / "data").close()
    assert verify(tmp_path / "data")[0] == 0


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["wal", "segments", "snap"])
def test_a_flipped_bit_is_a_problem_of_its_file(
    kind: str, closed: Path, tmp_path: Path, verify: Verify
) -> None:
    tree = read_tree(closed)
    root = write_tree(tmp_path / "data", tree)
    unchecked, rng = flags_of(closed), Random(SEED)
    looked = 0
    for path, at, damaged in flips(tree, kind, rng, 1000 if PROOF else 40):
        if (path, at) in unchecked:
            continue
        (root / path).write_bytes(damaged)
        code, lines = verify(root)
        named = [line for line in of_kind(lines, "problem") if f" {path}" in line]
        assert code == 1, f"byte {at} of {path} (seed {SEED}): {lines}"
        assert named, f"byte {at} of {path} (seed {SEED}): {lines}"
        (root / path).write_bytes(tree[path])
        looked += 1
    assert looked >= 50


def test_a_flipped_bit_of_a_durable_batch_is_a_problem_also_after_a_kill(
    killed: Path, tmp_path: Path, verify: Verify
) -> None:
    tree = read_tree(killed)
    path = paths(tree, "wal")[-1]
    found = batches.decode(tree[path], 0)
    assert found is not None
    for at in (0, 30, found.bodies_at, found.end - 1):
        damaged = bytearray(tree[path])
        damaged[at] ^= 4
        code, lines = verify(write_tree(tmp_path / "data", tree | {path: bytes(damaged)}))
        assert code == 1, (at, lines)


def last_batch_at(data: bytes) -> tuple[int, int]:
    at, start = 0, 0
    while (found := batches.decode(data, at)) is not None:
        start, at = at, found.end
    return start, at


def test_no_byte_of_the_last_batch_is_excused_when_the_log_was_closed(
    closed: Path, tmp_path: Path, verify: Verify
) -> None:
    tree = read_tree(closed)
    path = paths(tree, "wal")[-1]
    start, end = last_batch_at(tree[path])
    root = write_tree(tmp_path / "data", tree)
    for at in range(start, end):
        damaged = bytearray(tree[path])
        damaged[at] ^= 1
        (root / path).write_bytes(damaged)
        code, lines = verify(root)
        assert code == 1, (at - start, lines)
        assert of_kind(lines, f"problem  {path}"), (at - start, lines)


def test_every_damaged_part_of_a_page_is_named_with_its_offset(
    closed: Path, tmp_path: Path, verify: Verify
) -> None:
    tree = read_tree(closed)
    path = paths(tree, "segments")[0]
    at, head = 24, pages.decode_head(tree[path][24:])
    damaged = bytearray(tree[path])
    for place in (head.columns_at, head.data_at):
        damaged[at + place + 1] ^= 1
    code, lines = verify(write_tree(tmp_path / "data", tree | {path: bytes(damaged)}))
    assert code == 1
    assert "the columns do not" in "".join(of_kind(lines, f"problem  {path} at {at + head.columns_at}:"))
    assert "data block 0" in "".join(of_kind(lines, f"problem  {path} at {at + head.data_at}:"))


def test_a_torn_tail_is_a_note(killed: Path, tmp_path: Path, verify: Verify) -> None:
    tree = read_tree(killed)
    path = paths(tree, "wal")[-1]
    start, _ = last_batch_at(tree[path])
    for kept in (3, 60, 110):
        torn = tree[path][: start + kept].ljust(len(tree[path]), b"\0")
        code, lines = verify(write_tree(tmp_path / "data", tree | {path: torn}))
        assert (code, of_kind(lines, "problem")) == (0, [])
        assert f"note     {path} at {start}: torn tail: " in "\n".join(lines)


def test_damage_in_a_batch_that_was_never_called_durable_is_a_note(
    killed: Path, tmp_path: Path, verify: Verify
) -> None:
    tree = read_tree(killed)
    path = paths(tree, "wal")[-1]
    start, _ = last_batch_at(tree[path])
    damaged = bytearray(tree[path])
    damaged[start + 110] ^= 1
    code, lines = verify(write_tree(tmp_path / "data", tree | {path: bytes(damaged)}))
    assert code == 0
    assert of_kind(lines, f"note     {path} at {start}: damaged tail")


@pytest.mark.parametrize("missing", [5, 20, 100, 180])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_write_that_was_interrupted_is_a_note_before_and_after_the_next_start(
    restarted: bool, missing: int, tmp_path: Path, verify: Verify
) -> None:
    root = tmp_path / "data"
    shard = fill(root, close=False)
    tree = read_tree(root)
    path = paths(tree, "wal")[-1]
    _, end = last_batch_at(tree[path])
    (root / path).write_bytes(tree[path][: end - missing].ljust(len(tree[path]), b"\0"))
    if restarted:
        shard.reopen().close()
    code, lines = verify(root)
    assert (code, of_kind(lines, "problem")) == (0, [])
    assert of_kind(lines, f"note     {path} at ")


def test_batches_that_a_later_session_has_replaced_are_a_note(tmp_path: Path, verify: Verify) -> None:
    """A power cut took a batch and left those behind it."""
    root = tmp_path / "data"
    shard = new_dir(root, deferred=True)
    shard.write("f", "first")
    for _ in range(3):
        shard.submit(Op.WRITE, "f", {"records": [{"data": "x" * 50}]})
        shard.commit()
    tree = read_tree(root)
    path = paths(tree, "wal")[-1]
    found = list(find_batches(tree[path]))
    lost = found[-2]
    assert lost.number > max(batch.durable for batch in found)
    holed = tree[path][: lost.start] + bytes(lost.end - lost.start) + tree[path][lost.end :]
    (root / path).write_bytes(holed)
    for note in ("damaged tail", "cut by a later session"):
        code, lines = verify(root)
        assert (code, of_kind(lines, "problem")) == (0, [])
        assert note in "\n".join(of_kind(lines, f"note     {path} at "))
        if note == "damaged tail":
            shard.reopen().close()


def test_a_log_that_was_cut_off_is_a_problem(
    closed: Path, killed: Path, tmp_path: Path, verify: Verify
) -> None:
    for source in (closed, killed):
        tree = read_tree(source)
        path = paths(tree, "wal")[-1]
        _, end = last_batch_at(tree[path])
        code, lines = verify(write_tree(tmp_path / source.parent.name, tree | {path: tree[path][: end - 1]}))
        assert code == 1
        assert "cut off" in "\n".join(of_kind(lines, f"problem  {path}"))


@pytest.mark.parametrize("position", [0, -1])
def test_a_missing_log_file_is_a_problem(position: int, tmp_path: Path, verify: Verify) -> None:
    root = tmp_path / "data"
    shard = new_dir(root)
    for turn in range(3):
        write_turn(shard, turn)
        if turn == 1:
            shard.checkpoint()
        shard.close()
        shard = shard.reopen()
    shard.checkpoint()
    shard.close()
    (root / paths(read_tree(root), "wal")[position]).unlink()
    code, lines = verify(root)
    assert code == 1
    assert of_kind(lines, f"problem  {SHARD}/wal")


def test_a_missing_log_file_in_the_middle_is_a_problem(tmp_path: Path, verify: Verify) -> None:
    root = tmp_path / "data"
    shard = new_dir(root)
    for turn in range(3):
        write_turn(shard, turn)
        shard.close()
        shard = shard.reopen()
    shard.close()
    logs = paths(read_tree(root), "wal")
    assert verify(root)[0] == 0
    (root / logs[1]).unlink()
    code, lines = verify(root)
    assert code == 1
    assert "missing before it" in "\n".join(of_kind(lines, f"problem  {logs[2]} at 0"))


def test_a_missing_segment_is_a_problem(closed: Path, tmp_path: Path, verify: Verify) -> None:
    tree = read_tree(closed)
    for path in paths(tree, "segments"):
        root = tmp_path / Path(path).stem
        code, lines = verify(write_tree(root, {name: tree[name] for name in tree if name != path}))
        assert code == 1
        assert of_kind(lines, f"problem  {path}: missing")


def test_a_segment_in_the_place_of_another_is_a_problem(closed: Path, tmp_path: Path, verify: Verify) -> None:
    tree = read_tree(closed)
    first, _, second = paths(tree, "segments")[:3]
    code, lines = verify(write_tree(tmp_path / "data", tree | {first: tree[second]}))
    assert code == 1
    assert of_kind(lines, f"problem  {first} at 0: not the header")
    assert any("here are topic" in line for line in lines)


def test_a_truncated_segment_is_a_problem(closed: Path, tmp_path: Path, verify: Verify) -> None:
    tree = read_tree(closed)
    path = paths(tree, "segments")[0]
    for length in (0, 10, 24, 200, len(tree[path]) - 1):
        code, lines = verify(write_tree(tmp_path / "data", tree | {path: tree[path][:length]}))
        assert code == 1
        assert of_kind(lines, f"problem  {path}")


def test_a_truncated_snapshot_is_a_problem(closed: Path, tmp_path: Path, verify: Verify) -> None:
    tree = read_tree(closed)
    for path in paths(tree, "snap"):
        for length in (0, 20, len(tree[path]) - 1):
            root = tmp_path / f"{Path(path).stem}-{length}"
            code, lines = verify(write_tree(root, tree | {path: tree[path][:length]}))
            assert code == 1
            assert of_kind(lines, f"problem  {path} at 0: not a snapshot")


def test_deleted_records_that_are_back_are_a_problem(closed: Path, tmp_path: Path, verify: Verify) -> None:
    tree = read_tree(closed)
    deleted = [(path, at) for path, at in flags_of(closed) if tree[path][at] == pages.DELETED]
    assert deleted
    for path, at in deleted[:5]:
        back = bytearray(tree[path])
        back[at] = 0
        code, lines = verify(write_tree(tmp_path / f"{Path(path).stem}-{at}", tree | {path: bytes(back)}))
        assert code == 1
        assert "deleted ones are back" in "\n".join(of_kind(lines, f"problem  {path}"))


def test_flags_that_know_more_deletes_than_the_snapshot_are_a_note(
    closed: Path, tmp_path: Path, verify: Verify
) -> None:
    tree = read_tree(closed)
    path, at = max((path, at) for path, at in flags_of(closed) if not tree[path][at])
    ahead = bytearray(tree[path])
    ahead[at] = pages.DELETED
    code, lines = verify(write_tree(tmp_path / "data", tree | {path: bytes(ahead)}))
    assert (code, of_kind(lines, "problem")) == (0, [])
    assert "later deletes" in "\n".join(of_kind(lines, "note"))


@pytest.mark.parametrize(
    ("position", "change", "said"),
    [
        (6, 1, "later deletes"),  # the count
        (7, 1, "live records"),  # the bytes
        (4, -30, "head"),
        (3, 1000, "outside of the snapshot's range"),
    ],
)
def test_a_snapshot_that_contradicts_its_pages_is_not_clean(
    position: int, change: int, said: str, closed: Path, tmp_path: Path, verify: Verify
) -> None:
    """Its checksum is right, so only a look at both finds it."""
    tree = read_tree(closed)
    path = paths(tree, "snap")[-1]
    found = decode(4, tree[path])
    found.entries[0][position] += change
    changed = b"".join(encode(found.head, [cbor2.dumps(entry) for entry in found.entries]))
    _, lines = verify(write_tree(tmp_path / "data", tree | {path: changed}))
    assert said in "\n".join(line for line in lines if path in line)


def test_pages_of_a_topic_that_overlap_are_a_problem(closed: Path, tmp_path: Path, verify: Verify) -> None:
    tree = read_tree(closed)
    path = paths(tree, "snap")[-1]
    found = decode(4, tree[path])
    found.entries[0][19].append(found.entries[0][19][0])
    changed = b"".join(encode(found.head, [cbor2.dumps(entry) for entry in found.entries]))
    code, lines = verify(write_tree(tmp_path / "data", tree | {path: changed}))
    assert code == 1
    assert "two pages overlap" in "\n".join(of_kind(lines, f"problem  {path}"))


def test_leftovers_of_a_checkpoint_are_notes(closed: Path, tmp_path: Path, verify: Verify) -> None:
    tree = read_tree(closed)
    left = {f"{SHARD}/segments/00000099.seg": b"half a fi", f"{SHARD}/snap/00000099.tmp": b"half"}
    code, lines = verify(write_tree(tmp_path / "data", tree | left))
    assert (code, of_kind(lines, "problem")) == (0, [])
    for path in left:
        assert of_kind(lines, f"note     {path}: ")


def test_a_log_file_that_was_prepared_and_never_used_is_a_note(
    killed: Path, tmp_path: Path, verify: Verify
) -> None:
    prepared = {f"{SHARD}/wal/00000099.wal": bytes(1024 * 1024)}
    code, lines = verify(write_tree(tmp_path / "data", read_tree(killed) | prepared))
    assert code == 0
    assert of_kind(lines, f"note     {SHARD}/wal/00000099.wal: prepared")


def test_nothing_is_written(killed: Path, tmp_path: Path, verify: Verify) -> None:
    root = write_tree(tmp_path / "data", read_tree(killed))
    before, times = read_tree(root), mtimes(root)
    for path in root.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    verify(root)
    main(["inspect", str(root)])
    assert read_tree(root) == before
    assert mtimes(root) == times


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (LAYOUT.replace('"shards":1', '"shards":2'), "shard-01: missing"),
        (LAYOUT.replace('"shards":1', '"shards":0'), "LAYOUT: damaged"),
        (LAYOUT[:20], "LAYOUT: damaged"),
        (None, "LAYOUT: missing"),
    ],
)
def test_a_wrong_layout_is_a_problem(
    layout: str | None, said: str, closed: Path, tmp_path: Path, verify: Verify
) -> None:
    tree = read_tree(closed)
    del tree["LAYOUT"]
    if layout is not None:
        tree["LAYOUT"] = layout.encode()
    code, lines = verify(write_tree(tmp_path / "data", tree))
    assert code == 1
    assert of_kind(lines, f"problem  {said}")


def test_a_format_of_another_release_is_not_judged(
    closed: Path, tmp_path: Path, verify: Verify, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = read_tree(closed)
    future = {"LAYOUT": LAYOUT.replace('"format":1', '"format":2').encode()}
    assert verify(write_tree(tmp_path / "layout", tree | future))[0] == 2
    golden = Path(__file__).parents[1] / "golden" / "wal-v2-from-the-future.hex"
    log = bytes.fromhex("".join(golden.read_text().split()))
    code, lines = verify(
        write_tree(tmp_path / "log", {"LAYOUT": LAYOUT.encode(), f"{SHARD}/wal/00000001.wal": log})
    )
    assert code == 2
    assert of_kind(lines, "unknown  shard-00/wal: the log has format version 2")


def test_what_is_no_data_directory_cannot_be_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for name, said in (("none", "does not exist"), ("file", "Not a directory"), ("", "no data directory")):
        for command in ("verify", "inspect"):
            assert main([command, str(tmp_path / name)]) == 2
            assert said in capsys.readouterr().err


def test_findings_are_one_json_object_per_line(
    closed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = read_tree(closed)
    path = paths(tree, "snap")[0]
    assert main(["verify", "--json", str(write_tree(tmp_path / "data", tree | {path: b""}))]) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found[0] | {"text": ""} == {"kind": "problem", "file": path, "offset": 0, "text": ""}
    assert found[-1]["problems"] == sum(line["kind"] == "problem" for line in found)


def test_progress_is_shown_on_a_terminal_and_nowhere_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Progress(2048)
    progress.add(1024)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Progress(2048)
    progress.add(1024)
    assert "1.0 KiB of 2.0 KiB" in capsys.readouterr().err
    progress.clear()
    assert capsys.readouterr().err == "\r\x1b[K"
