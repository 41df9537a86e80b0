"""
What `TrainingMetrics` derives: One Logger's metric updates, under its attribute names, and what it lacks.

A field named as an attribute of One Logger's means what One Logger says it does: over the whole job, which is this
process since it began. The same over the window that has just closed is the field's name with ``window_`` before it.
Times are in seconds, and of iterations that did not fail. What is not known is None.
"""

from __future__ import annotations

from trackside.events._detail import LIFECYCLE
from trackside.events._event import Event, _define, event


@event("trackside.training_metrics.updated", detail=LIFECYCLE, derived=True)
class TrainingMetricsUpdated(Event):
    """
    So and so much was trained.

    Derived by `TrainingMetrics` after every ``log_every_n_train_iterations`` completed iterations, counted over all
    attempts, and of what is left when the training loop ends. Belongs to the span of the training loop.
    """

    train_iterations_start: int
    """Iterations that were completed before the loop began, by what it was told."""
    current_iteration: int
    """The step of the latest completed iteration, counted from 0."""
    num_iterations: int
    """Iterations completed in this job; all that is not of a window is about these."""
    train_samples_start: int
    num_train_samples: int
    interval: int
    """Iterations completed since the update before; all of a window is about these."""
    avg_iteration_time_sec: float | None = None
    min_iteration_time_sec: float | None = None
    max_iteration_time_sec: float | None = None
    total_iteration_time_sec: float = 0.0
    avg_forward_time_sec: float | None = None
    """Per iteration that had a span ``model_forward``, over all of them in it."""
    avg_backward_time_sec: float | None = None
    avg_dataloader_time_sec: float | None = None
    """Per iteration that had a span ``data_loading``, in it or before it in the same loop."""
    avg_tflops: float | None = None
    """Of all ranks together, in 10¹² floating-point operations per second of iteration."""
    train_tokens: int | None = None
    avg_tokens_per_second: float | None = None
    """Of all ranks together, per second of iteration."""
    latest_loss: float | None = None
    avg_batch_size: float | None = None
    """Samples per iteration."""
    completed_floating_point_operations_overall: int | None = None
    """Of all ranks and attempts, as far as the loop was told what was done before it."""
    total_flops: int | None = None
    """Floating-point operations of all ranks in this job."""
    train_throughput_per_gpu: float | None = None
    """In 10¹² floating-point operations per second of iteration."""
    train_throughput_per_gpu_max: float | None = None
    """Of the single iteration with the most."""
    train_throughput_per_gpu_min: float | None = None
    first_logged_train_iterations_finish_timestamp_sec: float | None = None
    """In seconds since the epoch."""
    last_logged_train_iterations_finish_timestamp_sec: float | None = None
    num_failed_iterations: int = 0
    """Iterations that an exception ended; they are in no other figure."""
    p50_iteration_time_sec: float | None = None
    """Percentiles are within 1 %."""
    p95_iteration_time_sec: float | None = None
    p99_iteration_time_sec: float | None = None
    mfu: float | None = None
    """Model FLOPs utilization: the throughput per GPU as a share of its peak, which the configuration names."""
    window_avg_iteration_time_sec: float | None = None
    window_min_iteration_time_sec: float | None = None
    window_max_iteration_time_sec: float | None = None
    window_total_iteration_time_sec: float = 0.0
    window_p50_iteration_time_sec: float | None = None
    window_p95_iteration_time_sec: float | None = None
    window_p99_iteration_time_sec: float | None = None
    window_num_failed_iterations: int = 0
    window_num_train_samples: int = 0
    window_train_tokens: int | None = None
    window_total_flops: int | None = None
    window_avg_forward_time_sec: float | None = None
    window_avg_backward_time_sec: float | None = None
    window_avg_dataloader_time_sec: float | None = None
    window_avg_tflops: float | None = None
    window_avg_tokens_per_second: float | None = None
    window_avg_batch_size: float | None = None
    window_train_throughput_per_gpu: float | None = None
    window_train_throughput_per_gpu_max: float | None = None
    window_train_throughput_per_gpu_min: float | None = None
    window_mfu: float | None = None


@_define
class EvaluationMetricsUpdated(Event):
    """
    What validation and testing loops tell alike, each at its end.

    Not published itself. The window is the one loop that ended; the rest is about all loops of its kind in this job,
    and None if they told of no iterations.
    """

    current_iteration: int
    """The step of the latest completed training iteration; 0 if there was none."""
    interval: int
    """Training iterations completed since the loop of this kind before."""
    avg_iteration_time_sec: float | None = None
    min_iteration_time_sec: float | None = None
    max_iteration_time_sec: float | None = None
    total_iteration_time_sec: float | None = None
    num_iterations: int = 0
    num_failed_iterations: int = 0
    latest_loss: float | None = None
    window_num_iterations: int = 0
    window_num_failed_iterations: int = 0
    window_avg_iteration_time_sec: float | None = None
    window_min_iteration_time_sec: float | None = None
    window_max_iteration_time_sec: float | None = None
    window_total_iteration_time_sec: float | None = None
    window_p50_iteration_time_sec: float | None = None
    """Percentiles are within 1 %."""
    window_p95_iteration_time_sec: float | None = None
    window_p99_iteration_time_sec: float | None = None


@event("trackside.validation_metrics.updated", detail=LIFECYCLE, derived=True)
class ValidationMetricsUpdated(EvaluationMetricsUpdated):
    """A validation loop ended. Derived by `TrainingMetrics` at its end, and belongs to its span."""


@event("trackside.testing_metrics.updated", detail=LIFECYCLE, derived=True)
class TestingMetricsUpdated(EvaluationMetricsUpdated):
    """A testing loop ended. Derived by `TrainingMetrics` at its end, and belongs to its span."""

    __test__ = False  # to pytest


@event("trackside.productive_work.saved", detail=LIFECYCLE, derived=True)
class ProductiveWorkSaved(Event):
    """
    A checkpoint is complete, and the work in it can no longer be lost.

    Derived by `TrainingMetrics` at each `CheckpointSaveSucceeded`. What is productive is what was done when the save
    of the furthest complete checkpoint began; it never shrinks, whatever order successes come in.
    """

    checkpoint_strategy: str
    current_iteration: int
    """The global step of the checkpoint that is now complete."""
    first_successful_save_checkpoint_timestamp_sec: float
    """In seconds since the epoch, by when it happened, as the next."""
    latest_successful_save_checkpoint_timestamp_sec: float
    save_checkpoint_success_count: int
    productive_train_iterations: int
    """Of all attempts, as far as the loop was told where it starts."""
    productive_train_samples: int
    productive_train_iterations_sec: float
    """Of this job alone, as the next."""
    productive_validation_iterations_sec: float
    productive_train_tflops: float | None = None
    """In 10¹² floating-point operations, of all ranks and attempts."""
    checkpoint_size: int | None = None
    """In bytes."""
    checkpoint_directory: str | None = None
    training_start_timestamp_sec: float | None = None
    save_checkpoint_failure_count: int = 0
    productive_global_step: int = -1
    """The global step of the furthest complete checkpoint."""


@event("trackside.checkpoint_metrics.updated", detail=LIFECYCLE, derived=True)
class CheckpointMetricsUpdated(Event):
    """
    A save, or the part of an asynchronous one that blocks training, ended, well or not.

    Derived by `TrainingMetrics` at the end of the save's span, to which it belongs. Saves of the two strategies are
    counted apart.
    """

    save_checkpoint_sync_time_total_sec: float
    """How long saves of this strategy have blocked training in this job."""
    save_checkpoint_sync_time_min_sec: float
    save_checkpoint_sync_time_max_sec: float
    checkpoint_strategy: str = "sync"
    save_checkpoint_count: int = 0
    """Saves of this strategy that ended, failed ones included."""
