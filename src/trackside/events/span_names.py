"""
The names of the spans and of the span attributes that models read; One Logger's names where it has them.

Iterations have no span events: an `IterationEnded` is the end of a span, which `OF_ITERATION` names for each kind.
"""

from __future__ import annotations

from typing import Final

APPLICATION: Final = "application"
TRAINING_LOOP: Final = "training_loop"
VALIDATION_LOOP: Final = "validation_loop"
TESTING_LOOP: Final = "testing_loop"
DISTRIBUTED_INIT: Final = "distributed_code_initialization"
DATALOADER_INIT: Final = "data_loader_initialization"
MODEL_INIT: Final = "model_initialization"
OPTIMIZER_INIT: Final = "optimizer_initialization"
CHECKPOINT_LOAD: Final = "checkpoint_load"
CHECKPOINT_SAVE_SYNC: Final = "checkpoint_save_sync"
CHECKPOINT_SAVE_ASYNC: Final = "checkpoint_save_async"
"""The part of an asynchronous save that blocks the training loop."""
CHECKPOINT_SAVE_FINALIZATION: Final = "checkpoint_save_finalization"

TRAINING_ITERATION: Final = "training_single_iteration"
VALIDATION_ITERATION: Final = "validation_single_iteration"
TESTING_ITERATION: Final = "testing_single_iteration"
TESTING_ITERATION_ALIAS: Final = "TESTING_SINGLE_ITERATION"
"""One Logger's name for it, the only one in upper case."""

DATA_LOADING: Final = "data_loading"
MODEL_FORWARD: Final = "model_forward"
ZERO_GRAD: Final = "zero_grad"
MODEL_BACKWARD: Final = "model_backward"
GRADIENT_SYNCHRONIZATION: Final = "gradient_synchronization"
"""After a backward pass: waiting for the gradients of the other ranks."""
OPTIMIZER_UPDATE: Final = "optimizer_update"

OF_ITERATION: Final = {
    "training": TRAINING_ITERATION,
    "validation": VALIDATION_ITERATION,
    "testing": TESTING_ITERATION,
}
"""By `IterationEnded.kind`."""
OF_CHECKPOINT_SAVE: Final = {"sync": CHECKPOINT_SAVE_SYNC, "async": CHECKPOINT_SAVE_ASYNC}
"""By strategy."""

LONG: Final = (
    APPLICATION,
    TRAINING_LOOP,
    VALIDATION_LOOP,
    TESTING_LOOP,
    DISTRIBUTED_INIT,
    DATALOADER_INIT,
    MODEL_INIT,
    OPTIMIZER_INIT,
    CHECKPOINT_LOAD,
    CHECKPOINT_SAVE_SYNC,
    CHECKPOINT_SAVE_ASYNC,
    CHECKPOINT_SAVE_FINALIZATION,
)
"""Published at their start (`SpanStarted`) and at their end (`SpanEnded`)."""
PER_STEP: Final = (TRAINING_ITERATION, VALIDATION_ITERATION, TESTING_ITERATION)
"""Published at their end as `IterationEnded`."""
WITHIN_STEP: Final = (
    *(DATA_LOADING, MODEL_FORWARD, ZERO_GRAD, MODEL_BACKWARD),
    *(GRADIENT_SYNCHRONIZATION, OPTIMIZER_UPDATE),
)
"""Published at their end as `ProfileSpanEnded`."""

# Attributes of a training loop, from its start.
TRAIN_ITERATIONS_START: Final = "train_iterations_start"
TRAIN_SAMPLES_START: Final = "train_samples_start"
TRAIN_ITERATIONS_TARGET: Final = "train_iterations_target"
TRAIN_SAMPLES_TARGET: Final = "train_samples_target"
TRAIN_TOKENS_TARGET: Final = "train_tokens_target"
COMPLETED_FLOPS_OVERALL: Final = "completed_floating_point_operations_overall"

# Attributes of a checkpoint's save, from its start. Its load has `CURRENT_ITERATION`, at its end at the latest.
CHECKPOINT_STRATEGY: Final = "checkpoint_strategy"
CURRENT_ITERATION: Final = "current_iteration"
"""The global step of the checkpoint."""
SAVE_CHECKPOINT_ATTEMPT_COUNT: Final = "save_checkpoint_attempt_count"
"""Saves begun in this process so far, this one and failed ones included."""

BADPUT_TYPE: Final = "badput_type"
"""Set on any span, it marks the span's time as custom badput of this type."""
THREAD: Final = "thread"
"""The thread's name, on the spans of all threads except the main one; iterations do not have it."""

ERROR: Final = "error"
"""The name of a `SpanEventAdded` that records an exception; its attributes are the next four, like One Logger's."""
ERROR_MESSAGE: Final = "error_message"
EXCEPTION_TYPE: Final = "exception_type"
EXCEPTION_MESSAGE: Final = "exception_message"
EXCEPTION_TRACEBACK: Final = "exception_traceback"
