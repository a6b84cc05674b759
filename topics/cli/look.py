"""`topics verify` and `topics inspect`: a program that knows the files, only started from here."""

import argparse
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_PROGRAM = "shards.look"
COMMANDS = {"verify": "check a data directory", "inspect": "show what is in a data directory"}


def add_to(commands: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    for name, about in COMMANDS.items():
        # Nothing is an option here, not even --help: the program has its own, so everything is handed on.
        parser = commands.add_parser(name, help=about, add_help=False, prefix_chars="\0")
        parser.add_argument("arguments", nargs="*")
        parser.set_defaults(run=run, command=name)


def run(arguments: argparse.Namespace) -> int:
    """Becomes the program, and so never returns."""
    os.execv(
        sys.executable, [sys.executable, "-m", _PROGRAM, arguments.command, *arguments.arguments]
    )  # fmt: skip
