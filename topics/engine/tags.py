"""Tags of one chunk and the index over them.

Tags are kept as JSON strings in one byte column. The index is an array of record numbers sorted by
tag, built at the first match delete that needs it: topics that never delete by tag pay nothing.
Later records wait in a short unsorted tail that is merged when it has grown, so a lookup is a binary
search plus a bounded scan, never a walk over the log.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, compress

from topics.engine.run import TAG_KEY, encode_tag
from topics.errors import InvalidRequest

# Longer tails are merged into the sorted part before a lookup.
_UNSORTED_MAX = 64


@dataclass(frozen=True, slots=True)
class TagMatch:
    """`Eq` matches one tag, `Glob` every tag that starts with a literal prefix."""

    encoded: bytes
    is_prefix: bool

    def may_be_between(self, first: bytes, last: bytes) -> bool:
        """Whether a tag from `first` to `last` can match."""
        return (
            first[: len(self.encoded)] <= self.encoded <= last
            if self.is_prefix
            else first <= self.encoded <= last
        )

    def covers(self, tag: bytes) -> bool:
        return tag.startswith(self.encoded) if self.is_prefix else tag == self.encoded


def parse_match(value: str | list[str], *, field: str) -> TagMatch:
    """`"X"`, `["tag","Eq","X"]` or `["tag","Glob","X*"]`."""
    if isinstance(value, str):
        return TagMatch(encode_tag(value), is_prefix=False)
    if len(value) != 3:
        raise InvalidRequest(
            f'{field} must be a string or ["tag", "Eq"|"Glob", value]; it has {len(value)} parts', field=field
        )
    subject, operator, text = value
    if subject != "tag":
        raise InvalidRequest(f'{field}[0] must be "tag"', field=f"{field}[0]", value=_shown(subject))
    if operator == "Eq":
        return TagMatch(encode_tag(text), is_prefix=False)
    if operator != "Glob":
        raise InvalidRequest(
            f'{field}[1] must be "Eq" or "Glob"', field=f"{field}[1]", value=_shown(operator)
        )
    prefix, star, rest = text.partition("*")
    if not star or rest:
        raise InvalidRequest(
            f"{field}[2] must be a literal prefix followed by one *", field=f"{field}[2]", value=_shown(text)
        )
    return TagMatch(encode_tag(prefix)[:-1], is_prefix=True)


def _shown(text: str) -> str:
    return text if len(text) <= 64 else text[:61] + "..."


class TagColumn:
    """The tags of a chunk's records, in record order; an empty tag means none."""

    __slots__ = ("_ends", "_indexed", "_lines", "_order")

    def __init__(self, untagged: int) -> None:
        # A line break, which no JSON string contains, follows every tag: many are split in one step.
        self._lines = bytearray(b"\n") * untagged
        self._ends = array("I", [0]) * untagged  # where each tag ends, line breaks not counted
        self._order: array[int] = array("I")
        self._indexed = 0

    @classmethod
    def of(cls, ends: "array[int]", lines: bytearray, order: "array[int]") -> "TagColumn":
        """The column that `columns` was called on; what is passed belongs to the new one."""
        column = cls(0)
        column._ends, column._lines, column._order = ends, lines, order
        column._indexed = len(ends)
        return column

    def between(self) -> tuple[bytes, bytes] | None:
        """The first and the last tag in their order; None if there is none."""
        tags = self._lines.split()
        return (bytes(min(tags)), bytes(max(tags))) if tags else None

    def columns(self) -> "tuple[array[int], bytearray, array[int]]":
        """Where each tag ends (line breaks not counted), a line per record, and the tagged records sorted.

        They are sorted by tag, and by number where tags are equal. Neither the column nor its index changes.
        """
        if self._indexed == len(self._ends):
            return self._ends, self._lines, self._order
        tags = bytes(self._lines).split(b"\n")
        order = array("I", sorted(compress(range(len(self._ends)), tags), key=tags.__getitem__))
        return self._ends, self._lines, order

    def __len__(self) -> int:
        return len(self._ends)

    def extend(self, lengths: "array[int]", tags: bytes) -> None:
        end = self._ends[-1] if self._ends else 0
        if len(lengths) == 1:
            self._lines += tags + b"\n"
            self._ends.append(end + lengths[0])
        else:
            self._lines += _as_lines(lengths, tags)
            self._ends.extend(array("I", list(accumulate(lengths, initial=end)))[1:])

    def extend_untagged(self, count: int) -> None:
        self._lines += b"\n" * count
        self._ends.extend([self._ends[-1] if self._ends else 0] * count)

    def _offset(self, index: int) -> int:
        """Where the line of a record begins."""
        return self._ends[index - 1] + index if index else 0

    def __getitem__(self, index: int) -> bytes:
        return bytes(self._lines[self._offset(index) : self._ends[index] + index])

    def size_bytes(self, start: int, stop: int) -> int:
        """At least what the tags of records `start` … `stop - 1` take."""
        return self._offset(stop) - self._offset(start)

    def sections(self, start: int, stop: int) -> list[bytes]:
        """`,"$tag":"…"` of records `start` … `stop - 1`; empty for a record that has no tag."""
        lines = b"\n" + self._lines[self._offset(start) : self._offset(stop)]
        return lines.replace(b'\n"', b"\n" + TAG_KEY + b'"').split(b"\n")[1:-1]

    def find(self, match: TagMatch, *, below: int) -> Iterator[int]:
        """Record numbers below `below` whose tag matches, in no particular order."""
        self._merge_tail()
        order, encoded = self._order, match.encoded
        at = bisect_left(order, encoded, key=self.__getitem__)
        while at < len(order) and match.covers(self[order[at]]):
            if order[at] < below:
                yield order[at]
            at += 1
        for index in range(self._indexed, min(below, len(self._ends))):
            if (tag := self[index]) and match.covers(tag):
                yield index

    def _merge_tail(self) -> None:
        if len(self._ends) - self._indexed > _UNSORTED_MAX:
            # Timsort sees a sorted run and a short tail, so this is close to a merge.
            fresh = (index for index in range(self._indexed, len(self._ends)) if self[index])
            self._order = array("I", sorted([*self._order, *fresh], key=self.__getitem__))
            self._indexed = len(self._ends)


def _as_lines(lengths: "array[int]", tags: bytes) -> bytes:
    """Concatenated tags, with a line break after each."""
    # Where none is empty or has an escape, two quotes meet only between two tags.
    if b"\\" not in tags and min(lengths) > len('""'):
        return tags.replace(b'""', b'"\n"') + b"\n"
    ends = list(accumulate(lengths))
    return b"".join([tags[end - length : end] + b"\n" for end, length in zip(ends, lengths, strict=True)])
