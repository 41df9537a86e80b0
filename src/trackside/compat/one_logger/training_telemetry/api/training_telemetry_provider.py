"""The step-by-step configuration of One Logger in a training job."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from trackside.compat.one_logger._configuration import LOGGER, merged
from trackside.compat.one_logger.api.config import OneLoggerConfig
from trackside.compat.one_logger.api.one_logger_provider import OneLoggerProvider
from trackside.compat.one_logger.core.exceptions import OneLoggerError, assert_that
from trackside.compat.one_logger.core.span import SpanName
from trackside.compat.one_logger.exporter.exporter import Exporter
from trackside.compat.one_logger.exporter.exporter_config import ExporterConfig, exporters_from
from trackside.compat.one_logger.recorder.default_recorder import ExportCustomizationMode
from trackside.compat.one_logger.training_telemetry.api.config import TrainingTelemetryConfig
from trackside.compat.one_logger.training_telemetry.api.spans import DEFAULT_SPANS_EXPORT_BLACKLIST
from trackside.compat.one_logger.training_telemetry.api.training_recorder import TrainingRecorder
from trackside.job import set_training_config

if TYPE_CHECKING:
    from typing_extensions import Self


class TrainingTelemetryProvider:
    """
    The provider, one in each process: `instance` returns it.

    ::

        TrainingTelemetryProvider.instance().with_base_config(config).with_exporter(exporter).configure_provider()
    """

    _instance: ClassVar[TrainingTelemetryProvider | None] = None
    _making: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        assert_that(self._making.locked(), "there is one for each process; call TrainingTelemetryProvider.instance()")
        self._base: OneLoggerConfig | None = None
        self._overrides: dict[str, Any] = {}
        self._exporters: list[Exporter] = []
        self._customization: tuple[ExportCustomizationMode, Sequence[SpanName] | None] | None = None
        self._is_configured = False

    @classmethod
    def instance(cls) -> TrainingTelemetryProvider:
        """Return the process's provider."""
        with cls._making:
            if cls._instance is None:
                cls._instance = cls()
        return cls._instance

    def with_base_config(self, one_logger_config: OneLoggerConfig) -> Self:
        """
        Start from *one_logger_config*; to be called once.

        Raises:
            OneLoggerError: if there is a base configuration already, or the provider is configured.
        """
        self._check_open()
        assert_that(self._base is None, "there is a base configuration already")
        self._base = one_logger_config
        return self

    def with_config_override(self, partial_config: Mapping[str, Any]) -> Self:
        """
        Give fields in *partial_config* precedence over earlier values; nested tables are merged.

        Raises:
            OneLoggerError: if the provider is configured.
        """
        self._check_open()
        self._overrides = merged(self._overrides, partial_config)
        return self

    def with_config_override_from_json_file(self, file_path: str | os.PathLike[str]) -> Self:
        """
        Read overriding fields from a file.

        Raises:
            OneLoggerError: if it cannot be read, or the provider is configured.
        """
        try:
            table = json.loads(Path(file_path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise OneLoggerError(f"{os.fspath(file_path)} is no JSON file: {error}") from error
        assert_that(isinstance(table, dict), f"{os.fspath(file_path)} holds no JSON object")
        return self.with_config_override(table)

    def with_exporter(self, exporter: Exporter) -> Self:
        """
        Add an exporter.

        Raises:
            OneLoggerError: if the provider is configured.
        """
        self._check_open()
        self._exporters.append(exporter)
        return self

    def with_export_customization(
        self,
        export_customization_mode: ExportCustomizationMode,
        span_name_filter: Sequence[SpanName] | None = None,
    ) -> Self:
        """
        Choose which spans are exported; to be called once. By default all are, except those of every iteration.

        Raises:
            OneLoggerError: if it was chosen before, or the provider is configured.
        """
        self._check_open()
        assert_that(self._customization is None, "there is an export customization already")
        self._customization = (export_customization_mode, span_name_filter)
        return self

    def with_export_config(
        self,
        exporters_config: Sequence[ExporterConfig | Mapping[str, Any]] | None = None,
        config_file_path: str | os.PathLike[str] | None = None,
    ) -> Self:
        """
        Add the exporters that a list and a file name.

        Raises:
            OneLoggerError: if one cannot be made, the file cannot be read, or the provider is configured.
        """
        self._check_open()
        self._exporters += exporters_from(exporters_config, config_file_path)
        return self

    def configure_provider(self) -> None:
        """
        Turn telemetry on; to be called once.

        Raises:
            OneLoggerError: if the provider is configured already, nothing was configured, or a field is wrong.
        """
        self._check_open()
        config = self._config()
        if not self._exporters and config.enable_for_current_rank:
            LOGGER.warning("there are no exporters: nothing will be exported")
        mode, names = self._customization or (
            ExportCustomizationMode.BLACKLIST_SPANS,
            DEFAULT_SPANS_EXPORT_BLACKLIST,
        )
        exporters = self._exporters if config.enable_for_current_rank else []
        OneLoggerProvider.instance().configure(config, TrainingRecorder(config, exporters, mode, names))
        self._is_configured = True
        if isinstance(config.telemetry_config, TrainingTelemetryConfig):
            set_training_config(config.telemetry_config.to_trackside())

    def _config(self) -> OneLoggerConfig:
        assert_that(self._base is not None or self._overrides, "nothing was configured; call with_base_config first")
        fields = dict(self._base.given) if self._base is not None else {}
        training = fields.get("telemetry_config")
        if isinstance(training, TrainingTelemetryConfig):
            fields["telemetry_config"] = attrs.asdict(training, recurse=False)
        fields = merged(fields, self._overrides)
        if isinstance(fields.get("telemetry_config"), Mapping):
            fields["telemetry_config"] = TrainingTelemetryConfig(**fields["telemetry_config"])
        return OneLoggerConfig(**fields)

    def _check_open(self) -> None:
        """
        Check that the provider is not configured yet.

        Raises:
            OneLoggerError: if the provider is configured.
        """
        assert_that(not self._is_configured, "the provider is configured already, which is done once")

    @property
    def config(self) -> OneLoggerConfig:
        """
        A copy of the configuration.

        Raises:
            OneLoggerError: if nothing is configured yet.
        """
        return attrs.evolve(OneLoggerProvider.instance().config)

    @property
    def recorder(self) -> TrainingRecorder:
        """
        The recorder.

        Raises:
            OneLoggerError: if nothing is configured yet, or it is another kind of recorder.
        """
        recorder = OneLoggerProvider.instance().recorder
        if not isinstance(recorder, TrainingRecorder):
            raise OneLoggerError(f"the recorder is a {type(recorder).__name__}, which is none of a training")
        return recorder

    @property
    def one_logger_ready(self) -> bool:
        """Whether One Logger is configured."""
        return OneLoggerProvider.instance().one_logger_ready

    def force_disable_logging(self) -> None:
        """Turn telemetry off for good."""
        OneLoggerProvider.instance().force_disable_logging()

    def set_training_telemetry_config(self, training_telemetry_config: TrainingTelemetryConfig) -> None:
        """
        Set the training's configuration if it was not known before; to be called once.

        Raises:
            OneLoggerError: if it was given before, nothing is configured yet, or a field is wrong.
        """
        config = OneLoggerProvider.instance().config
        assert_that(config.telemetry_config is None, "the training's configuration was given before, and is given once")
        set_training_config(training_telemetry_config.to_trackside())
        config.telemetry_config = training_telemetry_config

    @classmethod
    def forget(cls) -> None:
        """Turn telemetry off and return to the state before any configuration; for tests."""
        with cls._making:
            cls._instance = None
        OneLoggerProvider.forget()
