"""A circuit breaker: it suspends a handler that keeps failing, and lets it be tried again later."""

from __future__ import annotations

from typing import Final

from trackside.core._count import ThreadSafeCount
from trackside.core._logging import RateLimitedLog, described
from trackside.events import HandlerSuspended, clock

FAILURES_BEFORE_OPEN: Final = 5
FIRST_OPEN_NS: Final = 30 * 10**9
LONGEST_OPEN_NS: Final = 600 * 10**9


class CircuitBreaker:
    """
    One handler's record of failures (M. Nygard, "Release It!").

    After five failures in a row it opens: the handler is suspended for 30 s. Then it is half open: one call is tried.
    Each further failure doubles the time, up to ten minutes; any success closes the circuit.
    """

    __slots__ = (
        "_failures",
        "_is_half_open",
        "_log",
        "_open_ns",
        "_successes",
        "failed",
        "last_error",
        "name",
        "open_until_ns",
    )

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.failed: ThreadSafeCount = ThreadSafeCount()
        self.last_error: str = ""
        self.open_until_ns: int | None = None
        """On the monotonic clock; None while the circuit is closed."""
        self._is_half_open = False
        self._failures = 0
        self._successes = -1
        self._open_ns = FIRST_OPEN_NS
        self._log = RateLimitedLog()

    def is_open(self) -> bool:
        """
        Return whether the handler must not be called now.

        When the suspension is over, one caller gets False and tries the handler.
        """
        until = self.open_until_ns
        if until is None:
            return False
        now = clock.monotonic_ns()
        if now < until:
            return True
        # The first caller tries the handler; for the others it stays suspended until the outcome is known.
        self.open_until_ns = now + self._open_ns
        self._is_half_open = True
        return False

    def record_failure(self, error: BaseException, successes: int) -> HandlerSuspended | None:
        """
        Record and report a failure.

        Args:
            error: What the handler raised.
            successes: How often the handler has succeeded so far; if this grew since the last failure, the present
                failure begins a new row.

        Returns:
            The event to publish if the handler is suspended from now on, else None.
        """
        self.failed.add()
        self.report(error)
        if self.open_until_ns is not None and not self._is_half_open:
            return None  # of a call that began before the circuit opened
        if successes > self._successes:
            self._successes = successes
            self._failures = 0
            self._open_ns = FIRST_OPEN_NS
        self._failures += 1
        if self._failures < FAILURES_BEFORE_OPEN:
            return None
        if self._is_half_open:
            self._is_half_open = False
            self._open_ns = min(self._open_ns * 2, LONGEST_OPEN_NS)
        self.open_until_ns = clock.monotonic_ns() + self._open_ns
        return HandlerSuspended(
            handler=self.name, failures=self._failures, error=self.last_error, retry_after_s=self._open_ns / 1e9
        )

    def cancel_try(self) -> None:
        """Cancel the try that `is_open` granted, because the event was not for the handler."""
        if self._is_half_open:
            self._is_half_open = False
            self.open_until_ns = clock.monotonic_ns()

    def close(self) -> None:
        """Close the circuit, after the handler succeeded."""
        self.open_until_ns = None
        self._is_half_open = False
        self._failures = 0
        self._open_ns = FIRST_OPEN_NS

    def report(self, error: BaseException) -> None:
        """Report *error*, at most once a minute, without counting it as a failure."""
        self.last_error = described(error)
        self._log.complain("handler %s failed: %s; training goes on", self.name, self.last_error, error=error)
