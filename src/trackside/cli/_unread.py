"""Unreadable files in commands that read logs: everything else is read first, then each gets a line."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.cli._print import warn
from trackside.events import Event, UnreadableError
from trackside.handlers import Replay

UNREADABLE = 2
"""The exit code for what cannot be read or understood."""


def readable(recorded: Replay) -> Iterator[Event]:
    """Yield what can be read of *recorded*, and stop there; `tell_unread` says what could not be."""
    try:
        yield from recorded
    except UnreadableError:
        # It is among the replay's problems.
        return


def tell_unread(command: str, recorded: Replay) -> int:
    """Say on stderr what the files do not hold, so that a gap is not taken for silence; return the exit code."""
    for problem in recorded.problems:
        warn(f"trackside {command}: {problem}")
    if recorded.missing:
        warn(f"trackside {command}: {recorded.missing:,} event(s) are missing from these files; see trackside info")
    if recorded.damaged_bytes:
        warn(f"trackside {command}: {recorded.damaged_bytes:,} damaged byte(s) were passed over; see trackside info")
    return UNREADABLE if recorded.problems else 0
