"""The real `topics verify` and `topics inspect`, on the directory of a real server, running and stopped."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import PROJECT_ROOT, Server

SETTINGS = {"TOPICS_CHECKPOINT_BYTES": "1MiB", "TOPICS_WAL_FILE_BYTES": "1MiB", "TOPICS_WAL_SHARDS": "2"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, SETTINGS)
    server.start()
    yield server
    server.end()


def topics(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topics", *map(str, arguments)],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_directory_of_a_server_is_clean_while_it_runs_and_after_it(
    server: Server, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for n in range(40):
        body = {"records": [{"data": "x" * 1000, "tag": f"t{m}"} for m in range(100)]}
        assert server.post(f"/v0/topics/topic-{n % 4}", body).status in (200, 201)
        if n in (20, 39):
            running = topics("verify", data)
            assert running.returncode == 0, running.stdout + running.stderr
            assert "a server (pid" in running.stdout
            assert "is running: the files may change" in running.stdout
            assert running.stderr == ""
    shown = topics("inspect", data)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "is running on it" in shown.stdout
    assert server.stop() == 0
    stopped = topics("verify", data)
    assert stopped.returncode == 0, stopped.stdout
    assert stopped.stdout.endswith("0 problems, 0 notes\n")
    lines = topics("inspect", "--json", data).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert {"data_dir", "log_file", "segment", "page", "snapshot"} <= {one["kind"] for one in found}


def test_the_commands_explain_themselves() -> None:
    for command, option in (("verify", "--json"), ("inspect", "--offset")):
        told = topics(command, "--help")
        assert (told.returncode, told.stderr) == (0, "")
        assert f"usage: topics {command}" in told.stdout
        assert option in told.stdout


def test_wrong_usage_ends_with_two() -> None:
    assert topics("verify").returncode == 2
    missing = topics("verify", "/nowhere/at/all")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr == "topics: /nowhere/at/all does not exist\n"
