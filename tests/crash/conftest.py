"""Servers on directories of the test, and the figures that the proof prints at its end."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.crash.processes import Server, running

Start = Callable[..., AbstractContextManager[Server]]

_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture
def sockets_dir() -> Iterator[Path]:
    """Where the servers of a test put their sockets. A test's own directory may be too deep for them."""
    with tempfile.TemporaryDirectory(prefix="t-") as path:
        yield Path(path)


@pytest.fixture
def start(tmp_path: Path, sockets_dir: Path) -> Start:
    """Starts a server on the test's data directory, with settings as keyword arguments."""
    return partial(running, tmp_path / "data", sockets_dir)


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Adds a line to what is printed when all tests are over."""
    return request.config.stash.setdefault(_FIGURES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash.get(_FIGURES, []):
        terminalreporter.section("process proof")
        for line in lines:
            terminalreporter.write_line(line)
