"""API keys: the grammar an operator writes them in, and the digests that are left of them.

Kept here and nowhere else:
  * The grammar, entry by entry: `key`, `key:scopes`, `key:scopes:prefixes`, `key::prefixes`.
  * Fail closed: what is not exactly in the grammar refuses the whole list. An empty field means "all", as
    the contract says; an empty part of a field never does.
  * No secret leaves this module. A `Key` holds a SHA-256 digest, a refusal names the position of an entry
    and what is allowed, and neither shows anything of what was written there: a secret with a colon in it
    would turn up in the place of the scopes.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from topics.engine.limits import KIB, MIB, TOPIC_NAME_BYTES_MAX

VALUE_NAME: Final = "TOPICS_API_KEYS"
FILE_NAME: Final = "TOPICS_API_KEYS_FILE"

SCOPES: Final = ("read", "write", "delete", "admin")
ALL_SCOPES: Final = frozenset(SCOPES)

# A key travels in a request head, which has room for 16 KiB altogether.
SECRET_BYTES_MAX: Final = 4 * KIB
# Every request is compared with every key.
KEYS_MAX: Final = 1000
# A list of topics is asked for once per prefix.
PREFIXES_MAX: Final = 100
# More than this is not a list of keys but the wrong file.
FILE_BYTES_MAX: Final = 1 * MIB

_TOKENS: Final[dict[str, frozenset[str]]] = {
    **{scope: frozenset({scope}) for scope in SCOPES},
    **{scope[0]: frozenset({scope}) for scope in SCOPES},
    "rw": frozenset({"read", "write"}),
}
# The beginning of a topic's or a router's name.
_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]*")
_VISIBLE_ASCII: Final = re.compile(r"[!-~]*")


class KeysRefused(Exception):
    """These keys must not be used. The message is one sentence for the operator, without any secret."""


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of one key."""

    # Not shown: whoever reads it somewhere could try out secrets at leisure.
    digest: bytes = field(repr=False)
    scopes: frozenset[str]
    prefixes: tuple[str, ...]  # empty: any name


def token_digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def load_keys(environ: Mapping[str, str]) -> tuple[Key, ...]:
    """The keys that `environ` gives or names the file of; none if it does neither. Raises KeysRefused."""
    if VALUE_NAME in environ and FILE_NAME in environ:
        raise KeysRefused(f"{VALUE_NAME} and {FILE_NAME} are both set; set one of them")
    # A secret that expanded to nothing must not open the server.
    for name in (VALUE_NAME, FILE_NAME):
        if environ.get(name) == "":
            raise KeysRefused(f"{name} is set but empty; unset it to run without authentication on loopback")
    if VALUE_NAME in environ:
        return parse_keys(environ[VALUE_NAME])
    if FILE_NAME in environ:
        return parse_key_file(_read(environ[FILE_NAME]))
    return ()


def parse_keys(value: str) -> tuple[Key, ...]:
    """The keys in a comma-separated value."""
    return _parse_all(VALUE_NAME, _numbered(value))


def parse_key_file(content: bytes) -> tuple[Key, ...]:
    """The keys in a file: an entry per line, or several with commas between. Empty lines do not count."""
    # Latin-1 takes any byte; what is not ASCII is refused with its position.
    lines = content.decode("latin-1").split("\n")
    entries = (
        (f"line {number}, {where}", entry)
        for number, line in enumerate(lines, 1)
        if line
        for where, entry in _numbered(line)
    )
    return _parse_all(f"the file of {FILE_NAME}", entries)


def _read(path: str) -> bytes:
    # The path is not shown either: the variables are easily confused, and then it is the secret.
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        problem = error.strerror or type(error).__name__
    except ValueError:
        problem = "not a path"
    else:
        if len(content) <= FILE_BYTES_MAX:
            return content
        problem = f"it is larger than {FILE_BYTES_MAX} bytes, so it is not a list of keys"
    raise KeysRefused(f"the file of {FILE_NAME} cannot be used: {problem}")


def _numbered(entries: str) -> Iterator[tuple[str, str]]:
    for number, entry in enumerate(entries.split(","), 1):
        yield f"entry {number}", entry


def _parse_all(source: str, entries: Iterable[tuple[str, str]]) -> tuple[Key, ...]:
    keys: list[Key] = []
    places: dict[bytes, str] = {}
    for where, entry in entries:
        key = _parse(entry, f"{source}, {where}")
        if key.digest in places:
            raise KeysRefused(
                f"{source}, {where}: the same key as in {places[key.digest]}; each may stand once"
            )
        places[key.digest] = where
        keys.append(key)
        if len(keys) > KEYS_MAX:
            raise KeysRefused(f"{source}: more than {KEYS_MAX} keys")
    if not keys:
        raise KeysRefused(f"{source} holds no key")
    return tuple(keys)


def _parse(entry: str, place: str) -> Key:
    if not entry:
        raise KeysRefused(f"{place}: it is empty; is there a comma too many?")
    if not _VISIBLE_ASCII.fullmatch(entry):
        raise KeysRefused(
            f"{place}: it holds a space, a line end or another character that is not visible ASCII; allowed "
            "are the characters from ! to ~, with nothing around the commas"
        )
    secret, _, rest = entry.partition(":")
    scopes, _, prefixes = rest.partition(":")
    if not secret:
        raise KeysRefused(f"{place}: the key before the first colon is empty")
    if len(secret) > SECRET_BYTES_MAX:
        raise KeysRefused(f"{place}: the key is longer than {SECRET_BYTES_MAX} characters")
    return Key(token_digest(secret.encode("ascii")), _scopes(scopes, place), _prefixes(prefixes, place))


def _scopes(field_text: str, place: str) -> frozenset[str]:
    if not field_text:
        return ALL_SCOPES
    granted: frozenset[str] = frozenset()
    for token in field_text.split("+"):
        if token not in _TOKENS:
            raise KeysRefused(
                f"{place}: an empty or unknown scope; allowed are {', '.join(SCOPES)}, their first letters "
                "and rw, with + between them, or nothing for all (a key may hold no colon)"
            )
        granted |= _TOKENS[token]
    return granted


def _prefixes(field_text: str, place: str) -> tuple[str, ...]:
    if not field_text:
        return ()
    prefixes = field_text.split("|")
    if len(prefixes) > PREFIXES_MAX:
        raise KeysRefused(f"{place}: more than {PREFIXES_MAX} prefixes")
    for prefix in prefixes:
        if not _PREFIX.fullmatch(prefix) or len(prefix) > TOPIC_NAME_BYTES_MAX:
            raise KeysRefused(
                f"{place}: an empty prefix, or one with which no name begins; allowed are the beginnings of "
                "names (letters, digits and . _ : - >), with | between them, or nothing for any name"
            )
    return _widest(prefixes)


def _widest(prefixes: Iterable[str]) -> tuple[str, ...]:
    """In order, without those that another one covers: no name begins with two of what is left."""
    kept: list[str] = []
    for prefix in sorted(prefixes):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return tuple(kept)
