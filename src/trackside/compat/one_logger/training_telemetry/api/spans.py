"""The names of a training job's spans."""

from __future__ import annotations

from typing import Final

from trackside.compat.one_logger._enums import StrEnum
from trackside.events import span_names

__all__ = [
    "DEFAULT_SPANS_EXPORT_BLACKLIST",
    "StandardTrainingJobSpanName",
]


class StandardTrainingJobSpanName(StrEnum):
    """The names of a training job's spans; all but one are also trackside's."""

    TRAINING_LOOP = span_names.TRAINING_LOOP
    VALIDATION_LOOP = span_names.VALIDATION_LOOP
    TESTING_LOOP = span_names.TESTING_LOOP
    DIST_INIT = span_names.DISTRIBUTED_INIT
    DATA_LOADER_INIT = span_names.DATALOADER_INIT
    MODEL_INIT = span_names.MODEL_INIT
    OPTIMIZER_INIT = span_names.OPTIMIZER_INIT
    CHECKPOINT_LOAD = span_names.CHECKPOINT_LOAD
    CHECKPOINT_SAVE_SYNC = span_names.CHECKPOINT_SAVE_SYNC
    CHECKPOINT_SAVE_ASYNC = span_names.CHECKPOINT_SAVE_ASYNC
    CHECKPOINT_SAVE_FINALIZATION = span_names.CHECKPOINT_SAVE_FINALIZATION
    TRAINING_SINGLE_ITERATION = span_names.TRAINING_ITERATION
    VALIDATION_SINGLE_ITERATION = span_names.VALIDATION_ITERATION
    TESTING_SINGLE_ITERATION = span_names.TESTING_ITERATION_ALIAS
    DATA_LOADING = span_names.DATA_LOADING
    MODEL_FORWARD = span_names.MODEL_FORWARD
    ZERO_GRAD = span_names.ZERO_GRAD
    MODEL_BACKWARD = span_names.MODEL_BACKWARD
    OPTIMIZER_UPDATE = span_names.OPTIMIZER_UPDATE


DEFAULT_SPANS_EXPORT_BLACKLIST: Final[list[StandardTrainingJobSpanName]] = [
    StandardTrainingJobSpanName.TRAINING_SINGLE_ITERATION,
    StandardTrainingJobSpanName.VALIDATION_SINGLE_ITERATION,
    StandardTrainingJobSpanName.TESTING_SINGLE_ITERATION,
    StandardTrainingJobSpanName.DATA_LOADING,
    StandardTrainingJobSpanName.MODEL_FORWARD,
    StandardTrainingJobSpanName.ZERO_GRAD,
    StandardTrainingJobSpanName.MODEL_BACKWARD,
    StandardTrainingJobSpanName.OPTIMIZER_UPDATE,
]
"""The spans of every iteration, which are not exported unless asked for."""
