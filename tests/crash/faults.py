"""Disks that fail for real: errors and kills injected into a process by strace, and disks of a size.

What needs rights that this machine does not give is skipped and says so; under CI it fails instead,
because a proof that is skipped there is never made.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DETACH_S = 2.0


def cannot(reason: str) -> None:
    """Skip the test that needs what is not there; fail it where it has to run."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"{reason}, and CI must prove this")
    pytest.skip(reason)


@contextmanager
def injected(pid: int, syscall: str, fault: str, trace_file: Path) -> Iterator[None]:
    """While the block runs, `syscall` of the process and its threads meets `fault`."""
    if shutil.which("strace") is None:
        cannot("strace is not installed")
    options = ["-e", f"trace={syscall}", "-e", f"inject={syscall}:{fault}"]
    tracer = subprocess.Popen(
        ["strace", "-f", "-p", str(pid), "-o", str(trace_file), *options],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with tracer:
        try:
            assert tracer.stderr is not None
            said = tracer.stderr.readline()
            if "attached" not in said:
                cannot(f"strace may not trace: {said.strip()}")
            yield
        finally:
            _let_go(tracer)


def _let_go(tracer: "subprocess.Popen[str]") -> None:
    """Detach the tracer. Some versions wait for ever for a process that died under them."""
    tracer.send_signal(signal.SIGINT)
    try:
        tracer.communicate(timeout=DETACH_S)
    except subprocess.TimeoutExpired:
        tracer.kill()
        tracer.communicate()


def times_fired(trace_file: Path) -> int:
    """How often the fault was really injected."""
    return trace_file.read_text().count("(INJECTED)")


class SmallDisk:
    """A filesystem of a given size, which can grow."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def grow(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.path)], check=True, timeout=10)

    def fill(self) -> Path:
        """Take all the space there is; removing the file gives it back."""
        ballast = self.path / "ballast"
        with ballast.open("wb", buffering=0) as file:
            free = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
            os.posix_fallocate(file.fileno(), 0, free)
        return ballast


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        cannot("only root can mount a small disk")
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True, timeout=10)
    if mounted.returncode != 0:
        cannot(f"mounting is not permitted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=10)
