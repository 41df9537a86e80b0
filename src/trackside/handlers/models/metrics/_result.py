"""What the model of metrics gives."""

from __future__ import annotations

import attrs

from trackside.events import (
    CheckpointMetricsUpdated,
    ProductiveWorkSaved,
    TestingMetricsUpdated,
    TrainingMetricsUpdated,
    ValidationMetricsUpdated,
)


@attrs.frozen(kw_only=True)
class SourceMetrics:
    """The metrics of one process; each part is the update that would be published now, or the last one that was."""

    source_id: str
    rank: int
    attempt: int
    training: TrainingMetricsUpdated | None
    """Up to the latest iteration; None if there was none."""
    validation: ValidationMetricsUpdated | None
    testing: TestingMetricsUpdated | None
    checkpoints: dict[str, CheckpointMetricsUpdated]
    """By strategy."""
    productive: ProductiveWorkSaved | None
    failed_saves: int
    open_saves: list[int]
    """The global steps of the saves whose outcome is not known, the oldest first."""


@attrs.frozen(kw_only=True)
class MetricsResult:
    """The metrics of all processes, by rank and attempt, and how many events the model should have had and did not."""

    sources: list[SourceMetrics]
    missed: int
