"""The turns that a thread takes at the interpreter lock while it works for long."""

from __future__ import annotations

import math
import time
from typing import Final

from trackside._free_threading import FREE_THREADED

_TURN_S: Final = 100e-6
"""The time for which the thread works before it lets others have the interpreter."""
_SHARE: Final = 0.08
"""The least length of a turn, as a share of the time for which the thread waited to get the interpreter back."""
_PAUSE_S: Final = 1e-6
"""As short as can be: it takes some 60 µs until a thread sleeps and wakes up, enough for another one to take over."""


class Turns:
    """
    Lets other threads have the interpreter while one works for long.

    CPython alone lets them wait for 5 ms. A training thread wants the interpreter for microseconds, between two
    kernels, and gets it back within some 200 µs. A thread that keeps it, because it computes in Python, has it for
    93 % of the time.
    """

    def __init__(self) -> None:
        self._ends_at_s = math.inf
        self.is_awaited = False
        """Whether a thread waits for the result and wants nothing else: then a turn has no end."""

    def begin(self, *, is_awaited: bool) -> None:
        """Begin a turn."""
        self.is_awaited = is_awaited
        self._ends_at_s = math.inf if FREE_THREADED else time.monotonic() + _TURN_S

    def end_if_due(self) -> None:
        """Let other threads have the interpreter if the turn was long enough, and begin the next one."""
        now_s = time.monotonic()
        if now_s >= self._ends_at_s and not self.is_awaited:
            time.sleep(_PAUSE_S)
            back_s = time.monotonic()
            self._ends_at_s = back_s + max(_TURN_S, _SHARE * (back_s - now_s))
