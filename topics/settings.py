"""The settings of a server, read once from a mapping the caller passes in.

Kept here and nowhere else:
  * `VARIABLES` is the one table: name, default as an operator would type it, what is allowed, help.
  * A malformed value refuses to start; the error names the variable, the value and what is allowed.
  * An unknown `TOPICS_*` name never stops the server (orchestrators inject their own), but is told.
  * Somebody who asked for API keys never gets an open server, and never sees a key printed.
Nothing here touches the environment, the network or a file, but the file of keys that is named to it.
"""

import difflib
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from topics import keys, web_names
from topics.engine.limits import BATCH_RECORDS_MAX, KIB, MIB, Limits
from topics.keys import Key, KeysRefused

T_co = TypeVar("T_co", covariant=True)

GIB = 1024 * MIB
SHARDS_MAX = 64
SHARDS_DEFAULT_MAX = 8

# Read by the client library and the command line, so they are no mistake in a server's environment.
CLIENT_NAMES = frozenset({"TOPICS_URL", "TOPICS_TOKEN"})

_UNITS = {"": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}


class SettingsError(Exception):
    """A server must not start like this. The message is one sentence for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one server was asked to be."""

    host: str
    port: int  # 0: any free port
    port_file: Path | None  # where the bound port is written
    data_dir: Path
    wal_shards: int | None  # None: as many as the data directory has; a new one gets min(cpus, 8)
    wal_file_bytes: int
    sync_interval_ms: int
    checkpoint_bytes: int
    segment_max_events: int
    segment_max_bytes: int
    segment_max_age_ms: int
    cache_bytes: int
    drain_timeout_ms: int
    fast_lane: bool
    allow_insecure_no_auth: bool
    probe_auth: bool
    allowed_hosts: tuple[str, ...]  # names of this server beside `host` and loopback
    cors_origins: tuple[str, ...]  # whose pages may use it beside its own; "*": all
    keys: tuple[Key, ...]  # none: no authentication
    max_inflight_per_key: int  # 0: no bound
    max_topics: int  # 0: no bound
    max_total_bytes: int  # 0: no bound
    limits: Limits

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server. A name we cannot judge counts as public."""
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class UnknownName:
    """A `TOPICS_*` name that means nothing to a server, and the known name it looks like."""

    name: str
    nearest: str | None

    def __str__(self) -> str:
        hint = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"{self.name} is not a setting of this server and is ignored{hint}"


@dataclass(frozen=True, slots=True)
class Rule(Generic[T_co]):
    """How a value is parsed, and the words that say what is allowed."""

    allowed: str
    parse: Callable[[str], T_co]


@dataclass(frozen=True, slots=True)
class Variable(Generic[T_co]):
    """One row of the table."""

    name: str
    default: str
    rule: Rule[T_co]
    help: str

    def read(self, environ: Mapping[str, str]) -> T_co:
        given = environ.get(self.name, self.default)
        try:
            return self.rule.parse(given)
        except ValueError:
            raise SettingsError(f"{self.name} is {given!r}; allowed: {self.rule.allowed}") from None


def _integer(low: int, high: int, unit: str = "") -> Rule[int]:
    def parse(text: str) -> int:
        # int() alone would take "1_000", " 7 " and digits of other scripts.
        if not re.fullmatch(r"-?[0-9]{1,18}", text) or not low <= int(text) <= high:
            raise ValueError(text)
        return int(text)

    return Rule(f"a whole number{unit and f' of {unit}'} from {low} to {high}", parse)


def _bytes(low: str, high: str) -> Rule[int]:
    def size(text: str) -> int:
        match = re.fullmatch(r"([0-9]{1,18})(?: ?(KiB|MiB|GiB))?", text)
        if match is None:
            raise ValueError(text)
        return int(match[1]) * _UNITS[match[2] or ""]

    def parse(text: str) -> int:
        value = size(text)
        if not size(low) <= value <= size(high):
            raise ValueError(text)
        return value

    return Rule(f"a number of bytes from {low} to {high}, plain or with KiB, MiB or GiB", parse)


def _flag() -> Rule[bool]:
    words = {"1": True, "true": True, "0": False, "false": False}

    def parse(text: str) -> bool:
        if text.lower() not in words:
            raise ValueError(text)
        return words[text.lower()]

    return Rule("1, true, 0 or false", parse)


def _host() -> Rule[str]:
    def parse(text: str) -> str:
        # Brackets belong to URLs. Everything else is left to the resolver, which knows more than we do.
        if not re.fullmatch(r"[0-9A-Za-z.:%_-]{1,253}", text):
            raise ValueError(text)
        return text

    return Rule("an IPv4 address, an IPv6 address without brackets, or a host name", parse)


def _hosts() -> Rule[tuple[str, ...]]:
    return Rule(
        "host names or addresses without port or brackets, with commas between; or nothing",
        web_names.parse_hosts,
    )


def _origins() -> Rule[tuple[str, ...]]:
    return Rule(
        "*, or origins as browsers send them (https://app.example.com, http://localhost:5173: no path, no "
        "usual port), with commas between; or nothing",
        web_names.parse_origins,
    )


def _secret(allowed: str) -> Rule[None]:
    """For a variable that is read by `topics.keys` alone: this table must not even hold its value."""

    def parse(text: str) -> None:
        raise AssertionError("not read by this table")

    return Rule(allowed, parse)


def _path() -> Rule[Path]:
    def parse(text: str) -> Path:
        if not text or "\0" in text:
            raise ValueError(text)
        return Path(text)

    return Rule("a path", parse)


def _optional_path() -> Rule[Path | None]:
    path = _path()
    return Rule("a path, or nothing", lambda text: path.parse(text) if text else None)


def _shards() -> Rule[int | None]:
    number = _integer(1, SHARDS_MAX)
    return Rule(f"{number.allowed}, or auto", lambda text: None if text == "auto" else number.parse(text))


HOST = Variable("TOPICS_HOST", "127.0.0.1", _host(), "address to listen on")
PORT = Variable("TOPICS_PORT", "4000", _integer(0, 65535), "port to listen on; 0 takes any free one")
PORT_FILE = Variable("TOPICS_PORT_FILE", "", _optional_path(), "file that receives the bound port")
DATA_DIR = Variable("TOPICS_DATA_DIR", "./topics-data", _path(), "directory of everything that is kept")
WAL_SHARDS = Variable(
    "TOPICS_WAL_SHARDS",
    "auto",
    _shards(),
    f"shard processes; auto keeps what the data directory has, or takes min(cpus, {SHARDS_DEFAULT_MAX})",
)
WAL_FILE_BYTES = Variable(
    "TOPICS_WAL_FILE_BYTES", "64MiB", _bytes("1MiB", "1GiB"), "size at which a log file is closed"
)
SYNC_INTERVAL_MS = Variable(
    "TOPICS_SYNC_INTERVAL_MS",
    "50",
    _integer(1, 60_000, "ms"),
    "how often class disk is synced: what a power cut can take",
)
CHECKPOINT_BYTES = Variable(
    "TOPICS_CHECKPOINT_BYTES",
    "256MiB",
    _bytes("1MiB", "64GiB"),
    "log of one shard after which its records are sealed and the log is shortened",
)
SEGMENT_MAX_EVENTS = Variable(
    "TOPICS_SEGMENT_MAX_EVENTS", "10000", _integer(1, 10_000_000), "records in one file of sealed records"
)
SEGMENT_MAX_BYTES = Variable(
    "TOPICS_SEGMENT_MAX_BYTES", "64MiB", _bytes("1MiB", "1GiB"), "size of one file of sealed records"
)
SEGMENT_MAX_AGE_MS = Variable(
    "TOPICS_SEGMENT_MAX_AGE_MS",
    "3600000",
    _integer(1000, 31_536_000_000, "ms"),
    "how old records get before they are sealed, however few they are",
)
CACHE_BYTES = Variable(
    "TOPICS_CACHE_BYTES", "256MiB", _bytes("1MiB", "1024GiB"), "sealed records kept in memory, all shards"
)
DRAIN_TIMEOUT_MS = Variable(
    "TOPICS_DRAIN_TIMEOUT_MS",
    "10000",
    _integer(0, 600_000, "ms"),
    "time for open requests to finish at stop",
)
ALLOW_INSECURE_NO_AUTH = Variable(
    "TOPICS_ALLOW_INSECURE_NO_AUTH", "0", _flag(), "1 serves a public address without API keys"
)
FAST_LANE = Variable(
    "TOPICS_FAST_LANE", "1", _flag(), "0 serves HTTP/1.1 by Quart and Hypercorn too, not by the fast lane"
)
API_KEYS = Variable(
    keys.VALUE_NAME,
    "",
    _secret("key, key:scopes or key:scopes:prefixes, with commas between; see README"),
    "API keys; without any, everyone on this machine may do everything",
)
API_KEYS_FILE = Variable(
    keys.FILE_NAME, "", _secret("a path"), "file that holds them instead, an entry per line"
)
PROBE_AUTH = Variable("TOPICS_PROBE_AUTH", "0", _flag(), "1 asks for a key on health and ready too")
ALLOWED_HOSTS = Variable(
    "TOPICS_ALLOWED_HOSTS", "", _hosts(), "other names of this server, for its own web pages"
)
CORS_ORIGINS = Variable(
    "TOPICS_CORS_ORIGINS",
    "",
    _origins(),
    "whose web pages may use this server too; * is everyone's",
)
MAX_INFLIGHT_PER_KEY = Variable(
    "TOPICS_MAX_INFLIGHT_PER_KEY",
    "1000",
    _integer(0, 1_000_000),
    "requests of one key at a time; 0 is no bound",
)
MAX_TOPICS = Variable(
    "TOPICS_MAX_TOPICS", "100000", _integer(0, 1_000_000_000), "topics of this server; 0 is no bound"
)
MAX_TOTAL_BYTES = Variable(
    "TOPICS_MAX_TOTAL_BYTES",
    "0",
    _bytes("0", "1048576GiB"),
    "data and meta of all live records together; 0 is no bound",
)
MAX_BATCH_RECORDS = Variable(
    "TOPICS_MAX_BATCH_RECORDS", "10000", _integer(1, BATCH_RECORDS_MAX), "records in one write"
)
MAX_RECORD_BYTES = Variable(
    "TOPICS_MAX_RECORD_BYTES", "1MiB", _bytes("1", "64MiB"), "data and meta of one record"
)
MAX_BODY_BYTES = Variable("TOPICS_MAX_BODY_BYTES", "64MiB", _bytes("1KiB", "1GiB"), "one body, inflated")
MAX_META_BYTES = Variable("TOPICS_MAX_META_BYTES", "16KiB", _bytes("2", "1MiB"), "meta of one record")
MAX_TAG_BYTES = Variable("TOPICS_MAX_TAG_BYTES", "256", _bytes("1", "4KiB"), "one tag")
MAX_NODE_BYTES = Variable("TOPICS_MAX_NODE_BYTES", "128", _bytes("1", "1KiB"), "one node name")
MAX_LIMIT = Variable("TOPICS_MAX_LIMIT", "1000", _integer(1, 10_000), "records in one answer")

VARIABLES: tuple[Variable[object], ...] = (
    HOST,
    PORT,
    PORT_FILE,
    DATA_DIR,
    WAL_SHARDS,
    WAL_FILE_BYTES,
    SYNC_INTERVAL_MS,
    CHECKPOINT_BYTES,
    SEGMENT_MAX_EVENTS,
    SEGMENT_MAX_BYTES,
    SEGMENT_MAX_AGE_MS,
    CACHE_BYTES,
    DRAIN_TIMEOUT_MS,
    FAST_LANE,
    API_KEYS,
    API_KEYS_FILE,
    PROBE_AUTH,
    ALLOW_INSECURE_NO_AUTH,
    ALLOWED_HOSTS,
    CORS_ORIGINS,
    MAX_INFLIGHT_PER_KEY,
    MAX_TOPICS,
    MAX_TOTAL_BYTES,
    MAX_BATCH_RECORDS,
    MAX_RECORD_BYTES,
    MAX_BODY_BYTES,
    MAX_META_BYTES,
    MAX_TAG_BYTES,
    MAX_NODE_BYTES,
    MAX_LIMIT,
)


def load(environ: Mapping[str, str]) -> tuple[Settings, list[UnknownName]]:
    """The settings in `environ`, and the names in it that mean nothing. Raises SettingsError."""
    settings = Settings(
        host=HOST.read(environ),
        port=PORT.read(environ),
        port_file=PORT_FILE.read(environ),
        data_dir=DATA_DIR.read(environ),
        wal_shards=WAL_SHARDS.read(environ),
        wal_file_bytes=WAL_FILE_BYTES.read(environ),
        sync_interval_ms=SYNC_INTERVAL_MS.read(environ),
        checkpoint_bytes=CHECKPOINT_BYTES.read(environ),
        segment_max_events=SEGMENT_MAX_EVENTS.read(environ),
        segment_max_bytes=SEGMENT_MAX_BYTES.read(environ),
        segment_max_age_ms=SEGMENT_MAX_AGE_MS.read(environ),
        cache_bytes=CACHE_BYTES.read(environ),
        drain_timeout_ms=DRAIN_TIMEOUT_MS.read(environ),
        fast_lane=FAST_LANE.read(environ),
        allow_insecure_no_auth=ALLOW_INSECURE_NO_AUTH.read(environ),
        probe_auth=PROBE_AUTH.read(environ),
        allowed_hosts=ALLOWED_HOSTS.read(environ),
        cors_origins=CORS_ORIGINS.read(environ),
        keys=_keys(environ),
        max_inflight_per_key=MAX_INFLIGHT_PER_KEY.read(environ),
        max_topics=MAX_TOPICS.read(environ),
        max_total_bytes=MAX_TOTAL_BYTES.read(environ),
        limits=Limits(
            batch_records=MAX_BATCH_RECORDS.read(environ),
            record_bytes=MAX_RECORD_BYTES.read(environ),
            body_bytes=MAX_BODY_BYTES.read(environ),
            meta_bytes=MAX_META_BYTES.read(environ),
            tag_bytes=MAX_TAG_BYTES.read(environ),
            node_bytes=MAX_NODE_BYTES.read(environ),
            read_limit=MAX_LIMIT.read(environ),
        ),
    )
    if not settings.loopback and not settings.keys and not settings.allow_insecure_no_auth:
        raise SettingsError(
            f"TOPICS_HOST is {settings.host!r}, which is not loopback, and there are no API keys: anyone who "
            "reaches it could read and delete everything; set TOPICS_API_KEYS, or bind 127.0.0.1 behind a "
            "proxy, or set TOPICS_ALLOW_INSECURE_NO_AUTH=1 to accept that"
        )
    return settings, _unknown_names(environ)


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine alone, as far as its text tells."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _keys(environ: Mapping[str, str]) -> tuple[Key, ...]:
    try:
        return keys.load_keys(environ)
    except KeysRefused as refused:
        problem = str(refused)
    # Outside of the handler, so that no frame that saw a secret hangs on the error.
    raise SettingsError(problem)


def _unknown_names(environ: Mapping[str, str]) -> list[UnknownName]:
    known = {variable.name for variable in VARIABLES} | CLIENT_NAMES
    unknown = sorted(name for name in environ if name.startswith("TOPICS_") and name not in known)
    return [UnknownName(name, _nearest(name)) for name in unknown]


def _nearest(name: str) -> str | None:
    # The prefix makes all names alike, so it does not count.
    endings = [variable.name.removeprefix("TOPICS_") for variable in VARIABLES]
    found = difflib.get_close_matches(name.removeprefix("TOPICS_"), endings, n=1)
    return f"TOPICS_{found[0]}" if found else None
