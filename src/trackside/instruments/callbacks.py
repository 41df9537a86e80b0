"""
The moments of a training job as functions to be called: One Logger's names and arguments, and those it lacks.

For frameworks, which have hooks where a script has blocks. Every ``on_…_start`` opens the span that the context
manager of that moment opens, and returns it; every ``on_…_end`` closes it. Times are in milliseconds since the epoch,
now unless given.

Whatever order they are called in, nothing is raised unless the bus is strict: a second start closes the first, an end
closes what is still open inside, an end without a start does nothing, and a `SpanOutOfOrder` names each. An iteration
that is closed so counts as failed.
"""

from __future__ import annotations

import os
from typing import Final

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


def _end(name: str, finish_time_msec: float | None) -> None:
    span = pop_open(name)
    if span is not None:
        end(span, to_ns(name, finish_time_msec))


def _end_iteration(
    name: str,
    finish_time_msec: float | None,
    *,
    samples: int | None,
    tokens: int | None,
    flops: float | None,
    loss: float | None,
    failed: bool,
) -> None:
    iteration = pop_open(name)
    if isinstance(iteration, Iteration):
        iteration.set(samples=samples, tokens=tokens, flops=flops, loss=loss)
        if failed:
            iteration.fail()
        end(iteration, to_ns(name, finish_time_msec))


def on_app_start(start_time_msec: float | None = None) -> Span:
    """Open the span of the application."""
    return begin(application(), start_time_msec)


def on_app_end(finish_time_msec: float | None = None) -> None:
    """Close the span of the application, and everything that callbacks have left open."""
    at_ns = to_ns(span_names.APPLICATION, finish_time_msec)
    span = pop_open(span_names.APPLICATION)
    if span is not None:
        end(span, at_ns)
    end_all("the application ended", at_ns)


def on_distributed_init_start(start_time_msec: float | None = None) -> Span:
    """Open the span of setting up the accelerators and their connections."""
    return begin(distributed_init(), start_time_msec)


def on_distributed_init_end(finish_time_msec: float | None = None) -> None:
    """Close the span of setting up the accelerators and their connections."""
    _end(span_names.DISTRIBUTED_INIT, finish_time_msec)


def on_dataloader_init_start(start_time_msec: float | None = None) -> Span:
    """Open the span of making the data loaders."""
    return begin(dataloader_init(), start_time_msec)


def on_dataloader_init_end(finish_time_msec: float | None = None) -> None:
    """Close the span of making the data loaders."""
    _end(span_names.DATALOADER_INIT, finish_time_msec)


def on_model_init_start(start_time_msec: float | None = None) -> Span:
    """Open the span of making the model."""
    return begin(model_init(), start_time_msec)


def on_model_init_end(finish_time_msec: float | None = None) -> None:
    """Close the span of making the model."""
    _end(span_names.MODEL_INIT, finish_time_msec)


def on_optimizer_init_start(start_time_msec: float | None = None) -> Span:
    """Open the span of making the optimizer."""
    return begin(optimizer_init(), start_time_msec)


def on_optimizer_init_end(finish_time_msec: float | None = None) -> None:
    """Close the span of making the optimizer."""
    _end(span_names.OPTIMIZER_INIT, finish_time_msec)


def on_load_checkpoint_start(start_time_msec: float | None = None) -> Span:
    """Open the span of loading a checkpoint."""
    return begin(checkpoint_load(), start_time_msec)


def on_load_checkpoint_end(finish_time_msec: float | None = None) -> None:
    """Close the span of loading a checkpoint."""
    _end(span_names.CHECKPOINT_LOAD, finish_time_msec)


def on_train_start(
    train_iterations_start: int = 0,
    train_samples_start: int | None = None,
    train_iterations_target_or_fn: Target = None,
    train_samples_target_or_fn: Target = None,
    start_time_msec: float | None = None,
) -> Span:
    """
    Open the span of a training loop; what is not given is taken from the training's configuration.

    Args:
        train_iterations_start: The number of its first iteration: above 0 after a checkpoint was loaded.
        train_samples_start: Samples processed before it, over all ranks.
        train_iterations_target_or_fn: The number of iterations after which training is done, or a function of none.
        train_samples_target_or_fn: The number of samples after which training is done, or a function of none.
        start_time_msec: When it began.
    """
    facts = LoopFacts(
        train_iterations_start, train_samples_start, train_iterations_target_or_fn, train_samples_target_or_fn
    )
    return begin(TrainingLoop(facts, {}), start_time_msec)


def on_train_end(finish_time_msec: float | None = None) -> None:
    """Close the span of a training loop."""
    _end(span_names.TRAINING_LOOP, finish_time_msec)


def on_validation_start(start_time_msec: float | None = None) -> Span:
    """Open the span of a validation loop."""
    return begin(validation_loop(), start_time_msec)


def on_validation_end(finish_time_msec: float | None = None) -> None:
    """Close the span of a validation loop."""
    _end(span_names.VALIDATION_LOOP, finish_time_msec)


def on_testing_start(start_time_msec: float | None = None) -> Span:
    """Open the span of a testing loop."""
    return begin(testing_loop(), start_time_msec)


def on_testing_end(finish_time_msec: float | None = None) -> None:
    """Close the span of a testing loop."""
    _end(span_names.TESTING_LOOP, finish_time_msec)


def on_training_single_iteration_start(start_time_msec: float | None = None, *, step: int | None = None) -> Span:
    """Open the span of a training iteration; *step* as `training_iteration` takes it."""
    return begin(training_iteration(step), start_time_msec)


def on_training_single_iteration_end(
    finish_time_msec: float | None = None,
    *,
    samples: int | None = None,
    tokens: int | None = None,
    flops: float | None = None,
    loss: float | None = None,
    failed: bool = False,
) -> None:
    """Close the span of a training iteration, with what was done in it as `Iteration.set` takes it."""
    _end_iteration(
        span_names.TRAINING_ITERATION,
        finish_time_msec,
        samples=samples,
        tokens=tokens,
        flops=flops,
        loss=loss,
        failed=failed,
    )


def on_validation_single_iteration_start(start_time_msec: float | None = None, *, step: int | None = None) -> Span:
    """Open the span of a validation iteration; *step* as `validation_iteration` takes it."""
    return begin(validation_iteration(step), start_time_msec)


def on_validation_single_iteration_end(
    finish_time_msec: float | None = None,
    *,
    samples: int | None = None,
    tokens: int | None = None,
    flops: float | None = None,
    loss: float | None = None,
    failed: bool = False,
) -> None:
    """Close the span of a validation iteration, with what was done in it as `Iteration.set` takes it."""
    _end_iteration(
        span_names.VALIDATION_ITERATION,
        finish_time_msec,
        samples=samples,
        tokens=tokens,
        flops=flops,
        loss=loss,
        failed=failed,
    )


def on_testing_single_iteration_start(start_time_msec: float | None = None, *, step: int | None = None) -> Span:
    """Open the span of a testing iteration; *step* as `testing_iteration` takes it."""
    return begin(testing_iteration(step), start_time_msec)


def on_testing_single_iteration_end(
    finish_time_msec: float | None = None,
    *,
    samples: int | None = None,
    tokens: int | None = None,
    flops: float | None = None,
    loss: float | None = None,
    failed: bool = False,
) -> None:
    """Close the span of a testing iteration, with what was done in it as `Iteration.set` takes it."""
    _end_iteration(
        span_names.TESTING_ITERATION,
        finish_time_msec,
        samples=samples,
        tokens=tokens,
        flops=flops,
        loss=loss,
        failed=failed,
    )


def on_data_loading_start(start_time_msec: float | None = None) -> Span:
    """Open the span of waiting for a batch."""
    return begin(data_loading(), start_time_msec)


def on_data_loading_end(finish_time_msec: float | None = None) -> None:
    """Close the span of waiting for a batch."""
    _end(span_names.DATA_LOADING, finish_time_msec)


def on_model_forward_start(start_time_msec: float | None = None) -> Span:
    """Open the span of a forward pass."""
    return begin(model_forward(), start_time_msec)


def on_model_forward_end(finish_time_msec: float | None = None) -> None:
    """Close the span of a forward pass."""
    _end(span_names.MODEL_FORWARD, finish_time_msec)


def on_zero_grad_start(start_time_msec: float | None = None) -> Span:
    """Open the span of clearing the gradients."""
    return begin(zero_grad(), start_time_msec)


def on_zero_grad_end(finish_time_msec: float | None = None) -> None:
    """Close the span of clearing the gradients."""
    _end(span_names.ZERO_GRAD, finish_time_msec)


def on_model_backward_start(start_time_msec: float | None = None) -> Span:
    """Open the span of a backward pass."""
    return begin(model_backward(), start_time_msec)


def on_model_backward_end(finish_time_msec: float | None = None) -> None:
    """Close the span of a backward pass."""
    _end(span_names.MODEL_BACKWARD, finish_time_msec)


def on_optimizer_update_start(start_time_msec: float | None = None) -> Span:
    """Open the span of an optimizer step."""
    return begin(optimizer_update(), start_time_msec)


def on_optimizer_update_end(finish_time_msec: float | None = None) -> None:
    """Close the span of an optimizer step."""
    _end(span_names.OPTIMIZER_UPDATE, finish_time_msec)


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
    """Say that the checkpoint of *global_step* is complete: within a synchronous save, after an asynchronous one."""
    checkpoint_succeeded(global_step, path=path, size_bytes=size_bytes, at_ns=to_ns(_SAVE, time_msec))


def on_save_checkpoint_failure(
    global_step: int, time_msec: float | None = None, *, error: BaseException | None = None
) -> None:
    """Say that there will be no checkpoint of *global_step*."""
    checkpoint_failed(global_step, error, at_ns=to_ns(_SAVE, time_msec))


def on_save_checkpoint_end(finish_time_msec: float | None = None) -> None:
    """Close the span of saving a checkpoint; a synchronous save of which no success was reported has failed."""
    save = pop_open(*span_names.OF_CHECKPOINT_SAVE.values())
    if save is not None:
        end(save, to_ns(save.name, finish_time_msec))


def on_save_checkpoint_finalization_start(start_time_msec: float | None = None) -> Span:
    """Open the span of completing an asynchronous save."""
    return begin(checkpoint_save_finalization(), start_time_msec)


def on_save_checkpoint_finalization_end(finish_time_msec: float | None = None) -> None:
    """Close the span of completing an asynchronous save."""
    _end(span_names.CHECKPOINT_SAVE_FINALIZATION, finish_time_msec)
