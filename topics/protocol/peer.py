"""Who is at the other end of a Unix socket."""

import socket
from struct import Struct
from typing import Protocol

_CREDENTIALS = Struct("iII")


class Options(Protocol):
    """A socket, of the standard library or of trio."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def peer_uid(sock: Options) -> int:
    """The user the peer runs as. Sockets live in a 0700 directory; this catches one opened up by mistake."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])
