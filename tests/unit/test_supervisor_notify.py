"""The service manager hears what it must, and its absence disturbs nothing."""

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from topics.supervisor.notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    if request.param == "path":
        address = bound = str(tmp_path / "notify")
    else:
        name = f"topics-test-{secrets.token_hex(8)}"
        address, bound = f"@{name}", f"\0{name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.bind(bound)
        yield address, sock


def test_a_message_reaches_the_manager(manager: tuple[str, socket.socket]) -> None:
    address, sock = manager
    Notifier.from_environ({"NOTIFY_SOCKET": address}).send("READY=1")
    assert sock.recv(100) == b"READY=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "relative"}])
def test_without_a_manager_nothing_is_sent(environ: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    Notifier.from_environ(environ).send("READY=1")
    assert "notify.failed" not in caplog.messages


def test_a_manager_that_is_gone_is_told_about_and_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Notifier.from_environ({"NOTIFY_SOCKET": str(tmp_path / "gone")}).send("READY=1")
    assert caplog.messages == ["notify.failed"]


async def test_the_watchdog_is_fed_twice_per_interval(
    manager: tuple[str, socket.socket], autojump_clock: trio.testing.MockClock
) -> None:
    address, sock = manager
    notifier = Notifier.from_environ({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "4000000"})
    with trio.move_on_after(9):
        await notifier.keep_watchdog_fed()
    # At 0, 2, 4, 6 and 8 seconds.
    assert [sock.recv(100) for _ in range(5)] == [b"WATCHDOG=1"] * 5
    with pytest.raises(BlockingIOError):
        sock.recv(100)


@pytest.mark.parametrize(
    "watchdog",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid() + 1)},
    ],
)
async def test_a_watchdog_that_is_not_ours_is_not_fed(
    manager: tuple[str, socket.socket], watchdog: dict[str, str]
) -> None:
    address, sock = manager
    await Notifier.from_environ({"NOTIFY_SOCKET": address, **watchdog}).keep_watchdog_fed()
    with pytest.raises(BlockingIOError):
        sock.recv(100)
