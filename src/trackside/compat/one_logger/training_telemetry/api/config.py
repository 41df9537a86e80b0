"""The training's configuration under One Logger's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias, TypeVar

import attrs

from trackside.compat.one_logger._configuration import Settings, initialize, resolved
from trackside.compat.one_logger.api.telemetry_config import ApplicationType
from trackside.compat.one_logger.training_telemetry.api.checkpoint import CheckPointStrategy
from trackside.job import TrainingConfig

T = TypeVar("T")
OrFunction: TypeAlias = T | Callable[[], T]


def _returned_by(field: str) -> Any:
    """Return a property that reads *field*, and calls its value if that is a function."""
    return property(lambda self: resolved(getattr(self, field)), doc=f"What `{field}` says now.")


@attrs.define(kw_only=True, init=False)
class TrainingTelemetryConfig(Settings):
    """
    One Logger's `TrainingTelemetryConfig`, over `trackside.job.TrainingConfig`, which describes the fields.

    Functions are called when the configuration is published, not when it is made.

    Raises:
        OneLoggerError: if a field is missing or wrong; it names the field, the given value, and the right one.
    """

    perf_tag_or_fn: OrFunction[str | list[str]]
    global_batch_size_or_fn: OrFunction[int]
    micro_batch_size_or_fn: OrFunction[int | None] = None
    seq_length_or_fn: OrFunction[int | None] = None
    flops_per_sample_or_fn: OrFunction[int | None] = None
    train_iterations_target_or_fn: OrFunction[int | None] = None
    train_samples_target_or_fn: OrFunction[int | None] = None
    log_every_n_train_iterations: int = 50
    is_train_iterations_enabled_or_fn: OrFunction[bool] = True
    is_validation_iterations_enabled_or_fn: OrFunction[bool] = True
    is_test_iterations_enabled_or_fn: OrFunction[bool] = True
    is_save_checkpoint_enabled_or_fn: OrFunction[bool] = True
    is_log_throughput_enabled_or_fn: OrFunction[bool] = False
    save_checkpoint_strategy: CheckPointStrategy = attrs.field(
        default=CheckPointStrategy.SYNC, converter=CheckPointStrategy
    )
    custom_metadata: dict[str, Any] | None = None

    def __init__(self, **given: Any) -> None:
        initialize(self, given)
        self.to_trackside()

    def to_trackside(self) -> TrainingConfig:
        """
        Return the corresponding ``TrainingConfig`` of trackside.

        Raises:
            OneLoggerError: if a field is wrong.
        """
        fields = {field.name.removesuffix("_or_fn"): getattr(self, field.name) for field in attrs.fields(type(self))}
        return TrainingConfig(**{**fields, "save_checkpoint_strategy": self.save_checkpoint_strategy.value})

    perf_tag: ClassVar[Any] = _returned_by("perf_tag_or_fn")
    global_batch_size: ClassVar[Any] = _returned_by("global_batch_size_or_fn")
    micro_batch_size: ClassVar[Any] = _returned_by("micro_batch_size_or_fn")
    seq_length: ClassVar[Any] = _returned_by("seq_length_or_fn")
    flops_per_sample: ClassVar[Any] = _returned_by("flops_per_sample_or_fn")
    train_iterations_target: ClassVar[Any] = _returned_by("train_iterations_target_or_fn")
    train_samples_target: ClassVar[Any] = _returned_by("train_samples_target_or_fn")
    is_train_iterations_enabled: ClassVar[Any] = _returned_by("is_train_iterations_enabled_or_fn")
    is_validation_iterations_enabled: ClassVar[Any] = _returned_by("is_validation_iterations_enabled_or_fn")
    is_test_iterations_enabled: ClassVar[Any] = _returned_by("is_test_iterations_enabled_or_fn")
    is_save_checkpoint_enabled: ClassVar[Any] = _returned_by("is_save_checkpoint_enabled_or_fn")
    is_log_throughput_enabled: ClassVar[Any] = _returned_by("is_log_throughput_enabled_or_fn")

    @property
    def app_type(self) -> ApplicationType:
        """The kind of the application."""
        return ApplicationType.TRAINING
