"""A line on stderr that says how far a long reading is; nothing where nobody looks."""

from __future__ import annotations

import sys
import time
from typing import Final

_WAIT_S: Final = 1.0
_EVERY_S: Final = 0.2


class ProgressLine:
    """Says on a terminal what was read so far, if it takes more than a second."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_shown = sys.stderr.isatty()
        self._due_s = time.monotonic() + _WAIT_S
        self._width = 0

    def __call__(self, sources: int, of: int, events: int) -> None:
        """Tell how many of the sources, and how many events, were read."""
        if not self._is_shown or time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + _EVERY_S
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
