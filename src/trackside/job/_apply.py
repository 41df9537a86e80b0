"""A configuration put into effect, and taken back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trackside.bus import Bus, Subscription, default_bus
from trackside.events import ConfigError, Source
from trackside.instruments import TrainingDefaults, annotate, set_training_defaults
from trackside.job._log_config import LOGGER

if TYPE_CHECKING:
    from trackside.job._config import JobConfig
    from trackside.job._training_config import TrainingConfig


class AppliedConfig:
    """
    A `JobConfig` in effect; made by `apply`.

    Attributes:
        job: The configuration.
        is_enabled: Whether this rank takes part.
    """

    def __init__(self, job: JobConfig, source: Source, bus: Bus) -> None:
        self.job = job
        self.is_enabled = job.is_enabled(source.rank)
        self._bus = bus
        self._was_strict = bus.strict
        self._training: TrainingConfig | None = None
        self._subscriptions: list[Subscription] = []
        self._log_handlers: list[logging.Handler] = []
        self._log_level = LOGGER.level
        self._source = source

    def begin(self) -> None:
        """
        Put it into effect, publishing `JobConfigured` and, if the training is known, `TrainingConfigured`.

        On a rank that does not take part, that is one line in the log, and nothing else from then on.

        Raises:
            ConfigError: if a function that was given for a field fails, or a handler cannot be subscribed.
        """
        if self.job.log is not None:
            self._log_handlers = self.job.log.apply()
        if not self.is_enabled:
            LOGGER.info("telemetry is off on rank %d, as configured", self._source.rank)
            return
        self._bus.strict = self.job.strict
        annotate(self.job.annotate or None)
        self._subscriptions = self.job.subscribe_handlers(self._source.rank, self._bus)
        self._bus.log(self.job.configured(self._source))
        if self.job.training is not None:
            self.set_training(self.job.training)

    def set_training(self, training: TrainingConfig) -> None:
        """
        Say what the training is; once.

        Raises:
            ConfigError: if it was said before, or a function that was given for a field fails.
        """
        if self._training is not None:
            raise ConfigError("training", training, "it was given before, and is given once")
        if not self.is_enabled:
            self._training = training
            return
        set_training_defaults(training.defaults())
        event = training.configured()
        self._training = training
        self._bus.log(event)

    def end(self, timeout_s: float = 2.0) -> bool:
        """
        Take it back: close its handlers, and be as before.

        Args:
            timeout_s: How long each handler may take, in seconds.

        Returns:
            Whether every handler was done in time.
        """
        done = True
        for subscription in self._subscriptions:
            done = subscription.close(timeout_s) and done
        self._bus.strict = self._was_strict
        set_training_defaults(TrainingDefaults())
        if self.is_enabled:
            annotate(None)
        LOGGER.setLevel(self._log_level)
        for handler in self._log_handlers:
            LOGGER.removeHandler(handler)
            handler.close()
        global _applied  # noqa: PLW0603
        if _applied is self:
            _applied = None
        return done


_applied: AppliedConfig | None = None


def apply(job: JobConfig, source: Source, bus: Bus = default_bus) -> AppliedConfig:
    """
    Put *job* into effect in the process *source*.

    Raises:
        ConfigError: if a function that was given for a field fails, or a handler cannot be subscribed.
    """
    global _applied  # noqa: PLW0603  a process runs one job
    applied = AppliedConfig(job, source, bus)
    applied.begin()
    _applied = applied
    return applied


def set_training_config(training: TrainingConfig) -> None:
    """
    Say what the training is, where the job's configuration did not; once.

    Raises:
        ConfigError: if no job is configured, or the training was given before.
    """
    if _applied is None:
        raise ConfigError("training", training, "start telemetry with a JobConfig first")
    _applied.set_training(training)
