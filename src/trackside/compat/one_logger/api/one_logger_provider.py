"""The recorder and the configuration of the process."""

from __future__ import annotations

import threading
from typing import ClassVar

import attrs

from trackside.bus import default_bus
from trackside.compat.one_logger.api.config import OneLoggerConfig
from trackside.compat.one_logger.api.recorder import Recorder
from trackside.compat.one_logger.core.exceptions import OneLoggerError, assert_that
from trackside.compat.one_logger.recorder.default_recorder import DefaultRecorder
from trackside.events import Source, process_source, set_process_source
from trackside.job import AppliedConfig, apply, running_job

_FLUSH_S = 2.0


class OneLoggerProvider:
    """The provider, one in each process: `instance` returns it."""

    _instance: ClassVar[OneLoggerProvider | None] = None
    _making: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        assert_that(self._making.locked(), "there is one for each process; call OneLoggerProvider.instance()")
        self._config: OneLoggerConfig | None = None
        self._recorder: Recorder | None = None
        self._applied: AppliedConfig | None = None
        self._is_off = False

    @classmethod
    def instance(cls) -> OneLoggerProvider:
        """Return the process's provider."""
        with cls._making:
            if cls._instance is None:
                cls._instance = cls()
        return cls._instance

    def configure(self, config: OneLoggerConfig, recorder: Recorder) -> None:
        """
        Turn telemetry on as *config* says, recording with *recorder*; a second call with the same objects does nothing.

        Raises:
            OneLoggerError: if it was configured before, or a field of *config* is wrong.
        """
        if self._config is not None:
            assert_that(config is self._config and recorder is self._recorder, "One Logger is configured already")
            return
        job = config.to_trackside()
        fields = job.source_fields()
        if default_bus.is_idle:
            set_process_source(Source.detect(**fields))
            default_bus.end("succeeded by another job")
        running = running_job()
        if running is not None:
            running.describe(**fields)
        # A stream without a job keeps its source; One Logger's configuration is still recorded in it.
        source = attrs.evolve(process_source(), **fields)
        if config.enable_for_current_rank and isinstance(recorder, DefaultRecorder):
            recorder.begin(strict=job.strict)
        self._applied = apply(job, source)
        self._config, self._recorder = config, recorder

    @property
    def recorder(self) -> Recorder:
        """
        The recorder.

        Raises:
            OneLoggerError: if nothing is configured yet.
        """
        if self._recorder is None:
            raise OneLoggerError("One Logger is not configured; call configure() first")
        return self._recorder

    @property
    def config(self) -> OneLoggerConfig:
        """
        The configuration.

        Raises:
            OneLoggerError: if nothing is configured yet.
        """
        if self._config is None:
            raise OneLoggerError("One Logger is not configured; call configure() first")
        return self._config

    @property
    def one_logger_ready(self) -> bool:
        """Whether One Logger is configured."""
        return self._config is not None

    @property
    def one_logger_enabled(self) -> bool:
        """Whether One Logger is configured, and on."""
        return self._config is not None and self._config.enable_for_current_rank and not self._is_off

    def force_disable_logging(self) -> None:
        """Turn telemetry off for good: what was recorded until now is written, and nothing later."""
        self._is_off = True
        if self._recorder is not None:
            self._recorder.close()

    def flush(self) -> bool:
        """Export everything that was recorded so far; False if that takes longer than two seconds."""
        return default_bus.flush(_FLUSH_S)

    @classmethod
    def forget(cls) -> None:
        """Turn telemetry off and return to the state before any configuration; for tests."""
        with cls._making:
            made, cls._instance = cls._instance, None
        if made is not None:
            made.end()

    def end(self) -> None:
        """Turn telemetry off, and undo what the configuration changed."""
        self.force_disable_logging()
        if self._applied is not None:
            self._applied.end()
