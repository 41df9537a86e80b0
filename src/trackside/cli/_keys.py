"""``trackside keys``: make keys for collectors, ranks, viewers and ``trackside ctl``."""

from __future__ import annotations

import argparse

from trackside.cli._print import directory_name
from trackside.events import UnreadableError
from trackside.handlers.zeromq import KEY_ROLES, new_keys

_WHO = {
    "server": "stays with the collector; server.*.public goes to everybody",
    "rank": "goes to the ranks and forwarders, which send",
    "viewer": "goes to those who may watch",
    "control": "goes to those who may also use `trackside ctl`",
}

HELP = "make keys for collectors, ranks and viewers"
DESCRIPTION = "Make keys for endpoints over TCP."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    kinds = parser.add_subparsers(dest="kind", metavar="new", required=True)
    new = kinds.add_parser(
        "new",
        help="make a new key for each role",
        description="Make a new key for each role. Of a role's keys the two newest are accepted: to replace one, make "
        "a new one, hand it out, and make another when the old one should end.",
        epilog="example:\n  trackside keys new keys/",
    )
    new.add_argument(
        "directory", metavar="DIR", type=directory_name, help="made for this user alone if it does not exist"
    )
    new.add_argument(
        "--role", action="append", choices=KEY_ROLES, help="only this role; may be given more than once (default: all)"
    )


def run(options: argparse.Namespace) -> int:
    """Make the keys, and print who gets which."""
    try:
        paths = new_keys(options.directory, options.role or KEY_ROLES)
    except OSError as error:
        raise UnreadableError(options.directory, f"cannot be written: {error.strerror}", "give another DIR") from error
    for path in paths:
        if path.suffix == ".secret":
            print(f"{path}: {_WHO[path.name.partition('.')[0]]}")
    return 0
