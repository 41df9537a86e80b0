"""The hooks that the callbacks of both Lightning packages share; imports neither package."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from trackside.bus import default_bus
from trackside.instruments import callbacks
from trackside.instruments._moments import end_with
from trackside.instruments._raised import withhold
from trackside.instruments._span import RunError
from trackside.integrations._auto_start import AutoStart, opted_in
from trackside.integrations._lightning_watch import Watch

if TYPE_CHECKING:
    from trackside.events import Handler
    from trackside.job import JobConfig

LOGGER: Final = logging.getLogger("trackside")

T = TypeVar("T", bound=type)

_MARK: Final = "trackside_callback"

_watching: Final[WeakKeyDictionary[Any, LightningHooks]] = WeakKeyDictionary()
"""By trainer, the one callback that watches its present run: of several the others do nothing."""


def _hook(record: Callable[..., None]) -> Any:
    """
    Return a hook of Lightning's that calls *record* with the watch of the trainer in place of trainer and module.

    What it raises stays out of the training, unless the bus is strict; the callback then does without this run.
    """

    @functools.wraps(record)
    def hook(self: LightningHooks, trainer: Any, _module: Any, *args: Any, **kwargs: Any) -> None:
        watch = self._watch
        if watch is None or watch.trainer is not trainer:
            return
        try:
            record(watch, *args, **kwargs)
        except Exception as error:
            self._give_up(trainer, error)

    return hook


class LightningHooks:
    """
    Turn telemetry on and record what a trainer does, with no code in the model.

    ::

        trainer = Trainer(callbacks=[TracksideCallback("runs/")], ...)

    Training, validation, testing and prediction with their iterations; loading data, forward, backward and the
    optimizer's step, as spans and as sections for straggler detection; checkpoints saved and loaded; the values that
    the model logs; and the exception that ended it. Telemetry is on from the trainer's first run to the end of the
    process, or to `close`. Of several callbacks on one trainer the first does it all. What goes wrong inside is logged,
    and stays out of the training.

    Args:
        directory: Where the event log goes, the same on all ranks. None leaves it to the script to turn telemetry on.
        job: The identity of the run, as `trackside.start` takes it; the trainer fills in what it leaves open.
        handlers: Models, sinks and callables to subscribe.
        call_on_app_start: Open the application's span now, for a script that calls
            `trackside.instruments.callbacks.on_app_end` itself.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        job: JobConfig | None = None,
        handlers: Sequence[Handler] = (),
        call_on_app_start: bool = False,
    ) -> None:
        super().__init__()
        self._telemetry = AutoStart(directory, job, handlers)
        self._watch: Watch | None = None
        if call_on_app_start:
            callbacks.on_app_start()

    @classmethod
    def of_every_trainer(cls) -> list[Any]:
        """
        Return the callbacks of every trainer: none, unless the variable ``TRACKSIDE`` says where telemetry is to go.

        The entry point that Lightning asks for callbacks.
        """
        directory = opted_in()
        return [] if directory is None else [cls(directory)]

    @classmethod
    def hook_trainer_cls(cls, trainer: T, callback: Any = None) -> tuple[T, Any]:
        """
        Add a callback to every trainer of the class *trainer* made from now on, before those that it is given.

        ::

            hook_trainer_cls(Trainer)

        Args:
            trainer: The class; changed in place, once. One that has a callback, its own or an inherited one, keeps it.
            callback: The callback, if it is to be another one than a `TracksideCallback`.

        Returns:
            The class, and the callback that its trainers share.
        """
        known = getattr(trainer, _MARK, None)
        if known is not None:
            return trainer, known
        shared = callback or cls()
        make: Any = trainer.__init__  # type: ignore[misc]  # this class's own

        @functools.wraps(make)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            given = kwargs.get("callbacks")
            listed = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
            if shared not in listed:
                listed.insert(0, shared)
            make(self, *args, **{**kwargs, "callbacks": listed})

        trainer.__init__ = init  # type: ignore[misc]
        setattr(trainer, _MARK, shared)
        return trainer, shared

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002  Lightning's signature
        """Turn telemetry on, and begin to watch what the trainer is about to run."""
        self._telemetry.begin(rank=trainer.global_rank, local_rank=trainer.local_rank, world_size=trainer.world_size)
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

    def close(self) -> None:
        """Turn off what was turned on here, as at the end of the process."""
        self._telemetry.end()

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
        LOGGER.warning("trackside records no more of this run", exc_info=error)
        _watching.pop(trainer, None)
        self._let_go()
        withhold(error)
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
    def on_before_backward(self: Watch, loss: Any) -> None:
        """Open the backward pass."""
        self.backward_begins(loss)

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
