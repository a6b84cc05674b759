"""Logs: one JSON line per event on stderr, from every process alike.

Kept here and nowhere else:
  * A line is `ts`, `level`, `role`, `pid`, `event` and the fields given as `extra`.
  * What a user sent cannot break a line or a terminal: everything outside printable ASCII is escaped.
  * Bytes are shown by their length and secret fields not at all, so no payload or token gets here.
Modules log with `logging.getLogger(__name__)`, a dotted event name and `extra={...}`. Python reserves
some names for itself (`name`, `args`, `module`, `process`, ...): it refuses them as fields.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import TextIO

# Long enough for a path or a message, too short for somebody's document.
TEXT_CHARS_MAX = 1000
TRACE_CHARS_MAX = 8000

SECRET_FIELDS = frozenset({"authorization", "body", "data", "key", "meta", "payload", "token", "wid"})

_OURS = frozenset({"ts", "level", "role", "pid", "event"})
_OF_PYTHON = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """Renders a record as one line."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "ts": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "role": self._role,
            "pid": record.process,
            "event": _shown(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _OF_PYTHON:
                # A field may not pass for one of ours.
                shown_name = f"{name}_" if name in _OURS else name
                line[shown_name] = "(not logged)" if name in SECRET_FIELDS else _shown(value)
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = _shown(f"{type(error).__name__}: {error}")
            # The end of a trace is where it happened.
            line["trace"] = self.formatException(record.exc_info)[-TRACE_CHARS_MAX:]
        return json.dumps(line, ensure_ascii=True)


def configure(role: str, *, stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send the log lines, warnings and uncaught exceptions of this process to stderr, as `role`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(role))
    logging.root.handlers = [handler]
    logging.root.setLevel(level)
    logging.captureWarnings(True)
    sys.excepthook = _log_crash


def _log_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger(__name__).critical("process.crashed", exc_info=(kind, error, trace))


def _shown(value: object) -> object:
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"({len(value)} bytes)"
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value[:20]]
    text = str(value)
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}... ({len(text)} characters)"
