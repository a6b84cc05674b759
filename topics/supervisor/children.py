"""One child process: started, watched, started again when it dies, stopped when asked.

Kept here and nowhere else:
  * Processes are started in the main thread. The kernel kills a child when the *thread* that started
    it ends, so a worker thread must never do it.
  * A death is learned from a pidfd at once, never by polling.
  * A child that dies comes back after a growing pause; one that was told to stop does not.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import trio

import topics
from topics.child import LISTENING, READY, Boot, child_title, encode_boot
from topics.keys import Key
from topics.settings import Settings
from topics.supervisor.notify import NAMES as NOTIFY_NAMES

log = logging.getLogger(__name__)

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 5.0
# A child that lived this long had started well: its next death is a new story.
GOOD_LIFE_S = 10.0

_STATUS_LINE_BYTES_MAX = 100

# Buffers of large reads stay on the heap instead of being mapped and faulted in again for each answer.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(64 * 1024**2), "MALLOC_TRIM_THRESHOLD_": str(128 * 1024**2)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all children of one server share."""

    data_dir: Path
    socket_dir: Path
    shard_count: int
    settings: Settings
    environ: Mapping[str, str]  # the supervisor's


class Child:
    """A child through all its lives. `run` is its only task; `stop` may be called by another."""

    def __init__(
        self,
        role: str,
        index: int,
        module: str,
        ground: Ground,
        *,
        listen_fd: int | None = None,
        keys: tuple[Key, ...] = (),
        on_state: Callable[[], None] = lambda: None,
    ) -> None:
        self.role = role
        self.index = index
        self.title = child_title(role, index)
        self.listening = False
        self.ready = False
        self._module = module
        self._ground = ground
        self._listen_fd = listen_fd
        self._keys = keys
        self._on_state = on_state
        self._epoch = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = trio.Event()
        self._gone = trio.Event()

    async def run(self) -> None:
        """Keep the child alive until it is told to stop."""
        backoff_s = BACKOFF_FIRST_S
        try:
            while not self._stopping.is_set():
                born_s = trio.current_time()
                await self._live_once()
                self.listening = self.ready = False
                if self._stopping.is_set():
                    break
                if trio.current_time() - born_s >= GOOD_LIFE_S:
                    backoff_s = BACKOFF_FIRST_S
                log.warning("child.restarting", extra={"child": self.title, "in_ms": round(backoff_s * 1000)})
                with trio.move_on_after(backoff_s):
                    await self._stopping.wait()
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
        finally:
            self._gone.set()

    async def stop(self, timeout_s: float) -> bool:
        """SIGTERM, and SIGKILL after `timeout_s`. Whether the child ended by itself."""
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()
        with trio.move_on_after(timeout_s):
            await self._gone.wait()
            return True
        log.error("child.killed", extra={"child": self.title, "after_ms": round(timeout_s * 1000)})
        if self._process is not None:
            self._process.kill()
        await self._gone.wait()
        return False

    async def _live_once(self) -> None:
        self._epoch += 1
        try:
            process, status_fd = self._spawn()
        except OSError as error:
            log.error("child.not_started", extra={"child": self.title, "reason": str(error)})
            return
        self._process = process
        log.info("child.started", extra={"child": self.title, "child_pid": process.pid, "epoch": self._epoch})
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear, status_fd)
                await _wait_for_exit(process.pid)
                nursery.cancel_scope.cancel()
        finally:
            self._process = None
            if process.poll() is None:
                process.kill()
                process.wait()
        extra = {"child": self.title, "child_pid": process.pid, "exit_code": process.returncode}
        log.log(logging.INFO if self._stopping.is_set() else logging.ERROR, "child.exited", extra=extra)

    def _spawn(self) -> tuple[subprocess.Popen[bytes], int]:
        """Start the process with its boot message already written; its status pipe."""
        with ExitStack() as unless_started, ExitStack() as theirs:
            status_read_fd, status_fd = os.pipe2(os.O_CLOEXEC)
            unless_started.callback(os.close, status_read_fd)
            theirs.callback(os.close, status_fd)
            # In memory and without a name. A pipe would block on a message with many keys: nobody reads yet.
            boot_fd = os.memfd_create("boot", os.MFD_CLOEXEC)
            theirs.callback(os.close, boot_fd)
            with open(boot_fd, "wb", closefd=False) as message:
                message.write(encode_boot(self._boot_message(status_fd)))
            os.lseek(boot_fd, 0, os.SEEK_SET)
            listen_fds = () if self._listen_fd is None else (self._listen_fd,)
            process = subprocess.Popen(
                [sys.executable, "-m", self._module, "--boot-fd", str(boot_fd)],
                stdin=subprocess.DEVNULL,
                stdout=2,  # standard output is the supervisor's
                env=child_environ(self._ground.environ),
                pass_fds=(boot_fd, status_fd, *listen_fds),
                # A signal to our group (Ctrl-C, for one) is for us: we stop the children, in order.
                process_group=0,
            )
            unless_started.pop_all()
        return process, status_read_fd

    def _boot_message(self, status_fd: int) -> Boot:
        return Boot(
            role=self.role,
            index=self.index,
            parent_pid=os.getpid(),
            data_dir=self._ground.data_dir,
            socket_dir=self._ground.socket_dir,
            shard_count=self._ground.shard_count,
            settings=self._ground.settings,
            listen_fd=self._listen_fd,
            status_fd=status_fd,
            epoch=self._epoch,
            keys=self._keys,
        )

    async def _hear(self, status_fd: int) -> None:
        """Take the child's status lines until it closes the pipe."""
        heard = b""
        async with trio.lowlevel.FdStream(status_fd) as pipe:
            async for part in pipe:
                *lines, heard = (heard + part).split(b"\n")
                for line in lines:
                    self._take_state(line.decode("ascii", "replace"))
                # Nobody of ours says more in one line; what follows is judged anew.
                heard = heard[-_STATUS_LINE_BYTES_MAX:]

    def _take_state(self, state: str) -> None:
        if state not in (LISTENING, READY):
            log.warning("child.status_ignored", extra={"child": self.title, "status": state})
            return
        self.listening = True
        self.ready = self.ready or state == READY
        log.info("child.state", extra={"child": self.title, "state": state})
        self._on_state()


async def _wait_for_exit(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child: no settings, no service manager, and its code where ours is."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("TOPICS_") and name not in NOTIFY_NAMES
    }
    # A folder called "gateway" where the server happens to be started must not be taken for ours.
    kept["PYTHONSAFEPATH"] = "1"
    home = Path(topics.__file__).resolve().parent.parent
    if home.name not in ("site-packages", "dist-packages"):
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(home), environ.get("PYTHONPATH")]))
    return kept | _MALLOC
