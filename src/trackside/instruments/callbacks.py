"""
The moments of a training job as functions to call: those of One Logger, with its names and arguments, and more.

For frameworks, which have hooks where a script has blocks. Every ``on_…_start`` opens the span that the context
manager of that moment opens, and returns it; every ``on_…_end`` closes it. Times are in milliseconds since the epoch,
now unless given.

In whatever order they are called, they raise nothing unless the bus is strict. A second start closes the first span, an
end closes the spans that are still open inside, an end without a start does nothing, and a `SpanOutOfOrder` reports
each of these. An iteration that is closed in this way counts as failed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Protocol

from trackside.events import span_names
from trackside.instruments._checkpoint import (
    CheckpointSave,
    checkpoint_failed,
    checkpoint_load,
    checkpoint_save_finalization,
    checkpoint_succeeded,
    save_attributes,
    strategy_for,
)
from trackside.instruments._iteration import (
    Iteration,
    data_loading,
    model_backward,
    model_forward,
    optimizer_update,
    testing_iteration,
    training_iteration,
    validation_iteration,
    zero_grad,
)
from trackside.instruments._moments import begin, end, end_all, pop_open, to_ns
from trackside.instruments._phases import (
    LoopFacts,
    Target,
    TrainingLoop,
    application,
    dataloader_init,
    distributed_init,
    model_init,
    optimizer_init,
    testing_loop,
    validation_loop,
)
from trackside.instruments._span import Span

_SAVE: Final = "checkpoint_save"


class _Start(Protocol):
    """A callback that opens a span and returns it."""

    def __call__(self, start_time_msec: float | None = None) -> Span: ...


class _End(Protocol):
    """A callback that closes a span."""

    def __call__(self, finish_time_msec: float | None = None) -> None: ...


class _IterationStart(Protocol):
    """A callback that opens an iteration and returns it; *step* is its number."""

    def __call__(self, start_time_msec: float | None = None, *, step: int | None = None) -> Span: ...


class _IterationEnd(Protocol):
    """A callback that closes an iteration, with the work done in it as `Iteration.set` takes it."""

    def __call__(
        self,
        finish_time_msec: float | None = None,
        *,
        samples: int | None = None,
        tokens: int | None = None,
        flops: float | None = None,
        loss: float | None = None,
        failed: bool = False,
    ) -> None: ...


def _start(make: Callable[[], Span], what: str) -> _Start:
    """Return the callback that opens the span that *make* returns: the span of *what*."""

    def start(start_time_msec: float | None = None) -> Span:
        return begin(make(), start_time_msec)

    start.__doc__ = f"Open the span of {what}."
    return start


def _end(name: str, what: str) -> _End:
    """Return the callback that closes the span *name*: the span of *what*."""

    def end_named(finish_time_msec: float | None = None) -> None:
        span = pop_open(name)
        if span is not None:
            end(span, to_ns(name, finish_time_msec))

    end_named.__doc__ = f"Close the span of {what}."
    return end_named


def _iteration_start(make: Callable[[int | None], Iteration], kind: str) -> _IterationStart:
    """Return the callback that opens the iteration of *kind* that *make* returns."""

    def start(start_time_msec: float | None = None, *, step: int | None = None) -> Span:
        return begin(make(step), start_time_msec)

    start.__doc__ = f"Open the span of a {kind} iteration; *step* as `{kind}_iteration` takes it."
    return start


def _iteration_end(name: str, kind: str) -> _IterationEnd:
    """Return the callback that closes the iteration *name*, of *kind*."""

    def end_iteration(
        finish_time_msec: float | None = None,
        *,
        samples: int | None = None,
        tokens: int | None = None,
        flops: float | None = None,
        loss: float | None = None,
        failed: bool = False,
    ) -> None:
        iteration = pop_open(name)
        if isinstance(iteration, Iteration):
            iteration.set(samples=samples, tokens=tokens, flops=flops, loss=loss)
            if failed:
                iteration.fail()
            end(iteration, to_ns(name, finish_time_msec))

    end_iteration.__doc__ = (
        f"Close the span of a {kind} iteration, with what was done in it as `Iteration.set` takes it."
    )
    return end_iteration


on_app_start: Final = _start(application, "the application")
on_distributed_init_start: Final = _start(distributed_init, "setting up the accelerators and their connections")
on_distributed_init_end: Final = _end(span_names.DISTRIBUTED_INIT, "setting up the accelerators and their connections")
on_dataloader_init_start: Final = _start(dataloader_init, "making the data loaders")
on_dataloader_init_end: Final = _end(span_names.DATALOADER_INIT, "making the data loaders")
on_model_init_start: Final = _start(model_init, "making the model")
on_model_init_end: Final = _end(span_names.MODEL_INIT, "making the model")
on_optimizer_init_start: Final = _start(optimizer_init, "making the optimizer")
on_optimizer_init_end: Final = _end(span_names.OPTIMIZER_INIT, "making the optimizer")
on_load_checkpoint_start: Final = _start(checkpoint_load, "loading a checkpoint")
on_load_checkpoint_end: Final = _end(span_names.CHECKPOINT_LOAD, "loading a checkpoint")
on_train_end: Final = _end(span_names.TRAINING_LOOP, "a training loop")
on_validation_start: Final = _start(validation_loop, "a validation loop")
on_validation_end: Final = _end(span_names.VALIDATION_LOOP, "a validation loop")
on_testing_start: Final = _start(testing_loop, "a testing loop")
on_testing_end: Final = _end(span_names.TESTING_LOOP, "a testing loop")
on_training_single_iteration_start: Final = _iteration_start(training_iteration, "training")
on_training_single_iteration_end: Final = _iteration_end(span_names.TRAINING_ITERATION, "training")
on_validation_single_iteration_start: Final = _iteration_start(validation_iteration, "validation")
on_validation_single_iteration_end: Final = _iteration_end(span_names.VALIDATION_ITERATION, "validation")
on_testing_single_iteration_start: Final = _iteration_start(testing_iteration, "testing")
on_testing_single_iteration_end: Final = _iteration_end(span_names.TESTING_ITERATION, "testing")
on_data_loading_start: Final = _start(data_loading, "waiting for a batch")
on_data_loading_end: Final = _end(span_names.DATA_LOADING, "waiting for a batch")
on_model_forward_start: Final = _start(model_forward, "a forward pass")
on_model_forward_end: Final = _end(span_names.MODEL_FORWARD, "a forward pass")
on_zero_grad_start: Final = _start(zero_grad, "clearing the gradients")
on_zero_grad_end: Final = _end(span_names.ZERO_GRAD, "clearing the gradients")
on_model_backward_start: Final = _start(model_backward, "a backward pass")
on_model_backward_end: Final = _end(span_names.MODEL_BACKWARD, "a backward pass")
on_optimizer_update_start: Final = _start(optimizer_update, "an optimizer step")
on_optimizer_update_end: Final = _end(span_names.OPTIMIZER_UPDATE, "an optimizer step")
on_save_checkpoint_finalization_start: Final = _start(checkpoint_save_finalization, "completing an asynchronous save")
on_save_checkpoint_finalization_end: Final = _end(
    span_names.CHECKPOINT_SAVE_FINALIZATION, "completing an asynchronous save"
)


def on_app_end(finish_time_msec: float | None = None) -> None:
    """Close the span of the application, and everything that callbacks have left open."""
    at_ns = to_ns(span_names.APPLICATION, finish_time_msec)
    span = pop_open(span_names.APPLICATION)
    if span is not None:
        end(span, at_ns)
    end_all("the application ended", at_ns)


def on_train_start(
    train_iterations_start: int = 0,
    train_samples_start: int | None = None,
    train_iterations_target_or_fn: Target = None,
    train_samples_target_or_fn: Target = None,
    start_time_msec: float | None = None,
) -> Span:
    """
    Open the span of a training loop; values not given are taken from the training's configuration.

    Args:
        train_iterations_start: The number of its first iteration: above 0 after a checkpoint was loaded.
        train_samples_start: Samples processed before it, over all ranks.
        train_iterations_target_or_fn: The number of iterations after which training is done, or a function of it.
        train_samples_target_or_fn: The number of samples after which training is done, or a function of it.
        start_time_msec: When it began.
    """
    facts = LoopFacts(
        train_iterations_start, train_samples_start, train_iterations_target_or_fn, train_samples_target_or_fn
    )
    return begin(TrainingLoop(facts, {}), start_time_msec)


def on_save_checkpoint_start(
    global_step: int, start_time_msec: float | None = None, *, path: str | os.PathLike[str] | None = None
) -> Span:
    """Open the span of saving the checkpoint of *global_step*, with the strategy that is configured."""
    strategy = strategy_for(None)
    attributes = save_attributes(global_step, strategy, path, {})
    return begin(CheckpointSave(global_step, strategy, attributes, asks=True), start_time_msec)


def on_save_checkpoint_success(
    global_step: int,
    time_msec: float | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    size_bytes: int | None = None,
) -> None:
    """Report that the checkpoint of *global_step* is complete: within a synchronous save, after an asynchronous one."""
    checkpoint_succeeded(global_step, path=path, size_bytes=size_bytes, at_ns=to_ns(_SAVE, time_msec))


def on_save_checkpoint_failure(
    global_step: int, time_msec: float | None = None, *, error: BaseException | None = None
) -> None:
    """Report that there will be no checkpoint of *global_step*."""
    checkpoint_failed(global_step, error, at_ns=to_ns(_SAVE, time_msec))


def on_save_checkpoint_end(finish_time_msec: float | None = None) -> None:
    """Close the span of saving a checkpoint; a synchronous save has failed if no success was reported."""
    save = pop_open(*span_names.OF_CHECKPOINT_SAVE.values())
    if save is not None:
        end(save, to_ns(save.name, finish_time_msec))


for _name, _callback in [*globals().items()]:
    if _name.startswith("on_"):  # `help` shows these names
        _callback.__name__ = _callback.__qualname__ = _name
