"""The spans of a training job as context managers; `trackside.instruments` says what they take."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

from trackside import instruments
from trackside.compat.one_logger._held import Held
from trackside.compat.one_logger.api.one_logger_provider import OneLoggerProvider

Target: TypeAlias = int | Callable[[], int | None] | None


class _Application(Held):
    """The span of the application, after which everything is exported."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        OneLoggerProvider.instance().flush()


def application() -> Held:
    """Return the span of the whole job."""
    return _Application(instruments.application())


def model_init() -> Held:
    """Return the span of making the model."""
    return Held(instruments.model_init())


def dataloader_init() -> Held:
    """Return the span of making the data loaders."""
    return Held(instruments.dataloader_init())


def optimizer_init() -> Held:
    """Return the span of making the optimizer."""
    return Held(instruments.optimizer_init())


def training_loop(
    train_iterations_start: int,
    train_samples_start: int | None = None,
    train_iterations_target_or_fn: Target = None,
    train_samples_target_or_fn: Target = None,
) -> Held:
    """Return the span of a training loop."""
    loop = instruments.training_loop(
        train_iterations_start,
        train_samples_start=train_samples_start,
        train_iterations_target=train_iterations_target_or_fn,
        train_samples_target=train_samples_target_or_fn,
    )
    return Held(loop)


def training_iteration() -> Held:
    """Return a training iteration."""
    return Held(instruments.training_iteration())


def validation_loop() -> Held:
    """Return the span of a validation loop."""
    return Held(instruments.validation_loop())


def validation_iteration() -> Held:
    """Return a validation iteration."""
    return Held(instruments.validation_iteration())


def testing_loop() -> Held:
    """Return the span of a testing loop."""
    return Held(instruments.testing_loop())


def checkpoint_load() -> Held:
    """Return the span of loading a checkpoint."""
    return Held(instruments.checkpoint_load())


def checkpoint_save(global_step: int) -> Held:
    """Return the span of saving a checkpoint, with the strategy that is configured."""
    return Held(instruments.checkpoint_save(global_step))
