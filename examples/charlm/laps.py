"""The demo's own stopwatch, against which telemetry is held."""

from __future__ import annotations

import attrs


@attrs.frozen
class Lap:
    """When a training step began and ended, in seconds of `time.perf_counter`."""

    step: int
    began_s: float
    ended_s: float

    @property
    def lasted_s(self) -> float:
        """How long it took."""
        return self.ended_s - self.began_s
