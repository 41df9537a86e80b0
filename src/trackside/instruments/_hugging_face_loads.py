"""What the trainer of ``transformers`` loads; imports nothing of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from trackside.bus import default_bus
from trackside.events import LIFECYCLE
from trackside.instruments._checkpoint import checkpoint_load
from trackside.instruments._span import span
from trackside.instruments._taps import Taps

LOGGER: Final = logging.getLogger("trackside")

BEST_MODEL_LOAD: Final = "best_model_load"

_Method = Callable[..., Any]
_Find = Callable[[Any], Any]


def time_loads(trainer: Any, find: _Find, taps: Taps) -> None:
    """
    Stand in for what trainers load checkpoints with, because no hook tells of that.

    Of a checkpoint that training goes on from, the model is one load and the state of optimizer and schedule another:
    between them the trainer prepares what it trains, which is no loading.

    Args:
        trainer: The class of the trainers. Of a version that has other methods nothing is told.
        find: Gets a trainer; returns what turns telemetry on for it when called with the trainer's arguments, or None
            if nobody watches it.
        taps: Keeps what is stood in for.
    """
    taps.put(trainer, "_load_from_checkpoint", lambda load: _timed(load, find, _model))
    taps.put(trainer, "_load_optimizer_and_scheduler", lambda load: _timed(load, find, _optimizer))
    taps.put(trainer, "_load_best_model", lambda load: _timed(load, find, _best_model))


def _timed(load: _Method, find: _Find, made: _Method) -> _Method:
    def timed(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        with _span_of(trainer, find, made, [*args, *kwargs.values()]):
            return load(trainer, *args, **kwargs)

    return timed


def _span_of(trainer: Any, find: _Find, made: _Method, given: list[Any]) -> AbstractContextManager[Any]:
    """Return the span of a load; what is wrong with us stays out of the training, unless the bus is strict."""
    try:
        begin = find(trainer)
        if begin is None:
            return nullcontext()
        begin(trainer.args)
        found: AbstractContextManager[Any] = made(trainer, given[0] if given else None)
    except Exception as error:
        if default_bus.strict:
            raise
        LOGGER.warning("trackside does not tell of this load", exc_info=error)
        return nullcontext()
    return found


def _model(_trainer: Any, checkpoint: Any) -> Any:
    return checkpoint_load(path=checkpoint, part="model")


def _optimizer(trainer: Any, checkpoint: Any) -> Any:
    if checkpoint is None:
        return nullcontext()
    # By now the trainer knows how many steps the checkpoint holds; they are counted from 0.
    step = trainer.state.global_step
    last = step - 1 if isinstance(step, int) and step > 0 else None
    return checkpoint_load(last, path=checkpoint, part="optimizer")


def _best_model(trainer: Any, _given: Any) -> Any:
    # No checkpoint_load, which would say that training goes on behind it: nothing that was learnt is undone.
    return span(BEST_MODEL_LOAD, detail=LIFECYCLE, path=str(trainer.state.best_model_checkpoint))
