"""The attributes of a training job's spans and events, class by class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from trackside.compat.one_logger._enums import StrEnum
from trackside.compat.one_logger.core.attributes import Attributes
from trackside.compat.one_logger.core.exceptions import assert_that

if TYPE_CHECKING:
    from typing_extensions import Self


class _KnownAttributes(Attributes):
    """Attributes with known names: each can be read as a property, which is None if it is missing."""

    REQUIRED: ClassVar[tuple[str, ...]] = ()
    OPTIONAL: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def create(cls, *values: Any, **given: Any) -> Self:
        """
        Return attributes from *values*, in the order of `REQUIRED` and `OPTIONAL`, and from *given*; None is left out.

        Raises:
            OneLoggerError: if a required attribute is missing, or the class does not have one that is given.
        """
        names = (*cls.REQUIRED, *cls.OPTIONAL)
        known = {**dict(zip(names, values, strict=False)), **given}
        if isinstance(known.get("custom_metadata"), dict):
            known["custom_metadata"] = [f"{key}:{value}" for key, value in known["custom_metadata"].items()]
        missing = [name for name in cls.REQUIRED if known.get(name) is None]
        assert_that(not missing, f"{cls.__name__} needs {', '.join(missing)}")
        strange = sorted(set(known).difference(names))
        assert_that(not strange, f"{cls.__name__} has no {', '.join(strange)}")
        return cls({name: value for name, value in known.items() if value is not None})

    def __getattr__(self, name: str) -> Any:
        if name in self.REQUIRED or name in self.OPTIONAL:
            return self[name].value if name in self else None
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


class TrainingLoopAttributes(_KnownAttributes):
    """The attributes of the span ``training_loop``."""

    REQUIRED = ("train_iterations_start", "train_samples_start")
    OPTIONAL = (
        "train_tokens_target",
        "completed_floating_point_operations_overall",
        "train_iterations_target",
        "train_samples_target",
    )


class CheckpointSaveSpanAttributes(_KnownAttributes):
    """The attributes of the spans ``checkpoint_save_sync`` and ``checkpoint_save_async``."""

    REQUIRED = ("checkpoint_strategy", "current_iteration", "save_checkpoint_attempt_count")


class OneLoggerInitializationAttributes(_KnownAttributes):
    """The attributes of the event ``one_logger_initialization``."""

    REQUIRED = (
        "world_size",
        "one_logger_training_telemetry_version",
        "enable_for_current_rank",
        "session_tag",
        "is_baseline_run",
        "summary_data_schema_version",
        "node_name",
        "rank",
    )
    OPTIONAL = ("custom_metadata",)


class TrainingTelemetryAttributes(_KnownAttributes):
    """The attributes of the event ``update_training_telemetry_config``."""

    REQUIRED = ("perf_tag", "global_batch_size", "log_every_n_train_iterations")
    OPTIONAL = (
        "micro_batch_size",
        "seq_length",
        "flops_per_sample",
        "train_iterations_target",
        "train_samples_target",
        "checkpoint_strategy",
        "is_train_iterations_enabled",
        "is_validation_iterations_enabled",
        "is_test_iterations_enabled",
        "is_save_checkpoint_enabled",
        "is_log_throughput_enabled",
        "custom_metadata",
        "app_type",
    )


class TrainingMetricsUpdateAttributes(_KnownAttributes):
    """The attributes of the event ``training_metrics_update``."""

    REQUIRED = (
        "train_iterations_start",
        "current_iteration",
        "num_iterations",
        "train_samples_start",
        "num_train_samples",
        "interval",
        "avg_iteration_time_sec",
        "min_iteration_time_sec",
        "max_iteration_time_sec",
        "total_iteration_time_sec",
    )
    OPTIONAL = (
        "avg_forward_time_sec",
        "avg_backward_time_sec",
        "avg_dataloader_time_sec",
        "avg_tflops",
        "train_tokens",
        "avg_tokens_per_second",
        "latest_loss",
        "avg_batch_size",
        "completed_floating_point_operations_overall",
        "total_flops",
        "train_throughput_per_gpu",
        "train_throughput_per_gpu_max",
        "train_throughput_per_gpu_min",
        "first_logged_train_iterations_finish_timestamp_sec",
        "last_logged_train_iterations_finish_timestamp_sec",
    )


class ValidationMetricsUpdateAttributes(_KnownAttributes):
    """The attributes of the event ``validation_metrics_update``."""

    REQUIRED = ("current_iteration", "interval")
    OPTIONAL = (
        "avg_iteration_time_sec",
        "min_iteration_time_sec",
        "max_iteration_time_sec",
        "total_iteration_time_sec",
    )


class TestingMetricsUpdateAttributes(_KnownAttributes):
    """The attributes of the event ``testing_metrics_update``."""

    __test__ = False  # to pytest

    REQUIRED = ("current_iteration", "interval")


class SaveCheckpointSuccessEventAttributes(_KnownAttributes):
    """The attributes of the event ``save_checkpoint_success``."""

    REQUIRED = (
        "checkpoint_strategy",
        "current_iteration",
        "first_successful_save_checkpoint_timestamp_sec",
        "latest_successful_save_checkpoint_timestamp_sec",
        "save_checkpoint_success_count",
        "productive_train_iterations",
        "productive_train_samples",
        "productive_train_iterations_sec",
        "productive_validation_iterations_sec",
    )
    OPTIONAL = (
        "productive_train_tflops",
        "checkpoint_size",
        "checkpoint_directory",
        "training_start_timestamp_sec",
    )


class SyncCheckpointMetricsUpdateAttributes(_KnownAttributes):
    """The attributes of the event ``sync_checkpoint_metrics_update``."""

    REQUIRED = (
        "save_checkpoint_sync_time_total_sec",
        "save_checkpoint_sync_time_min_sec",
        "save_checkpoint_sync_time_max_sec",
    )


class StandardTrainingJobEventName(StrEnum):
    """The names of a training job's events; each event belongs to a span."""

    ONE_LOGGER_INITIALIZATION = "one_logger_initialization"
    UPDATE_TRAINING_TELEMETRY_CONFIG = "update_training_telemetry_config"
    TRAINING_METRICS_UPDATE = "training_metrics_update"
    VALIDATION_METRICS_UPDATE = "validation_metrics_update"
    TESTING_METRICS_UPDATE = "testing_metrics_update"
    SAVE_CHECKPOINT_SUCCESS = "save_checkpoint_success"
    SYNC_CHECKPOINT_METRICS_UPDATE = "sync_checkpoint_metrics_update"
