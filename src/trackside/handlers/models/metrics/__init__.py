"""One Logger's metric updates, derived from the iterations, loops and checkpoints of a job."""

from trackside.handlers.models.metrics._model import MetricsResult, SourceMetrics, TrainingMetrics

__all__ = [
    "MetricsResult",
    "SourceMetrics",
    "TrainingMetrics",
]
