"""`topics inspect`: what is in the files, by file and by offset, harmless to any terminal."""

import json
from pathlib import Path
from typing import Any

import pytest

from shards.look.__main__ import main
from shards.look.text import shown, size_text
from shards.store.page import decode_head
from shards.wal.recovery import find_batches
from tests.fakes.look_dir import SHARD, fill, new_dir, read_tree, write_tree
from topics.protocol.messages import Op

FIRST_LOG = f"{SHARD}/wal/00000001.wal"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    root = tmp_path_factory.mktemp("inspect") / "data"
    fill(root)
    return root


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """One session: a topic, three writes, a delete."""
    shard = new_dir(tmp_path / "data")
    shard.do(Op.PUT_TOPIC, "jobs", {"durability": "fsync"})
    records = [{"data": f"\x1b[31m{n}", "tag": "a", "node": "n"} for n in range(2)]
    shard.do(Op.WRITE, "jobs", {"records": records, "idempotency_key": "k"})
    shard.write("jobs", "z" * 5000)
    shard.do(Op.DELETE_RECORDS, "jobs", {"before_seq": 2})
    shard.close()
    return tmp_path / "data"


def objects(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_file_is_shown_with_its_size(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", str(root)]) == 0
    found = objects(capsys)
    sizes = {f"{one['shard']}/{one['file']}": one["bytes"] for one in found if one["kind"] in FILES}
    assert sizes == {path: len(data) for path, data in read_tree(root).items() if path.startswith(SHARD)}


FILES = ("log_file", "segment", "snapshot")


def test_every_record_is_counted_once_in_log_and_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = new_dir(tmp_path / "data")
    shard.do(Op.WRITE, "t", {"records": [{"data": n, "tag": "x"} for n in range(10)]})
    shard.do(Op.DELETE_RECORDS, "t", {"before_seq": 4})
    shard.checkpoint()
    shard.close()
    assert main(["inspect", "--json", str(tmp_path / "data")]) == 0
    found = objects(capsys)
    (page,) = [one for one in found if one["kind"] == "page"]
    assert (page["first_seq"], page["last_seq"], page["records"], page["live"]) == (1, 10, 10, 7)
    assert page["tagged"] == 10
    (log,) = [one for one in found if one["kind"] == "log_file"]
    assert (log["frames"]["APPEND"], log["frames"]["DELETE"]) == (1, 1)
    assert (log["first_batch"], log["last_batch"], log["sessions"]) == (1, log["batches"], [1])
    (snap,) = [one for one in found if one["kind"] == "snapshot"]
    assert (snap["valid"], snap["topics"], snap["pages"]) == (True, 1, 1)


def test_plain_text_names_every_file_and_page(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(root)]) == 0
    text = capsys.readouterr().out
    for path in read_tree(root):
        if path.startswith(SHARD):
            assert Path(path).name in text
    assert "frames: " in text
    assert "valid" in text


def test_a_damaged_snapshot_and_a_damaged_page_are_shown_as_such(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = read_tree(root)
    snap = max(path for path in tree if path.endswith(".snap"))
    files = [path for path in tree if path.endswith(".seg")]
    seg = next(path for path in files if 24 + decode_head(tree[path][24:]).length < len(tree[path]))
    bad = bytearray(tree[seg])
    bad[24 + 10] ^= 1
    copy = write_tree(tmp_path / "data", tree | {snap: tree[snap][:-1], seg: bytes(bad)})
    assert main(["inspect", str(copy)]) == 0
    text = capsys.readouterr().out
    assert "not valid: its checksum does not fit" in text
    assert "the header does not match its checksum" in text
    assert main(["inspect", "--json", str(copy)]) == 0
    found = objects(capsys)
    assert [one["valid"] for one in found if one["kind"] == "snapshot"] == [True, False]
    behind = [one for one in found if one["kind"] == "page" and seg.endswith(one["file"])]
    assert behind, "the pages behind the damaged one are found by the snapshot"


def test_the_batches_of_a_log_file_are_listed_with_their_offsets(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = list(find_batches((small / FIRST_LOG).read_bytes()))
    assert main(["inspect", "--json", "--wal", FIRST_LOG, str(small)]) == 0
    assert [(one["offset"], one["batch"]) for one in objects(capsys)] == [
        (b.start, b.number) for b in expected
    ]
    assert main(["inspect", "--wal", FIRST_LOG, str(small)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(expected) + 1


def test_an_offset_shows_its_batch_and_its_frame(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for batch in find_batches((small / FIRST_LOG).read_bytes()):
        for offset in (batch.start, batch.bodies_at, batch.end - 1):
            where = ["--wal", FIRST_LOG, "--offset", str(offset), str(small)]
            assert main(["inspect", "--json", *where]) == 0
            (found,) = objects(capsys)
            assert (found["batch"], found["offset"], found["state"]) == (batch.number, batch.start, "intact")
            assert len(found["directory"]) == batch.frames
            at = found["frame_at_offset"]
            if offset == batch.bodies_at and found["directory"][0]["bytes"]:
                assert at == 0
            elif offset != batch.bodies_at:
                assert at is None
            assert main(["inspect", *where]) == 0
            assert f"batch {batch.number}\n" in capsys.readouterr().out


def test_payloads_are_escaped_and_cut(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = ""
    for batch in find_batches((small / FIRST_LOG).read_bytes()):
        main(["inspect", "--wal", FIRST_LOG, "--offset", str(batch.start), str(small)])
        seen += capsys.readouterr().out
    assert "\x1b" not in seen
    assert "jobs" in seen
    assert "zzz… (50" in seen
    assert max(map(len, seen.splitlines())) < 250
    assert all(kind in seen for kind in ("OPEN", "CREATE", "APPEND", "DELETE", "CLOSE"))


def test_text_of_all_sorts_cannot_harm_a_terminal() -> None:
    assert shown("\u202e\x07\x9b\n") == "\\u202e\\x07\\x9b\\n"
    assert shown(b"\xff\xfe") == "\\xff\\xfe"
    assert shown("é" * 3) == "ééé"
    assert [size_text(1023), size_text(1536), size_text(5 << 30)] == ["1023 B", "1.5 KiB", "5.0 GiB"]


def test_an_offset_without_a_batch_says_what_is_there(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = new_dir(tmp_path / "data")
    shard.write("t", 1)
    assert main(["inspect", "--wal", FIRST_LOG, "--offset", "900000", str(tmp_path / "data")]) == 1
    assert "preallocated zeros" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--offset", "3"], "--offset needs --wal"),
        (["--wal", "shard-00/wal/77.wal"], "no such file"),
        (["--wal", FIRST_LOG, "--offset", "-1"], "is outside of"),
        (["--wal", FIRST_LOG, "--offset", "999999999"], "is outside of"),
    ],
)
def test_wrong_arguments_get_a_clear_answer(
    arguments: list[str], said: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(small), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_an_offset_that_is_no_number_is_wrong_usage(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(small), "--wal", FIRST_LOG, "--offset", "three"])
    assert ended.value.code == 2
    assert "invalid int value: 'three'" in capsys.readouterr().err
