"""The Clock seam: wall time for records, monotonic time for deadlines, the boot for crash kinds."""

import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int: ...
    def monotonic_ns(self) -> int: ...
    def boot_id(self) -> str: ...


class RealClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def boot_id(self) -> str:
        """Changes when the machine starts anew, and only then: page cache survives a process, not a boot."""
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
