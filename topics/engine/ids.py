"""What a topic may be called.

`re.fullmatch`, because `$` would accept a trailing newline. The charset leaves out everything that means
something in a path, a log line or a shell.
"""

import re
from functools import lru_cache
from typing import Final

from topics.engine.limits import TOPIC_NAME_BYTES_MAX
from topics.errors import InvalidRequest

TOPIC_NAME_PATTERN: Final = f"[A-Za-z0-9][A-Za-z0-9._:-]{{0,{TOPIC_NAME_BYTES_MAX - 1}}}"
_TOPIC_NAME: Final = re.compile(TOPIC_NAME_PATTERN)
# A refused name is shown to its sender, but not at any length.
_SHOWN_CHARS_MAX: Final = 300


@lru_cache(maxsize=8192)
def is_topic_name(name: str) -> bool:
    return _TOPIC_NAME.fullmatch(name) is not None


def check_topic_name(name: str, *, field: str = "topic") -> None:
    """Raises InvalidRequest unless `name` may name a topic."""
    if not is_topic_name(name):
        raise InvalidRequest(
            f"a topic name must match ^{TOPIC_NAME_PATTERN}$", field=field, value=name[:_SHOWN_CHARS_MAX]
        )
