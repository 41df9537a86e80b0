"""The job's configuration under One Logger's names."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import attrs

from trackside.compat.one_logger._configuration import Settings, initialize, resolved
from trackside.compat.one_logger.api.telemetry_config import TelemetryConfig
from trackside.job import JobConfig, LogConfig

T = TypeVar("T")
OrFunction: TypeAlias = T | Callable[[], T]


class OneLoggerErrorHandlingStrategy(enum.Enum):
    """The treatment of an error in the use of telemetry."""

    PROPAGATE_EXCEPTIONS = "propagate_exceptions"
    """The error is raised in the application; the default if telemetry is on."""
    DISABLE_QUIETLY_AND_REPORT_METRIC_ERROR = "disable_quietly_and_report_metric_error"
    """The error is reported to the exporters, and telemetry continues as far as possible."""


@attrs.define(kw_only=True, init=False)
class LoggerConfig(Settings):
    """The treatment of the library's own messages; files are written only if they are named."""

    log_level: str = "INFO"
    log_format: str = "%(name)s - %(levelname)s - %(message)s"
    log_file_path_for_info: str | os.PathLike[str] | None = None
    log_file_path_for_err: str | os.PathLike[str] | None = None

    def __init__(self, **given: Any) -> None:
        initialize(self, given)
        self.to_trackside()

    def to_trackside(self) -> LogConfig:
        """
        Return the corresponding ``LogConfig`` of trackside.

        Raises:
            OneLoggerError: if a field is wrong.
        """
        paths = (self.log_file_path_for_info, self.log_file_path_for_err)
        info, err = (None if path is None else os.fspath(path) for path in paths)
        return LogConfig(
            log_level=self.log_level,
            log_format=self.log_format,
            log_file_path_for_info=info,
            log_file_path_for_err=err,
        )


@attrs.define(kw_only=True, init=False)
class OneLoggerConfig(Settings):
    """
    One Logger's `OneLoggerConfig`, over `trackside.job.JobConfig`, which describes the fields.

    Functions are called when telemetry is configured, not when this is made.

    Raises:
        OneLoggerError: if a field is missing or wrong; it names the field, the given value, and the right one.
    """

    application_name: str
    world_size_or_fn: OrFunction[int]
    session_tag_or_fn: OrFunction[str]
    is_baseline_run_or_fn: OrFunction[bool] = False
    custom_metadata: dict[str, Any] | None = None
    error_handling_strategy: OneLoggerErrorHandlingStrategy | None = attrs.field(
        default=None, converter=attrs.converters.optional(OneLoggerErrorHandlingStrategy)
    )
    """By default errors are raised if telemetry is on, and not if it is off."""
    enable_for_current_rank: bool = True
    logger_config: LoggerConfig | None = None
    summary_data_schema_version: str = "1.0.0"
    telemetry_config: TelemetryConfig | None = None
    given: dict[str, Any] = attrs.field(factory=dict, repr=False, eq=False)
    """The fields that were given, by name."""

    def __init__(self, **given: Any) -> None:
        initialize(self, {**given, "given": given})
        if self.error_handling_strategy is None:
            strategies = OneLoggerErrorHandlingStrategy
            self.error_handling_strategy = (
                strategies.PROPAGATE_EXCEPTIONS
                if self.enable_for_current_rank
                else strategies.DISABLE_QUIETLY_AND_REPORT_METRIC_ERROR
            )
        self.to_trackside()

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return resolved(self.world_size_or_fn)

    @property
    def session_tag(self) -> str:
        """The tag of the jobs that are one logical task."""
        return resolved(self.session_tag_or_fn)

    @property
    def is_baseline_run(self) -> bool:
        """Whether other runs are compared with this one."""
        return resolved(self.is_baseline_run_or_fn)

    def to_trackside(self) -> JobConfig:
        """
        Return the corresponding ``JobConfig`` of trackside, without the training's configuration.

        Raises:
            OneLoggerError: if a field is wrong.
        """
        return JobConfig(
            application_name=self.application_name,
            world_size=self.world_size_or_fn,
            session_tag=self.session_tag_or_fn,
            is_baseline_run=self.is_baseline_run_or_fn,
            custom_metadata=self.custom_metadata,
            summary_data_schema_version=self.summary_data_schema_version,
            enable_for_current_rank=self.enable_for_current_rank,
            strict=self.error_handling_strategy is OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS,
            log=None if self.logger_config is None else self.logger_config.to_trackside(),
        )
