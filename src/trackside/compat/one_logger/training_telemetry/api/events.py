"""The names of a training job's events."""

from trackside.compat.one_logger._training_attributes import (
    StandardTrainingJobEventName,
)

__all__ = [
    "StandardTrainingJobEventName",
]
