"""Pages that commands wait for, and pages that turn out to be damaged.

A read that meets a cold page waits here while a thread reads it; other commands, also of its topic, go on.
"""

import logging
from collections.abc import Callable
from functools import partial

from shards.background import Background
from shards.command import Answer, Command
from shards.load import Loaded
from shards.store.damage import quarantine
from shards.store.segments import PageLost
from topics.engine.chunk import Chunk
from topics.engine.sealed import Sealed
from topics.engine.tags import TagMatch
from topics.errors import NotReady

log = logging.getLogger("shard")

RETRY_AFTER_S = 1


class Fetcher:
    """`again` takes commands that can be run again, `refuse` those that have an answer now."""

    def __init__(
        self,
        loaded: Loaded,
        readers: Background,
        again: Callable[[list[Command]], None],
        refuse: Callable[[list[Command]], None],
    ) -> None:
        assert loaded.storage is not None
        self._registry = loaded.registry
        self._storage = loaded.storage
        self._readers = readers
        self._again, self._refuse = again, refuse
        self._waiting: dict[Sealed, list[Command]] = {}
        self._searching: list[Command] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._searching)

    def fetch(self, page: Sealed, command: Command) -> None:
        command.fetches += 1
        if page in self._waiting:
            self._waiting[page].append(command)
        else:
            self._waiting[page] = [command]
            found: list[Chunk] = []
            self._readers.submit(
                lambda: found.append(self._storage.segments.read(page)), partial(self._fetched, page, found)
            )

    def _fetched(self, page: Sealed, found: list[Chunk], error: Exception | None) -> None:
        commands = [command for command in self._waiting.pop(page, ()) if not command.cancelled]
        if isinstance(error, PageLost):
            self.take_out(error)
        elif error is not None:
            self._fail(commands, error)
            return
        else:
            self._storage.segments.keep(page, found[0])
        self._again(commands)

    def search(self, pages: list[Sealed], match: TagMatch, command: Command) -> None:
        """Have the tags of these pages looked at; the command goes on with what was found."""
        self._searching.append(command)
        found: dict[Sealed, list[int]] = {}

        def job() -> None:
            for page in pages:
                found[page] = self._storage.segments.search(page, match)

        self._readers.submit(job, partial(self._searched, command, found))

    def _searched(self, command: Command, found: dict[Sealed, list[int]], error: Exception | None) -> None:
        if command not in self._searching:
            return
        self._searching.remove(command)
        if isinstance(error, PageLost):
            self.take_out(error)
        elif error is not None:
            self._fail([command], error)
            return
        else:
            command.found = found
        if not command.cancelled:
            self._again([command])

    def _fail(self, commands: list[Command], error: Exception) -> None:
        log.error("page.unreadable", extra={"reason": repr(error)})
        for command in commands:
            unreadable = NotReady(
                "sealed records cannot be read now; it has been logged", retry_after_s=RETRY_AFTER_S
            )
            command.answer = Answer.of_error(unreadable)
        self._refuse(commands)

    def take_out(self, lost: PageLost) -> None:
        """Quarantine what was lost; whoever met it may go on."""
        page = lost.page
        log.error("page.quarantined", extra={"file": page.file, "reason": str(lost)})
        self._storage.damaged_files.add(page.file)
        topic = self._registry.by_id(page.topic_id)
        if topic is not None and any(piece is page for piece in topic.log.chunks):
            quarantine(topic.log, self._storage.segments, lost)

    def take_all(self) -> list[Command]:
        """Whoever waits; the shard ends, and what is read for them comes too late."""
        commands = [command for waiting in self._waiting.values() for command in waiting] + self._searching
        self._waiting.clear()
        self._searching.clear()
        for command in commands:
            command.found = None
        return commands

    def forget(self, command: Command) -> None:
        for waiting in self._waiting.values():
            if command in waiting:
                waiting.remove(command)
