"""The recorder of a training job."""

from __future__ import annotations

from collections.abc import Sequence

from trackside.compat.one_logger.api.config import OneLoggerConfig
from trackside.compat.one_logger.core.span import SpanName
from trackside.compat.one_logger.exporter.exporter import Exporter
from trackside.compat.one_logger.recorder.default_recorder import DefaultRecorder, ExportCustomizationMode


class TrainingRecorder(DefaultRecorder):
    """As `DefaultRecorder`, whose exporters get the metrics of a training too."""

    def __init__(
        self,
        config: OneLoggerConfig,
        exporters: Sequence[Exporter],
        export_customization_mode: ExportCustomizationMode,
        span_name_filter: Sequence[SpanName] | None,
    ) -> None:
        super().__init__(exporters, export_customization_mode, span_name_filter)
        self.config = config
