"""Parsing the command line, and what every command does about errors."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Final

from trackside.cli import (
    _attach,
    _collect,
    _compare,
    _ctl,
    _export,
    _forward,
    _goodput,
    _import,
    _info,
    _keys,
    _report,
    _run,
    _runs,
    _scores,
    _tail,
    _top,
    _trace,
)
from trackside.cli._print import warn
from trackside.cli._unread import UNREADABLE
from trackside.events import TracksideError, __version__

INTERRUPTED: Final = 130
_COMMANDS: Final = (
    _report,
    _top,
    _compare,
    _trace,
    _tail,
    _attach,
    _info,
    _export,
    _import,
    _runs,
    _scores,
    _goodput,
    _run,
    _collect,
    _forward,
    _ctl,
    _keys,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command line *arguments*, those of the process unless given, and return its exit code.

    0 for success, 1 if a command has something to object to, 2 for what cannot be read, written or understood.
    """
    options = build_parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal of few letters is no reason to stop
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except TracksideError as error:
        warn(f"trackside {options.command}: {error}")
        return UNREADABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has enough
        _give_up_stdout()
        return 0
    except OSError as error:
        _give_up_stdout()
        warn(f"trackside {options.command}: {error.strerror or error}")
        return UNREADABLE
    return code


def _give_up_stdout() -> None:
    """Let the interpreter find nothing to complain about when it flushes at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with all commands."""
    parser = argparse.ArgumentParser(
        prog="trackside",
        description="Look at the telemetry of machine-learning training jobs.",
        epilog="Each command explains itself: trackside COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"trackside {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_to(commands)
    return parser
