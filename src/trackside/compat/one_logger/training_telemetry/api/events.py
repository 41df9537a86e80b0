"""The names of a training job's events."""

from trackside.compat.one_logger._training_events import (
    StandardTrainingJobEventName,
)

__all__ = [
    "StandardTrainingJobEventName",
]
