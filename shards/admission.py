"""Which commands a shard takes in now: by its state, and by how many wait already."""

from dataclasses import dataclass

from shards.command import Command
from shards.mailbox import Mailbox
from shards.requests import wants_queueing
from topics.errors import NotReady, ShuttingDown, Throttled, TopicsError
from topics.protocol.messages import Op

# Writes are refused while more than this waits: a queue that long is latency for everybody behind it.
PRESSURE_COMMANDS = 5_000
PRESSURE_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Status:
    """What the shard says of itself; `state` is recovering, ready, read_only or stopping."""

    state: str = "recovering"
    progress: float = 0.0
    detail: str = ""

    def refusal(self) -> TopicsError | None:
        """Why the data routes are answered without being run."""
        if self.state == "stopping":
            return ShuttingDown("the server is shutting down", detail={"outcome": "not_applied"})
        if self.state == "recovering":
            return NotReady(
                "the log is being replayed",
                detail={"replay_progress": round(self.progress, 3), "outcome": "not_applied"},
            )
        return None


def pressure(mailbox: Mailbox, command: Command) -> TopicsError | None:
    """Shed writes, which can come again, before reads; a write may ask to be queued instead."""
    if mailbox.commands < PRESSURE_COMMANDS and mailbox.bytes < PRESSURE_BYTES:
        return None
    if command.op != Op.WRITE:
        return None
    if b'"disable_backpressure"' in command.body and wants_queueing(command.body):
        return None
    return Throttled(
        f"{mailbox.commands} requests wait in this shard",
        retry_after_s=1,
        detail={"retry_after_ms": 1000, "waiting": mailbox.commands},
    )
