"""Settings: every variable has a default and bounds, and a wrong value never starts a server."""

import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from topics import settings
from topics.engine.limits import Limits
from topics.keys import parse_keys
from topics.settings import SettingsError, load

ROOT = Path(__file__).resolve().parent.parent.parent

# name: (what the default means, lowest and highest value, values just outside and other nonsense)
NOT_NUMBERS = ("", " ", "x", "1.0", "1e3", "0x10", "1_000", " 7", "7 ", "+7", "٣", "1\n", "9" * 40)
INTEGERS = {
    "TOPICS_PORT": (4000, 0, 65535),
    "TOPICS_WAL_SHARDS": (None, 1, 64),
    "TOPICS_SYNC_INTERVAL_MS": (50, 1, 60_000),
    "TOPICS_SEGMENT_MAX_EVENTS": (10_000, 1, 10_000_000),
    "TOPICS_SEGMENT_MAX_AGE_MS": (3_600_000, 1000, 31_536_000_000),
    "TOPICS_DRAIN_TIMEOUT_MS": (10_000, 0, 600_000),
    "TOPICS_MAX_BATCH_RECORDS": (10_000, 1, 65_534),
    "TOPICS_MAX_LIMIT": (1000, 1, 10_000),
    "TOPICS_MAX_INFLIGHT_PER_KEY": (1000, 0, 1_000_000),
    "TOPICS_MAX_TOPICS": (100_000, 0, 1_000_000_000),
}
SIZES = {
    "TOPICS_WAL_FILE_BYTES": (64 * 1024**2, 1024**2, 1024**3),
    "TOPICS_CHECKPOINT_BYTES": (256 * 1024**2, 1024**2, 64 * 1024**3),
    "TOPICS_SEGMENT_MAX_BYTES": (64 * 1024**2, 1024**2, 1024**3),
    "TOPICS_CACHE_BYTES": (256 * 1024**2, 1024**2, 1024**4),
    "TOPICS_MAX_RECORD_BYTES": (1024**2, 1, 64 * 1024**2),
    "TOPICS_MAX_BODY_BYTES": (64 * 1024**2, 1024, 1024**3),
    "TOPICS_MAX_META_BYTES": (16 * 1024, 2, 1024**2),
    "TOPICS_MAX_TAG_BYTES": (256, 1, 4096),
    "TOPICS_MAX_NODE_BYTES": (128, 1, 1024),
    "TOPICS_MAX_TOTAL_BYTES": (0, 0, 1024**5),
}
OTHERS = {
    "TOPICS_ALLOWED_HOSTS",
    "TOPICS_CORS_ORIGINS",
    "TOPICS_FAST_LANE",
    "TOPICS_HOST",
    "TOPICS_PORT_FILE",
    "TOPICS_DATA_DIR",
    "TOPICS_ALLOW_INSECURE_NO_AUTH",
    "TOPICS_API_KEYS",
    "TOPICS_API_KEYS_FILE",
    "TOPICS_PROBE_AUTH",
}
ROWS = {variable.name: variable for variable in settings.VARIABLES}


def test_every_variable_is_covered_here() -> None:
    assert set(ROWS) == set(INTEGERS) | set(SIZES) | OTHERS


@pytest.mark.parametrize("name", [*INTEGERS, *SIZES])
def test_a_number_has_its_default_and_both_bounds(name: str) -> None:
    default, low, high = (INTEGERS | SIZES)[name]
    row = ROWS[name]
    assert row.read({}) == default
    assert row.read({name: str(low)}) == low
    assert row.read({name: str(high)}) == high
    for outside in (low - 1, high + 1):
        with pytest.raises(SettingsError, match=name):
            row.read({name: str(outside)})


@pytest.mark.parametrize("text", NOT_NUMBERS)
@pytest.mark.parametrize("name", [*INTEGERS, *SIZES])
def test_what_is_not_a_number_is_refused(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load({name: text})


def test_sizes_may_carry_a_unit() -> None:
    row = settings.MAX_BODY_BYTES
    assert [row.read({row.name: text}) for text in ("2048", "2KiB", "3 MiB", "1GiB")] == [
        2048,
        2048,
        3 * 1024**2,
        1024**3,
    ]
    for text in ("2KB", "2kib", "KiB", "2  KiB", "-2KiB"):
        with pytest.raises(SettingsError, match="KiB, MiB or GiB"):
            row.read({row.name: text})


def test_an_error_names_the_variable_the_value_and_what_is_allowed() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"TOPICS_PORT": "65536"})
    assert str(caught.value) == "TOPICS_PORT is '65536'; allowed: a whole number from 0 to 65535"


def test_defaults_are_the_documented_ones() -> None:
    chosen, unknown = load({})
    assert (chosen.host, chosen.port, chosen.data_dir) == ("127.0.0.1", 4000, Path("topics-data"))
    assert chosen.port_file is None
    assert chosen.wal_shards is None
    assert chosen.allow_insecure_no_auth is False
    assert chosen.probe_auth is False
    assert chosen.keys == ()
    assert chosen.limits == Limits()
    assert unknown == []


def test_every_variable_reaches_its_own_field() -> None:
    given = {
        "TOPICS_HOST": "::1",
        "TOPICS_PORT": "1",
        "TOPICS_PORT_FILE": "p",
        "TOPICS_DATA_DIR": "d",
        "TOPICS_WAL_SHARDS": "3",
        "TOPICS_WAL_FILE_BYTES": "2MiB",
        "TOPICS_SYNC_INTERVAL_MS": "5",
        "TOPICS_CHECKPOINT_BYTES": "17MiB",
        "TOPICS_SEGMENT_MAX_EVENTS": "18",
        "TOPICS_SEGMENT_MAX_BYTES": "19MiB",
        "TOPICS_SEGMENT_MAX_AGE_MS": "2000",
        "TOPICS_CACHE_BYTES": "21MiB",
        "TOPICS_DRAIN_TIMEOUT_MS": "6",
        "TOPICS_FAST_LANE": "0",
        "TOPICS_ALLOW_INSECURE_NO_AUTH": "true",
        "TOPICS_API_KEYS": "k:read",
        "TOPICS_PROBE_AUTH": "true",
        "TOPICS_ALLOWED_HOSTS": "a.example",
        "TOPICS_CORS_ORIGINS": "https://b.example",
        "TOPICS_MAX_BATCH_RECORDS": "7",
        "TOPICS_MAX_RECORD_BYTES": "8",
        "TOPICS_MAX_BODY_BYTES": "9000",
        "TOPICS_MAX_META_BYTES": "10",
        "TOPICS_MAX_TAG_BYTES": "11",
        "TOPICS_MAX_NODE_BYTES": "12",
        "TOPICS_MAX_LIMIT": "13",
        "TOPICS_MAX_INFLIGHT_PER_KEY": "14",
        "TOPICS_MAX_TOPICS": "15",
        "TOPICS_MAX_TOTAL_BYTES": "16MiB",
    }
    assert set(given) == set(ROWS) - {"TOPICS_API_KEYS_FILE"}
    assert load(given)[0] == settings.Settings(
        host="::1",
        port=1,
        port_file=Path("p"),
        data_dir=Path("d"),
        wal_shards=3,
        wal_file_bytes=2 * 1024**2,
        sync_interval_ms=5,
        checkpoint_bytes=17 * 1024**2,
        segment_max_events=18,
        segment_max_bytes=19 * 1024**2,
        segment_max_age_ms=2000,
        cache_bytes=21 * 1024**2,
        drain_timeout_ms=6,
        fast_lane=False,
        allow_insecure_no_auth=True,
        probe_auth=True,
        allowed_hosts=("a.example",),
        cors_origins=("https://b.example",),
        keys=parse_keys("k:read"),
        max_inflight_per_key=14,
        max_topics=15,
        max_total_bytes=16 * 1024**2,
        limits=Limits(
            batch_records=7,
            record_bytes=8,
            body_bytes=9000,
            meta_bytes=10,
            tag_bytes=11,
            node_bytes=12,
            read_limit=13,
        ),
    )


def test_settings_cannot_be_changed_later() -> None:
    chosen, _ = load({})
    with pytest.raises(FrozenInstanceError):
        chosen.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(("text", "value"), [("1", True), ("TRUE", True), ("0", False), ("false", False)])
def test_a_flag_is_a_word_for_yes_or_no(text: str, value: bool) -> None:
    assert load({"TOPICS_ALLOW_INSECURE_NO_AUTH": text})[0].allow_insecure_no_auth is value


@pytest.mark.parametrize("text", ["", "yes", "2", " 1"])
def test_another_word_is_no_flag(text: str) -> None:
    with pytest.raises(SettingsError, match="1, true, 0 or false"):
        load({"TOPICS_ALLOW_INSECURE_NO_AUTH": text})


@pytest.mark.parametrize("name", ["TOPICS_DATA_DIR", "TOPICS_HOST"])
def test_an_empty_path_or_host_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load({name: ""})


@pytest.mark.parametrize("host", ["[::1]", "127.0.0.1:4000", "a b", "http://x", "x/y", "x\n"])
def test_a_host_is_an_address_or_a_name_and_nothing_around_it(host: str) -> None:
    with pytest.raises(SettingsError, match="TOPICS_HOST"):
        load({"TOPICS_HOST": host})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("topics.example.com", ("topics.example.com",)),
        ("Topics,192.0.2.7,0:0::1", ("topics", "192.0.2.7", "::1")),
    ],
)
def test_own_names_are_read_as_browsers_will_send_them(text: str, names: tuple[str, ...]) -> None:
    assert load({"TOPICS_ALLOWED_HOSTS": text})[0].allowed_hosts == names


@pytest.mark.parametrize(
    "text", ["*", "a.example:4000", "https://a.example", "[::1]", "a,", ",a", "a, b", "a b", "-a", "a/b", "é"]
)
def test_what_is_no_name_is_not_one_of_ours(text: str) -> None:
    with pytest.raises(SettingsError, match=r"TOPICS_ALLOWED_HOSTS is .*; allowed: host names"):
        load({"TOPICS_ALLOWED_HOSTS": text})


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("", ()),
        ("*", ("*",)),
        ("https://App.example.com", ("https://app.example.com",)),
        (
            "http://localhost:5173,http://[::1]:8080,app://x",
            ("http://localhost:5173", "http://[::1]:8080", "app://x"),
        ),
    ],
)
def test_origins_are_read_as_browsers_will_send_them(text: str, origins: tuple[str, ...]) -> None:
    assert load({"TOPICS_CORS_ORIGINS": text})[0].cors_origins == origins


@pytest.mark.parametrize(
    "text",
    [
        *("app.example.com", "https://", "https://app.example.com/", "https://app.example.com/x", "null"),
        *("https://app.example.com:443", "http://app.example.com:80", "https://u@app.example.com"),
        *(
            "https://*.example.com",
            "*,https://app.example.com",
            "**",
            "https://a.example,",
            "https://a, https://b",
        ),
        *("https://a.example:x", "https://a.example:123456", "https://a.example\n", "https://é.example"),
    ],
)
def test_what_no_browser_sends_is_not_an_origin(text: str) -> None:
    with pytest.raises(SettingsError, match=r"TOPICS_CORS_ORIGINS is .*; allowed: \*, or origins"):
        load({"TOPICS_CORS_ORIGINS": text})


def test_an_unknown_name_is_told_with_the_nearest_known_one_and_stops_nothing() -> None:
    _, unknown = load({"TOPICS_MAX_BODY_BYTE": "s3cret", "TOPICS_SERVICE_ACCOUNT_UID": "x", "PATH": "y"})
    assert [(one.name, one.nearest) for one in unknown] == [
        ("TOPICS_MAX_BODY_BYTE", "TOPICS_MAX_BODY_BYTES"),
        ("TOPICS_SERVICE_ACCOUNT_UID", None),
    ]
    assert "did you mean TOPICS_MAX_BODY_BYTES?" in str(unknown[0])
    assert "s3cret" not in str(unknown[0])


def test_misspelt_keys_are_told() -> None:
    assert [one.nearest for one in load({"TOPICS_API_KEY": "s3cret"})[1]] == ["TOPICS_API_KEYS"]


def test_names_of_the_client_are_no_mistake() -> None:
    assert load({"TOPICS_URL": "http://x", "TOPICS_TOKEN": "t"})[1] == []


@pytest.mark.parametrize("value", ["s3cret:raed", "s3cret,s3cret", ""])
@pytest.mark.parametrize("name", ["TOPICS_API_KEYS", "TOPICS_API_KEYS_FILE"])
def test_who_asked_for_keys_never_gets_an_open_server(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name) as caught:
        load({name: value, "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "0", "localhost.example.org"])
def test_a_public_address_without_keys_is_refused_unless_it_is_asked_for(host: str) -> None:
    with pytest.raises(SettingsError, match="TOPICS_ALLOW_INSECURE_NO_AUTH=1"):
        load({"TOPICS_HOST": host})
    chosen, _ = load({"TOPICS_HOST": host, "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"})
    assert not chosen.loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert load({"TOPICS_HOST": host})[0].loopback


def test_the_readme_shows_every_variable_with_its_default() -> None:
    shown = dict(
        re.findall(r"^\| `(TOPICS_\w+)` \| (.*?) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    )
    assert shown == {row.name: f"`{row.default}`" if row.default else "" for row in settings.VARIABLES}
