"""The supervisor may be killed too: its children die with it, and the next start has everything.

A data directory has one server at a time, and what a killed one left behind is cleaned up.
"""

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.conftest import Start
from tests.crash.ledger import topic_on
from tests.crash.processes import CHILDREN, SHARDS, ProcessId, Server, wait_gone
from tests.crash.processes import start as start_process
from tests.crash.workload import Workload

GONE_S = 5.0


def run_file(server: Server) -> dict[str, object]:
    content: dict[str, object] = json.loads((server.data_dir / "RUN").read_bytes())
    return content


def children_of(server: Server) -> dict[str, ProcessId]:
    return {child: server.process_of(child) for child in CHILDREN}


def test_killed_supervisor_takes_its_children_along_and_the_next_start_has_everything(
    start: Start, figures: Callable[[str], None]
) -> None:
    with start() as first:
        first.wait_ready()
        children = children_of(first)
        sockets = Path(str(run_file(first)["sockets"]))
        with Workload(first.address) as load:
            load.wait_flow()
            load.wait_flow()
            first.kill()
            gone_s = wait_gone(children, GONE_S)
            assert sockets.is_dir()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((load.address.host, load.address.port), timeout=5)
            acked = sum(load.acked().values())
            with start() as second:
                second.wait_ready()
                second.wait_event("server.was_killed", previous_pid=first.process.pid)
                load.address = second.address
                load.audit(died=(0, 1))
                load.wait_flow()
                load.stop_writing()
                load.wait_followed()
                verdicts = load.audit(died=())
                assert not sockets.exists(), "the sockets of the killed server are still there"
                assert run_file(second)["pid"] == second.process.pid
                assert second.stop() == 0
    lost = sum(len(verdict.lost) for verdict in verdicts.values())
    figures(
        f"supervisor killed under load: children gone in {gone_s * 1000:.0f} ms, {acked} acked, {lost} lost"
    )


def test_children_that_are_just_starting_die_with_the_supervisor_too(start: Start) -> None:
    with start() as server:
        for child in CHILDREN:
            server.wait_event("child.started", child=child)
        children = {child: ProcessId.of(server.pid_of(child)) for child in CHILDREN}
        server.kill()
        wait_gone(children, GONE_S)


def test_a_stopped_child_dies_with_the_supervisor_too(start: Start) -> None:
    with start() as server:
        server.wait_ready()
        children = children_of(server)
        for process in children.values():
            os.kill(process.pid, signal.SIGSTOP)
        server.kill()
        wait_gone(children, GONE_S)


def test_repeated_kills_of_the_whole_server_lose_nothing(start: Start) -> None:
    topic = topic_on(0, SHARDS, "repeated")
    written = 0
    for life in range(4):
        with start() as server:
            server.wait_ready()
            read = server.ask("POST", f"/v0/topics/{topic}/diff", {"from_seq": 0}) if life else None
            if read is not None:
                assert read.body["tombstone"] is None
                assert [(r["$seq"], r["data"]) for r in read.body["records"]] == [
                    (seq, seq) for seq in range(1, written + 1)
                ]
            for _ in range(3):
                written += 1
                reply = server.ask("POST", f"/v0/topics/{topic}", {"records": [{"data": written}]})
                assert reply.body["seqs"] == [written]
            server.kill()


def test_second_server_on_the_same_directory_refuses_and_the_first_goes_on(start: Start) -> None:
    with start() as first:
        first.wait_ready()
        before = run_file(first)
        refused = start_process(
            {
                "TOPICS_DATA_DIR": str(first.data_dir),
                "TOPICS_PORT": "0",
                "TOPICS_WAL_SHARDS": str(SHARDS),
            }
        )
        with refused:
            try:
                _, said = refused.communicate(timeout=30)
            finally:
                refused.kill()
        assert refused.returncode == 1
        (sentence,) = [line for line in said.splitlines() if line.startswith("topics: ")]
        assert str(first.data_dir) in sentence
        assert f"pid {first.process.pid}" in sentence
        assert run_file(first) == before
        assert Path(str(before["sockets"])).is_dir()
        assert first.ask("GET", "/v0/ready").status == 200
        assert first.ask("POST", "/v0/topics/t", {"records": [{"data": 1}]}).status == 201
        assert first.stop() == 0


def test_clean_stop_leaves_no_trace_of_the_run(start: Start) -> None:
    with start() as server:
        server.wait_ready()
        sockets = Path(str(run_file(server)["sockets"]))
        children = children_of(server)
        assert server.stop() == 0
        wait_gone(children, within_s=0)
        assert not sockets.exists()
        assert not (server.data_dir / "RUN").exists()
    with start() as again:
        again.wait_ready()
        assert not any(line["event"] == "server.was_killed" for line in again.lines)
        assert again.stop() == 0
