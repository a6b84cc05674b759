"""Requests that a web page makes: only pages of this server, or of origins that are let in, change anything.

A browser sends `Origin` with every request that can change state. A page of another site, or one that
reached a loopback address through a name of its own (DNS rebinding), is refused. Programs that are not
browsers send no `Origin` and are not concerned.

Nothing says a CORS header unless TOPICS_CORS_ORIGINS is set, and nothing ever allows credentials: a key
is put into its header by the page itself, never by the browser.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from gateway.http import Headers, Request, Response
from topics.errors import Forbidden
from topics.web_names import ANY_ORIGIN

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
CHANGING_SCOPES: Final = frozenset({"write", "delete", "admin"})

# What a page may send beyond what every form can.
REQUEST_HEADERS: Final = "authorization, content-type, idempotency-key, last-event-id"
# What a page may read beyond what every page can.
RESPONSE_HEADERS: Final = "retry-after"
# Browsers forget a grant after this, so that a changed setting is soon felt.
PREFLIGHT_MAX_AGE_S: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginPolicy:
    """Whose pages may use this server."""

    # Names under which its own pages are reached, in lower case.
    own_names: frozenset[str] = LOOPBACK_NAMES
    # Other origins, as browsers send them; ANY_ORIGIN is all of them. None: no CORS header, ever.
    cors_origins: frozenset[str] = frozenset()

    def admits(self, origin: str | None) -> bool:
        """Whether this is an origin that the operator has let in."""
        return origin is not None and not self.cors_origins.isdisjoint((origin, ANY_ORIGIN))

    def check(self, headers: Headers) -> None:
        """Raises Forbidden for a page that may not change anything here."""
        origin = headers.get("origin")
        if origin is not None and not self.admits(origin) and not self._is_own(origin, headers.get("host")):
            raise Forbidden(
                "a page of another origin may not change anything here",
                detail={"field": "Origin", "value": origin[:200]},
            )

    def _is_own(self, origin: str, host: str | None) -> bool:
        """Whether the page's origin is this server, under a name that is this server's."""
        try:
            page = urlsplit(origin)
            name, address = page.hostname, page.netloc.lower()
        except ValueError:
            return False
        return name in self.own_names and address == (host or "").lower()

    def preflight(self, request: Request, methods: str) -> Response | None:
        """The answer to a browser that asks first, at a path with these methods; None if it is not asking.

        It comes without a key, so it depends on the path's shape alone. Raises Forbidden for a foreign page.
        """
        headers = request.headers
        asks = request.method == "OPTIONS" and headers.get("access-control-request-method") is not None
        if not asks or not self.cors_origins or headers.get("origin") is None:
            return None
        self.check(headers)
        granted = [
            ("access-control-allow-methods", methods),
            ("access-control-allow-headers", REQUEST_HEADERS),
            ("access-control-max-age", str(PREFLIGHT_MAX_AGE_S)),
        ]
        return Response(204, b"", granted) if self.admits(headers.get("origin")) else None

    def mark(self, headers: Headers, response: Response) -> None:
        """Lets a page of an admitted origin read the answer, whatever it is."""
        if not self.cors_origins:
            return
        # Also for everyone else: a cache must not give their answer to the page.
        _add_vary(response, "Origin")
        origin = headers.get("origin")
        if origin is not None and self.admits(origin):
            shown = ANY_ORIGIN if ANY_ORIGIN in self.cors_origins else origin
            response.headers.append(("access-control-allow-origin", shown))
            response.headers.append(("access-control-expose-headers", RESPONSE_HEADERS))


def _add_vary(response: Response, name: str) -> None:
    for at, (known, value) in enumerate(response.headers):
        if known == "vary":
            response.headers[at] = (known, f"{value}, {name}")
            return
    response.headers.append(("vary", name))
