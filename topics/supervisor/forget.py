"""Taking the text of API keys out of the supervisor once they have been read.

The environment block is overwritten where the kernel put it, so that /proc/<pid>/environ does not show the
keys either. Copies that Python made on the way are dropped; their memory is reused, not overwritten.
"""

import ctypes
import os
from collections.abc import MutableMapping

from topics.keys import VALUE_NAME


def forget_keys(environ: MutableMapping[str, str]) -> None:
    """Remove the keys from `environ` and from this process's own environment."""
    # First of all: once it is unset, nobody finds it any more.
    _overwrite(VALUE_NAME)
    for mapping in (os.environ, environ):
        mapping.pop(VALUE_NAME, None)


def _overwrite(name: str) -> None:
    getenv = ctypes.CDLL(None).getenv
    getenv.argtypes = [ctypes.c_char_p]
    getenv.restype = ctypes.c_void_p
    address: int | None = getenv(name.encode())
    if address is not None:
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
