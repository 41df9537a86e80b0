"""The recorder of a training job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from trackside.compat.one_logger._held import HeldSpan
from trackside.compat.one_logger.api.config import OneLoggerConfig
from trackside.compat.one_logger.core.span import SpanName
from trackside.compat.one_logger.core.time import TracingTimestamp
from trackside.compat.one_logger.exporter.exporter import Exporter
from trackside.compat.one_logger.recorder.default_recorder import DefaultRecorder, ExportCustomizationMode
from trackside.instruments import Span, callbacks


def _msec(at: TracingTimestamp | None) -> float | None:
    return None if at is None else at.seconds_since_epoch * 1000


def _starting(start: Callable[[float | None], Span]) -> Callable[..., HeldSpan]:
    """Return the method that begins the span of the callback *start*."""

    def method(self: TrainingRecorder, start_time: TracingTimestamp | None = None) -> HeldSpan:  # noqa: ARG001
        return HeldSpan(start(_msec(start_time)))

    method.__doc__ = start.__doc__
    return method


def _ending(end: Callable[[float | None], None]) -> Callable[..., None]:
    """Return the method that ends the span of the callback *end*."""

    def method(self: TrainingRecorder, stop_time: TracingTimestamp | None = None) -> None:  # noqa: ARG001
        end(_msec(stop_time))

    method.__doc__ = end.__doc__
    return method


class TrainingRecorder(DefaultRecorder):
    """A `DefaultRecorder` whose exporters also get the metrics of a training."""

    def __init__(
        self,
        config: OneLoggerConfig,
        exporters: Sequence[Exporter],
        export_customization_mode: ExportCustomizationMode,
        span_name_filter: Sequence[SpanName] | None,
    ) -> None:
        super().__init__(exporters, export_customization_mode, span_name_filter)
        self.config = config

    on_app_start: Final = _starting(callbacks.on_app_start)
    on_distributed_init_start: Final = _starting(callbacks.on_distributed_init_start)
    on_distributed_init_end: Final = _ending(callbacks.on_distributed_init_end)
    on_model_init_start: Final = _starting(callbacks.on_model_init_start)
    on_model_init_end: Final = _ending(callbacks.on_model_init_end)
    on_dataloader_init_start: Final = _starting(callbacks.on_dataloader_init_start)
    on_dataloader_init_end: Final = _ending(callbacks.on_dataloader_init_end)
    on_load_checkpoint_start: Final = _starting(callbacks.on_load_checkpoint_start)
    on_load_checkpoint_end: Final = _ending(callbacks.on_load_checkpoint_end)
    on_optimizer_init_start: Final = _starting(callbacks.on_optimizer_init_start)
    on_optimizer_init_end: Final = _ending(callbacks.on_optimizer_init_end)
    on_training_loop_end: Final = _ending(callbacks.on_train_end)
    on_training_single_iteration_start: Final = _starting(callbacks.on_training_single_iteration_start)
    on_training_single_iteration_end: Final = _ending(callbacks.on_training_single_iteration_end)
    on_validation_start: Final = _starting(callbacks.on_validation_start)
    on_validation_end: Final = _ending(callbacks.on_validation_end)
    on_validation_single_iteration_start: Final = _starting(callbacks.on_validation_single_iteration_start)
    on_validation_single_iteration_end: Final = _ending(callbacks.on_validation_single_iteration_end)
    on_testing_start: Final = _starting(callbacks.on_testing_start)
    on_testing_end: Final = _ending(callbacks.on_testing_end)
    on_save_checkpoint_end: Final = _ending(callbacks.on_save_checkpoint_end)

    def on_app_end(self, stop_time: TracingTimestamp | None = None) -> None:
        """Close the span of the application, all open spans, and every exporter."""
        callbacks.on_app_end(_msec(stop_time))
        self.close()

    def on_training_loop_start(  # noqa: PLR0917  the peer's signature
        self,
        train_iterations_start: int,
        train_samples_start: int,
        train_iterations_target: int | None = None,
        train_samples_target: int | None = None,
        train_tokens_target: int | None = None,
        start_time: TracingTimestamp | None = None,
    ) -> HeldSpan:
        """Open the span of the training loop; *train_tokens_target*, if given, becomes one of its attributes."""
        span = callbacks.on_train_start(
            train_iterations_start,
            train_samples_start,
            train_iterations_target,
            train_samples_target,
            start_time_msec=_msec(start_time),
        )
        if train_tokens_target is not None:
            span.set(train_tokens_target=train_tokens_target)
        return HeldSpan(span)

    def on_save_checkpoint_start(self, current_iteration: int, start_time: TracingTimestamp | None = None) -> HeldSpan:
        """Open the span of saving the checkpoint of *current_iteration*."""
        return HeldSpan(callbacks.on_save_checkpoint_start(current_iteration, _msec(start_time)))

    def on_save_checkpoint_success(self, current_iteration: int, timestamp: TracingTimestamp | None = None) -> None:
        """Record that the checkpoint of *current_iteration* was saved."""
        callbacks.on_save_checkpoint_success(current_iteration, _msec(timestamp))
