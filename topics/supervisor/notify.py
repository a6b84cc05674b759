"""Messages to a service manager (sd_notify): READY=1, STOPPING=1, WATCHDOG=1.

Without NOTIFY_SOCKET every call does nothing. A manager that does not listen never stops the server.
"""

import logging
import os
import socket
from collections.abc import Mapping
from typing import Self

import trio

log = logging.getLogger(__name__)

# Ours alone: a child that inherited them could answer for the supervisor.
NAMES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """One service manager, or none."""

    def __init__(self, address: str | None, watchdog_interval_s: float | None = None) -> None:
        self._address = address
        self._watchdog_interval_s = watchdog_interval_s

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        address = environ.get("NOTIFY_SOCKET") or None
        if address is not None and address[0] not in "/@":
            log.warning("notify.unusable", extra={"address": address})
            address = None
        return cls(address, _watchdog_interval_s(environ))

    def send(self, message: str) -> None:
        if self._address is None:
            return
        # "@" stands for the NUL byte that opens a name in Linux's abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto(message.encode(), address)
        except OSError as error:
            log.warning("notify.failed", extra={"notification": message, "reason": str(error)})

    async def keep_watchdog_fed(self) -> None:
        """Say WATCHDOG=1 twice per interval, for as long as the event loop turns."""
        if self._address is None or self._watchdog_interval_s is None:
            return
        while True:
            self.send("WATCHDOG=1")
            await trio.sleep(self._watchdog_interval_s / 2)


def _watchdog_interval_s(environ: Mapping[str, str]) -> float | None:
    text = environ.get("WATCHDOG_USEC", "")
    if not text.isdecimal() or int(text) == 0:
        return None
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(text) / 1_000_000
