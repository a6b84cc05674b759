"""The data directory has one owner and one layout, and a killed server leaves nothing in the way."""

import json
import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from topics.settings import SettingsError
from topics.supervisor import datadir
from topics.supervisor.datadir import StartRefused


def test_a_new_directory_is_private_and_gets_a_layout(tmp_path: Path) -> None:
    path = tmp_path / "a" / "data"
    with datadir.hold(path):
        layout = datadir.open_layout(path, 3)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert json.loads((path / "LAYOUT").read_bytes()) == {
        "format": 1,
        "shards": 3,
        "instance": layout.instance,
    }
    assert len(layout.instance) == 32
    assert sorted(os.listdir(path)) == ["LAYOUT", "LOCK"]


def test_the_layout_is_the_same_at_the_next_start(tmp_path: Path) -> None:
    first = datadir.open_layout(tmp_path, 3)
    assert datadir.open_layout(tmp_path, 3) == first


def test_a_second_server_on_the_directory_is_refused_by_name(tmp_path: Path) -> None:
    with datadir.hold(tmp_path):
        with pytest.raises(StartRefused) as caught, datadir.hold(tmp_path):
            pass
        assert str(caught.value) == f"another topics server (pid {os.getpid()}) uses {tmp_path}"
    with datadir.hold(tmp_path):
        pass


def test_a_directory_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartRefused, match="Not a directory"), datadir.hold(tmp_path / "file" / "data"):
        pass


def test_a_changed_shard_count_is_refused_with_both_numbers(tmp_path: Path) -> None:
    datadir.open_layout(tmp_path, 3)
    with pytest.raises(SettingsError, match=r"TOPICS_WAL_SHARDS is 4, .* was created with 3 shards"):
        datadir.open_layout(tmp_path, 4)


def test_without_a_wish_the_directory_decides_so_that_more_cores_do_not_lock_out_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(5))
    assert datadir.open_layout(tmp_path, None).shards == 5
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(7))
    assert datadir.open_layout(tmp_path, None).shards == 5


def test_a_new_directory_never_gets_more_than_eight_shards_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(96))
    assert datadir.open_layout(tmp_path, None).shards == 8


def test_a_newer_format_is_refused_politely(tmp_path: Path) -> None:
    (tmp_path / "LAYOUT").write_text('{"format": 2, "whatever": ["comes", "next"]}')
    with pytest.raises(StartRefused, match="has data format 2, and this release knows formats up to 1"):
        datadir.open_layout(tmp_path, None)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "7",
        "{}",
        '{"format": 1}',
        '{"format": "1", "shards": 2, "instance": "x"}',
        '{"format": 0, "shards": 2, "instance": "x"}',
        '{"format": 1, "shards": 0, "instance": "x"}',
        '{"format": 1, "shards": 65, "instance": "x"}',
    ],
)
def test_a_damaged_layout_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / "LAYOUT").write_text(content)
    with pytest.raises(StartRefused, match="is damaged"):
        datadir.open_layout(tmp_path, 2)
    assert (tmp_path / "LAYOUT").read_text() == content


def test_shards_without_a_layout_are_refused_because_their_number_is_a_guess(tmp_path: Path) -> None:
    (tmp_path / "shard-00").mkdir()
    with pytest.raises(StartRefused, match="no LAYOUT"):
        datadir.open_layout(tmp_path, 2)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datadir.replace_file(tmp_path / "RUN", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        datadir.replace_file(tmp_path / "RUN", b"new")
    assert (tmp_path / "RUN").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["RUN"]


def test_a_replaced_file_is_synced_before_its_rename_and_its_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noting_fsync(fd: int) -> None:
        calls.append("sync directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        fsync(fd)

    def noting_rename(old: Path, new: Path) -> None:
        calls.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "rename", noting_rename)
    datadir.replace_file(tmp_path / "LAYOUT", b"content")
    assert calls == ["sync file", "rename", "sync directory"]


def test_the_socket_directory_is_private_recorded_and_removed(tmp_path: Path) -> None:
    with datadir.runtime(tmp_path, host="127.0.0.1", port=4000) as sockets:
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        assert json.loads((tmp_path / "RUN").read_bytes()) == {
            "pid": os.getpid(),
            "sockets": str(sockets),
            "host": "127.0.0.1",
            "port": 4000,
        }
        bind_socket(sockets / "shard-00.sock")
    assert not sockets.exists()
    assert not (tmp_path / "RUN").exists()


def test_the_socket_directory_of_a_killed_server_is_removed_at_the_next_start(tmp_path: Path) -> None:
    killed = Path(tempfile.mkdtemp(prefix="topics-"))
    bind_socket(killed / "shard-00.sock")
    run = {"pid": 1, "sockets": str(killed), "host": "127.0.0.1", "port": 4000}
    (tmp_path / "RUN").write_text(json.dumps(run))
    with datadir.runtime(tmp_path, host="127.0.0.1", port=4000):
        assert not killed.exists()


@pytest.mark.parametrize("name", ["home", "topics-home"])
def test_a_wrong_record_never_makes_us_remove_what_is_not_ours(tmp_path: Path, name: str) -> None:
    precious = tmp_path / name / "thesis.txt"
    precious.parent.mkdir()
    precious.touch()
    run = {"pid": 1, "sockets": str(precious.parent), "host": "127.0.0.1", "port": 4000}
    (tmp_path / "RUN").write_text(json.dumps(run))
    with datadir.runtime(tmp_path, host="127.0.0.1", port=4000):
        assert precious.exists()


@pytest.mark.parametrize("content", ["", "{}", "[1"])
def test_a_damaged_record_does_not_stop_a_start(tmp_path: Path, content: str) -> None:
    (tmp_path / "RUN").write_text(content)
    with datadir.runtime(tmp_path, host="127.0.0.1", port=4000) as sockets:
        assert sockets.exists()


def test_a_socket_path_fits_even_when_the_temporary_directory_is_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with datadir.runtime(tmp_path, host="127.0.0.1", port=4000) as sockets:
        bind_socket(sockets / "shard-63.sock")
    assert os.listdir(deep) == []


def bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
