"""The names of a training job's spans."""

from trackside.compat.one_logger._training_spans import (
    DEFAULT_SPANS_EXPORT_BLACKLIST,
    StandardTrainingJobSpanName,
)

__all__ = [
    "DEFAULT_SPANS_EXPORT_BLACKLIST",
    "StandardTrainingJobSpanName",
]
