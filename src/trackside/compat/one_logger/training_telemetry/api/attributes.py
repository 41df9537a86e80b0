"""The attributes of a training job's spans and events, class by class."""

from trackside.compat.one_logger._training_attributes import (
    CheckpointSaveSpanAttributes,
    OneLoggerInitializationAttributes,
    SaveCheckpointSuccessEventAttributes,
    SyncCheckpointMetricsUpdateAttributes,
    TestingMetricsUpdateAttributes,
    TrainingLoopAttributes,
    TrainingMetricsUpdateAttributes,
    TrainingTelemetryAttributes,
    ValidationMetricsUpdateAttributes,
)

__all__ = [
    "CheckpointSaveSpanAttributes",
    "OneLoggerInitializationAttributes",
    "SaveCheckpointSuccessEventAttributes",
    "SyncCheckpointMetricsUpdateAttributes",
    "TestingMetricsUpdateAttributes",
    "TrainingLoopAttributes",
    "TrainingMetricsUpdateAttributes",
    "TrainingTelemetryAttributes",
    "ValidationMetricsUpdateAttributes",
]
