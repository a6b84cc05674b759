"""API keys as an operator writes them: a good form means what it says, any other one refuses to start."""

import gc
import hashlib
import hmac
import secrets
import traceback
from pathlib import Path

import pytest

from gateway.keys import KeyStore
from topics import keys, settings
from topics.keys import Key, KeysRefused, load_keys, parse_key_file, parse_keys

ALL = frozenset({"read", "write", "delete", "admin"})
# Appears in every bad form, so that one look shows whether a message gives it away.
SECRET = "s3cr3t"


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


@pytest.mark.parametrize(
    ("entry", "secret", "scopes", "prefixes"),
    [
        ("k", "k", ALL, ()),
        ("k:", "k", ALL, ()),
        ("k::", "k", ALL, ()),
        ("k:read", "k", {"read"}, ()),
        ("k:write", "k", {"write"}, ()),
        ("k:delete", "k", {"delete"}, ()),
        ("k:admin", "k", {"admin"}, ()),
        ("k:r", "k", {"read"}, ()),
        ("k:w", "k", {"write"}, ()),
        ("k:d", "k", {"delete"}, ()),
        ("k:a", "k", {"admin"}, ()),
        ("k:rw", "k", {"read", "write"}, ()),
        ("k:rw+d", "k", {"read", "write", "delete"}, ()),
        ("k:r+write+d+admin", "k", ALL, ()),
        ("k:read+read", "k", {"read"}, ()),
        ("k:read:", "k", {"read"}, ()),
        ("k:read:tenant42:", "k", {"read"}, ("tenant42:",)),
        ("k::tenant42:|shared.", "k", ALL, ("shared.", "tenant42:")),
        ("k:r:a:b:c|d:", "k", {"read"}, ("a:b:c", "d:")),
        ("k::a->b", "k", ALL, ("a->b",)),
        ("k::a|a", "k", ALL, ("a",)),
        ("k::ab|a|abc|b", "k", ALL, ("a", "b")),
        ("k::a.|a|a:", "k", ALL, ("a",)),
        ("k::" + "n" * 255, "k", ALL, ("n" * 255,)),
        ("!#$%&'()*+-./;<=>?@[]^_`{|}~", "!#$%&'()*+-./;<=>?@[]^_`{|}~", ALL, ()),
        ("k" * 4096, "k" * 4096, ALL, ()),
    ],
)
def test_an_entry_means_its_secret_scopes_and_prefixes(
    entry: str, secret: str, scopes: set[str], prefixes: tuple[str, ...]
) -> None:
    expected = (Key(digest(secret), frozenset(scopes), prefixes),)
    assert parse_keys(entry) == expected
    assert parse_key_file(entry.encode() + b"\n") == expected


def test_entries_are_separated_by_commas_and_in_a_file_by_lines_too() -> None:
    expected = parse_keys("a,b:r,c::x")
    assert [key.digest for key in expected] == [digest("a"), digest("b"), digest("c")]
    for content in (b"a\nb:r\nc::x", b"a,b:r\nc::x\n", b"\n\na\n\nb:r,c::x\n\n"):
        assert parse_key_file(content) == expected


BAD = {
    "": "empty",
    ",": "entry 1",
    f"{SECRET},": "entry 2",
    f",{SECRET}": "entry 1",
    f"a,,{SECRET}": "entry 2",
    f":read:{SECRET}": "before the first colon",
    f"::{SECRET}": "before the first colon",
    f"{SECRET}:+": "scope",
    f"{SECRET}:read+": "scope",
    f"{SECRET}:+read": "scope",
    f"{SECRET}:read++write": "scope",
    f"{SECRET}:raed": "scope",
    f"{SECRET}:READ": "scope",
    f"{SECRET}:wr": "scope",
    f"{SECRET}:rwd": "scope",
    f"{SECRET}:*": "scope",
    f"{SECRET}:none": "scope",
    f"{SECRET}:read|write": "scope",
    f"a:{SECRET}": "scope",
    f"{SECRET}:r:|": "prefix",
    f"{SECRET}:r:a|": "prefix",
    f"{SECRET}:r:|a": "prefix",
    f"{SECRET}:r:a||b": "prefix",
    f"{SECRET}:::": "prefix",
    f"{SECRET}::*": "prefix",
    f"{SECRET}::a/b": "prefix",
    f"{SECRET}::-a": "prefix",
    f"{SECRET}::a+b": "prefix",
    f"{SECRET}::" + "n" * 256: "prefix",
    f"{SECRET}::" + "|".join(f"p{n}" for n in range(101)): "more than 100 prefixes",
    f"a, {SECRET}": "entry 2: it holds a space",
    f" {SECRET}": "entry 1: it holds a space",
    f"{SECRET} ": "space",
    f"{SECRET}\t": "space",
    f"{SECRET}:read ": "space",
    f"{SECRET}: read": "space",
    f"{SECRET}::a b": "space",
    f"{SECRET}\n": "line end",
    f"{SECRET}\r\nb": "line end",
    f"{SECRET}\0": "visible ASCII",
    f"{SECRET}é": "visible ASCII",
    f"{SECRET}\udcff": "visible ASCII",
    f"{SECRET}::é": "visible ASCII",
    f"\ufeff{SECRET}": "visible ASCII",
    f"{SECRET},b,{SECRET}": "entry 3: the same key as in entry 1",
    f"{SECRET}:r,{SECRET}:w": "entry 2: the same key as in entry 1",
    SECRET * 1000: "longer than 4096",
    ",".join(f"{SECRET}{n}" for n in range(1001)): "more than 1000 keys",
}


@pytest.mark.parametrize(("value", "told"), BAD.items(), ids=range(len(BAD)))
def test_any_other_form_refuses_and_says_where_without_showing_anything(value: str, told: str) -> None:
    with pytest.raises(settings.SettingsError) as caught:
        settings.load({"TOPICS_API_KEYS": value, "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"})
    sentence = str(caught.value)
    assert told in sentence
    assert "TOPICS_API_KEYS" in sentence
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown
    assert caught.value.__context__ is None, "what is chained to it has seen the secret"
    # A secret with a colon ends up where scopes and prefixes stand, so these are not shown either.
    for fragment in ("raed", "READ", "rwd", "a/b", "-a;", "\udcff", "é"):
        assert fragment not in sentence


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "holds no key"),
        (b"\n\n", "holds no key"),
        (b"a\n\nb:raed\n", "line 3, entry 1: an empty or unknown scope"),
        (b"a,b,\nc", "line 1, entry 3: it is empty"),
        (b"a\r\nb\r\n", "line 1, entry 1: it holds a space, a line end"),
        (b"\xef\xbb\xbfa\n", "line 1, entry 1: it holds"),
        (b"a\n# a comment\n", "line 2, entry 1: it holds a space"),
        (b"a,b\nc,a:r\n", "line 2, entry 2: the same key as in line 1, entry 1"),
        (b"a\xff", "visible ASCII"),
    ],
)
def test_a_bad_file_refuses_and_says_the_line(content: bytes, told: str) -> None:
    with pytest.raises(KeysRefused) as caught:
        parse_key_file(content)
    assert told in str(caught.value)
    assert "the file of TOPICS_API_KEYS_FILE" in str(caught.value)


def test_keys_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a:r\nb\n")
    assert load_keys({"TOPICS_API_KEYS_FILE": str(file)}) == parse_keys("a:r,b")
    assert load_keys({}) == ()


def test_a_file_that_cannot_be_used_is_named_by_its_problem(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"a" * (keys.FILE_BYTES_MAX + 1))
    for path, problem in (
        (str(tmp_path / SECRET), "No such file or directory"),
        (str(tmp_path), "Is a directory"),
        ("a\0b", "not a path"),
        (str(large), "larger than 1048576 bytes"),
        ("/dev/zero", "larger than 1048576 bytes"),
        ("", "set but empty"),
    ):
        with pytest.raises(settings.SettingsError, match=problem) as caught:
            settings.load({"TOPICS_API_KEYS_FILE": path})
        assert "TOPICS_API_KEYS_FILE" in str(caught.value)
        # Whoever mixes up the two variables has put a secret here.
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("file", ["", "/nowhere"])
@pytest.mark.parametrize("value", ["", SECRET])
def test_both_variables_at_once_are_refused(value: str, file: str) -> None:
    with pytest.raises(settings.SettingsError, match="are both set") as caught:
        settings.load({"TOPICS_API_KEYS": value, "TOPICS_API_KEYS_FILE": file})
    assert SECRET not in str(caught.value)


def test_a_public_address_is_served_with_keys() -> None:
    for host in ("0.0.0.0", "::", "example.org"):
        with pytest.raises(settings.SettingsError, match="set TOPICS_API_KEYS"):
            settings.load({"TOPICS_HOST": host})
        chosen, _ = settings.load({"TOPICS_HOST": host, "TOPICS_API_KEYS": "k"})
        assert not chosen.loopback
        assert chosen.keys == parse_keys("k")


def test_the_table_of_settings_cannot_be_made_to_read_a_secret() -> None:
    for row in (settings.API_KEYS, settings.API_KEYS_FILE):
        with pytest.raises(AssertionError) as caught:
            row.read({row.name: SECRET})
        assert SECRET not in str(caught.value)


def mentions(text: str) -> set[str]:
    """Where it stands, among all that the garbage collector can reach. No closures: a cell would count."""
    needle = text.encode()
    found: set[str] = set()
    for holder in gc.get_objects():
        for held in gc.get_referents(holder):
            if (isinstance(held, str) and text in held) or (isinstance(held, bytes) and needle in held):
                found.add(f"{type(held).__name__} in {type(holder).__name__}")
    return found


def parsed_from_a_fresh_secret(tmp_path: Path, *, by_file: bool) -> tuple[str, settings.Settings, KeyStore]:
    """A secret's second half, and all that is made of the whole one at a start."""
    half = secrets.token_hex(16)
    value = f"{secrets.token_hex(4)}{half}:rw:tenant42:,other-{half}"
    environ = {"TOPICS_API_KEYS": value}
    if by_file:
        (tmp_path / "keys").write_text(value)
        environ = {"TOPICS_API_KEYS_FILE": str(tmp_path / "keys")}
    chosen, _ = settings.load(environ)
    return half[::-1], chosen, KeyStore(chosen.keys)


@pytest.mark.parametrize("by_file", [False, True])
def test_nothing_that_lives_after_the_parsing_holds_a_secret(tmp_path: Path, by_file: bool) -> None:
    backwards, chosen, store = parsed_from_a_fresh_secret(tmp_path, by_file=by_file)
    gc.collect()
    witness = [backwards]
    assert mentions(backwards), "the search must be able to find something"
    assert store.enabled
    assert len(chosen.keys) == 2
    del witness
    assert mentions(backwards[::-1]) == set()


def test_no_repr_shows_a_secret_or_a_digest() -> None:
    chosen, _ = settings.load({"TOPICS_API_KEYS": f"{SECRET}:r:a"})
    (key,) = chosen.keys
    caller = KeyStore(chosen.keys).bearer_of(SECRET)
    for shown in (repr(chosen), repr(key), repr(caller), str(KeyStore(chosen.keys))):
        assert SECRET not in shown
        assert digest(SECRET).hex() not in shown
        assert repr(digest(SECRET)) not in shown


@pytest.mark.parametrize("token", ["k0", "k1", "k4", "nobody", ""])
def test_every_key_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    store = KeyStore(parse_keys("k0,k1,k2,k3,k4"))
    compared: list[tuple[object, object]] = []
    real = hmac.compare_digest

    def counting(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return real(left, right)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    found = store.bearer_of(token)
    assert (found is not None) == token.startswith("k")
    assert compared == [(digest(token), digest(f"k{n}")) for n in range(5)]
