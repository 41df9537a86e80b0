"""Shell completion: the script by which a shell completes the words of the ``trackside`` command."""

from __future__ import annotations

import argparse
from typing import Final

import shtab

from trackside.events import ConfigError

_COMPLETED: Final = {
    **dict.fromkeys(("PATH", "FILE", "ENDPOINT", "A B"), shtab.FILE),
    **dict.fromkeys(("DIR", "PLACE"), shtab.DIRECTORY),
}
"""The kind of path that the shell completes, for each word in the names of arguments in the help."""


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script that completes the commands, options and paths of *parser* in *shell*."""
    if shell not in shtab.SUPPORTED_SHELLS:
        raise ConfigError("--print-completion", shell, "a later shtab has it: pip install --upgrade shtab")
    _complete_paths(parser)
    script: str = shtab.complete(parser, shell)
    return script


def _complete_paths(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:  # noqa: SLF001  argparse has no other way to its actions
        for word, found in _COMPLETED.items():
            if word in str(action.metavar):
                action.complete = found  # type: ignore[attr-defined]
        if isinstance(action.choices, dict):
            for command in action.choices.values():
                _complete_paths(command)
