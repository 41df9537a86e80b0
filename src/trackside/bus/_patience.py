"""How often a handler may fail before it is set aside, for how long, and how often that is talked about."""

from __future__ import annotations

import logging
import threading
from typing import Final

from trackside.bus._tally import Tally
from trackside.events import HandlerRested, clock

LOGGER: Final = logging.getLogger("trackside")

FAILURES_BEFORE_REST: Final = 5
FIRST_REST_NS: Final = 30 * 10**9
LONGEST_REST_NS: Final = 600 * 10**9
_COMPLAINT_EVERY_NS: Final = 60 * 10**9
_LONGEST_ERROR: Final = 500


class Patience:
    """
    One handler's record of failures.

    Five in a row and the handler rests for 30 s, then is tried with one event; each further failure doubles the
    rest, up to ten minutes. Any success forgives all.
    """

    __slots__ = (
        "_complained_ns",
        "_in_a_row",
        "_is_tried",
        "_rest_ns",
        "_successes",
        "_unsaid",
        "failed",
        "last_error",
        "name",
        "resting_until_ns",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.failed = Tally()
        self.last_error = ""
        self.resting_until_ns: int | None = None
        """On the monotonic clock; None while the handler is trusted."""
        self._is_tried = False
        self._in_a_row = 0
        self._successes = -1
        self._rest_ns = FIRST_REST_NS
        self._complained_ns: int | None = None
        self._unsaid = 0

    def is_resting(self) -> bool:
        """Return whether the handler is to be left alone now; when its rest is over, one caller is told no."""
        until = self.resting_until_ns
        if until is None:
            return False
        now = clock.monotonic_ns()
        if now < until:
            return True
        # Whoever comes first tries it; the others wait for the outcome.
        self.resting_until_ns = now + self._rest_ns
        self._is_tried = True
        return False

    def fail(self, error: BaseException, successes: int) -> HandlerRested | None:
        """
        Note a failure.

        Args:
            error: What the handler raised.
            successes: How often the handler has succeeded so far; if that grew since the last failure, this is the
                first in a row.

        Returns:
            What to publish if the handler rests from now on, else None.
        """
        self.failed.add()
        self.report(error)
        if self.resting_until_ns is not None and not self._is_tried:
            return None  # of a call that began before the rest did
        if successes > self._successes:
            self._successes = successes
            self._in_a_row = 0
            self._rest_ns = FIRST_REST_NS
        self._in_a_row += 1
        if self._in_a_row < FAILURES_BEFORE_REST:
            return None
        if self._is_tried:
            self._is_tried = False
            self._rest_ns = min(self._rest_ns * 2, LONGEST_REST_NS)
        self.resting_until_ns = clock.monotonic_ns() + self._rest_ns
        return HandlerRested(
            handler=self.name, failures=self._in_a_row, error=self.last_error, rest_s=self._rest_ns / 1e9
        )

    def put_off(self) -> None:
        """Give the try back that `is_resting` granted: the event was not for the handler after all."""
        if self._is_tried:
            self._is_tried = False
            self.resting_until_ns = clock.monotonic_ns()

    def recover(self) -> None:
        """Trust the handler again after it succeeded."""
        self.resting_until_ns = None
        self._is_tried = False
        self._in_a_row = 0
        self._rest_ns = FIRST_REST_NS

    def report(self, error: BaseException) -> None:
        """Say what went wrong, at most once a minute; what cost no event is reported alone and counted nowhere."""
        self.last_error = described(error)
        now = clock.monotonic_ns()
        if self._complained_ns is not None and now - self._complained_ns < _COMPLAINT_EVERY_NS:
            self._unsaid += 1
            return
        self._complained_ns = now
        unsaid, self._unsaid = self._unsaid, 0
        more = f" ({unsaid} more since the last report)" if unsaid else ""
        complain("handler %s failed: %s%s; training goes on", self.name, self.last_error, more, error=error)


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

    A logging handler may itself log events; what goes wrong while complaining is not complained about.
    """
    if getattr(_complaining, "now", False):
        return
    _complaining.now = True
    try:
        trace = (type(error), error, error.__traceback__) if error is not None else None
        LOGGER.warning(message, *arguments, exc_info=trace)
    except Exception:  # noqa: S110  a broken logging handler must not reach the training loop
        pass
    finally:
        _complaining.now = False


def is_power_of_two(count: int) -> bool:
    """Return whether it is the 1st, 2nd, 4th, 8th … time: when to report what may happen with every event."""
    return count & (count - 1) == 0
