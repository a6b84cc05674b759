"""CBOR as far as we use it: plain values, definite lengths, nothing built by a tag.

`cbor2` is a full implementation, so a peer's bytes could make it build dates, regular expressions or
lists that contain themselves, and it leaves bytes behind the first item unread. Every item is therefore
walked first, head by head, without building anything; only then does `cbor2` decode it.

Refused: tags, indefinite lengths, reserved encodings, simple values other than false, true and null,
map keys that are not text, duplicate keys, bytes behind the item, and more items or levels than the
caller allows.
"""

from typing import Final

import cbor2

ITEMS_MAX: Final = 64
DEPTH_MAX: Final = 4

_BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = 2, 3, 4, 5, 6, 7
_FALSE, _TRUE, _NULL = 20, 21, 22
# Additional information 24 to 27: the argument follows in so many bytes. 31 is indefinite, 28 to 30 reserved.
_ARGUMENT_BYTES: Final = {24: 1, 25: 2, 26: 4, 27: 8}
_FLOAT_INFOS: Final = frozenset({25, 26, 27})


class CborRefused(Exception):
    """These bytes are not one plain CBOR value within the bounds."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def encode_value(value: object) -> bytes:
    return cbor2.dumps(value)


def decode_value(data: bytes, *, items_max: int = ITEMS_MAX, depth_max: int = DEPTH_MAX) -> object:
    """The one value these bytes hold. Raises CborRefused and nothing else."""
    _walk(data, items_max, depth_max)
    try:
        value: object = cbor2.loads(
            data,
            max_depth=depth_max + 1,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
        )
    except (cbor2.CBORError, ValueError, TypeError, RecursionError, MemoryError, OverflowError) as error:
        raise CborRefused(str(error) or type(error).__name__) from None
    return value


def _walk(data: bytes, items_max: int, depth_max: int) -> None:
    """Steps over every head of the item; raises where it is not plain, or not exactly one item."""
    size = len(data)
    at = 0
    seen = 0
    # One entry per open container: items still to come, and whether it is a map (whose keys come first).
    open_items: list[int] = [1]
    open_maps: list[bool] = [False]
    while open_items:
        if open_items[-1] == 0:
            open_items.pop()
            open_maps.pop()
            continue
        is_key = open_maps[-1] and open_items[-1] % 2 == 0
        open_items[-1] -= 1
        seen += 1
        if seen > items_max:
            raise CborRefused(f"more than {items_max} items")
        if at >= size:
            raise CborRefused("ends inside an item")
        major, info = data[at] >> 5, data[at] & 31
        at += 1
        if is_key and major != _TEXT:
            raise CborRefused("a map key that is not text")
        argument = info
        if info >= 24:
            width = _ARGUMENT_BYTES.get(info)
            if width is None:
                raise CborRefused("an indefinite or reserved length")
            if at + width > size:
                raise CborRefused("ends inside a head")
            argument = int.from_bytes(data[at : at + width], "big")
            at += width
        if major in (_BYTES, _TEXT):
            at += argument
            if at > size:
                raise CborRefused("ends inside a string")
        elif major in (_ARRAY, _MAP):
            if argument > size:
                raise CborRefused("a container longer than its message")
            if len(open_items) > depth_max:
                raise CborRefused(f"nested deeper than {depth_max}")
            open_items.append(argument * 2 if major == _MAP else argument)
            open_maps.append(major == _MAP)
        elif major == _TAG:
            raise CborRefused(f"tag {argument}")
        elif major == _SIMPLE and info not in _FLOAT_INFOS and info not in (_FALSE, _TRUE, _NULL):
            raise CborRefused(f"simple value {argument}")
    if at != size:
        raise CborRefused(f"{size - at} bytes behind the item")
