"""The protocol of a telemetry configuration, for any kind of application."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from trackside.compat.one_logger._enums import StrEnum


class ApplicationType(StrEnum):
    """The kind of an application."""

    TRAINING = "training"
    VALIDATION = "validation"
    BATCH_INFERENCE = "batch_inference"
    ONLINE_INFERENCE = "online_inference"
    DATA_PROCESSING = "data_processing"


@runtime_checkable
class TelemetryConfig(Protocol):
    """The part of `OneLoggerConfig` that depends on the kind of application."""

    @property
    def is_train_iterations_enabled(self) -> bool:
        """Whether the application trains."""

    @property
    def is_validation_iterations_enabled(self) -> bool:
        """Whether the application validates."""

    @property
    def is_test_iterations_enabled(self) -> bool:
        """Whether the application tests."""

    @property
    def is_save_checkpoint_enabled(self) -> bool:
        """Whether the application saves checkpoints."""

    @property
    def app_type(self) -> ApplicationType | str:
        """The kind of the application."""

    @property
    def custom_metadata(self) -> dict[str, Any] | None:
        """Further values to keep with the run."""
