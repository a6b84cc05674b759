"""The listening TCP socket: bound before any child lives, kept open while gateways come and go."""

import os
import socket
from pathlib import Path

from topics.settings import Settings, is_loopback
from topics.supervisor.datadir import StartRefused, replace_file

# Connections wait here while a gateway restarts; the kernel caps it at net.core.somaxconn.
BACKLOG = 4096


def listen(settings: Settings) -> socket.socket:
    """Bind and listen. The host name decides between IPv4 and IPv6."""
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise StartRefused(
            f"TOPICS_HOST is {host!r}, which is no address of this machine: {error.strerror}"
        ) from error
    family, _, _, _, address = found[0]
    if settings.loopback and not is_loopback(str(address[0])) and not settings.allow_insecure_no_auth:
        raise StartRefused(f"TOPICS_HOST is {host!r}, but that is {address[0]} here, which is not loopback")
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise StartRefused(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return sock


def bound_port(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


def write_port_file(path: Path, port: int) -> None:
    """Leave the port for whoever started us with port 0; the file is complete when it appears."""
    try:
        replace_file(path, b"%d\n" % port)
    except OSError as error:
        raise StartRefused(f"cannot write TOPICS_PORT_FILE {os.fspath(path)!r}: {error.strerror}") from error


def base_url(host: str, port: int) -> str:
    """What a client on this machine types."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
