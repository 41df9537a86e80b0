"""The interval between reports: given in seconds, counted in iterations so that all ranks agree."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

ESTIMATION_ITERATIONS: Final = 16


class ReportInterval:
    """
    Turns an interval in seconds into one in iterations, once: by the median of the first sixteen steps.

    Args:
        time_interval_s: How often a report is wanted.
        profiling_interval: Reports more often than that would be empty.
        largest: Returns the largest value of all ranks; a collective where there are several.
        clock: Reads the time, in seconds.
    """

    def __init__(
        self,
        time_interval_s: float,
        profiling_interval: int,
        largest: Callable[[float], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._time_interval_s = time_interval_s
        self._profiling_interval = profiling_interval
        self._largest = largest
        self._clock = clock
        self._before_s: float | None = None
        self._steps_s: list[float] = []
        self.current = 0
        self.iterations: int | None = None

    def iteration_ended(self) -> None:
        """Count an iteration; at the seventeenth, agree on the interval."""
        self.current += 1
        if self.iterations is not None:
            return
        now_s = self._clock()
        if self._before_s is not None:
            self._steps_s.append(now_s - self._before_s)
        self._before_s = now_s
        if len(self._steps_s) == ESTIMATION_ITERATIONS:
            step_s = max(statistics.median(self._steps_s), 1e-9)
            self.iterations = max(1, int(max(self._largest(self._time_interval_s / step_s), self._profiling_interval)))
            self._steps_s.clear()

    @property
    def is_elapsed(self) -> bool:
        """Whether the iteration that was counted last is one after which a report is due."""
        return self.iterations is not None and self.current % self.iterations == 0
