"""Scenarios over restarts: generators that yield where the server is restarted.

All of them live on one server, each under names of its own, and go through the same restarts side by side,
so that dozens of restarts cost the time of the longest scenario. One that fails does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.e2e.server import Topic

if TYPE_CHECKING:
    from tests.e2e.server import Server

RESTARTS_MAX = 6


@dataclass(frozen=True)
class Place:
    """A scenario's own corner of the shared server."""

    server: Server
    prefix: str

    def topic(self, name: str) -> Topic:
        return Topic(self.server, f"{self.prefix}:{name}")


Scenario = Callable[[Place], Iterator[None]]


@dataclass
class Scenarios:
    _by_name: dict[str, Scenario] = field(default_factory=dict)

    def add(self, scenario: Scenario) -> Scenario:
        self._by_name[scenario.__name__] = scenario
        return scenario

    def names(self) -> list[str]:
        return list(self._by_name)

    def run(self, server: Server) -> dict[str, Exception | None]:
        """How each one ended, after as many restarts as the longest asks for."""
        running = {
            name: scenario(Place(server, f"s{number}"))
            for number, (name, scenario) in enumerate(self._by_name.items())
        }
        ended: dict[str, Exception | None] = {}
        for _ in range(RESTARTS_MAX):
            for name, steps in list(running.items()):
                try:
                    next(steps)
                except StopIteration:
                    ended[name] = None
                except Exception as failure:  # kept for the test of this scenario
                    ended[name] = failure
                else:
                    continue
                del running[name]
            if not running:
                break
            server.restart()
        server.end()
        assert not running, f"more than {RESTARTS_MAX} phases: {list(running)}"
        return ended
