"""The moments of a training job as functions to call; `trackside.instruments.callbacks` describes their arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, ParamSpec

from trackside.compat.one_logger._held import HeldSpan
from trackside.compat.one_logger.api.one_logger_provider import OneLoggerProvider
from trackside.instruments import Span, callbacks

P = ParamSpec("P")


def _holding(start: Callable[P, Span]) -> Callable[P, HeldSpan | None]:
    """Return *start* with One Logger's span as its result; None where One Logger is off, or not configured."""

    @functools.wraps(start)
    def begin(*args: P.args, **kwargs: P.kwargs) -> HeldSpan | None:
        span = start(*args, **kwargs)
        return HeldSpan(span) if OneLoggerProvider.instance().one_logger_enabled else None

    return begin


def on_app_end(finish_time_msec: float | None = None) -> None:
    """Close the span of the application and all other open spans, and export everything."""
    callbacks.on_app_end(finish_time_msec)
    OneLoggerProvider.instance().flush()


on_app_start: Final = _holding(callbacks.on_app_start)
on_dataloader_init_start: Final = _holding(callbacks.on_dataloader_init_start)
on_distributed_init_start: Final = _holding(callbacks.on_distributed_init_start)
on_load_checkpoint_start: Final = _holding(callbacks.on_load_checkpoint_start)
on_model_init_start: Final = _holding(callbacks.on_model_init_start)
on_optimizer_init_start: Final = _holding(callbacks.on_optimizer_init_start)
on_save_checkpoint_start: Final = _holding(callbacks.on_save_checkpoint_start)
on_testing_start: Final = _holding(callbacks.on_testing_start)
on_train_start: Final = _holding(callbacks.on_train_start)
on_training_single_iteration_start: Final = _holding(callbacks.on_training_single_iteration_start)
on_validation_single_iteration_start: Final = _holding(callbacks.on_validation_single_iteration_start)
on_validation_start: Final = _holding(callbacks.on_validation_start)

on_dataloader_init_end: Final = callbacks.on_dataloader_init_end
on_distributed_init_end: Final = callbacks.on_distributed_init_end
on_load_checkpoint_end: Final = callbacks.on_load_checkpoint_end
on_model_init_end: Final = callbacks.on_model_init_end
on_optimizer_init_end: Final = callbacks.on_optimizer_init_end
on_save_checkpoint_end: Final = callbacks.on_save_checkpoint_end
on_save_checkpoint_success: Final = callbacks.on_save_checkpoint_success
on_testing_end: Final = callbacks.on_testing_end
on_train_end: Final = callbacks.on_train_end
on_training_single_iteration_end: Final = callbacks.on_training_single_iteration_end
on_validation_end: Final = callbacks.on_validation_end
on_validation_single_iteration_end: Final = callbacks.on_validation_single_iteration_end
