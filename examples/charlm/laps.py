"""The demo's own stopwatch, with which the figures of telemetry are compared."""

from __future__ import annotations

import attrs


@attrs.frozen
class Lap:
    """The start and the end of a training step, in seconds of `time.perf_counter`."""

    step: int
    began_s: float
    ended_s: float

    @property
    def lasted_s(self) -> float:
        """The duration."""
        return self.ended_s - self.began_s
