"""Timestamps: a reading of the wall clock, and one of the clock for durations."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from trackside.compat.one_logger.core.exceptions import OneLoggerError, assert_that

if TYPE_CHECKING:
    from typing_extensions import Self

_NS_PER_S = 10**9
_FAR_OFF_S = 10 * 3600


@attrs.frozen
class TracingTimestamp:
    """A moment, in seconds since the epoch and on a clock that only runs forward."""

    seconds_since_epoch: float
    perf_counter_seconds: float

    @property
    def milliseconds_since_epoch(self) -> int:
        """The moment in whole milliseconds since the epoch."""
        return self.at_ns // 1_000_000

    @property
    def at_ns(self) -> int:
        """The moment in ns since the epoch, as exact as a float of seconds is: to some hundred ns."""
        whole = int(self.seconds_since_epoch)
        return whole * _NS_PER_S + round((self.seconds_since_epoch - whole) * _NS_PER_S)

    @classmethod
    def now(cls) -> Self:
        """Return this moment."""
        return cls(time.time(), time.perf_counter())

    @classmethod
    def for_timestamp(
        cls,
        timestamp_sec: float,
        perf_counter: float | None = None,
        validate_timestamp: bool = True,  # noqa: FBT001, FBT002
    ) -> Self:
        """
        Return the moment *timestamp_sec*, in seconds since the epoch.

        Args:
            timestamp_sec: In seconds since the epoch.
            perf_counter: The value of ``time.perf_counter()`` at that moment; computed unless given.
            validate_timestamp: Whether to refuse a time more than ten hours from now, which is probably in other units.

        Raises:
            OneLoggerError: if the time is refused.
        """
        ahead_s = timestamp_sec - time.time()
        assert_that(
            not validate_timestamp or abs(ahead_s) <= _FAR_OFF_S,
            f"{timestamp_sec!r} is not within ten hours of now: give seconds since the epoch",
        )
        return cls(timestamp_sec, time.perf_counter() + ahead_s if perf_counter is None else perf_counter)

    @classmethod
    def of_ns(cls, at_ns: int) -> Self:
        """Return the moment *at_ns*, in ns since the epoch; both readings are this time."""
        return cls(at_ns / _NS_PER_S, at_ns / _NS_PER_S)

    def to_json(self) -> dict[str, float]:
        """Return both readings by name."""
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, float]) -> Self:
        """
        Return the moment that `to_json` wrote.

        Raises:
            OneLoggerError: if a reading is missing.
        """
        names = ("seconds_since_epoch", "perf_counter_seconds")
        assert_that(all(data.get(name) is not None for name in names), f"{data!r} lacks one of {', '.join(names)}")
        return cls(*(data[name] for name in names))


class Timer:
    """A stopwatch, which adds up periods until it is reset."""

    def __init__(self) -> None:
        self._began: TracingTimestamp | None = None
        self._total_s = 0.0

    @property
    def running(self) -> bool:
        """Whether a period is being measured."""
        return self._began is not None

    def start(self, start_time: TracingTimestamp | None = None) -> None:
        """
        Begin a period now, or at *start_time*.

        Raises:
            OneLoggerError: if a period is being measured already.
        """
        assert_that(not self.running, "the timer was started while it was running")
        self._began = TracingTimestamp.now() if start_time is None else start_time

    def stop(self, reset: bool = False) -> float:  # noqa: FBT001, FBT002  the peer's signature
        """
        End the period, and return the seconds of all periods; *reset* then sets the sum to zero.

        Raises:
            OneLoggerError: if no period is being measured.
        """
        began, self._began = self._began, None
        if began is None:
            raise OneLoggerError("the timer was stopped while it was not running")
        self._total_s += time.perf_counter() - began.perf_counter_seconds
        total_s = self._total_s
        if reset:
            self.reset()
        return total_s

    def reset(self, start: bool = False) -> None:  # noqa: FBT001, FBT002  the peer's signature
        """Forget all periods; *start* begins a new one at once."""
        self._began, self._total_s = None, 0.0
        if start:
            self.start()
