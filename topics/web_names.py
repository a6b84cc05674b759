"""Host names and web origins as an operator writes them. Pure: text in, what a browser will send out.

A value that could never match what browsers send raises ValueError: it would look like a rule and be none.
"""

import ipaddress
import re
from typing import Final

ANY_ORIGIN: Final = "*"

_NAME: Final = r"[0-9a-z](?:[0-9a-z._-]{0,251}[0-9a-z])?"
_ORIGIN: Final = re.compile(rf"([a-z][a-z0-9+.-]*)://(?:{_NAME}|\[[0-9a-f:]+\])(?::([0-9]{{1,5}}))?")
# Browsers leave them out.
_USUAL_PORTS: Final = frozenset({("http", "80"), ("https", "443")})


def parse_hosts(text: str) -> tuple[str, ...]:
    """Names and addresses with commas between them, without port or brackets."""
    return tuple(_host(item) for item in text.lower().split(",")) if text else ()


def parse_origins(text: str) -> tuple[str, ...]:
    """Origins with commas between them, or ANY_ORIGIN alone."""
    items = tuple(text.lower().split(",")) if text else ()
    return items if items == (ANY_ORIGIN,) else tuple(_origin(item) for item in items)


def _host(text: str) -> str:
    if ":" in text:
        return str(ipaddress.IPv6Address(text))
    if not re.fullmatch(_NAME, text):
        raise ValueError(text)
    return text


def _origin(text: str) -> str:
    match = _ORIGIN.fullmatch(text)
    if match is None or (match[1], match[2]) in _USUAL_PORTS:
        raise ValueError(text)
    return text
