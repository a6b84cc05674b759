"""The `topics` command. Exit codes: 0 done, 1 failed, 2 wrong usage or settings."""

import argparse
from collections.abc import Sequence

import topics
from topics.cli import look, serve


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="topics", description=topics.__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    serve.add_to(commands)
    look.add_to(commands)
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_version)
    arguments = parser.parse_args(argv)
    code: int = arguments.run(arguments)
    return code


def _version(_: argparse.Namespace) -> int:
    print(f"topics {topics.__version__}")
    return 0
