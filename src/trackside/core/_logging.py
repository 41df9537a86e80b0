"""Reports of trackside's own trouble, through the standard library's logging."""

from __future__ import annotations

import logging
import threading
from typing import Final

from trackside.core.text import printable
from trackside.events import clock

LOGGER: Final = logging.getLogger("trackside")
_LONGEST_ERROR: Final = 500


def described(error: BaseException) -> str:
    """Return the kind and the message of *error*, whose own ``__str__`` may raise."""
    try:
        return f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
    except Exception:
        return type(error).__name__


_complaining = threading.local()


def complain(message: str, *arguments: object, error: BaseException | None = None) -> None:
    """
    Report trouble through the standard library's logging, never raising.

    Unprintable characters are escaped: some texts are of other processes, and would write lines of their own, or speak
    to the terminal. A logging handler may itself log events; errors during a report are not reported.
    """
    if getattr(_complaining, "now", False):
        return
    _complaining.now = True
    try:
        trace = (type(error), error, error.__traceback__) if error is not None else None
        shown = [printable(text) if isinstance(text, str) else text for text in arguments]
        LOGGER.warning(message, *shown, exc_info=trace)
    except Exception:  # noqa: S110  a broken logging handler must not reach the training loop
        pass
    finally:
        _complaining.now = False


_INTERVAL_NS: Final = 60 * 10**9


class RateLimitedLog:
    """
    Reports of one kind of trouble: at most one a minute, with the number left out before it.

    Threads that report at once may both be let through; a lock would cost more than that.
    """

    __slots__ = ("_left_out", "_reported_ns")

    def __init__(self) -> None:
        self._reported_ns: int | None = None
        self._left_out = 0

    def complain(self, message: str, *arguments: object, error: BaseException | None = None) -> None:
        """Report *message*, unless another was reported a moment ago; never raises."""
        now_ns = clock.monotonic_ns()
        if self._reported_ns is not None and now_ns - self._reported_ns < _INTERVAL_NS:
            self._left_out += 1
            return
        self._reported_ns = now_ns
        left_out, self._left_out = self._left_out, 0
        if left_out:
            message, arguments = f"{message} (%d more since the last report)", (*arguments, left_out)
        complain(message, *arguments, error=error)


def is_power_of_two(count: int) -> bool:
    """Return whether it is the 1st, 2nd, 4th, 8th … time: when to report what may happen with every event."""
    return count & (count - 1) == 0
