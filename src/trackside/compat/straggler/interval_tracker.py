"""The peer's module of the interval between reports: given in seconds, but counted in iterations."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import ClassVar, Final

import attrs

from trackside.events import clock

_NS_PER_S: Final = 10**9


def _alone(value: float) -> float:
    return value


@attrs.define
class ReportIntervalTracker:
    """Converts an interval from seconds to iterations, once, by the lower median of the first sixteen steps."""

    INTERVAL_ESTIMATION_ITERS: ClassVar[int] = 16

    time_interval: float = 60.0
    """The time between two reports, in seconds."""
    current_iter: int = 0
    """Iterations so far."""
    iter_interval: int | None = None
    """The number of iterations between two reports; None until that is known."""
    prev_iter_start_time: float | None = None
    step_times: list[float] = attrs.field(factory=list)
    """The first steps, in seconds, until the interval is known."""
    profiling_interval: int = 1
    """The least number of iterations between reports: more frequent ones would be empty."""
    largest: Callable[[float], float] = attrs.field(default=_alone, kw_only=True)
    """Returns the largest value of all ranks; a collective if there are several ranks."""

    def iter_increase(self) -> None:
        """Count an iteration; at the seventeenth, agree on the interval."""
        self.current_iter += 1
        if self.iter_interval is not None:
            return
        now_s = clock.monotonic_ns() / _NS_PER_S
        if self.prev_iter_start_time is not None:
            self.step_times.append(now_s - self.prev_iter_start_time)
        self.prev_iter_start_time = now_s
        if len(self.step_times) == self.INTERVAL_ESTIMATION_ITERS:
            step_s = max(statistics.median_low(self.step_times), 1e-9)
            iterations = max(self.largest(self.time_interval / step_s), self.profiling_interval)
            self.iter_interval = max(1, int(iterations))
            self.step_times.clear()

    def is_interval_elapsed(self) -> bool:
        """Return whether a report is due after the iteration that was counted last."""
        return self.iter_interval is not None and self.current_iter % self.iter_interval == 0
