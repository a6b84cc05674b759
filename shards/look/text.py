"""How things are shown to a person: bytes that cannot harm a terminal, sizes, times, columns."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

SHOWN_BYTES = 160
Row: TypeAlias = tuple[str, ...]


def shown(raw: bytes | str, limit: int = SHOWN_BYTES) -> str:
    """The beginning of `raw`, with everything escaped that is not plainly printable."""
    whole = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw
    text = bytes(whole[:limit]).decode("utf-8", "backslashreplace")
    text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)
    return text if len(whole) <= limit else f"{text}… ({len(whole)} bytes)"


def size_text(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    value, unit = size / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}"


def time_text(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def number_text(count: int, one: str, many: str = "") -> str:
    """`1 page`, `2 pages`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def aligned(rows: Sequence[Row], indent: str, left: Iterable[int] = (0,)) -> Iterator[str]:
    """Rows as lines; columns are as wide as they need to be, those of `left` stand to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    to_left = set(left)
    for row in rows:
        cells = [
            cell.ljust(width) if at in to_left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield (indent + "  ".join(cells)).rstrip()
