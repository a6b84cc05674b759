"""Query parameters: the known ones are strict, the unknown ones are ignored."""

from typing import Final

from gateway.http import BadEscape, Request, percent_decode
from topics.errors import InvalidRequest

_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_SHOWN_CHARS_MAX: Final = 100


def text(request: Request, name: str) -> str | None:
    """The value of the parameter, None if it is absent."""
    found: str | None = None
    wanted = name.encode()
    for pair in request.query_string.split(b"&"):
        raw_name, _, raw_value = pair.partition(b"=")
        if raw_name != wanted:
            continue
        if found is not None:
            raise InvalidRequest(f"{name} is given more than once", field=name)
        try:
            found = percent_decode(raw_value.replace(b"+", b" "))
        except BadEscape as error:
            raise InvalidRequest(f"{name}: {error}", field=name) from None
    return found


def boolean(request: Request, name: str) -> bool | None:
    value = text(request, name)
    if value is None:
        return None
    if value not in _BOOLEANS:
        raise InvalidRequest(f"{name} must be true or false", field=name, value=value[:_SHOWN_CHARS_MAX])
    return _BOOLEANS[value]


def natural(request: Request, name: str) -> int | None:
    """A whole number without sign. Of any size: the caller clamps."""
    value = text(request, name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()):
        raise InvalidRequest(
            f"{name} must be a whole number from 0 on", field=name, value=value[:_SHOWN_CHARS_MAX]
        )
    # Converting thousands of digits takes long, and no limit is near this.
    return int(value) if len(value) <= 18 else 10**18
