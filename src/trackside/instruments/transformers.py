"""The trainer of ``transformers``: the one module that imports it."""

from __future__ import annotations

import logging
import weakref
from typing import Any, Final

from trackside.bus import default_bus
from trackside.events import ConfigError
from trackside.instruments._hugging_face import TrainerWatch
from trackside.instruments._hugging_face_loads import time_loads
from trackside.instruments._moments import end_with
from trackside.instruments._taps import Taps

try:
    from transformers import Trainer, TrainerCallback
except ImportError as missing:
    remedy = "it is an extra: pip install 'trackside[transformers]'"
    raise ConfigError("transformers", str(missing), remedy) from None

LOGGER: Final = logging.getLogger("trackside")

_claims: Final[weakref.WeakKeyDictionary[Any, weakref.ref[Any]]] = weakref.WeakKeyDictionary()
"""By model, the one callback that tells of it: of several on one trainer the others do nothing."""
_taps: Final = Taps()
"""On the trainer's class, from the first callback on: a checkpoint is loaded before any hook is called."""


def _loading_of(trainer: Any) -> Any:
    """Return what one of the callbacks of *trainer* learns by of a load; None if there is none that tells."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TracksideCallback) and callback.is_watching:
            return callback.before_load
    return None


class TracksideCallback(TrainerCallback):  # type: ignore[misc]  # its types are not read
    """
    Tells what a trainer does, with no code in the model.

    ::

        trainer = Trainer(callbacks=[TracksideCallback()], ...)

    Training with its iterations (optimizer steps), loading data, forward, backward and the optimizer's step, as spans
    and as sections for straggler detection; evaluations, predictions, checkpoints saved, and those that training goes
    on from. What goes wrong inside is logged, and stays out of the training.
    """

    def __init__(self) -> None:
        self._watch: TrainerWatch | None = TrainerWatch()
        if not _taps:
            time_loads(Trainer, _loading_of, _taps)

    @property
    def is_watching(self) -> bool:
        """Whether it tells of its trainer; not after something went wrong inside."""
        return self._watch is not None

    def before_load(self, args: Any) -> None:
        """Learn that a checkpoint is about to be loaded, perhaps before any hook is called; does nothing itself."""

    def _tell(self, method: str, model: Any, *told: Any, **more: Any) -> None:
        watch = self._watch
        if watch is None:
            return
        try:
            owner = _claims.get(model) if model is not None else None
            if owner is None or owner() is None:
                self._claim(model)
            elif owner() is not self:
                return
            getattr(watch, method)(*told, **more)
        except Exception as error:
            if default_bus.strict:
                raise
            LOGGER.warning("trackside tells nothing more of this trainer", exc_info=error)
            self._watch = None
            watch.release()
            end_with(error)

    def _claim(self, model: Any) -> None:
        if model is not None:
            _claims[model] = weakref.ref(self)

    def on_init_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Claim the model, from what may have told of it under another trainer."""
        self._claim(model)

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,  # noqa: ARG002
        *,
        model: Any = None,
        train_dataloader: Any = None,
        **_: Any,
    ) -> None:
        """Open the training loop."""
        self._tell("train_begins", model, args, state, model, train_dataloader)

    def on_train_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Close the training loop."""
        self._tell("train_ended", model)

    def on_epoch_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        """Begin what comes next."""
        self._tell("comes_next", model, args, state, control)

    def on_step_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Open an iteration."""
        self._tell("step_begins", model, state)

    def on_substep_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Close the backward pass of a batch after which the optimizer does not step."""
        self._tell("backward_ended", model)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Close the backward pass, and open the optimizer's step."""
        self._tell("optimizer_begins", model)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Close the optimizer's step."""
        self._tell("optimizer_ended", model)

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        """Close the iteration, and begin what comes next."""
        self._tell("step_ended", model, args, state, control)

    def on_log(
        self,
        args: Any,  # noqa: ARG002
        state: Any,
        control: Any,  # noqa: ARG002
        logs: Any = None,
        *,
        model: Any = None,
        **_: Any,
    ) -> None:
        """Publish what is logged."""
        self._tell("logged", model, state, logs or {})

    def on_save(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Close the save."""
        self._tell("saved", model, args, state)

    def on_prediction_step(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Publish an iteration of an evaluation."""
        self._tell("predicted", model)

    def on_evaluate(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Close the validation loop."""
        self._tell("evaluated", model, is_prediction=False)

    def on_predict(
        self,
        args: Any,  # noqa: ARG002
        state: Any,  # noqa: ARG002
        control: Any,  # noqa: ARG002
        metrics: Any = None,  # noqa: ARG002
        *,
        model: Any = None,
        **_: Any,
    ) -> None:
        """Publish the testing loop."""
        self._tell("evaluated", model, is_prediction=True)
