"""Text for terminals."""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path
from typing import Any

from trackside.events import Event, UnreadableError
from trackside.wire import fields_of, wire_name_of


def printable(text: str) -> str:
    """Return *text* with control characters escaped: what a log holds must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def clock_text(at_ns: int | None) -> str:
    """Return a time as ``2026-01-31 12:00:00.123Z``."""
    if at_ns is None:
        return "-"
    seconds, rest_ns = divmod(at_ns, 10**9)
    try:
        at = datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{at_ns} ns"
    return f"{at:%Y-%m-%d %H:%M:%S}.{rest_ns // 1_000_000:03d}Z"


def duration_text(duration_ns: float) -> str:
    """Return a duration in the unit that suits it."""
    for unit, size in (("h", 3.6e12), ("min", 6e10), ("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(duration_ns) >= size:
            return f"{duration_ns / size:.4g} {unit}"
    return f"{duration_ns:.0f} ns"


def event_line(event: Event) -> str:
    """Return *event* as one line: time, rank, number, step, type, fields."""
    fields = " ".join(f"{name}={_value(name, value)}" for name, value in fields_of(event).items())
    step = f"step {event.step}" if event.step >= 0 else ""
    role = "" if event.source.role == "main" else f"/{event.source.role}"
    where = f"rank {event.source.rank}{role}"
    head = f"{clock_text(event.at_ns)[11:]}  {where:<14} {event.seq or 0:>7}  {step:<11} {wire_name_of(event)}"
    return printable(f"{head}  {fields}".rstrip())


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower() if isinstance(value, bool) else "-"
    if isinstance(value, int) and name.endswith("duration_ns"):
        return duration_text(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    text = str(value)
    return text if len(text) <= 200 else text[:197] + "..."  # noqa: PLR2004


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
