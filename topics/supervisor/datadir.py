"""The data directory: whose it is, how it is laid out, and where its running server can be found.

Kept here and nowhere else:
  * `LOCK` is held by flock while a server runs; a second server on the directory refuses to start.
  * `LAYOUT` says format version, shard count and instance id. It is written once, before any shard
    starts, and a start that does not fit it is refused: topics would be looked for in wrong shards.
  * `RUN` says where the running server listens. It is only a hint, and gone after a clean stop.
Files are replaced by write, fsync, rename, fsync of the directory; a reader sees the old or the new one.
"""

import fcntl
import logging
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from topics.child import socket_name
from topics.settings import SHARDS_DEFAULT_MAX, SHARDS_MAX, SettingsError

log = logging.getLogger(__name__)

FORMAT_VERSION = 1

_SOCKET_DIR_PREFIX = "topics-"
# The kernel's limit for the path of a Unix socket is 108 bytes with the closing NUL.
_SOCKET_PATH_BYTES_MAX = 107


class StartRefused(Exception):
    """The server cannot start here and now. The message is one sentence for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The content of LAYOUT."""

    format: int
    shards: int
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The content of RUN."""

    pid: int
    sockets: str
    host: str
    port: int


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Own the data directory `path`, which is created if absent, until the block ends."""
    try:
        _create(path)
        fd = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartRefused(f"cannot use the data directory {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise StartRefused(f"another topics server (pid {holder}) uses {path}") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(fd)


def open_layout(path: Path, wanted_shards: int | None) -> Layout:
    """The layout of a directory that is held, written now if it is new.

    Without a wish the directory decides, so that a machine with more cores does not lock out its data.
    """
    try:
        found = msgspec.json.decode((path / "LAYOUT").read_bytes())
    except FileNotFoundError:
        return _new_layout(path, wanted_shards)
    except msgspec.DecodeError as error:
        raise StartRefused(f"{path / 'LAYOUT'} is damaged ({error}); restore it from a backup") from error
    version = found.get("format") if isinstance(found, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise StartRefused(
            f"{path} has data format {version}, and this release knows formats up to {FORMAT_VERSION}; "
            "start it with the release that wrote it, or a newer one"
        )
    try:
        layout = msgspec.convert(found, Layout)
    except msgspec.ValidationError as error:
        raise StartRefused(f"{path / 'LAYOUT'} is damaged ({error}); restore it from a backup") from error
    if layout.format != FORMAT_VERSION or not 1 <= layout.shards <= SHARDS_MAX:
        raise StartRefused(
            f"{path / 'LAYOUT'} is damaged (format {layout.format}, {layout.shards} shards); "
            "restore it from a backup"
        )
    if wanted_shards is not None and wanted_shards != layout.shards:
        raise SettingsError(
            f"TOPICS_WAL_SHARDS is {wanted_shards}, but {path} was created with {layout.shards} shards and "
            f"this release cannot change that; set it to {layout.shards}, or use a new data directory"
        )
    return layout


def replace_file(path: Path, content: bytes) -> None:
    """Give `path` a new content, durably and all at once."""
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(new, path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


@contextmanager
def runtime(path: Path, *, host: str, port: int) -> Iterator[Path]:
    """A private directory for the Unix sockets, recorded in RUN and removed when the block ends."""
    _remove_stale(path)
    sockets = _make_socket_dir()
    try:
        run = Run(pid=os.getpid(), sockets=str(sockets), host=host, port=port)
        replace_file(path / "RUN", msgspec.json.encode(run) + b"\n")
        yield sockets
    finally:
        (path / "RUN").unlink(missing_ok=True)
        _remove_socket_dir(sockets)


def _create(path: Path) -> None:
    if path.is_dir():
        return
    path.mkdir(mode=0o700, parents=True)
    _sync_directory(path.parent)


def _new_layout(path: Path, wanted_shards: int | None) -> Layout:
    if any(path.glob("shard-*")):
        raise StartRefused(
            f"{path} has shard directories but no LAYOUT file, so the shard of a topic is not known; "
            "restore LAYOUT from a backup"
        )
    shards = wanted_shards or min(len(os.sched_getaffinity(0)), SHARDS_DEFAULT_MAX)
    layout = Layout(format=FORMAT_VERSION, shards=shards, instance=secrets.token_hex(16))
    replace_file(path / "LAYOUT", msgspec.json.encode(layout) + b"\n")
    return layout


def _make_socket_dir() -> Path:
    made = Path(tempfile.mkdtemp(prefix=_SOCKET_DIR_PREFIX))
    if len(os.fsencode(made / socket_name(SHARDS_MAX))) > _SOCKET_PATH_BYTES_MAX:
        made.rmdir()
        made = Path(tempfile.mkdtemp(prefix=_SOCKET_DIR_PREFIX, dir="/tmp"))
    return made


def _remove_stale(path: Path) -> None:
    """Clean up after a server that was killed."""
    try:
        left = msgspec.json.decode((path / "RUN").read_bytes(), type=Run)
    except (FileNotFoundError, msgspec.DecodeError):
        return
    log.warning("server.was_killed", extra={"previous_pid": left.pid})
    _remove_socket_dir(Path(left.sockets))


def _remove_socket_dir(sockets: Path) -> None:
    """Remove sockets and then the directory, and nothing that could be somebody else's."""
    with suppress(OSError):
        about = os.lstat(sockets)
        if (
            not sockets.name.startswith(_SOCKET_DIR_PREFIX)
            or not stat.S_ISDIR(about.st_mode)
            or about.st_uid != os.geteuid()
        ):
            return
        for entry in sockets.iterdir():
            if stat.S_ISSOCK(os.lstat(entry).st_mode):
                entry.unlink()
        sockets.rmdir()


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
