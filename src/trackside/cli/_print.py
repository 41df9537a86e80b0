"""Output of the commands: events, JSON, problems, progress, and the files that they write."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import attrs

from trackside.core import text
from trackside.core.text import clock, duration, printable
from trackside.events import ConfigError, Event, KernelWindow, Priority, SectionWindow, UnreadableError
from trackside.events._selected import MARKS
from trackside.handlers import Replay, replay
from trackside.handlers.eventlog import is_stream
from trackside.wire import fields_of, wire_name_of

UNREADABLE: Final = 2
"""The exit code if something cannot be read, written or understood."""
_STRETCH: Final = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?", re.ASCII)
_LONGEST_STRETCH: Final = 10**7
_MOST: Final = 4e9
"""The bound of numbers in arguments: in seconds, more than a century."""
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


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name event logs."""
    parser.add_argument("path", metavar="PATH", nargs="+", help="a .tslog file, or a directory with such at any depth")


def add_session(parser: argparse.ArgumentParser) -> None:
    """Add the argument that selects a session."""
    parser.add_argument("--session", metavar="TAG", help="the session, by its tag or, without one, its run id")


def add_types(parser: argparse.ArgumentParser) -> None:
    """Add the argument that selects types of events."""
    parser.add_argument(
        "-t",
        "--type",
        metavar="GLOB",
        action="append",
        default=[],
        help="only types whose wire name matches, as 'acme.*' or '*.iteration.ended'; may be given more than once",
    )


def whole_number(least: int) -> Callable[[str], int]:
    """Return a function that reads a whole number, at least *least*, from an argument."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least}")
        return int(text)

    return read


def positive(text: str) -> float:
    """Read a number above 0 from an argument."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0 and below {_MOST:,.0f}")
    return value


def file_name(text: str) -> str:
    """Read the name of a file or a directory from an argument."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name")
    return text


def directory_name(text: str) -> str:
    """Read the name of a directory from an argument; it need not exist."""
    file_name(text)
    present = next(path for path in (Path(text), *Path(text).absolute().parents) if os.path.lexists(path))
    if not present.is_dir():
        raise argparse.ArgumentTypeError(f"{str(present)!r} is no directory; give another")
    return text


def stretch(option: str, text: str) -> range:
    """
    Return the numbers of an *option* that gives the first and the last one, as ``4-7``, or a single one.

    Raises:
        ConfigError: if *text* is neither.
    """
    found = _STRETCH.fullmatch(text.strip())
    numbers = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
    if not 0 < len(numbers) <= _LONGEST_STRETCH:
        raise ConfigError(option, text, "give a number, or two as 4-7, the smaller one first")
    return numbers


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Add the argument that selects ranks."""
    parser.add_argument("--ranks", metavar="LIST", help="only these ranks, as 0,4-7")


def rank_set(options: argparse.Namespace) -> frozenset[int] | None:
    """Return the ranks that were selected; None for all of them."""
    if options.ranks is None:
        return None
    return frozenset(rank for part in options.ranks.split(",") for rank in stretch("--ranks", part))


def of_ranks(events: Iterable[Event], ranks: frozenset[int] | None) -> Iterable[Event]:
    """Return the events of these ranks; of all if *ranks* is None."""
    return events if ranks is None else (event for event in events if event.source.rank in ranks)


def warn(text: str) -> None:
    """Print a line to stderr."""
    print(printable(text), file=sys.stderr)


def check_followed(command: str, paths: Iterable[str]) -> None:
    """
    Print which *paths* do not exist yet; a command that follows logs waits for them.

    Raises:
        UnreadableError: One is a file, but not an event log that this release reads.
    """
    for path in paths:
        if os.path.isfile(path):  # noqa: PTH113  it answers where Path.is_file may raise
            next(replay(path), None)
    missing = [path for path in paths if not is_stream(path) and not os.path.lexists(path)]
    if missing:
        warn(f"trackside {command}: waiting for {', '.join(missing)}, which does not exist yet")


def private(path: str, flags: int) -> int:
    """Open a file for writing; if it is new, this user alone may read it, because it holds texts of a log."""
    return os.open(path, flags, 0o600)


def write_private(path: str | Path, text: str, *, option: str) -> None:
    """
    Write *text* to a file that this user alone may read.

    Raises:
        UnreadableError: The file cannot be written; the message asks for another *option*.
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
    """Yield the events of *recorded* that can be read; `report_unread` prints which files could not be."""
    try:
        yield from recorded
    except UnreadableError:
        # The error is among the replay's problems.
        return


class _Result(Protocol):
    """The result of reading files, or a part of it."""

    @property
    def problems(self) -> Sequence[object]:
        """The reasons why whole files were not read."""

    @property
    def missing(self) -> int:
        """The number of events that are known to be missing."""

    @property
    def damaged_bytes(self) -> int:
        """The number of bytes that were passed over."""


def report_unread(command: str, *results: _Result) -> int:
    """Print unread files, losses and damage to stderr, so that a gap is not taken for silence; return the exit code."""
    problems = [problem for result in results for problem in result.problems]
    missing = sum(result.missing for result in results)
    damaged_bytes = sum(result.damaged_bytes for result in results)
    for problem in problems:
        warn(f"trackside {command}: {problem}")
    if missing:
        warn(f"trackside {command}: {missing:,} event(s) are missing from these files; see trackside info")
    if damaged_bytes:
        warn(f"trackside {command}: {damaged_bytes:,} damaged byte(s) were passed over; see trackside info")
    return UNREADABLE if problems else 0


class ProgressLine:
    """Shows the progress of reading on a terminal, if it takes more than a second."""

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
        """Erase the line."""
        if self._width:
            self._put("")
            sys.stderr.write("\r")
            sys.stderr.flush()


PIPE_WIDTH: Final = 200
"""The width of a line if neither a terminal nor ``COLUMNS`` sets it."""
NARROW: Final = 60
"""With fewer columns the milliseconds, the zone, the word "rank" and the step are left out."""
_PREFIX: Final = "trackside."
_BAD: Final = ("dropped", "suspended", "failed", "lost", "silent", "raised", "stall", "cut", "unavailable", "disorder")
_DIM, _BOLD, _RED, _CYAN, _RESET = "\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[36m", "\x1b[0m"
_HIDDEN: Final = frozenset({"parent_span_id", "open_spans", "sketch", "traceback"})
_FIRST: Final = ("duration_ns", "loss", "type", "message", "goodput")
_AGGREGATES: Final = ("value", "mean", "last", "sum", "min", "max")


class EventLines:
    """
    Formats events as lines of the available width, in colour on a terminal unless ``NO_COLOR`` is set.

    Args:
        width: The number of columns; by default that of the terminal or of ``COLUMNS``, or 200 if there is neither.
    """

    def __init__(self, *, width: int | None = None) -> None:
        is_terminal = sys.stdout.isatty()
        self._width = width or shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
        self._has_colour = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __call__(self, event: Event) -> str:
        """Return *event* as one line: time, rank, step, name, and the fields that differ from their defaults."""
        name = printable(wire_name_of(event).removeprefix(_PREFIX))
        rest = printable("  ".join(said(event)))
        is_narrow = self._width < NARROW
        time_of_day = clock(event.at_ns, has_ms=True).partition(" ")[2]
        role = "" if event.source.role == "main" else f"/{printable(event.source.role)}"
        if is_narrow:
            head = f"{time_of_day[:8]} {event.source.rank}{role} "
        else:
            step = f"step {event.step}" if event.step >= 0 else ""
            head = f"{time_of_day}  rank {event.source.rank}{role}  {step:<9}  "
        line = f"{head}{name}  {rest}".rstrip()
        if len(line) > self._width:
            line = line[: self._width - 1] + "…"
        if not self._has_colour:
            return line
        style = _style(event, name)
        shown_name = line[len(head) : len(head) + len(name)]
        return f"{_DIM}{line[: len(head)]}{_RESET}{style}{shown_name}{_RESET}{line[len(head) + len(name) :]}"


def globs(chosen: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns of ``--type``; types may be given as they are shown, without ``trackside.``."""
    # A word without a mark of a wire name or of a glob is neither, and can only be a type as it is shown.
    return tuple(given for glob in chosen for given in (glob, _PREFIX + glob) if not MARKS.isdisjoint(given))


def said(event: Event) -> Iterator[str]:
    """Yield the fields of *event*, the most informative first; those with their default are left out."""
    fields = dict(fields_of(event))
    identity = fields.get("identity")
    if isinstance(identity, Mapping):
        yield f"rank {identity.get('rank')} of {identity.get('world_size')}"
        yield f"{identity.get('application', '')} on {identity.get('host')}, process {identity.get('pid')}".strip()
        return
    if "total_count" in fields and isinstance(fields.get("values"), Mapping):  # a counter's window
        yield from _window_said(fields, fields["values"])
        return
    defaults = _defaults(type(event))
    if isinstance(event, (SectionWindow, KernelWindow)):
        yield f"steps {event.first_step}-{event.last_step}"
        means = sorted(zip(event.mean_ns, event.names, strict=False), reverse=True)
        yield from (f"{name} {duration(mean)}" for mean, name in means)
        return
    for plain in ("name", "kind"):
        if isinstance(fields.get(plain), str) and fields[plain] and fields[plain] != defaults.get(plain):
            yield fields.pop(plain)
    for key in sorted(fields, key=_place):
        value = fields[key]
        if key in _HIDDEN or _is_empty(value) or (key in defaults and value == defaults[key]):
            continue
        if key == "duration_ns":
            yield duration(value) if isinstance(value, int) else f"{key}={value}"
        elif isinstance(value, Mapping):
            if key in {"values", "attributes", "counts"}:
                yield from (_field(str(inner), given) for inner, given in value.items() if key != "counts" or given)
            else:
                yield f"{key}: {', '.join(f'{inner} {_short_value(given)}' for inner, given in value.items())}"
        elif value is True:
            yield key
        else:
            yield _field(key, value)


def _window_said(fields: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the figures of a window: for a counter also its total, for a distribution no sum."""
    count, unit = fields.get("count"), str(fields.get("unit") or "")
    yield str(fields.get("name"))
    if count != 1:
        yield f"{count} values"
    left_out = {"count", "sum"} if "mean" in values else {"count"}
    shown: dict[str, Any] = {
        key: values[key] for key in (*_AGGREGATES, *values) if key in values and key not in left_out
    }
    if fields.get("kind") == "counter":
        shown["total"] = fields.get("total_sum")
    elif count == 1 and "value" in shown:
        shown = {"value": shown["value"]}
    for key, value in shown.items():
        yield f"{key}={text.amount(value, unit) if isinstance(value, (int, float)) else _short_value(value)}"


def _place(key: str) -> int:
    """Return a field's sort key: the most informative fields come first, ids come last."""
    return _FIRST.index(key) if key in _FIRST else len(_FIRST) + key.endswith("_id")


def _defaults(kind: type[Event]) -> dict[str, Any]:
    fields: tuple[attrs.Attribute[Any], ...] = kind.__attrs_attrs__
    return {field.name: field.default for field in fields if isinstance(field.default, (int, float, str))}


def _is_empty(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, (str, bytes, list, tuple, dict)) and not value)


def _field(key: str, value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for suffix in ("_ns", "_bytes"):
            if key.endswith(suffix):
                return f"{key.removesuffix(suffix)}={text.amount_of(key, value)}"
    return f"{key}={_short_value(value)}"


def _short_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    return str(value)


def _style(event: Event, name: str) -> str:
    if any(word in name for word in _BAD) or getattr(event, "failed", False) or getattr(event, "error", None):
        return _BOLD + _RED
    return _BOLD + _CYAN if event.priority is Priority.LIFECYCLE else _BOLD
