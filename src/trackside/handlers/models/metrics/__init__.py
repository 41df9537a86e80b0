"""One Logger's metric updates, from the iterations, loops and checkpoints that a job tells of."""

from trackside.handlers.models.metrics._model import TrainingMetrics
from trackside.handlers.models.metrics._result import MetricsResult, SourceMetrics

__all__ = [
    "MetricsResult",
    "SourceMetrics",
    "TrainingMetrics",
]
