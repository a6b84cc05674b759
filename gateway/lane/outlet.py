"""The way out of a connection: what the socket does not take at once waits here; nothing is added to it."""

import socket


class Outlet:
    __slots__ = ("_rest", "_sock")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest: memoryview | None = None

    @property
    def pending_bytes(self) -> int:
        return 0 if self._rest is None else len(self._rest)

    def send(self, parts: list[bytes]) -> bool:
        """Whether all of it has left. Raises OSError if the peer is gone."""
        try:
            sent = self._sock.send(parts[0]) if len(parts) == 1 else self._sock.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        if sent < sum(map(len, parts)):
            self._rest = memoryview(b"".join(parts))[sent:]
            return False
        return True

    def flush(self) -> bool:
        """Go on with what waits; whether some of it has left. Raises OSError if the peer is gone."""
        if self._rest is None:
            return False
        try:
            sent = self._sock.send(self._rest)
        except BlockingIOError:
            return False
        self._rest = self._rest[sent:] if sent < len(self._rest) else None
        return True
