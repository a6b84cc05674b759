"""The first steps of every child process, and how it talks back to the supervisor.

Kept here and nowhere else:
  * A child never outlives its supervisor: the kernel kills it, and one that was born too late leaves.
  * Everything a child needs comes through one nameless file, as JSON; its environment holds no settings.
  * SIGINT belongs to the supervisor (a terminal sends it to the whole group); SIGTERM ends a child.
"""

import argparse
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from topics import logs
from topics.keys import Key
from topics.settings import Settings

_PR_SET_PDEATHSIG = 1

# The child accepts links or connections, though it may still be recovering.
LISTENING = "listening"
# The child does its whole work.
READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """What the supervisor tells a child at its start."""

    role: str  # "shard", "router" or "gateway"
    index: int  # which of the children of this role
    parent_pid: int
    data_dir: Path
    socket_dir: Path
    shard_count: int
    settings: Settings
    listen_fd: int | None  # the gateway's listening TCP socket
    status_fd: int
    epoch: int  # how many times this child has been started, this one included
    keys: tuple[Key, ...] = ()  # the gateway's alone, and nothing but digests

    @property
    def title(self) -> str:
        return child_title(self.role, self.index)

    def say(self, state: str) -> None:
        """Tell the supervisor that this child is now LISTENING or READY."""
        os.write(self.status_fd, state.encode("ascii") + b"\n")

    def shard_socket(self, index: int) -> Path:
        """Where shard `index` accepts links."""
        if not 0 <= index < self.shard_count:
            raise ValueError(f"shard {index} of {self.shard_count}")
        return self.socket_dir / socket_name(index)


def child_title(role: str, index: int) -> str:
    """The name of a child in logs."""
    return f"{role}-{index}" if role == "shard" else role


def socket_name(shard: int) -> str:
    return f"shard-{shard:02}.sock"


def encode_boot(boot: Boot) -> bytes:
    return msgspec.json.encode(boot, enc_hook=str)


def decode_boot(data: bytes) -> Boot:
    return msgspec.json.decode(data, type=Boot, dec_hook=_path_from_text)


def boot(argv: Sequence[str] | None = None) -> Boot:
    """Become a child: read the boot message, tie this life to the supervisor's, start logging."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser(description="A process of topics serve; it is not started by hand.")
    parser.add_argument("--boot-fd", type=int, required=True)
    boot_fd: int = parser.parse_args(argv).boot_fd
    with open(boot_fd, "rb") as message:
        told = decode_boot(message.read())
    _die_with_parent(told.parent_pid)
    for fd in (told.status_fd, told.listen_fd):
        if fd is not None:
            os.set_inheritable(fd, False)
    logs.configure(told.title)
    _collect_garbage_less()
    return told


def _collect_garbage_less() -> None:
    """Hot paths make few cycles; looking for them every 700 objects costs several percent."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def _die_with_parent(parent_pid: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have died before that call took effect; then nobody would kill us.
    if os.getppid() != parent_pid:
        sys.exit(0)


def _path_from_text(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(kind)
