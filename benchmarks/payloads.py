"""The records and requests of every row, equal for all parties. Pure.

A record carries 200 bytes: for us a JSON object of that length as `data`, for Redis one field's value.
"""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

RECORD_BYTES = 200
DIFF_LIMIT = 1000
# The half filter looks at two records for each one it returns; a reader must not run into the end.
_DIFF_ROOM = 2 * DIFF_LIMIT + 200
_POSITIONS = 64

DATA = '{"k":"' + "x" * (RECORD_BYTES - len('{"k":""}')) + '"}'
VALUE = b"x" * RECORD_BYTES
assert len(DATA) == len(VALUE) == RECORD_BYTES

# Members of one record beside its data, from its number.
Extras = Callable[[int], Mapping[str, str]]


def no_extras(_number: int) -> Mapping[str, str]:
    return {}


def own_tag(number: int) -> Mapping[str, str]:
    return {"tag": tag_of(number)}


def alternating_node(number: int) -> Mapping[str, str]:
    return {"node": "odd" if number % 2 else "even"}


def every_tenth_tagged(number: int) -> Mapping[str, str]:
    return {"tag": "old"} if number % 10 == 0 else {}


def tag_of(number: int) -> str:
    return f"tenant{number % 100:02d}:job-{number:07d}"


def write_body(count: int, *, first: int = 0, extras: Extras = no_extras) -> bytes:
    """A write of `count` records; `first` is the number of the first of them."""
    records = ",".join(_record(extras(number)) for number in range(first, first + count))
    return f'{{"records":[{records}]}}'.encode()


def _record(extras: Mapping[str, str]) -> str:
    members = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in extras.items())
    return f'{{"data":{DATA}{members}}}'


def diff_positions(records: int) -> list[int]:
    """Cursors all over a log of this length, the same in every run."""
    if records <= _DIFF_ROOM:
        raise ValueError(f"a log of {records} records is too short, {_DIFF_ROOM} are needed")
    return random.Random(200).sample(range(records - _DIFF_ROOM), _POSITIONS)


def diff_bodies(records: int, options: Mapping[str, Any]) -> list[bytes]:
    return [
        json.dumps({"from_seq": position, "limit": DIFF_LIMIT, **options}).encode()
        for position in diff_positions(records)
    ]


def resp(*words: bytes) -> bytes:
    """One Redis command as it goes over the wire."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
