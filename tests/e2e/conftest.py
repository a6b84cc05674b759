"""Servers and fresh topic names for the HTTP tests."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.server import Server, Topic, Wire, request_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

_numbers = itertools.count(1)

# Small enough to meet in a test, and each different, so that one cannot stand in for another.
SMALL_LIMITS = {
    "TOPICS_MAX_BATCH_RECORDS": "5",
    "TOPICS_MAX_RECORD_BYTES": "200",
    "TOPICS_MAX_BODY_BYTES": "4096",
    "TOPICS_MAX_META_BYTES": "50",
    "TOPICS_MAX_TAG_BYTES": "8",
    "TOPICS_MAX_NODE_BYTES": "6",
    "TOPICS_MAX_LIMIT": "3",
}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.CallInfo[None], None]:
    """A failed test shows what the servers it used wrote to stderr."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            server = value.server if isinstance(value, Topic) else value
            if isinstance(server, Server):
                report.sections.append(
                    (f"warnings and errors of the server in {name!r}", server.complaints())
                )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for a clock started at the beginning comes last, so that nobody waits for it."""
    items.sort(key=lambda item: item.get_closest_marker("waits_for_the_longest_poll") is not None)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "waits_for_the_longest_poll: runs last; see the fixture longest_poll")


@pytest.fixture(scope="session")
def start_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Mapping[str, str]], Server]]:
    """Starts servers with settings of their own; all are ended with the session."""
    servers: list[Server] = []

    def start(settings: Mapping[str, str], *, http2: bool = False) -> Server:
        server = Server(tmp_path_factory.mktemp("server"), settings, http2=http2)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.end()


@pytest.fixture(scope="session", params=["lane", "quart", "h2c"])
def server(request: pytest.FixtureRequest, start_server: Callable[..., Server]) -> Server:
    """The server most tests share: two shards, no keys, asked through each of its doors in turn."""
    if request.param == "quart":
        return start_server({"TOPICS_FAST_LANE": "0"})
    return start_server({}, http2=request.param == "h2c")


@pytest.fixture(scope="session", autouse=True)
def longest_poll(
    request: pytest.FixtureRequest, start_server: Callable[..., Server]
) -> Iterator[tuple[float, Wire] | None]:
    """A read that waits as long as the server lets it, begun before the tests so that it costs no time."""
    if not any(item.get_closest_marker("waits_for_the_longest_poll") for item in request.session.items):
        yield None
        return
    server = start_server({})
    quiet = Topic(server, "nobody-writes-here")
    quiet.put()
    body = b'{"wait_ms":600000}'
    head = f"POST {quiet.path}/diff HTTP/1.1\nContent-Type: application/json\nContent-Length: {len(body)}"
    with server.connect() as wire:
        started = time.monotonic()
        wire.send(request_bytes(head, body))
        yield started, wire


@pytest.fixture(scope="session")
def small_server(start_server: Callable[[Mapping[str, str]], Server]) -> Server:
    """Like `server`, with limits a test can reach."""
    return start_server(SMALL_LIMITS)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server for one test alone, which may stop and start it."""
    server = Server(tmp_path)
    server.start()
    yield server
    server.end()


@pytest.fixture
def name() -> str:
    """A topic name no other test uses."""
    return f"topic-{next(_numbers)}"


@pytest.fixture
def topic(server: Server, name: str) -> Topic:
    """A topic of the shared server that does not exist yet."""
    return Topic(server, name)
