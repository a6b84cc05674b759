"""What a look has found: problems, and notes about what a crash may leave behind."""

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from shards.look.text import size_text

_BAR_COLUMNS = 30
_REDRAW_S = 0.1


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str  # "problem", "note", or "unknown" for a format of another release
    file: str
    offset: int | None
    text: str
    # The snapshots that are let down by it. If all of them are gone by now, so is the problem.
    by: frozenset[int] = frozenset()

    def line(self) -> str:
        place = self.file if self.offset is None else f"{self.file} at {self.offset}"
        return f"{self.kind:8} {place}: {self.text}"

    def json(self) -> str:
        shown = {"kind": self.kind, "file": self.file, "offset": self.offset, "text": self.text}
        return json.dumps(shown)


@dataclass(slots=True)
class Report:
    """The findings in one shard, or in the directory around them."""

    prefix: str = ""  # stands before every path
    findings: list[Finding] = field(default_factory=list)

    def problem(self, file: str, offset: int | None, text: str, by: Iterable[int] = ()) -> None:
        self.findings.append(Finding("problem", self.prefix + file, offset, text, frozenset(by)))

    def note(self, file: str, offset: int | None, text: str) -> None:
        self.findings.append(Finding("note", self.prefix + file, offset, text))

    def unknown(self, file: str, text: str) -> None:
        self.findings.append(Finding("unknown", self.prefix + file, None, text))

    def excuse(self, present: set[int]) -> None:
        """Problems of snapshots that a checkpoint has removed meanwhile are none any more."""
        for at, one in enumerate(self.findings):
            if one.kind == "problem" and one.by and not one.by & present:
                text = f"{one.text} (a checkpoint has removed that snapshot meanwhile)"
                self.findings[at] = replace(one, kind="note", text=text)

    def count(self, kind: str) -> int:
        return sum(finding.kind == kind for finding in self.findings)


class Progress:
    """One line on a terminal that is drawn over and over; nothing anywhere else."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._done = 0
        self._drawn_s = 0.0
        self._shown = sys.stderr.isatty()

    def add(self, done_bytes: int) -> None:
        self._done += done_bytes
        now_s = time.monotonic()
        if self._shown and now_s - self._drawn_s >= _REDRAW_S:
            self._drawn_s = now_s
            share = min(1.0, self._done / max(1, self._total))
            bar = ("#" * round(share * _BAR_COLUMNS)).ljust(_BAR_COLUMNS)
            done, total = size_text(min(self._done, self._total)), size_text(self._total)
            print(f"\r[{bar}] {done} of {total}\x1b[K", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
