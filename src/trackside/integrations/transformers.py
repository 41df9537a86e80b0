"""Transformers: a callback that turns telemetry on and records what its trainer does."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from trackside.bus import default_bus
from trackside.events import MissingExtraError
from trackside.instruments._moments import end_with
from trackside.instruments._raised import withhold
from trackside.integrations._auto_start import AutoStart, opted_in
from trackside.integrations._patches import Patches
from trackside.integrations._transformers_watch import TrainerWatch, time_loads

try:
    from transformers import Trainer, TrainerCallback
except ImportError as missing:
    raise MissingExtraError("Transformers", "transformers", missing) from None

if TYPE_CHECKING:
    from trackside.events import Handler
    from trackside.job import JobConfig

LOGGER: Final = logging.getLogger("trackside")

_claims: Final[weakref.WeakKeyDictionary[Any, weakref.ref[Any]]] = weakref.WeakKeyDictionary()
"""By model, the one callback that records it: of several on one trainer the others do nothing."""
_patches: Final = Patches()
"""On the trainer's class, from the first callback on: a checkpoint is loaded before any hook is called."""


def _loading_of(trainer: Any) -> Any:
    """Return the method by which a callback of *trainer* learns of a load; None if no callback records it."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TracksideCallback) and callback.is_watching:
            return callback.before_load
    return None


class TracksideCallback(TrainerCallback):  # type: ignore[misc]  # its types are not read
    """
    Turn telemetry on and record what a trainer does, with no code in the model.

    ::

        trainer = Trainer(callbacks=[TracksideCallback("runs/")], ...)

    Training with its iterations (optimizer steps), loading data, forward, backward and the optimizer's step, as spans
    and as sections for straggler detection; evaluations, predictions, checkpoints saved, and those that training goes
    on from. What goes wrong inside is logged, and stays out of the training. Telemetry is on from when the trainer is
    made to the end of the process, or to `close`.

    Args:
        directory: Where the event log goes, the same on all ranks. Where none is given, the variable ``TRACKSIDE``
            may say it; else it is left to the script to turn telemetry on.
        job: The identity of the run, as `trackside.start` takes it; the trainer fills in what it leaves open.
        handlers: Models, sinks and callables to subscribe.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        job: JobConfig | None = None,
        handlers: Sequence[Handler] = (),
    ) -> None:
        self._telemetry = AutoStart(opted_in() if directory is None else directory, job, handlers)
        self._watch: TrainerWatch | None = TrainerWatch()
        if not _patches:
            time_loads(Trainer, _loading_of, _patches)

    @property
    def is_watching(self) -> bool:
        """Whether it records its trainer; not after something went wrong inside."""
        return self._watch is not None

    def before_load(self, args: Any) -> None:
        """Turn telemetry on before a checkpoint is loaded, perhaps before any hook is called."""
        self._begin(args)

    def _begin(self, args: Any) -> None:
        self._telemetry.begin(rank=args.process_index, local_rank=args.local_process_index, world_size=args.world_size)

    def close(self) -> None:
        """Turn off what was turned on here, as at the end of the process."""
        self._telemetry.end()

    def _record(self, method: str, model: Any, *args: Any, **more: Any) -> None:
        watch = self._watch
        if watch is None:
            return
        try:
            owner = _claims.get(model) if model is not None else None
            if owner is None or owner() is None:
                self._claim(model)
            elif owner() is not self:
                return
            getattr(watch, method)(*args, **more)
        except Exception as error:
            if default_bus.strict:
                raise
            LOGGER.warning("trackside records no more of this trainer", exc_info=error)
            self._watch = None
            watch.release()
            withhold(error)
            end_with(error)

    def _claim(self, model: Any) -> None:
        if model is not None:
            _claims[model] = weakref.ref(self)

    def on_init_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Turn telemetry on, and claim the model from what watched it under another trainer."""
        self._begin(args)
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
        """Turn telemetry on, if the callback came later than the trainer, and open the training loop."""
        self._begin(args)
        self._record("train_begins", model, args, state, model, train_dataloader)

    def on_train_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Close the training loop."""
        self._record("train_ended", model)

    def on_epoch_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        """Begin what comes next."""
        self._record("comes_next", model, args, state, control)

    def on_step_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Open an iteration."""
        self._record("step_begins", model, state)

    def on_substep_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Close the backward pass of a batch after which the optimizer does not step."""
        self._record("backward_ended", model)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Close the backward pass, and open the optimizer's step."""
        self._record("optimizer_begins", model)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Close the optimizer's step."""
        self._record("optimizer_ended", model)

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        """Close the iteration, and begin what comes next."""
        self._record("step_ended", model, args, state, control)

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
        self._record("logged", model, state, logs or {})

    def on_save(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Close the save."""
        self._record("saved", model, args, state)

    def on_prediction_step(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Publish an iteration of an evaluation."""
        self._record("predicted", model)

    def on_evaluate(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Close the validation loop."""
        self._record("evaluated", model, is_prediction=False)

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
        self._record("evaluated", model, is_prediction=True)
