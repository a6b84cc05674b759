"""A whole server with fake children: what starts, what comes back, what stops, and in which order.

The fakes and the supervisor report to one datagram socket, so the order of what happened is the order
of what is read.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from topics.cli import main

ROOT = Path(__file__).resolve().parent.parent.parent
ALL = {"shard-0", "shard-1", "router", "gateway"}
Event = dict[str, Any]
READY: Event = {"notify": "READY=1"}


class Server:
    """A server process, and everything it and its children have told so far."""

    def __init__(self, process: "subprocess.Popen[str]", events: socket.socket, path: Path) -> None:
        self.process = process
        self.path = path
        self.heard: list[Event] = []
        self._events = events

    def hear(self) -> Event:
        """The next thing that was told. Raises BlockingIOError when that was all so far."""
        message = self._events.recv(65536)
        # What is not JSON comes from the supervisor, to its service manager.
        event: Event = json.loads(message) if message.startswith(b"{") else {"notify": message.decode()}
        self.heard.append(event)
        return event

    async def next_event(self) -> Event:
        with trio.fail_after(30):
            await trio.lowlevel.wait_readable(self._events)
        return self.hear()

    async def until(self, wanted: Callable[[Event], bool]) -> Event:
        while True:
            event = await self.next_event()
            if wanted(event):
                return event

    def ready(self) -> set[str]:
        return {event["child"] for event in self.heard if event.get("event") == "ready"}

    async def start_of_all(self) -> dict[str, Event]:
        """Wait until every child is ready and the service manager knows; the `started` event of each."""
        await self.until(lambda _: self.ready() == ALL and READY in self.heard)
        return {event["child"]: event for event in self.heard if event.get("event") == "started"}

    async def end(self) -> tuple[int, list[Event]]:
        """The exit code, and all that was told and not yet heard."""
        with trio.fail_after(30):
            await exited(self.process.pid)
        before = len(self.heard)
        with suppress(BlockingIOError):
            while True:
                self.hear()
        return self.process.wait(), self.heard[before:]


Start = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture
def short_tmp() -> Iterator[str]:
    """For socket directories, also those of killed servers; a test's own path is too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="t-") as path:
        yield path


@pytest.fixture
def start(tmp_path: Path, short_tmp: str) -> Start:
    """Starts a fake server on the test's data directory, with settings as keyword arguments."""

    @asynccontextmanager
    async def run(**environ: str) -> AsyncIterator[Server]:
        address = tmp_path / "events"
        address.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as events:
            events.bind(str(address))
            process = spawn(
                {
                    "TOPICS_DATA_DIR": str(tmp_path / "data"),
                    "TOPICS_PORT": "0",
                    "TOPICS_PORT_FILE": str(tmp_path / "port"),
                    "TOPICS_WAL_SHARDS": "2",
                    "TMPDIR": short_tmp,
                    "FAKE_EVENTS": str(address),
                    "NOTIFY_SOCKET": str(address),
                    **environ,
                }
            )
            with process:
                try:
                    yield Server(process, events, tmp_path)
                finally:
                    process.kill()

    return run


def spawn(environ: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.fake_server"],
        cwd=ROOT,
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def exited(pid: int) -> None:
    """Wait for the end of a process, whoever its parent is."""
    pidfd = os.pidfd_open(pid)
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def port_of(server: Server) -> int:
    return int((server.path / "port").read_text())


async def test_every_child_is_started_with_what_it_needs_and_nothing_secret(start: Start) -> None:
    async with start(TOPICS_SYNC_INTERVAL_MS="77", TOPICS_TOKEN="s3cret") as server:
        started = await server.start_of_all()
        assert set(started) == ALL
        for event in started.values():
            assert event["epoch"] == 1
            assert event["data_dir"] == str(server.path / "data")
            assert event["shard_count"] == 2
            assert event["sync_interval_ms"] == 77
            assert not [name for name in event["environ"] if name.startswith(("TOPICS_", "NOTIFY_"))]
            assert "MALLOC_MMAP_THRESHOLD_" in event["environ"]
        assert {child for child, event in started.items() if event["port"]} == {"gateway"}
        assert started["gateway"]["port"] == port_of(server)


async def test_a_server_says_where_it_listens_and_what_to_try(start: Start) -> None:
    async with start() as server:
        await server.start_of_all()
        port = port_of(server)
        server.process.terminate()
        assert (await server.end())[0] == 0
        assert server.process.stdout is not None
        shown = server.process.stdout.read()
        assert f"listens on http://127.0.0.1:{port}\n" in shown
        assert str(server.path / "data") in shown
        assert shown.count("curl -X POST") == 3


async def test_a_killed_child_comes_back_and_the_others_do_not_notice(start: Start) -> None:
    async with start() as server:
        started = await server.start_of_all()
        for child in sorted(ALL):
            os.kill(started[child]["pid"], signal.SIGKILL)
            again = await server.next_event()
            assert (again["event"], again["child"], again["epoch"]) == ("started", child, 2)
            assert (await server.next_event())["event"] == "ready"
        server.process.terminate()
        assert (await server.end())[0] == 0


async def test_connections_wait_in_the_open_port_while_there_is_no_gateway(start: Start) -> None:
    async with start(FAKE_CRASH="gateway") as server:
        await server.until(lambda event: event.get("child") == "gateway" and event["epoch"] == 2)
        async with await trio.open_tcp_stream("127.0.0.1", port_of(server)):
            pass


async def test_ready_is_said_when_the_last_shard_is_ready_and_not_before(start: Start) -> None:
    async with start(FAKE_SLOW="shard-1") as server:
        while server.ready() != ALL - {"shard-1"}:
            await server.next_event()
        # A router that has come back proves that the supervisor has heard all that was said before.
        router = next(e for e in server.heard if e.get("event") == "started" and e["child"] == "router")
        os.kill(router["pid"], signal.SIGKILL)
        await server.until(lambda event: event.get("event") == "ready" and event["child"] == "router")
        assert READY not in server.heard
        slow = next(e for e in server.heard if e["event"] == "started" and e["child"] == "shard-1")
        os.kill(slow["pid"], signal.SIGUSR1)
        assert (await server.next_event())["child"] == "shard-1"
        assert await server.next_event() == READY


async def test_the_watchdog_is_fed_while_the_server_lives(start: Start) -> None:
    async with start(WATCHDOG_USEC="20000") as server:
        for _ in range(3):
            await server.until(lambda event: event == {"notify": "WATCHDOG=1"})


async def test_a_stop_goes_from_the_outside_in_and_ends_with_zero(start: Start) -> None:
    async with start() as server:
        started = await server.start_of_all()
        server.process.send_signal(signal.SIGTERM)
        code, heard = await server.end()
        told = [event.get("notify") or f"{event['child']} {event['event']}" for event in heard]
        assert code == 0
        assert told[:5] == [
            "STOPPING=1",
            "gateway stopping",
            "gateway stopped",
            "router stopping",
            "router stopped",
        ]
        assert sorted(told[5:]) == [
            "shard-0 stopped",
            "shard-0 stopping",
            "shard-1 stopped",
            "shard-1 stopping",
        ]
        assert not os.path.exists(started["gateway"]["socket_dir"])
        assert sorted(os.listdir(server.path / "data")) == ["LAYOUT", "LOCK"]


async def test_nobody_can_connect_any_more_once_the_gateway_has_stopped(start: Start) -> None:
    async with start(FAKE_DEAF="router") as server:
        started = await server.start_of_all()
        server.process.terminate()
        await server.until(lambda event: event.get("event") == "stopping" and event["child"] == "router")
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream("127.0.0.1", port_of(server))
        os.kill(started["router"]["pid"], signal.SIGUSR1)
        assert (await server.end())[0] == 0


async def test_ctrl_c_is_for_the_supervisor_alone_and_stops_in_order(start: Start) -> None:
    async with start() as server:
        started = await server.start_of_all()
        for event in started.values():
            # A terminal signals the whole group, so no child is in it; and one that is hit goes on.
            assert os.getpgid(event["pid"]) == event["pid"]
            os.kill(event["pid"], signal.SIGINT)
        server.process.send_signal(signal.SIGINT)
        code, heard = await server.end()
        assert code == 0
        stopped = [event["child"] for event in heard if event.get("event") == "stopped"]
        assert stopped[:2] == ["gateway", "router"]
        assert set(stopped) == ALL


async def test_a_gateway_that_does_not_drain_in_time_is_killed_and_the_shards_still_close(
    start: Start,
) -> None:
    async with start(TOPICS_DRAIN_TIMEOUT_MS="0", FAKE_DEAF="gateway") as server:
        await server.start_of_all()
        server.process.terminate()
        code, heard = await server.end()
        assert code == 0
        stopped = {event["child"] for event in heard if event.get("event") == "stopped"}
        assert stopped == {"router", "shard-0", "shard-1"}


async def test_no_child_outlives_a_killed_supervisor_and_the_next_start_cleans_up(start: Start) -> None:
    async with start() as server:
        started = await server.start_of_all()
        async with trio.open_nursery() as nursery:
            for event in started.values():
                nursery.start_soon(exited, event["pid"])
            await trio.testing.wait_all_tasks_blocked()
            server.process.kill()
            nursery.cancel_scope.deadline = trio.current_time() + 30
        assert not nursery.cancel_scope.cancelled_caught
    left_behind = started["gateway"]["socket_dir"]
    assert os.path.exists(left_behind)
    async with start() as server:
        started = await server.start_of_all()
        assert not os.path.exists(left_behind)


async def test_a_second_server_on_the_same_directory_is_refused_and_the_first_goes_on(
    start: Start, tmp_path: Path
) -> None:
    async with start() as server:
        await server.start_of_all()
        second = spawn({"TOPICS_DATA_DIR": str(tmp_path / "data"), "TOPICS_PORT": "0"})
        with second:
            try:
                with trio.fail_after(30):
                    await exited(second.pid)
            finally:
                second.kill()
            assert second.stderr is not None
            assert f"another topics server (pid {server.process.pid}) uses" in second.stderr.read()
        assert second.returncode == 1
        server.process.terminate()
        assert (await server.end())[0] == 0


def test_wrong_settings_end_with_two_and_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("topics.logs.configure", lambda _: None)
    assert main(["serve", "--port", "x"]) == 2
    assert capsys.readouterr().err == "topics: TOPICS_PORT is 'x'; allowed: a whole number from 0 to 65535\n"
    monkeypatch.setenv("TOPICS_API_KEYS", "s3cret:raed")
    assert main(["serve"]) == 2
    shown = capsys.readouterr().err
    assert "TOPICS_API_KEYS, entry 1" in shown
    assert "s3cret" not in shown
    assert not (tmp_path / "data").exists()


def test_a_changed_shard_count_ends_with_two(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.logs.configure", lambda _: None)
    (tmp_path / "LAYOUT").write_text('{"format": 1, "shards": 3, "instance": "x"}')
    assert main(["serve", "--data-dir", str(tmp_path), "--shards", "2"]) == 2
    assert "was created with 3 shards" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.logs.configure", lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--data-dir", str(tmp_path), "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("topics 0.")
