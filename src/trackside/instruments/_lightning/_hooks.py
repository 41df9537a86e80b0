"""The hooks of Lightning's callbacks, and what they say to the watch of the trainer."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from trackside.bus import default_bus
from trackside.instruments import callbacks
from trackside.instruments._lightning._watch import Watch
from trackside.instruments._misplaced import RunError
from trackside.instruments._moments import end_with

LOGGER: Final = logging.getLogger("trackside")

_watching: Final[WeakKeyDictionary[Any, LightningHooks]] = WeakKeyDictionary()
"""By trainer, the one callback that watches its present run: of several the others do nothing."""


def _hook(tell: Callable[..., None]) -> Any:
    """
    Return a hook of Lightning's that calls *tell* with the watch of the trainer in place of trainer and module.

    What it raises stays out of the training, unless the bus is strict; the callback then does without this run.
    """

    @functools.wraps(tell)
    def hook(self: LightningHooks, trainer: Any, _module: Any, *args: Any, **kwargs: Any) -> None:
        watch = self._watch
        if watch is None or watch.trainer is not trainer:
            return
        try:
            tell(watch, *args, **kwargs)
        except Exception as error:
            self._give_up(trainer, error)

    return hook


class LightningHooks:
    """
    The spans, iterations, sections and checkpoints of whatever a trainer runs.

    Mixed into each package's ``Callback``. Of several on one trainer the first does it all. What goes wrong inside is
    logged, and stays out of the training.

    Args:
        call_on_app_start: Open the application's span now, for a script that calls `callbacks.on_app_end` itself.
    """

    def __init__(self, *, call_on_app_start: bool = False) -> None:
        super().__init__()
        self._watch: Watch | None = None
        if call_on_app_start:
            callbacks.on_app_start()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002  Lightning's signature
        """Begin to watch what the trainer is about to run."""
        first = _watching.get(trainer)
        if first is not None and first is not self and first in trainer.callbacks:
            return
        try:
            if self._watch is not None:  # a run that ended with an exception, which another callback kept from us
                self._watch.failed(RunError())
                self._let_go()
            self._watch = Watch(trainer)
            _watching[trainer] = self
        except Exception as error:
            self._give_up(trainer, error)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Leave the trainer as it was found."""
        if self._watch is not None and self._watch.trainer is trainer:
            self._let_go()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close what is open with the exception, write what is known, and leave the trainer as it was found."""
        self._on_exception(trainer, pl_module, exception)
        self.teardown(trainer, pl_module, "")

    def _let_go(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            _watching.pop(watch.trainer, None)
            watch.close()

    def _give_up(self, trainer: Any, error: Exception) -> None:
        """Do without the rest of this run, because of *error*; a strict bus raises it."""
        if default_bus.strict:
            raise error
        LOGGER.warning("trackside tells nothing more of this run", exc_info=error)
        _watching.pop(trainer, None)
        self._let_go()
        end_with(error)

    @_hook
    def _on_exception(self: Watch, error: BaseException) -> None:
        self.failed(error)

    # In what follows ``self`` is the watch: that is what _hook calls them with.

    @_hook
    def on_train_start(self: Watch) -> None:
        """Open the training loop."""
        self.train_begins()

    @_hook
    def on_train_end(self: Watch) -> None:
        """Close the training loop."""
        self.train_ended()

    @_hook
    def on_train_epoch_end(self: Watch) -> None:
        """Close an iteration that the model has cut short."""
        self.epoch_ended()

    @_hook
    def on_train_batch_start(self: Watch, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Open an iteration, unless the batch belongs to the open one."""
        self.batch_begins()

    @_hook
    def on_train_batch_end(self: Watch, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Close the iteration, if the optimizer has stepped."""
        self.batch_ended(outputs, batch)

    @_hook
    def on_before_backward(self: Watch, loss: Any) -> None:  # noqa: ARG002
        """Open the backward pass."""
        self.backward_begins()

    @_hook
    def on_after_backward(self: Watch) -> None:
        """Close the backward pass."""
        self.backward_ended()

    @_hook
    def on_before_optimizer_step(self: Watch, optimizer: Any) -> None:  # noqa: ARG002
        """Open the optimizer's step; the profiler's action of that name closes it."""
        self.optimizer_begins()

    @_hook
    def on_sanity_check_start(self: Watch) -> None:
        """Open the trial of validation before training."""
        self.sanity_check_begins()

    @_hook
    def on_sanity_check_end(self: Watch) -> None:
        """Close it."""
        self.sanity_check_ended()

    @_hook
    def on_validation_start(self: Watch) -> None:
        """Open the validation loop."""
        self.loop_begins("validation")

    @_hook
    def on_validation_end(self: Watch) -> None:
        """Close it."""
        self.loop_ended("validation")

    @_hook
    def on_validation_batch_start(self: Watch, *_batch: Any, **_place: Any) -> None:
        """Open a validation iteration."""
        self.evaluation_begins("validation")

    @_hook
    def on_validation_batch_end(self: Watch, outputs: Any, batch: Any, *_place: Any, **_more: Any) -> None:
        """Close it."""
        self.evaluation_ended(outputs, batch)

    @_hook
    def on_test_start(self: Watch) -> None:
        """Open the testing loop."""
        self.loop_begins("testing")

    @_hook
    def on_test_end(self: Watch) -> None:
        """Close it."""
        self.loop_ended("testing")

    @_hook
    def on_test_batch_start(self: Watch, *_batch: Any, **_place: Any) -> None:
        """Open a testing iteration."""
        self.evaluation_begins("testing")

    @_hook
    def on_test_batch_end(self: Watch, outputs: Any, batch: Any, *_place: Any, **_more: Any) -> None:
        """Close it."""
        self.evaluation_ended(outputs, batch)

    @_hook
    def on_predict_start(self: Watch) -> None:
        """Open the predicting loop."""
        self.loop_begins("predicting")

    @_hook
    def on_predict_end(self: Watch) -> None:
        """Close it."""
        self.loop_ended("predicting")

    @_hook
    def on_predict_batch_start(self: Watch, *_batch: Any, **_place: Any) -> None:
        """Open the prediction of a batch."""
        self.evaluation_begins("predicting")

    @_hook
    def on_predict_batch_end(self: Watch, outputs: Any, batch: Any, *_place: Any, **_more: Any) -> None:
        """Close it."""
        self.evaluation_ended(outputs, batch)
