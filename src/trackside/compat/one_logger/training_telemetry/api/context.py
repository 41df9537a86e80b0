"""The spans of a training job as context managers; `trackside.instruments` describes their arguments."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, TypeAlias

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


def _held(make: Callable[[], instruments.Span], what: str) -> Callable[[], Held]:
    """Return a function that returns *what*, made by *make*."""

    def held() -> Held:
        return Held(make())

    held.__name__ = held.__qualname__ = make.__name__
    held.__doc__ = f"Return {what}."
    return held


model_init: Final = _held(instruments.model_init, "the span of making the model")
dataloader_init: Final = _held(instruments.dataloader_init, "the span of making the data loaders")
optimizer_init: Final = _held(instruments.optimizer_init, "the span of making the optimizer")
training_iteration: Final = _held(instruments.training_iteration, "a training iteration")
validation_loop: Final = _held(instruments.validation_loop, "the span of a validation loop")
validation_iteration: Final = _held(instruments.validation_iteration, "a validation iteration")
testing_loop: Final = _held(instruments.testing_loop, "the span of a testing loop")
checkpoint_load: Final = _held(instruments.checkpoint_load, "the span of loading a checkpoint")


def application() -> Held:
    """Return the span of the whole job."""
    return _Application(instruments.application())


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


def checkpoint_save(global_step: int) -> Held:
    """Return the span of saving a checkpoint, with the strategy that is configured."""
    return Held(instruments.checkpoint_save(global_step))
