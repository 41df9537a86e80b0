"""
What happened in a training job, beyond its spans and iterations.

Together with `SpanStarted`, `SpanEnded` and `IterationEnded` (their names and attributes: `span_names`) these are
all that the models of metrics and goodput read. ``span_id`` of each is the span that it belongs to.
"""

from __future__ import annotations

import attrs

from trackside.events._detail import ITERATION, LIFECYCLE
from trackside.events._event import Event, event


@event("trackside.job.configured", detail=LIFECYCLE)
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
    """The version of what publishes under One Logger's names: trackside's."""
    summary_data_schema_version: str = "1.0.0"
    custom_metadata: list[str] = attrs.field(factory=list)
    """As ``key:value``."""


@event("trackside.training.configured", detail=LIFECYCLE)
class TrainingConfigured(Event):
    """The training's configuration is known, once per job. Published by the job, at its start or later."""

    perf_tag: list[str]
    global_batch_size: int | None = None
    """Samples per training iteration over all ranks; None where it varies and iterations say their own."""
    log_every_n_train_iterations: int = 50
    micro_batch_size: int | None = None
    seq_length: int | None = None
    """Tokens per sample."""
    flops_per_sample: int | None = None
    peak_flops_per_s: float | None = None
    """What this rank's accelerator can do at most, in floating-point operations per second; for the MFU."""
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


@event("trackside.checkpoint.succeeded", detail=LIFECYCLE)
class CheckpointSaveSucceeded(Event):
    """
    A checkpoint is complete and can be resumed from.

    Published by whoever saved it, as soon as that is known: of a synchronous save within its span, of an
    asynchronous one at any time later, also after the loop and the application ended, in any order.
    """

    global_step: int
    """Which save it is: the iteration that its span (``checkpoint_save_…``) named when it started."""
    strategy: str = "sync"
    """``sync`` or ``async``."""
    save_span_id: int = 0
    """The span of the save, or of its blocking part; 0 if it is not known."""
    path: str = ""
    size_bytes: int | None = None
    duration_ns: int | None = None
    """From the start of the save to its success; None if the start is not known."""


@event("trackside.checkpoint.failed", detail=LIFECYCLE)
class CheckpointSaveFailed(Event):
    """A checkpoint could not be saved. Published by whoever tried, as soon as that is known."""

    global_step: int
    strategy: str = "sync"
    save_span_id: int = 0
    path: str = ""
    duration_ns: int | None = None
    """From the start of the save to its failure; None if the start is not known."""
    error: dict[str, str] | None = None
    """``type`` and ``message`` of the exception; None if there was none to see."""


@event("trackside.span.misplaced", detail=ITERATION)
class SpanMisplaced(Event):
    """
    A span was opened or closed out of order, and everything went on.

    Published by the instrument that noticed, at the moment of noticing.
    """

    name: str
    problem: str
    """``ended without a start``, ``started again while open``, ``ended before its children``, …"""
    id: int = 0
    """The span, where there is one."""
