"""Logs: one line per event, whatever is in it, and nothing secret."""

import io
import json
import logging
import os
import sys
from collections.abc import Iterator

import pytest

from topics import logs

log = logging.getLogger("topics.test")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    handlers, level, hook = logging.root.handlers, logging.root.level, sys.excepthook
    stream = io.StringIO()
    logs.configure("shard-3", stream=stream)
    yield stream
    logging.captureWarnings(False)
    logging.root.handlers, sys.excepthook = handlers, hook
    logging.root.setLevel(level)


def only_line(stream: io.StringIO) -> dict[str, object]:
    text = stream.getvalue()
    assert text.endswith("\n")
    assert text.count("\n") == 1
    line: dict[str, object] = json.loads(text)
    return line


def test_a_line_says_when_how_bad_who_and_what(lines: io.StringIO) -> None:
    log.warning("wal.tail_cut", extra={"segment": "00000001.wal", "bytes_dropped": 12, "exact": True})
    line = only_line(lines)
    assert str(line.pop("ts")).endswith("Z")
    assert line == {
        "level": "warning",
        "role": "shard-3",
        "pid": os.getpid(),
        "event": "wal.tail_cut",
        "segment": "00000001.wal",
        "bytes_dropped": 12,
        "exact": True,
    }


def test_what_a_user_sent_cannot_break_the_line_or_the_terminal(lines: io.StringIO) -> None:
    nasty = 'a\nb\r\x1b[31m\x7f\u2028\u202e"é\x00'
    log.info("topic.created", extra={"topic": nasty})
    text = lines.getvalue()
    assert only_line(lines)["topic"] == nasty
    assert all(" " <= char <= "~" for char in text[:-1])


def test_a_field_cannot_pass_for_one_of_ours(lines: io.StringIO) -> None:
    log.info("real", extra={"event": "forged", "role": "forged", "pid": 1, "ts": "forged", "level": "forged"})
    line = only_line(lines)
    assert (line["event"], line["role"], line["pid"]) == ("real", "shard-3", os.getpid())
    assert line["event_"] == "forged"


@pytest.mark.parametrize("field", ["token", "authorization", "data", "body", "key", "wid"])
def test_a_secret_field_is_never_printed(lines: io.StringIO, field: str) -> None:
    log.info("request", extra={field: "s3cret"})
    assert "s3cret" not in lines.getvalue()
    assert only_line(lines)[field] == "(not logged)"


def test_bytes_are_shown_by_their_length_and_long_text_is_cut(lines: io.StringIO) -> None:
    log.info("link.dropped", extra={"frame": b"s3cret", "frames": [b"s3cret"], "text": "x" * 5000})
    line = only_line(lines)
    assert (line["frame"], line["frames"]) == ("(6 bytes)", ["(6 bytes)"])
    assert len(str(line["text"])) < 1100


def test_an_exception_is_one_line_with_its_trace(lines: io.StringIO) -> None:
    try:
        raise ValueError("nine\nlives")
    except ValueError:
        log.exception("sweep.failed")
    line = only_line(lines)
    assert line["error"] == "ValueError: nine\nlives"
    assert "test_logs.py" in str(line["trace"])


def test_a_crash_is_a_line_too(lines: io.StringIO) -> None:
    sys.excepthook(RuntimeError, RuntimeError("broken"), None)
    line = only_line(lines)
    assert (line["level"], line["event"], line["error"]) == (
        "critical",
        "process.crashed",
        "RuntimeError: broken",
    )
