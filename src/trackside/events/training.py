"""
Events of a training job and of the machine it runs on, beyond its spans and iterations.

The models of metrics and goodput read these events together with `SpanStarted`, `SpanEnded` and `IterationEnded`
(their names and attributes: `span_names`). ``span_id`` of each event is the span that it belongs to.
"""

from __future__ import annotations

from typing import Any

import attrs

from trackside.events._event import ITERATION, LIFECYCLE, Event, event


@event("trackside.job.configured", priority=LIFECYCLE)
class JobConfigured(Event):
    """The job's configuration is known. Published by the job, when the application span opens."""

    world_size: int
    rank: int
    node_name: str
    session_tag: str
    is_baseline_run: bool = False
    enable_for_current_rank: bool = True
    application_name: str = ""
    perf_tags: list[str] = attrs.field(factory=list)
    one_logger_training_telemetry_version: str = ""
    """The version of trackside, which publishes under One Logger's names."""
    summary_data_schema_version: str = "1.0.0"
    custom_metadata: list[str] = attrs.field(factory=list)
    """As ``key:value``."""


@event("trackside.training.configured", priority=LIFECYCLE)
class TrainingConfigured(Event):
    """The training's configuration is known, once per job. Published by the job, at its start or later."""

    perf_tag: list[str]
    global_batch_size: int | None = None
    """Samples per training iteration over all ranks; None if it varies and each iteration gives its own."""
    log_every_n_train_iterations: int | None = None
    """Iterations between two updates of the training metrics; None for 50, or more if these take less than a second."""
    micro_batch_size: int | None = None
    seq_length: int | None = None
    """Tokens per sample."""
    flops_per_sample: int | None = None
    peak_flops_per_s: float | None = None
    """The peak of this rank's accelerator, in floating-point operations per second; for the MFU."""
    train_iterations_target: int | None = None
    train_samples_target: int | None = None
    checkpoint_strategy: str = "sync"
    """``sync`` or ``async``."""
    is_train_iterations_enabled: bool = True
    is_validation_iterations_enabled: bool = True
    is_test_iterations_enabled: bool = True
    is_save_checkpoint_enabled: bool = True
    is_log_throughput_enabled: bool = False
    custom_metadata: list[str] = attrs.field(factory=list)
    """As ``key:value``."""


@event("trackside.checkpoint.succeeded", priority=LIFECYCLE)
class CheckpointSaveSucceeded(Event):
    """
    A checkpoint is complete and can be resumed from.

    Published by the code that saved it, as soon as the success is known. For a synchronous save that is within its
    span. For asynchronous saves it is any time later and in any order, even after the loop and the application ended.
    """

    global_step: int
    """The iteration that the save's span (``checkpoint_save_…``) named at its start; it identifies the save."""
    strategy: str = "sync"
    """``sync`` or ``async``."""
    save_span_id: int = 0
    """The span of the save, or of its blocking part; 0 if it is not known."""
    path: str = ""
    size_bytes: int | None = None
    duration_ns: int | None = None
    """From the start of the save to its success; None if the start is not known."""


@event("trackside.checkpoint.failed", priority=LIFECYCLE)
class CheckpointSaveFailed(Event):
    """A checkpoint could not be saved. Published by the code that tried, as soon as the failure is known."""

    global_step: int
    strategy: str = "sync"
    save_span_id: int = 0
    path: str = ""
    duration_ns: int | None = None
    """From the start of the save to its failure; None if the start is not known."""
    error: dict[str, str] | None = None
    """``type`` and ``message`` of the exception; None if none is known."""


@event("trackside.stall.detected", priority=LIFECYCLE)
class StallDetected(Event):
    """
    No training step has ended for ten times the usual time and at least a minute. Published by the job, once per stall.

    ``step`` is the last step that ended.
    """

    stalled_s: float
    """The time for which no step has ended, in seconds."""
    usual_s: float
    """The median time from step to step before the stall, in seconds."""
    stacks: dict[str, str] = attrs.field(factory=dict)
    """By thread name: a line ``file:line in function`` for each frame, the innermost last."""
    open_spans: dict[str, list[Any]] = attrs.field(factory=dict)
    """As in `Heartbeat`."""
    collectives: list[dict[str, Any]] = attrs.field(factory=list)
    """The latest collectives of this rank as torch's flight recorder has them, the latest last; empty without one."""


@event("trackside.metrics.logged", priority=ITERATION)
class MetricsLogged(Event):
    """The script or its framework logged named values. Published by `trackside.metrics`, for its step."""

    values: dict[str, Any]
    """By name; mostly numbers. A tensor becomes a number when it is encoded."""


@event("trackside.config.logged", priority=LIFECYCLE)
class ConfigLogged(Event):
    """The hyper-parameters of the run, or some of them, are known. Published by `trackside.config`."""

    values: dict[str, Any]
    """By name: text, numbers, flags and None."""


@event("trackside.exception.raised", priority=LIFECYCLE)
class ExceptionRaised(Event):
    """
    An exception was raised, whether or not something caught it later.

    Published once for each exception: when it leaves a span, an iteration or the ``with`` block of `start`, when a
    framework reports it, or when nothing caught it. ``span_id`` and ``step`` are those of the innermost span around it.
    """

    type: str
    """The qualified name of its class, without ``builtins``."""
    message: str
    """At most 2,000 characters."""
    traceback: str = ""
    """The innermost frames as text, at most 16,000 characters."""
    span_name: str = ""
    """The name of the innermost span that it left; empty if there was none."""
    is_out_of_memory: bool = False
    """Whether a device or the host had no memory left."""


@event("trackside.span.out_of_order", priority=ITERATION)
class SpanOutOfOrder(Event):
    """
    A span was opened or closed out of order.

    Published by the instrument that noticed, at that moment. ``span_id`` is the span's id; 0 if it has none.
    """

    name: str
    problem: str
    """``ended without a start``, ``started again while open``, ``ended before its children``, …"""


@event("trackside.system.sampling_started", priority=LIFECYCLE)
class SystemSamplingStarted(Event):
    """
    CPU, memory and GPU are sampled from now on. Published once, by the system sampling.

    The readings come in `CounterWindow` events.
    """

    sampled: list[str]
    """The names of the gauges that have the readings."""
    absent: dict[str, str] = attrs.field(factory=dict)
    """The reason why a part (``cpu``, ``gpu``) cannot be read, by the part's name."""
