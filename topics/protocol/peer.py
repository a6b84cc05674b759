"""Unix sockets between our processes: who is at the other end, and how much may be under way."""

import socket
from struct import Struct
from typing import Final, Protocol

_CREDENTIALS = Struct("iII")
# Linux's number for it; the socket module has no name.
_SO_SNDBUFFORCE: Final = 32
# Some dozens of large answers or bulk writes.
LINK_BUFFER_BYTES: Final = 4 * 1024 * 1024


class Options(Protocol):
    """A socket, of the standard library or of trio."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def peer_uid(sock: Options) -> int:
    """The user the peer runs as. Sockets live in a 0700 directory; this catches one opened up by mistake."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


def widen(sock: socket.socket) -> None:
    """Let much be under way on a link, so that neither side waits for the other in the middle of one."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, LINK_BUFFER_BYTES)
    except PermissionError:
        # Without the privilege the system's own maximum bounds it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LINK_BUFFER_BYTES)
