"""Output of the commands: events, JSON, problems, progress, and the files that they write."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trackside.core.text import clock, duration, printable
from trackside.events import Event, UnreadableError
from trackside.handlers import Replay
from trackside.wire import fields_of, wire_name_of

UNREADABLE: Final = 2
"""The exit code for what cannot be read or understood."""
_PROGRESS_AFTER_S: Final = 1.0
_PROGRESS_INTERVAL_S: Final = 0.2


def event_line(event: Event) -> str:
    """Return *event* as one line: time, rank, number, step, type, fields. The lines of a traceback follow it."""
    given = dict(fields_of(event))
    traceback = str(given.pop("traceback", "")).splitlines()
    fields = " ".join(f"{name}={_value(name, value)}" for name, value in given.items())
    step = f"step {event.step}" if event.step >= 0 else ""
    role = "" if event.source.role == "main" else f"/{event.source.role}"
    where = f"rank {event.source.rank}{role}"
    head = f"{clock(event.at_ns, has_ms=True)[11:]}  {where:<14} {event.seq or 0:>7}  {step:<11} {wire_name_of(event)}"
    return "\n".join([printable(f"{head}  {fields}".rstrip()), *(f"    {printable(line)}" for line in traceback)])


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower() if isinstance(value, bool) else "-"
    if isinstance(value, int) and name.endswith("duration_ns"):
        return duration(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    return str(value)


def warn(text: str) -> None:
    """Print a line to stderr."""
    print(printable(text), file=sys.stderr)


def private(path: str, flags: int) -> int:
    """Open a file that this user alone may read if it is new: the texts of a log are in it."""
    return os.open(path, flags, 0o600)


def write_private(path: str | Path, text: str, *, option: str) -> None:
    """
    Write *text* to a file that this user alone may read.

    Raises:
        UnreadableError: It cannot be written; *option* is what gave its name.
    """
    try:
        with open(path, "w", encoding="utf-8", opener=private) as out:
            out.write(text)
    except OSError as error:
        raise UnreadableError(str(path), f"cannot be written: {error.strerror}", f"give another {option}") from error


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return *value* as JSON, which has no NaN and no infinity: null stands for such a number."""
    return json.dumps(_finite(value), allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(own) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def readable(recorded: Replay) -> Iterator[Event]:
    """Yield what can be read of *recorded*, and stop there; `report_unread` says what could not be."""
    try:
        yield from recorded
    except UnreadableError:
        # It is among the replay's problems.
        return


def report_unread(command: str, recorded: Replay) -> int:
    """Print to stderr what the files do not hold, so that a gap is not taken for silence; return the exit code."""
    for problem in recorded.problems:
        warn(f"trackside {command}: {problem}")
    if recorded.missing:
        warn(f"trackside {command}: {recorded.missing:,} event(s) are missing from these files; see trackside info")
    if recorded.damaged_bytes:
        warn(f"trackside {command}: {recorded.damaged_bytes:,} damaged byte(s) were passed over; see trackside info")
    return UNREADABLE if recorded.problems else 0


class ProgressLine:
    """Shows on a terminal what was read so far, if it takes more than a second."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_shown = sys.stderr.isatty()
        self._due_s = time.monotonic() + _PROGRESS_AFTER_S
        self._width = 0

    def __call__(self, sources: int, of: int, events: int) -> None:
        """Show how many of the sources, and how many events, were read."""
        if not self._is_shown or time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + _PROGRESS_INTERVAL_S
        filled = round(20 * sources / max(1, of))
        line = f"{self._what} [{'#' * filled}{'.' * (20 - filled)}] {sources:,} of {of:,} sources, {events:,} events"
        self._put(line)

    def _put(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def done(self) -> None:
        """Take the line away."""
        if self._width:
            self._put("")
            sys.stderr.write("\r")
            sys.stderr.flush()
