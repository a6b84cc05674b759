"""The way of the keys from the environment to the gateway: the text ends in the supervisor, digests go on."""

import base64
import ctypes
import os
import socket
from pathlib import Path

import pytest

from topics import settings
from topics.child import Boot, decode_boot, encode_boot
from topics.keys import parse_keys
from topics.supervisor import Programs, Supervisor, _announce
from topics.supervisor.children import Child, Ground
from topics.supervisor.forget import forget_keys
from topics.supervisor.notify import Notifier

SECRET = "s3cr3t-of-the-handover"
KEYS = parse_keys(f"{SECRET}:rw:tenant42:,other::a|b,third")


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(
        data_dir=tmp_path,
        socket_dir=tmp_path,
        shard_count=2,
        settings=settings.load({})[0],
        environ={"PATH": "/bin"},
    )


def boot_of(child: Child) -> Boot:
    return child._boot_message(status_fd=9)


def test_keys_arrive_in_the_boot_message_as_they_were_sent(ground: Ground) -> None:
    sent = boot_of(Child("gateway", 0, "m", ground, listen_fd=3, keys=KEYS))
    message = encode_boot(sent)
    assert decode_boot(message).keys == KEYS
    assert SECRET.encode() not in message


def test_no_child_but_the_gateway_is_told_anything_of_the_keys(ground: Ground) -> None:
    with socket.socket() as sock:
        supervisor = Supervisor(ground, sock, Notifier(None), Programs(), KEYS)
        assert boot_of(supervisor._gateway).keys == KEYS
        for child in (*supervisor._shards, supervisor._router):
            message = encode_boot(boot_of(child))
            assert decode_boot(message).keys == ()
            assert decode_boot(message).settings.keys == ()
            for one in (b"tenant42:", *(base64.b64encode(key.digest) for key in KEYS)):
                assert one not in message


def test_the_text_of_the_keys_is_forgotten_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    monkeypatch.setenv("TOPICS_API_KEYS", SECRET)
    address = getenv(b"TOPICS_API_KEYS")
    assert ctypes.string_at(address) == SECRET.encode()
    copy = {**os.environ, "TOPICS_PORT": "1"}
    forget_keys(copy)
    assert "TOPICS_API_KEYS" not in copy
    assert copy["TOPICS_PORT"] == "1"
    assert "TOPICS_API_KEYS" not in os.environ
    assert getenv(b"TOPICS_API_KEYS") is None
    monkeypatch.setenv("TOPICS_API_KEYS", SECRET)
    forget_keys(os.environ)
    assert "TOPICS_API_KEYS" not in os.environ
    forget_keys({})


def test_what_to_try_shows_where_a_key_goes(ground: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    _announce(ground, with_key=True)
    assert capsys.readouterr().out.count("-H 'Authorization: Bearer <key>'") == 3
    _announce(ground, with_key=False)
    assert "Authorization" not in capsys.readouterr().out
