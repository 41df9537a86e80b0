"""
A reader of ml-goodput-measurement's records: JSON lines, as an export of its log has them.

A line is a record's payload, or an entry of the export with the payload under ``jsonPayload``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from trackside.events import Event, UnreadableError
from trackside.handlers._json_lines import SUFFIXES, find_files, objects_in, refused
from trackside.handlers.models.goodput import read_payloads

_PEEK_BYTES: Final = 4096
_MAX_LISTED: Final = 10
"""Bad lines of a file that are listed; the others are counted."""
_JSON_LINES: Final = "give one record's payload a line, as a JSON object"


def holds_records(path: str | os.PathLike[str]) -> bool:
    """Return whether *path* looks like records as JSON lines; a directory does if only such files are in it."""
    if os.path.isdir(path):  # noqa: PTH112  it answers where Path.is_dir may raise
        names = [name for _, _, below in os.walk(path) for name in below]
        is_log = any(name.endswith(".tslog") for name in names)
        return not is_log and any(name.endswith(SUFFIXES) for name in names)
    try:
        with open(path, "rb") as file:  # noqa: PTH123  as above
            start = file.read(_PEEK_BYTES)
    except OSError:
        return False
    return start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in {b"{", b"["}


class RecordFiles(Iterator[Event]):
    """
    Iterate over the records of some files as events, once. The counts are those of what has been read so far.

    Files are read in the order of their first times. A record with an error also yields a `RecordFaulted`; a line
    that is not a record is skipped and counted.

    Args:
        paths: Files, or directories with files at any depth, named ``*.jsonl`` or ``*.json``.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self.records: int = 0
        self.bad_lines: int = 0
        """Lines that are not JSON objects."""
        self.problems: list[UnreadableError] = []
        """The reasons why files, or lines of them, were not read."""
        found = find_files(paths, self.problems, _JSON_LINES)
        self._files = [path for _, path in sorted((_first_time(path), path) for path in found)]
        self._events = read_payloads(self._payloads())

    def __iter__(self) -> Iterator[Event]:  # noqa: PYI034  the generator: a for loop steps through it in C
        return self._events

    def __next__(self) -> Event:
        return next(self._events)

    def _payloads(self) -> Iterator[Mapping[str, Any]]:
        for path in self._files:
            bad: list[int] = []
            lines = bad_lines = 0
            is_known = False
            try:
                for number, payload in _payloads(path):
                    lines += 1
                    if payload is None:
                        bad_lines += 1
                        bad += [number] if len(bad) < _MAX_LISTED else []
                    else:
                        is_known = is_known or _is_known(payload)
                        yield payload
            except OSError as error:
                self.problems.append(refused(path, error))
            self.records += lines - bad_lines
            self.bad_lines += bad_lines
            if lines and not is_known:
                what = "holds no record of ml-goodput-measurement"
                self.problems.append(UnreadableError(str(path), what, _JSON_LINES))
            elif bad:
                listed = f"line {', '.join(map(str, bad))}{', …' if bad_lines > len(bad) else ''}"
                what = f"{bad_lines:,} of {lines:,} line(s) hold no JSON object: {listed}"
                self.problems.append(UnreadableError(str(path), what, "all others were read"))


def _payloads(path: Path) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """
    Yield the payload of each line of *path* with the line's number; None for a line that is not an object.

    Raises:
        OSError: if the file cannot be read.
    """
    for number, entry in objects_in(path):
        inner = entry.get("jsonPayload") if entry is not None else None
        yield number, inner if isinstance(inner, dict) else entry


def _is_known(payload: Mapping[str, Any]) -> bool:
    return "event_type" in payload or _time(payload) is not None


def _time(payload: Mapping[str, Any]) -> float | None:
    """Return the first time in *payload*, in seconds since the epoch; None if it has none."""
    for key, value in payload.items():
        if key.endswith(("_time", "_timestamp")) and isinstance(value, (int, float)):
            return value
    return None


def _first_time(path: Path) -> float:
    """Return the first time in the file that is a number below infinity; infinity if there is none."""
    try:
        for _, payload in _payloads(path):
            found = None if payload is None else _time(payload)
            if found is not None and found < math.inf:  # no function of math takes an integer of any length
                return found
    except OSError:  # reported when the file is read
        pass
    return math.inf
