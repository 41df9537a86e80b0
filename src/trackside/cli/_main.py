"""The command-line parser, and the error handling that all commands share."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

from trackside.cli import (
    _archive,
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
from trackside.cli._print import UNREADABLE, warn
from trackside.events import MissingExtraError, TracksideError, __version__
from trackside.events._settings import nearest

INTERRUPTED: Final = 130
_COMMANDS: Final = {
    "report": (_report, "runs/ --html report.html"),
    "top": (_top, "runs/"),
    "compare": (_compare, "runs/before runs/after"),
    "trace": (_trace, "runs/ -o trace.json --steps 100-110"),
    "tail": (_tail, "runs/ -n 20 -t 'acme.*'"),
    "attach": (_attach, "runs/ -t '*.iteration.ended'"),
    "info": (_info, "runs/"),
    "export": (_export, "runs/ --jsonl events.jsonl"),
    "archive": (_archive, "nats://stream.example:4222/acme s3://telemetry/acme"),
    "import": (_import, "outputs/structured_logs -o runs/"),
    "runs": (_runs, "runs/ --html site/"),
    "scores": (_scores, "runs/"),
    "goodput": (_goodput, "runs/"),
    "run": (_run, "--log runs/today -- torchrun --nproc-per-node 2 train.py"),
    "collect": (_collect, "--bind tcp://0.0.0.0:7700 --log logs/ --keys keys/"),
    "forward": (_forward, "--bind tcp://0.0.0.0:7701 --to tcp://collector:7700 --keys keys/"),
    "ctl": (_ctl, "runs/ status"),
    "keys": (_keys, "new keys/"),
}
"""The commands in the order of the help: the module and the example's arguments of each."""
_SIMILAR: Final = {
    **dict(zip("▁▂▃▄▅▆▇█", "__..--=#", strict=True)),
    "…": ".",
    "–": "-",
    "−": "-",
    "µ": "u",
    "·": "|",
    "×": "x",
    "│": "|",
    "─": "-",
    "Σ": "S",
    "σ": "s",
    "█": "#",
    "▒": ":",
    "→": ">",
}
"""For terminals that cannot show these characters: an ASCII character for each, so that columns stay aligned."""


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command line *arguments*, by default those of the process, and return the exit code.

    It is 0 for success, 1 if a command found a problem, 2 if something cannot be read, written or understood, and 130
    after Ctrl-C.
    """
    command = "trackside"
    _open_closed()
    try:
        options = _parse(arguments)
        command = f"trackside {options.command}"
        codecs.register_error("trackside.similar", _similar)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A character that the terminal cannot show must not end the command.
            sys.stdout.reconfigure(encoding="ascii" if _is_ascii_terminal() else None, errors="trackside.similar")
        code: int = options.run(options)
        sys.stdout.flush()
    except TracksideError as error:
        warn(f"{command}: {error}")
        return UNREADABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has closed the pipe
        _give_up_stdout()
        return 0
    except OSError as error:
        _give_up_stdout()
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        warn(f"{command}: {where}{error.strerror or error}")
        return UNREADABLE
    return code


def _open_closed() -> None:
    """Lead stdout and stderr to the null device where they are closed; Python has None for them then."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  it stays open


def _is_ascii_terminal() -> bool:
    """Return whether stdout is a terminal for which LC_ALL or LANG asks for ASCII; Python would write UTF-8 there."""
    # Python itself sets LC_CTYPE to one of these if LANG is C, so only another value is the user's.
    ctype = os.environ.get("LC_CTYPE", "UTF-8")
    locale = os.environ.get("LC_ALL") or (os.environ.get("LANG") if ctype in {"C.UTF-8", "C.utf8", "UTF-8"} else ctype)
    is_given = not {"PYTHONIOENCODING", "PYTHONUTF8"}.isdisjoint(os.environ)
    return locale in {"C", "POSIX"} and not is_given and sys.stdout.isatty()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse *arguments*; an error shows the usage of its command, not that of ``trackside``."""
    parser = build_parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.of(options.command).error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def _give_up_stdout() -> None:
    """Redirect stdout to the null device, so that the interpreter's flush at exit does not fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _similar(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = _SIMILAR.get(error.object[error.start])
    return (found, error.start + 1) if found else codecs.backslashreplace_errors(error)


class _KeepEpilog(argparse.HelpFormatter):
    """Keeps the example in one line even in a narrow terminal, so that it can be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example:") else super()._fill_text(text, width, indent)


class _Parser(argparse.ArgumentParser):
    """A parser that suggests the nearest known word for an unknown one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, formatter_class=_KeepEpilog)

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse passes over an error of the disk, as if the help had been written.
        stream = file or sys.stderr
        stream.write(message)
        stream.flush()

    def error(self, message: str) -> NoReturn:
        """Print the usage of the command and *message*, and exit with code 2."""
        found = re.search(r"invalid choice: '([^']*)'|unrecognized arguments: (--?[^\s=]+)", message)
        close = nearest(found[1] or found[2], self._words()) if found else None
        if found and found[1] is not None and "argument COMMAND" in message:
            message = f"there is no command {found[1]!r}"
        super().error(f"{message}; did you mean {close}?" if close else message)

    def _words(self) -> Iterator[str]:
        for action in self._actions:
            yield from action.option_strings
            yield from map(str, action.choices or ())
            if isinstance(action.choices, dict):
                for command in action.choices.values():
                    yield from (word for inner in command._actions for word in inner.option_strings)  # noqa: SLF001

    def of(self, command: str) -> argparse.ArgumentParser:
        """Return the parser of *command*."""
        (commands,) = (action.choices for action in self._actions if isinstance(action.choices, dict))
        found: argparse.ArgumentParser = commands[command]
        return found


class _PrintCompletion(argparse.Action):
    """Prints the shell completion script, and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: object, values: object, _option: str | None = None
    ) -> NoReturn:
        try:
            from trackside.cli.completion import completion_script
        except ModuleNotFoundError as error:
            if error.name != "shtab":
                raise
            raise MissingExtraError("--print-completion", "completion", error) from error
        print(completion_script(parser, str(values)), flush=True)
        parser.exit()


def build_parser() -> _Parser:
    """Return the parser with all commands."""
    parser = _Parser(
        prog="trackside",
        description="Look at the telemetry of machine-learning training jobs.",
        epilog="Each command explains itself: trackside COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"trackside {__version__}")
    parser.add_argument(
        "--print-completion",
        metavar="SHELL",
        choices=("bash", "zsh", "tcsh", "fish"),
        action=_PrintCompletion,
        help="print what completes this command in bash, zsh, tcsh or fish, and leave",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, example) in _COMMANDS.items():
        command: argparse.ArgumentParser = commands.add_parser(
            name,
            help=module.HELP,
            description=module.DESCRIPTION,
            epilog=f"example:\n  trackside {name} {example}",
        )
        command.set_defaults(run=module.run)
        module.add_arguments(command)
    return parser
