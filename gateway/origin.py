"""Requests that a web page makes: only pages of this server may change anything.

A browser sends `Origin` with every request that can change state. A page of another site, or one that
reached a loopback address through a name of its own (DNS rebinding), is refused. Programs that are not
browsers send no `Origin` and are not concerned.
"""

from urllib.parse import urlsplit

from topics.errors import Forbidden

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
CHANGING_SCOPES = frozenset({"write", "delete", "admin"})


def check_origin(origin: str | None, host: str | None, own_names: frozenset[str]) -> None:
    """Raises Forbidden unless the page's origin is this server, under a name that is this server's."""
    if origin is None:
        return
    try:
        page = urlsplit(origin)
        name, address = page.hostname, page.netloc.lower()
    except ValueError:
        name, address = None, ""
    if name is None or name not in own_names or address != (host or "").lower():
        raise Forbidden(
            "a page of another origin may not change anything here",
            detail={"field": "Origin", "value": origin[:200]},
        )
