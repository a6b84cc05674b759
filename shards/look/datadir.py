"""A data directory seen from outside. Nothing in it is written, created or locked for longer than a look."""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from topics.supervisor.datadir import FORMAT_VERSION, Layout

_SHARD = "shard-"


class CannotLook(Exception):
    """There is nothing here that could be looked at. The message is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class DataDir:
    path: Path
    layout: Layout | None
    complaint: str  # what is wrong with LAYOUT; empty: nothing
    shards: list[str]  # names of the shard directories that are there
    server: str  # pid of the server that runs on it; empty: none does

    def missing(self) -> list[str]:
        expected = [shard_name(at) for at in range(self.layout.shards)] if self.layout else []
        return [name for name in expected if name not in self.shards]

    def unexpected(self) -> list[str]:
        if self.layout is None:
            return []
        return [name for name in self.shards if int(name.removeprefix(_SHARD)) >= self.layout.shards]


def shard_name(index: int) -> str:
    return f"{_SHARD}{index:02d}"


def open_data_dir(path: Path) -> DataDir:
    try:
        names = sorted(os.listdir(path))
    except FileNotFoundError:
        raise CannotLook(f"{path} does not exist") from None
    except OSError as error:
        raise CannotLook(f"cannot look into {path}: {error.strerror}") from error
    shards = [
        name for name in names if name.startswith(_SHARD) and name.removeprefix(_SHARD).isdecimal()
    ]  # fmt: skip
    if "LAYOUT" not in names and not shards:
        raise CannotLook(f"{path} is no data directory: it has neither LAYOUT nor shards")
    layout, complaint = _read_layout(path / "LAYOUT")
    return DataDir(path, layout, complaint, shards, running_server(path))


def _read_layout(path: Path) -> tuple[Layout | None, str]:
    try:
        found = msgspec.json.decode(path.read_bytes())
        version = found.get("format") if isinstance(found, dict) else None
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise CannotLook(
                f"{path.parent} has data format {version}; this release knows formats up to {FORMAT_VERSION}"
            )
        layout = msgspec.convert(found, Layout)
    except FileNotFoundError:
        return None, "missing, so the shard of a topic is not known"
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        return None, f"damaged: {error}"
    if layout.format != FORMAT_VERSION or layout.shards < 1:
        return None, f"damaged: format {layout.format}, {layout.shards} shards"
    return layout, ""


def running_server(path: Path) -> str:
    """The pid of the server that runs on the directory, "unknown" if it does not say; empty if none does."""
    try:
        fd = os.open(path / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        # A shared lock, given back at once: a server that starts in this very moment would be refused.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return ""
    except BlockingIOError:
        return os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
    except OSError:
        return ""
    finally:
        os.close(fd)
