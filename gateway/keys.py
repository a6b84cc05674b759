"""The keys of this server as the gateway knows them: digests, and what the bearer of each may do.

Promises:
  * A token is hashed and the digest compared with every key's, as bytes, in constant time, to the end of
    the list. Nothing of the token is kept.
  * A `Caller` is who a request comes from, for as long as a request or a stream lives. It knows rights and
    the digest of its key (to count by, and to bind a session to), never a token.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from topics.errors import Forbidden
from topics.keys import ALL_SCOPES, Key, token_digest

_NAME_CHARS_SHOWN: Final = 255


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what they may do."""

    # The same after a restart with the same key; empty for a caller without a key.
    key_digest: bytes = field(repr=False)
    scopes: frozenset[str]
    # In order, none the beginning of another; empty: any name.
    prefixes: tuple[str, ...]

    @property
    def limited(self) -> bool:
        """Whether there are names this caller may not touch."""
        return bool(self.prefixes)

    def may_touch(self, name: str) -> bool:
        return not self.prefixes or name.startswith(self.prefixes)

    def check_scopes(self, needed: frozenset[str]) -> None:
        if not needed <= self.scopes:
            missing = sorted(needed - self.scopes)
            raise Forbidden(f"the API key lacks the scope {' and '.join(missing)}", detail={"scope": missing})

    def check_name(self, name: str, *, field: str) -> None:
        """Refuses a topic or a router outside the key's prefixes; `field` is where the request names it.

        Looks at nothing but the name, so that the answer does not tell what exists.
        """
        if not self.may_touch(name):
            shown = name[:_NAME_CHARS_SHOWN]
            raise Forbidden(
                f'the API key may not touch "{shown}": the name begins with none of its prefixes',
                detail={"field": field, "name": shown},
            )

    def within(self, prefix: str) -> tuple[str, ...]:
        """`prefix`, cut down to what this caller may see: prefixes in order, none covered by another."""
        if not self.prefixes or prefix.startswith(self.prefixes):
            return (prefix,)
        return tuple(own for own in self.prefixes if own.startswith(prefix))


# Without any keys (dev mode) everyone may do everything.
EVERYONE: Final = Caller(b"", ALL_SCOPES, ())
# With keys, whoever asks an open route without one has no rights beyond it.
NOBODY: Final = Caller(b"", frozenset(), ())


class KeyStore:
    """All keys of a server. Without any, authentication is off."""

    def __init__(self, keys: Sequence[Key] = (), *, probe_auth: bool = False) -> None:
        self._callers = tuple(Caller(key.digest, key.scopes, key.prefixes) for key in keys)
        # Whether liveness and readiness need a key too.
        self.probe_auth = probe_auth
        self.enabled = bool(keys)

    def bearer_of(self, token: str) -> Caller | None:
        """Whose token this is, None if nobody's."""
        if not token.isascii():
            return None
        digest = token_digest(token.encode("ascii"))
        found: Caller | None = None
        for caller in self._callers:
            if hmac.compare_digest(digest, caller.key_digest):
                found = caller
        return found
