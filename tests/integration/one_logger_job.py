"""
A training job instrumented with One Logger, with explicit times; its file is the first argument.

The second argument names the scenario. It knows nothing of trackside: the test replaces the package's name.
"""

import sys
import time
from pathlib import Path

from nv_one_logger.api.config import OneLoggerConfig
from nv_one_logger.api.timed_span import get_recorder, timed_span
from nv_one_logger.core.attributes import Attributes
from nv_one_logger.core.event import Event
from nv_one_logger.exporter.file_exporter import FileExporter
from nv_one_logger.recorder.default_recorder import ExportCustomizationMode
from nv_one_logger.training_telemetry.api.callbacks import (
    on_app_end,
    on_app_start,
    on_dataloader_init_end,
    on_dataloader_init_start,
    on_distributed_init_end,
    on_distributed_init_start,
    on_load_checkpoint_end,
    on_load_checkpoint_start,
    on_model_init_end,
    on_model_init_start,
    on_optimizer_init_end,
    on_optimizer_init_start,
    on_save_checkpoint_end,
    on_save_checkpoint_start,
    on_save_checkpoint_success,
    on_testing_end,
    on_testing_start,
    on_train_end,
    on_train_start,
    on_training_single_iteration_end,
    on_training_single_iteration_start,
    on_validation_end,
    on_validation_single_iteration_end,
    on_validation_single_iteration_start,
    on_validation_start,
)
from nv_one_logger.training_telemetry.api.checkpoint import CheckPointStrategy
from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig
from nv_one_logger.training_telemetry.api.context import application, training_iteration, training_loop
from nv_one_logger.training_telemetry.api.spans import StandardTrainingJobSpanName
from nv_one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider

began_ms = round((time.time() - 500) * 1000)  # One Logger refuses times further off than ten minutes
now_s = 0.0


def after(seconds):
    """Let time pass; return it in milliseconds since the epoch."""
    global now_s  # noqa: PLW0603
    now_s += seconds
    return began_ms + now_s * 1000


def span(start, end, seconds, *args):
    """Run a phase of the job."""
    start(*args, start_time_msec=after(0.25))
    end(finish_time_msec=after(seconds))


def train(*durations_s):
    """Run training iterations."""
    for duration_s in durations_s:
        span(on_training_single_iteration_start, on_training_single_iteration_end, duration_s)


def validate(*durations_s):
    """Run a validation loop."""
    on_validation_start(start_time_msec=after(0.5))
    for duration_s in durations_s:
        span(on_validation_single_iteration_start, on_validation_single_iteration_end, duration_s)
    on_validation_end(finish_time_msec=after(0.5))


def save(step, seconds, *, succeeds=True):
    """Save a checkpoint at once."""
    on_save_checkpoint_start(step, start_time_msec=after(0.5))
    if succeeds:
        on_save_checkpoint_success(step, time_msec=after(seconds))
    on_save_checkpoint_end(finish_time_msec=after(0.25))


def configure(path, training, **customization):
    """Turn One Logger on; *training* may come later."""
    config = OneLoggerConfig(
        application_name="side by side",
        world_size_or_fn=lambda: 4,
        session_tag_or_fn="a session",
        is_baseline_run_or_fn=True,
        custom_metadata={"model": "tiny", "layers": 3},
        telemetry_config=training,
    )
    provider = TrainingTelemetryProvider.instance().with_base_config(config)
    provider = provider.with_config_override({"summary_data_schema_version": "2.0.0"})
    if customization:
        provider = provider.with_export_customization(**customization)
    provider.with_exporter(FileExporter(file_path=Path(path))).configure_provider()


def training_config(**given):
    """Return a configuration of the training."""
    given = {"perf_tag_or_fn": "a perf tag", "global_batch_size_or_fn": 32, "log_every_n_train_iterations": 5} | given
    return TrainingTelemetryConfig(**given)


def synchronous(path):
    """Train from the start, with throughput, saving at once."""
    configure(
        path,
        training_config(
            seq_length_or_fn=128,
            micro_batch_size_or_fn=8,
            flops_per_sample_or_fn=lambda: 10**10,
            is_log_throughput_enabled_or_fn=True,
            train_iterations_target_or_fn=20,
            train_samples_target_or_fn=640,
            custom_metadata={"optimizer": "adam"},
        ),
    )
    on_app_start(start_time_msec=after(0))
    span(on_distributed_init_start, on_distributed_init_end, 1)
    span(on_model_init_start, on_model_init_end, 2)
    span(on_optimizer_init_start, on_optimizer_init_end, 3)
    span(on_dataloader_init_start, on_dataloader_init_end, 4)
    on_train_start(train_iterations_start=0, start_time_msec=after(1))
    train(0.5, 0.25, 1.5, 0.75, 1.0)
    validate(0.25, 0.5)
    save(5, 2)
    train(0.5, 0.5, 2.0, 0.25, 1.0)
    validate(1.0)
    save(9, 1, succeeds=False)
    save(10, 3)
    on_train_end(finish_time_msec=after(0.5))
    on_testing_start(start_time_msec=after(0.25))
    on_testing_end(finish_time_msec=after(2))
    on_app_end(finish_time_msec=after(1))


def asynchronous(path):
    """Resume from a checkpoint, configured late, saving in the background; successes come out of order."""
    configure(path, None)
    on_app_start(start_time_msec=after(0))
    TrainingTelemetryProvider.instance().set_training_telemetry_config(
        training_config(perf_tag_or_fn=["one", "two"], save_checkpoint_strategy=CheckPointStrategy.ASYNC)
    )
    span(on_load_checkpoint_start, on_load_checkpoint_end, 4)
    on_train_start(
        train_iterations_start=3,
        train_samples_start=100,
        train_iterations_target_or_fn=50,
        train_samples_target_or_fn=lambda: 1600,
        start_time_msec=after(1),
    )
    train(0.5, 1.0, 0.25, 0.75)
    for step in (7, 8):
        on_save_checkpoint_start(step, start_time_msec=after(0.25))
        on_save_checkpoint_end(finish_time_msec=after(0.5))
        train(2.0)
    on_save_checkpoint_success(8, time_msec=after(0.25))
    on_save_checkpoint_success(7, time_msec=after(0.25))
    train(1.0, 4.0)
    on_train_end(finish_time_msec=after(0.5))
    on_app_end(finish_time_msec=after(1))


def customized(path):
    """Use context managers, spans of other names, events and errors; export the spans of every iteration too."""
    configure(
        path,
        training_config(log_every_n_train_iterations=1),
        export_customization_mode=ExportCustomizationMode.BLACKLIST_SPANS,
        span_name_filter=[StandardTrainingJobSpanName.MODEL_BACKWARD],
    )
    with application() as app:
        app.add_attribute("region", "north")
        with timed_span(
            name=StandardTrainingJobSpanName.CHECKPOINT_SAVE_FINALIZATION, span_attributes=Attributes({"a": 1})
        ) as found:
            found.add_attribute("b", [1, 2])
            get_recorder().event(found, Event.create("half way", Attributes({"share": 0.5})))
        with training_loop(train_iterations_start=0):
            for step in range(3):
                with training_iteration():
                    time.sleep(0.002)
                    if step == 1:
                        with timed_span(name=StandardTrainingJobSpanName.MODEL_FORWARD):
                            pass
        try:
            with timed_span(name=StandardTrainingJobSpanName.MODEL_INIT):
                raise ValueError("no such layer")
        except ValueError:
            pass


def failing(path):
    """Go on after the second of three iterations failed."""
    configure(path, training_config(log_every_n_train_iterations=3))
    with application(), training_loop(train_iterations_start=0):
        for step in range(3):
            try:
                with training_iteration():
                    if step == 1:
                        raise ValueError("no such batch")
            except ValueError:
                pass


def late(path):
    """Save in the background, successfully when the application is over."""
    configure(path, training_config(save_checkpoint_strategy=CheckPointStrategy.ASYNC))
    on_app_start(start_time_msec=after(0))
    on_train_start(train_iterations_start=0, start_time_msec=after(1))
    train(1.0)
    on_save_checkpoint_start(1, start_time_msec=after(0.25))
    on_save_checkpoint_end(finish_time_msec=after(0.5))
    on_train_end(finish_time_msec=after(0.5))
    on_app_end(finish_time_msec=after(1))
    on_save_checkpoint_success(1, time_msec=after(5))


SCENARIOS = (synchronous, asynchronous, customized, failing, late)

next(scenario for scenario in SCENARIOS if scenario.__name__ == sys.argv[2])(sys.argv[1])
