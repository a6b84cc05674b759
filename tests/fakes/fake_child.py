"""A child process without work: it tells a test what happens to it, as datagrams of JSON.

FAKE_EVENTS is the socket it reports to. In FAKE_CRASH, FAKE_DEAF and FAKE_SLOW a test names children
that die at once, ignore SIGTERM, or are ready only after SIGUSR1.
"""

import json
import os
import signal
import socket
import sys

from topics.child import LISTENING, READY, Boot, boot


def named_in(variable: str, told: Boot) -> bool:
    return told.title in os.environ.get(variable, "").split(",")


def report(told: Boot, event: str, **fields: object) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        message = {"event": event, "child": told.title, "pid": os.getpid(), **fields}
        sock.sendto(json.dumps(message).encode(), os.environ["FAKE_EVENTS"])


def listening_port(told: Boot) -> int | None:
    if told.listen_fd is None:
        return None
    with socket.socket(fileno=os.dup(told.listen_fd)) as sock:
        port: int = sock.getsockname()[1]
        return port


def main() -> int:
    told = boot()
    # Signals wait until they are asked for, so that none falls between two steps.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    report(
        told,
        "started",
        epoch=told.epoch,
        environ=sorted(os.environ),
        socket_dir=str(told.socket_dir),
        data_dir=str(told.data_dir),
        shard_count=told.shard_count,
        sync_interval_ms=told.settings.sync_interval_ms,
        port=listening_port(told),
    )
    if named_in("FAKE_CRASH", told):
        return 7
    told.say(LISTENING)
    if named_in("FAKE_SLOW", told):
        signal.sigwait({signal.SIGUSR1})
    report(told, "ready")
    told.say(READY)
    signal.sigwait({signal.SIGTERM})
    report(told, "stopping")
    if named_in("FAKE_DEAF", told):
        signal.sigwait({signal.SIGUSR1})
    report(told, "stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
