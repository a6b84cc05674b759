"""Metrics as Prometheus text (version 0.0.4) and as JSON. Pure: samples in, bytes out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec


@dataclass(slots=True)
class Family:
    """One metric: its samples, each with its labels and perhaps a suffix of the name."""

    name: str
    kind: str  # gauge, counter or histogram
    help: str
    samples: list[tuple[str, dict[str, str], float]] = field(default_factory=list)

    def add(self, value: float, *, suffix: str = "", **labels: str) -> "Family":
        self.samples.append((suffix, labels, value))
        return self

    def add_histogram(
        self, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: str
    ) -> "Family":
        """`counts` has one entry per bound and one for what lies above the last."""
        seen = 0
        for bound, count in zip((*bounds, None), counts, strict=True):
            seen += count
            self.add(seen, suffix="_bucket", **labels, le="+Inf" if bound is None else f"{bound:g}")
        self.add(total, suffix="_sum", **labels)
        return self.add(seen, suffix="_count", **labels)


def as_text(families: Iterable[Family]) -> bytes:
    lines: list[str] = []
    for family in families:
        lines += (f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}")
        for suffix, labels, value in family.samples:
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{family.name}{suffix}{{{shown}}} {_number(value)}" if shown
                         else f"{family.name}{suffix} {_number(value)}")  # fmt: skip
    return ("\n".join(lines) + "\n").encode()


def as_json(families: Iterable[Family]) -> bytes:
    """One key per metric: a number, or a list of samples with their labels."""
    snapshot: dict[str, object] = {}
    for family in families:
        for suffix, labels, value in family.samples:
            if not labels:
                snapshot[family.name + suffix] = value
            else:
                samples = snapshot.setdefault(family.name + suffix, [])
                assert isinstance(samples, list)
                samples.append({"labels": labels, "value": value})
    return msgspec.json.encode(snapshot)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
