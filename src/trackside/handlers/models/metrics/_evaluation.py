"""Validation and testing: iterations in loops between which training goes on."""

from __future__ import annotations

from typing import Any, TypeVar

import attrs

from trackside.events import EvaluationMetricsUpdated, IterationEnded, SpanEnded
from trackside.handlers.models.metrics._durations import Durations
from trackside.handlers.models.metrics._numbers import number

E = TypeVar("E", bound=EvaluationMetricsUpdated)


@attrs.define
class Evaluation:
    """The loops of one kind."""

    before: Durations = attrs.field(factory=Durations)
    failed_before: int = 0
    window: Durations = attrs.field(factory=Durations)
    failed: int = 0
    latest_loss: float | None = None
    trained_at_latest: int | None = None
    """Training iterations completed when the latest loop ended, or the training loop started."""

    def add(self, event: IterationEnded) -> None:
        """Take an iteration in."""
        if event.failed:
            self.failed += 1
            return
        self.window.add(event.duration_ns)
        self.latest_loss = number(event.loss, self.latest_loss)

    def ended(self, cls: type[E], event: SpanEnded, trained: int, current_iteration: int) -> E:
        """Return the update to be published at the end of a loop, and close the window."""
        window, failed = self.window, self.failed
        self.before.merge(window)
        self.failed_before += failed
        told = cls(
            at_ns=event.at_ns,
            span_id=event.id,
            step=event.step,
            current_iteration=current_iteration,
            interval=trained - (self.trained_at_latest or 0),
            num_iterations=self.before.count,
            num_failed_iterations=self.failed_before,
            latest_loss=self.latest_loss,
            window_num_iterations=window.count,
            window_num_failed_iterations=failed,
            **_times(self.before, "", "avg", "min", "max", "total"),
            **_times(window, "window_", "avg", "min", "max", "total", "p50", "p95", "p99"),
        )
        self.window, self.failed, self.trained_at_latest = Durations(), 0, trained
        return told


def _times(durations: Durations, prefix: str, *names: str) -> dict[str, Any]:
    seconds = durations.seconds()
    told = (f"{name}_iteration_time_sec" for name in names)
    return {f"{prefix}{name}": seconds[name] if durations.count else None for name in told}
