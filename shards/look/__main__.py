"""The program behind `topics verify` and `topics inspect`. Exit codes: 0 clean, 1 problems, 2 cannot look."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from shards.look.batches import read_log_file, show_at, show_batches
from shards.look.datadir import CannotLook, open_data_dir
from shards.look.inspect import inspect
from shards.look.verify import CANNOT_LOOK, verify

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except CannotLook as error:
        print(f"topics: {error}", file=sys.stderr)
        return CANNOT_LOOK
    except BrokenPipeError:
        # Whoever read has seen enough. Nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="topics")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    check = commands.add_parser(
        "verify",
        help="check a data directory",
        description="Check every checksum in a data directory, and whether its files fit each other. Nothing "
        "is written, and a server may run meanwhile.",
        epilog="Exit codes: 0 no problems, 1 problems, 2 the directory cannot be looked at. Notes are about "
        "what a crash may leave behind, and are no problems.",
    )
    check.set_defaults(run=_verify)
    show = commands.add_parser(
        "inspect",
        help="show what is in a data directory",
        description="Show the log, the segments and the snapshots of every shard. Nothing is written.",
    )
    show.set_defaults(run=_inspect)
    show.add_argument(
        "--wal", metavar="FILE", help="the batches of one log file, such as shard-00/wal/00000001.wal"
    )
    show.add_argument(
        "--offset", metavar="N", type=int, help="with --wal: the batch and the frame at this offset"
    )
    for command in (check, show):
        command.add_argument("data_dir", metavar="DATA_DIR", type=Path)
        command.add_argument("--json", action="store_true", help="one JSON object per line")
    return parser


def _verify(arguments: argparse.Namespace) -> int:
    return verify(open_data_dir(arguments.data_dir), as_json=arguments.json)


def _inspect(arguments: argparse.Namespace) -> int:
    data = open_data_dir(arguments.data_dir)
    if arguments.wal is None:
        if arguments.offset is not None:
            raise CannotLook("--offset needs --wal: in which log file?")
        return inspect(data, as_json=arguments.json)
    path, content = read_log_file(data.path, arguments.wal)
    if arguments.offset is None:
        return show_batches(path, content, as_json=arguments.json)
    return show_at(path, content, arguments.offset, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
