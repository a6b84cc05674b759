"""`topics serve`: settings from the environment and a few options, then the supervisor."""

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING

from topics import logs, settings

if TYPE_CHECKING:
    from argparse import _SubParsersAction

log = logging.getLogger(__name__)

# Options are other spellings of variables, so that there is one parser and one set of bounds.
OPTIONS: dict[str, settings.Variable[object]] = {
    "--host": settings.HOST,
    "--port": settings.PORT,
    "--data-dir": settings.DATA_DIR,
    "--shards": settings.WAL_SHARDS,
}


def add_to(commands: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "serve",
        help="run a server",
        description="Run a server until SIGTERM or SIGINT. Settings come from the environment.",
        epilog=_settings_table(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option, variable in OPTIONS.items():
        parser.add_argument(
            option, dest=variable.name, metavar="VALUE", help=f"instead of {variable.name}: {variable.help}"
        )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    # The event loop is not needed to print help or to refuse a setting.
    from topics.supervisor import StartRefused, serve

    logs.configure("supervisor")
    given = {variable.name: getattr(arguments, variable.name) for variable in OPTIONS.values()}
    environ = os.environ | {name: value for name, value in given.items() if value is not None}
    try:
        chosen, unknown = settings.load(environ)
        for one in unknown:
            log.warning("settings.unknown", extra={"variable": one.name, "note": str(one)})
        return serve(chosen, environ)
    except settings.SettingsError as error:
        print(f"topics: {error}", file=sys.stderr)
        return 2
    except StartRefused as error:
        print(f"topics: {error}", file=sys.stderr)
        return 1


def _settings_table() -> str:
    lines = [f"  {v.name}={v.default}\n      {v.help}; {v.rule.allowed}" for v in settings.VARIABLES]
    return "\n".join(["settings, with their defaults:", *lines])
