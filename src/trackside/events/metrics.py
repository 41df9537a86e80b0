"""
Events that `TrainingMetrics` derives: One Logger's metric updates, under its attribute names, and more.

A field with the name of a One Logger attribute has One Logger's meaning, over the whole job: this process since it
began. A separate event has the same figures over the window that has just closed.
Times are in seconds, and leave out failed iterations. A value that is not known is None.
"""

from __future__ import annotations

from trackside.events._event import LIFECYCLE, Event, _define, event


@_define
class TrainingFigures(Event):
    """
    The figures of some training iterations that `TrainingMetricsUpdated` and `TrainingWindowUpdated` share.

    Not published itself. An iteration's time runs from the end of the previous iteration to its own end. It includes
    data loading, and leaves out validation, testing and checkpoints.
    """

    avg_iteration_time_sec: float | None = None
    min_iteration_time_sec: float | None = None
    max_iteration_time_sec: float | None = None
    total_iteration_time_sec: float = 0.0
    p50_iteration_time_sec: float | None = None
    """Percentiles are within 1 %."""
    p95_iteration_time_sec: float | None = None
    p99_iteration_time_sec: float | None = None
    num_failed_iterations: int = 0
    """Iterations that an exception ended; they are in no other figure."""
    num_train_samples: int = 0
    train_tokens: int | None = None
    total_flops: float | None = None
    """Floating-point operations of all ranks."""
    avg_forward_time_sec: float | None = None
    """The sum of the spans ``model_forward`` in an iteration, averaged over the iterations that had one."""
    avg_backward_time_sec: float | None = None
    avg_dataloader_time_sec: float | None = None
    """Like ``avg_forward_time_sec``, for the spans ``data_loading`` in an iteration or before it in the same loop."""
    avg_tflops: float | None = None
    """Of all ranks together, in 10¹² floating-point operations per second of iteration."""
    avg_tokens_per_second: float | None = None
    """Of all ranks together, per second of iteration."""
    avg_batch_size: float | None = None
    """Samples per iteration."""
    train_throughput_per_gpu: float | None = None
    """In 10¹² floating-point operations per second of iteration."""
    train_throughput_per_gpu_max: float | None = None
    """That of the iteration with the highest."""
    train_throughput_per_gpu_min: float | None = None
    mfu: float | None = None
    """Model FLOPs utilization: the throughput per GPU as a share of its peak, which the configuration names."""


@event("trackside.training_metrics.updated", priority=LIFECYCLE, derived=True)
class TrainingMetricsUpdated(TrainingFigures):
    """
    The metrics of the training so far, over all iterations of this job.

    Derived by `TrainingMetrics` after every ``log_every_n_train_iterations`` completed iterations, counted over all
    attempts; if the configuration names none, after every multiple of 50 at which the iterations since the previous
    update took a second together. Derived also when these took 30 s, and at the end of the training loop, if iterations
    are left. Belongs to the span of the training loop.
    """

    train_iterations_start: int
    """Iterations that were completed before the loop began, according to the loop's start event."""
    current_iteration: int
    """The step of the latest completed iteration, counted from 0."""
    num_iterations: int
    """Iterations completed in this job."""
    train_samples_start: int
    interval: int
    """Iterations completed since the previous update: those of the `TrainingWindowUpdated` of the same moment."""
    latest_loss: float | None = None
    completed_floating_point_operations_overall: float | None = None
    """Of all ranks and attempts, if the loop's start event has the operations before it."""
    first_logged_train_iterations_finish_timestamp_sec: float | None = None
    """In seconds since the epoch."""
    last_logged_train_iterations_finish_timestamp_sec: float | None = None


@event("trackside.training_window.updated", priority=LIFECYCLE, derived=True)
class TrainingWindowUpdated(TrainingFigures):
    """
    The metrics of the training iterations since the previous update.

    Derived by `TrainingMetrics` together with each `TrainingMetricsUpdated`, just before it.
    """

    num_iterations: int
    """Iterations completed in the window."""


@_define
class EvaluationMetricsUpdated(Event):
    """
    The metrics of validation or testing loops, at the end of one.

    Not published itself. The window is the loop that ended; the other fields are about all loops of its kind in this
    job. Times are None if no iteration was completed.
    """

    current_iteration: int
    """The step of the latest completed training iteration; 0 if there was none."""
    interval: int
    """Training iterations completed since the previous loop of this kind."""
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


@event("trackside.validation_metrics.updated", priority=LIFECYCLE, derived=True)
class ValidationMetricsUpdated(EvaluationMetricsUpdated):
    """A validation loop ended. Derived by `TrainingMetrics` at the loop's end; belongs to the loop's span."""


@event("trackside.testing_metrics.updated", priority=LIFECYCLE, derived=True)
class TestingMetricsUpdated(EvaluationMetricsUpdated):
    """A testing loop ended. Derived by `TrainingMetrics` at the loop's end; belongs to the loop's span."""

    __test__ = False  # it is no test, as pytest would think


@event("trackside.productive_work.saved", priority=LIFECYCLE, derived=True)
class ProductiveWorkSaved(Event):
    """
    A checkpoint is complete, and the work in it can no longer be lost.

    Derived by `TrainingMetrics` at each `CheckpointSaveSucceeded`. Productive is the work that was done when the save
    of the furthest complete checkpoint began. It never shrinks, in whatever order saves succeed.
    """

    checkpoint_strategy: str
    current_iteration: int
    """The global step of the checkpoint that is now complete."""
    first_successful_save_checkpoint_timestamp_sec: float
    """The earliest time of a success, in seconds since the epoch; the next field is the latest."""
    latest_successful_save_checkpoint_timestamp_sec: float
    save_checkpoint_success_count: int
    productive_train_iterations: int
    """Of all attempts, if the loop's start is known."""
    productive_train_samples: int
    productive_train_iterations_sec: float
    """Of this job alone, like the next field."""
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


@event("trackside.checkpoint_metrics.updated", priority=LIFECYCLE, derived=True)
class CheckpointMetricsUpdated(Event):
    """
    A save ended, or the part of an asynchronous save that blocks training. It may have failed.

    Derived by `TrainingMetrics` at the end of the save's span, to which it belongs. Saves of the two strategies are
    counted separately.
    """

    save_checkpoint_sync_time_total_sec: float
    """The time for which saves of this strategy have blocked training in this job."""
    save_checkpoint_sync_time_min_sec: float
    save_checkpoint_sync_time_max_sec: float
    checkpoint_strategy: str = "sync"
    save_checkpoint_count: int = 0
    """Saves of this strategy that ended, failed ones included."""
