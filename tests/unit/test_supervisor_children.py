"""A child that dies comes back after a growing pause; one that was told to stop does not."""

import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from topics import settings
from topics.child import Boot, decode_boot, encode_boot
from topics.supervisor import children
from topics.supervisor.children import Child, Ground, child_environ
from topics.supervisor.listener import base_url

Lines = trio.MemoryReceiveChannel[logging.LogRecord]


class Forward(logging.Handler):
    def __init__(self, send: trio.MemorySendChannel[logging.LogRecord]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send.send_nowait(record)


@pytest.fixture
def lines() -> Iterator[Lines]:
    """The supervisor's log lines, as they come."""
    send, receive = trio.open_memory_channel[logging.LogRecord](math.inf)
    handler = Forward(send)
    children.log.addHandler(handler)
    children.log.setLevel(logging.INFO)
    yield receive
    children.log.removeHandler(handler)
    children.log.setLevel(logging.NOTSET)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(
        data_dir=tmp_path / "data",
        socket_dir=tmp_path,
        shard_count=2,
        settings=settings.load({})[0],
        environ=dict(os.environ),
    )


async def restarts(child: Child, lines: Lines, count: int) -> list[int]:
    """The pauses before the first `count` restarts of a child that always dies."""
    pauses: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child.run)
        async for line in lines:
            if line.getMessage() == "child.restarting":
                pauses.append(vars(line)["in_ms"])
            if len(pauses) == count:
                await child.stop(5)
                break
    return pauses


async def test_the_pause_before_a_restart_doubles_up_to_five_seconds(
    ground: Ground, lines: Lines, autojump_clock: trio.testing.MockClock
) -> None:
    child = Child("router", 0, "tests.fakes.no_such_module", ground)
    pauses = await restarts(child, lines, 9)
    assert pauses == [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]
    # The clock is the test's own: what was announced was also waited for, all but the last one.
    assert trio.current_time() == pytest.approx(sum(pauses[:-1]) / 1000, abs=0.01)


async def test_a_child_that_had_lived_well_comes_back_soon(
    ground: Ground,
    lines: Lines,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children, "GOOD_LIFE_S", 0.0)
    child = Child("router", 0, "tests.fakes.no_such_module", ground)
    assert await restarts(child, lines, 3) == [50, 50, 50]


async def test_a_child_that_cannot_even_be_started_is_tried_again(
    ground: Ground,
    lines: Lines,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    open_before = len(os.listdir("/proc/self/fd"))
    child = Child("router", 0, "tests.fakes.fake_child", ground)
    assert await restarts(child, lines, 3) == [50, 100, 200]
    assert len(os.listdir("/proc/self/fd")) == open_before


async def test_a_child_that_is_waiting_for_its_restart_stops_at_once(ground: Ground, lines: Lines) -> None:
    child = Child("router", 0, "tests.fakes.no_such_module", ground)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.run)
            async for line in lines:
                if line.getMessage() == "child.restarting" and vars(line)["in_ms"] >= 400:
                    break
            begun_s = trio.current_time()
            assert await child.stop(5)
            assert trio.current_time() - begun_s < 0.3


def test_a_child_inherits_no_settings_and_no_service_manager() -> None:
    environ = child_environ(
        {
            "PATH": "/bin",
            "TOPICS_TOKEN": "s3cret",
            "TOPICS_PORT": "1",
            "NOTIFY_SOCKET": "/x",
            "WATCHDOG_USEC": "1",
            "WATCHDOG_PID": "1",
        }
    )
    assert environ.pop("PATH") == "/bin"
    # Without it, a folder called "gateway" in the working directory would be run instead of ours.
    assert environ["PYTHONSAFEPATH"] == "1"
    assert set(environ) <= {
        "PYTHONSAFEPATH",
        "PYTHONPATH",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TRIM_THRESHOLD_",
    }


def test_a_boot_message_arrives_as_it_was_sent(ground: Ground) -> None:
    sent = Boot(
        role="shard",
        index=1,
        parent_pid=7,
        data_dir=ground.data_dir,
        socket_dir=ground.socket_dir,
        shard_count=2,
        settings=settings.load({"TOPICS_PORT_FILE": "p", "TOPICS_MAX_TAG_BYTES": "9"})[0],
        listen_fd=None,
        status_fd=5,
        epoch=3,
    )
    assert decode_boot(encode_boot(sent)) == sent
    assert sent.title == "shard-1"
    assert sent.shard_socket(1) == ground.socket_dir / "shard-01.sock"
    with pytest.raises(ValueError, match="shard 2 of 2"):
        sent.shard_socket(2)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:4000"),
        ("::1", "http://[::1]:4000"),
        ("0.0.0.0", "http://127.0.0.1:4000"),
        ("::", "http://[::1]:4000"),
        ("localhost", "http://localhost:4000"),
    ],
)
def test_the_address_shown_is_one_that_can_be_typed(host: str, url: str) -> None:
    assert base_url(host, 4000) == url
