"""A server that must not start says why in one sentence and ends, before anything listens or is written."""

from pathlib import Path

import pytest

from tests.crash.conftest import Start
from tests.crash.processes import start as start_process


def refuse(tmp_path: Path, **environ: str) -> tuple[int, str]:
    """The exit code and the sentence of a server that does not start."""
    port_file = tmp_path / "refused.port"
    process = start_process(
        {
            "TOPICS_DATA_DIR": str(tmp_path / "data"),
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(port_file),
            **environ,
        }
    )
    with process:
        try:
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert not port_file.exists()
    assert "Traceback" not in said
    (sentence,) = [line for line in said.splitlines() if line.startswith("topics: ")]
    return process.returncode, sentence


@pytest.mark.parametrize("value", ["http", "65536", "-1", "", "4000 ", "4_000", "٤٠٠٠"])
def test_malformed_port_is_refused(tmp_path: Path, value: str) -> None:
    code, sentence = refuse(tmp_path, TOPICS_PORT=value)
    assert code == 2
    assert f"TOPICS_PORT is {value!r}" in sentence
    assert "from 0 to 65535" in sentence
    assert not (tmp_path / "data").exists()


def test_changed_shard_count_is_refused_and_the_data_stays_usable(start: Start, tmp_path: Path) -> None:
    with start() as server:
        server.wait_ready()
        assert server.ask("POST", "/v0/topics/kept", {"records": [{"data": "here"}]}).status == 201
        assert server.stop() == 0
    code, sentence = refuse(tmp_path, TOPICS_WAL_SHARDS="3")
    assert code == 2
    assert "TOPICS_WAL_SHARDS is 3" in sentence
    assert "2 shards" in sentence
    assert str(tmp_path / "data") in sentence
    with start() as server:
        server.wait_ready()
        read = server.ask("POST", "/v0/topics/kept/diff", {})
        assert [record["data"] for record in read.body["records"]] == ["here"]
        assert server.stop() == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_public_address_without_keys_is_refused(tmp_path: Path, host: str) -> None:
    code, sentence = refuse(tmp_path, TOPICS_HOST=host)
    assert code == 2
    assert f"TOPICS_HOST is {host!r}" in sentence
    assert "TOPICS_ALLOW_INSECURE_NO_AUTH" in sentence
    assert not (tmp_path / "data").exists()


def test_public_address_is_served_when_the_operator_insists(start: Start) -> None:
    with start(TOPICS_HOST="0.0.0.0", TOPICS_ALLOW_INSECURE_NO_AUTH="1") as server:
        warning = server.wait_event("auth.disabled")
        assert "INSECURE" in warning["note"]
        server.wait_event("child.started", child="gateway")
        assert server.stop() == 0


def test_unknown_name_is_a_warning_with_the_nearest_known_one(start: Start) -> None:
    with start(TOPICS_WALL_SHARDS="7", TOPICS_FOO="1", TOPICS_URL="http://elsewhere") as server:
        server.wait_ready()
        notes = {
            line["variable"]: line["note"] for line in server.lines if line["event"] == "settings.unknown"
        }
        assert notes.keys() == {"TOPICS_WALL_SHARDS", "TOPICS_FOO"}
        assert "did you mean TOPICS_WAL_SHARDS?" in notes["TOPICS_WALL_SHARDS"]
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOPICS_API_KEYS", "s3cr3t:read+everything"),
        ("TOPICS_API_KEYS", "s3cr3t:+"),
        ("TOPICS_API_KEYS", "s3cr3t,,"),
        ("TOPICS_API_KEYS", ""),
        ("TOPICS_API_KEYS_FILE", "/nowhere/s3cr3t"),
    ],
)
def test_malformed_keys_are_refused_and_not_printed(tmp_path: Path, name: str, value: str) -> None:
    code, sentence = refuse(tmp_path, **{name: value})
    assert code == 2
    assert name in sentence
    assert "s3cr3t" not in sentence
    assert not (tmp_path / "data").exists()
