"""
The callback that both Lightning packages share; imports neither package.

First the timing of checkpoints, then the records of one trainer, then the hooks that a trainer calls.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from trackside.bus import default_bus
from trackside.core import is_from_signal_handler
from trackside.events import LIFECYCLE, clock, span_names
from trackside.instruments import callbacks, config, metrics
from trackside.instruments._checkpoint import CheckpointSave, checkpoint_load, checkpoint_save
from trackside.instruments._moments import begin, end, end_with, pop_open
from trackside.instruments._raised import withhold
from trackside.instruments._span import RunError, Span, span
from trackside.instruments.section_windows import close_section_window
from trackside.integrations._auto_start import AutoStart, opted_in
from trackside.integrations._parts import Parts, Patches, samples_in

if TYPE_CHECKING:
    from trackside.events import Handler
    from trackside.job import JobConfig

_ASYNC_IO: Final = "AsyncCheckpointIO"
_FITTING: Final = "fit"


class TimedSaves:
    """
    Replaces ``save_checkpoint`` of one trainer, for good: a script may save after training too.

    Args:
        trainer: The trainer.
        save: The replaced method.
    """

    def __init__(self, trainer: Any, save: Any) -> None:
        self._trainer = trainer
        self._save = save
        self._pending: dict[str, CheckpointSave] = {}
        """The saves that another thread does, by path."""

    def __call__(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Save, within a span that records the outcome."""
        writer = _background_writer(self._trainer)
        strategy = None if writer is None else "async"
        # Steps are counted from 0: the checkpoint holds the work up to the iteration before the next one.
        with checkpoint_save(self._trainer.global_step - 1, strategy=strategy, path=filepath) as save:
            if writer is not None and getattr(self._trainer, "is_global_zero", True):
                self._pending[os.fspath(filepath)] = save
                self._watch(writer)
            return self._save(filepath, *args, **kwargs)

    def _watch(self, writer: Any) -> None:
        if not isinstance(vars(writer).get("save_checkpoint"), BackgroundSaves):
            writer.save_checkpoint = BackgroundSaves(writer.save_checkpoint, self._pending)


class BackgroundSaves:
    """Replaces ``save_checkpoint`` of a plugin that writes in another thread, and reports the outcome of each save."""

    def __init__(self, write: Any, pending: dict[str, CheckpointSave]) -> None:
        self._write = write
        self._pending = pending

    def __call__(self, checkpoint: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Write, and report whether the save of that path has succeeded or failed."""
        save = self._pending.pop(os.fspath(path), None)
        try:
            done = self._write(checkpoint, path, *args, **kwargs)
        except BaseException as error:
            if save is not None:
                save.failed(error)
            raise
        if save is not None:
            save.succeeded(path=path)
        return done


def _background_writer(trainer: Any) -> Any:
    """Return the plugin that writes checkpoints in another thread; None if they are written at once."""
    writer = getattr(trainer.strategy, "checkpoint_io", None)
    is_async = False
    while writer is not None:
        is_async = is_async or any(cls.__name__ == _ASYNC_IO for cls in type(writer).__mro__)
        inner = getattr(writer, "checkpoint_io", None)
        if inner is None:
            return writer if is_async else None
        writer = inner
    return None


class Checkpoints:
    """
    The saves and the load of one run.

    Args:
        trainer: The trainer.
        patches: Replaces methods for as long as the run lasts.
    """

    def __init__(self, trainer: Any, patches: Patches) -> None:
        self._trainer = trainer
        self._load: Span | None = None
        if not isinstance(vars(trainer).get("save_checkpoint"), TimedSaves):
            trainer.save_checkpoint = TimedSaves(trainer, trainer.save_checkpoint)
        # Reading the file and filling the model are two calls; the strategy's set-up comes after both.
        patches.replace(trainer.strategy, "load_checkpoint", self._reading)
        patches.replace(trainer.strategy, "load_model_state_dict", self._filling)

    def _reading(self, load: Any) -> Any:
        def timed(checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
            self.end_load()
            self._load = checkpoint_load(path=checkpoint_path).open()
            try:
                found = load(checkpoint_path, *args, **kwargs)
            except BaseException as error:
                self.end_load(error)
                raise
            step = found.get("global_step") if isinstance(found, dict) else None
            # Only a fit continues from the checkpoint; loading it for a test undoes no work.
            if isinstance(step, int) and self._trainer.state.fn == _FITTING:
                self._load.set(**{span_names.CURRENT_ITERATION: step - 1})
            return found

        return timed

    def _filling(self, fill: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            try:
                done = fill(*args, **kwargs)
            except BaseException as error:
                self.end_load(error)
                raise
            self.end_load()
            return done

        return timed

    def end_load(self, error: BaseException | None = None) -> None:
        """End the load, if one is open."""
        load, self._load = self._load, None
        if load is not None:
            load.close(error=error)


SIGTERM_BROADCAST: Final = "sigterm_broadcast"
SANITY_CHECK: Final = "sanity_check"
PREDICTING_LOOP: Final = "predicting_loop"
PREDICTING_ITERATION: Final = "predicting_single_iteration"

# The actions without a hook, by their names in the trainer's profiler. Before these names it has the class names of the
# loop, the strategy and the model.
_ACTIONS: Final = {
    "train_dataloader_next": span_names.DATA_LOADING,
    "training_step": span_names.MODEL_FORWARD,
    "optimizer_zero_grad": span_names.ZERO_GRAD,
}
_OPTIMIZER_STEP: Final = "optimizer_step"
_FLUSH_S: Final = 2.0

_LOOPS: Final = {
    "validation": (callbacks.on_validation_start, callbacks.on_validation_end),
    "testing": (callbacks.on_testing_start, callbacks.on_testing_end),
    "predicting": (
        lambda: begin(span(PREDICTING_LOOP, priority=LIFECYCLE), None),
        lambda: _end(PREDICTING_LOOP),
    ),
}


def _end(name: str) -> None:
    found = pop_open(name)
    if found is not None:
        end(found, None)


def _begin_prediction(**_step: int | None) -> None:
    begin(span(PREDICTING_ITERATION), None)


def _end_prediction(**_done: Any) -> None:
    _end(PREDICTING_ITERATION)


_ITERATIONS: Final[dict[str, Any]] = {
    "validation": (callbacks.on_validation_single_iteration_start, callbacks.on_validation_single_iteration_end),
    "testing": (callbacks.on_testing_single_iteration_start, callbacks.on_testing_single_iteration_end),
    "predicting": (_begin_prediction, _end_prediction),
}


class Watch:
    """
    The spans of one run of *trainer*: a fit, a validation, a test or a prediction.

    An iteration is an optimizer step, with all batches over which gradients are accumulated.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._parts = Parts()
        self._patches = Patches()
        self._known_actions: dict[str, str] = {}
        self._checkpoints = Checkpoints(trainer, self._patches)
        self._is_checking = False
        self._step: int | None = None
        """The step of the open iteration; None if none is open."""
        self._is_in_batch = False
        self._evaluates = ""
        self._samples: int | None = None
        self._loss: Any = None
        self._patches.replace(trainer.profiler, "start", self._before_action)
        self._patches.replace(trainer.profiler, "stop", self._after_action)
        # Recent releases call this before each batch: a rank that is early waits here for those that are late.
        self._patches.replace(trainer.fit_loop.epoch_loop, "_broadcast_sigterm_tensor", self._broadcasting)
        # Lightning's loggers are called only on rank 0; this method is called on every rank, and without a logger too.
        self._patches.replace(getattr(trainer, "_logger_connector", None), "log_metrics", self._logging)

    def close(self) -> None:
        """Put the replaced methods back."""
        self._checkpoints.end_load()
        self._patches.remove()

    def _logging(self, log_metrics: Any) -> Any:
        def logged(values: Any, *args: Any, **kwargs: Any) -> Any:
            if values:  # there are none between the steps that are logged
                metrics(values, step=self.trainer.global_step - 1)
            return log_metrics(values, *args, **kwargs)

        return logged

    # --- the parts of a step -----------------------------------------------------------------------------------

    def _before_action(self, start: Any) -> Any:
        parts = self._parts

        def started(action_name: str) -> Any:
            part = self._part(action_name)
            if part and part != _OPTIMIZER_STEP and (part != span_names.MODEL_FORWARD or self._is_automatic()):
                parts.begin(part)
            return start(action_name)

        return started

    def _after_action(self, stop: Any) -> Any:
        parts = self._parts

        def stopped(action_name: str) -> Any:
            done = stop(action_name)
            part = self._part(action_name)
            if part:
                parts.end(span_names.OPTIMIZER_UPDATE if part == _OPTIMIZER_STEP else part)
            return done

        return stopped

    def _broadcasting(self, broadcast: Any) -> Any:
        def timed() -> None:
            began_ns = clock.now_ns()
            broadcast()
            self._parts.took(SIGTERM_BROADCAST, began_ns, waits=True)

        return timed

    def _part(self, action: str) -> str:
        """Return the part of the step that the profiler calls *action*; empty for none."""
        known = self._known_actions.get(action)
        if known is None:
            name = action.rpartition(".")[2]
            known = _OPTIMIZER_STEP if name == _OPTIMIZER_STEP else _ACTIONS.get(name, "")
            if action.startswith("[Callback]"):
                known = ""
            self._known_actions[action] = known
        return known

    def _is_automatic(self) -> bool:
        """Return whether Lightning runs the backward pass: if not, the training step is more than the forward pass."""
        return bool(getattr(self.trainer.lightning_module, "automatic_optimization", True))

    def backward_begins(self, loss: Any) -> None:
        """Open the backward pass from *loss*."""
        self._parts.begin_backward(loss)

    def backward_ended(self) -> None:
        """Close the backward pass."""
        self._parts.end(span_names.MODEL_BACKWARD)

    def optimizer_begins(self, _optimizer: Any) -> None:
        """Open the optimizer's step; the profiler's action of that name closes it."""
        self._parts.begin(span_names.OPTIMIZER_UPDATE)

    # --- training ----------------------------------------------------------------------------------------------

    def train_begins(self) -> None:
        """Open the training loop."""
        self._checkpoints.end_load()
        trainer = self.trainer
        self._parts.gpu = getattr(trainer.strategy.root_device, "type", "cpu") == "cuda"
        self._parts.is_shared = trainer.world_size > 1
        hyper_parameters = getattr(trainer.lightning_module, "hparams", None)
        if hyper_parameters:
            config(hyper_parameters)
        callbacks.on_train_start(
            train_iterations_start=trainer.global_step, train_iterations_target_or_fn=_target_of(trainer)
        )

    def train_ended(self) -> None:
        """Close the training loop; gradients that no optimizer has used by now are lost."""
        self._close_iteration(failed=True)
        callbacks.on_train_end()
        close_section_window()

    def batch_begins(self, *_batch: Any) -> None:
        """Open an iteration, unless the batch belongs to the open one."""
        if self._is_in_batch:
            self._close_iteration(failed=True)
        self._is_in_batch = True
        if self._step is None:
            self._step = self.trainer.global_step
            callbacks.on_training_single_iteration_start(step=self._step)

    def batch_ended(self, outputs: Any, batch: Any, *_place: Any) -> None:
        """Close the iteration, if the optimizer has stepped."""
        self._is_in_batch = False
        self._parts.end_all()
        if self._step is None:
            return
        samples = self._samples_of(batch)
        if samples is not None:
            self._samples = samples + (self._samples or 0)
        loss = _loss_in(outputs)
        if loss is not None:
            # Lightning has divided it by the number of batches that gradients are accumulated over.
            self._loss = loss if self._loss is None else self._loss + loss
        if self.trainer.global_step > self._step:
            self._close_iteration()

    def epoch_ended(self) -> None:
        """Close an iteration that is still open, because a batch that the model has refused has no end of its own."""
        if self._is_in_batch:
            self._close_iteration(failed=True)

    def _close_iteration(self, *, failed: bool = False) -> None:
        self._parts.end_all()
        self._is_in_batch = False
        if self._step is not None:
            callbacks.on_training_single_iteration_end(samples=self._samples, loss=self._loss, failed=failed)
        self._step = self._samples = self._loss = None

    def _samples_of(self, batch: Any) -> int | None:
        """Return the samples of *batch* over all ranks, as if the batches of the others were as large as ours."""
        found = samples_in(batch)
        spread = getattr(self.trainer.strategy, "distributed_sampler_kwargs", None) or {}
        return None if found is None else found * int(spread.get("num_replicas", 1))

    # --- evaluation --------------------------------------------------------------------------------------------

    def sanity_check_begins(self) -> None:
        """Open the trial of validation before training."""
        self._checkpoints.end_load()
        self._is_checking = True
        begin(span(SANITY_CHECK, priority=LIFECYCLE, badput_type="TRAINING_PREP"), None)

    def sanity_check_ended(self) -> None:
        """Close the trial of validation."""
        self._is_checking = False
        _end(SANITY_CHECK)

    def loop_begins(self, kind: str) -> None:
        """Open the loop of *kind*: ``validation``, ``testing`` or ``predicting``."""
        if not self._is_checking:
            self._checkpoints.end_load()
            _LOOPS[kind][0]()

    def loop_ended(self, kind: str) -> None:
        """Close the loop of *kind*."""
        if not self._is_checking:
            self._end_evaluation()
            _LOOPS[kind][1]()

    def evaluation_begins(self, kind: str, *_batch: Any, **_place: Any) -> None:
        """Open an iteration of the loop of *kind*; first close the one before, if Lightning has reported no end."""
        if self._is_checking:
            return
        self._end_evaluation()
        self._evaluates = kind
        _ITERATIONS[kind][0](step=None if self._step is not None else self.trainer.global_step - 1)

    def evaluation_ended(self, outputs: Any, batch: Any, *_place: Any, **_more: Any) -> None:
        """Close the iteration."""
        if self._evaluates:
            self._end_evaluation(samples=self._samples_of(batch), loss=_loss_in(outputs))

    def _end_evaluation(self, **done: Any) -> None:
        kind, self._evaluates = self._evaluates, ""
        if kind:
            _ITERATIONS[kind][1](**done)

    # --- the end -----------------------------------------------------------------------------------------------

    def failed(self, error: BaseException) -> None:
        """Close every open span with *error*, which ended the run, and flush the bus."""
        self._parts.end_all(error)
        end_with(error)
        self._step, self._is_in_batch, self._evaluates = None, False, ""
        close_section_window()
        default_bus.flush(_FLUSH_S)


def _target_of(trainer: Any) -> int | None:
    """Return the number of optimizer steps after which training ends; None if the trainer does not know it."""
    try:
        target = trainer.estimated_stepping_batches
    except Exception as error:  # it asks loaders, strategies and other callbacks
        if is_from_signal_handler(error):
            raise
        return None
    return target if isinstance(target, int) and target > 0 else None


def _loss_in(outputs: Any) -> Any:
    """Return the loss among the *outputs* of a step; None if they have no single number for it."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    size = getattr(loss, "numel", None)
    if isinstance(loss, float) or (size is not None and size() == 1):
        return loss
    return None


LOGGER: Final = logging.getLogger("trackside")

T = TypeVar("T", bound=type)

_MARK: Final = "trackside_callback"

_watching: Final[WeakKeyDictionary[Any, LightningHooks]] = WeakKeyDictionary()
"""By trainer, the callback that watches its present run; if there are several, the others do nothing."""


def _hook(record: Callable[..., None], *kind: str) -> Any:
    """
    Return a hook of Lightning's that calls *record* with the watch of the trainer in place of trainer and module.

    A *kind* of loop goes before Lightning's other arguments. Errors stay out of the training, unless the bus is strict;
    after one, the callback records no more of this run.
    """

    @functools.wraps(record)
    def hook(self: LightningHooks, trainer: Any, _module: Any, *args: Any, **kwargs: Any) -> None:
        watch = self._watch
        if watch is None or watch.trainer is not trainer:
            return
        try:
            record(watch, *kind, *args, **kwargs)
        except Exception as error:
            self._give_up(trainer, error)

    return hook


class LightningHooks:
    """
    Turn telemetry on and record what a trainer does, with no code in the model.

    ::

        trainer = Trainer(callbacks=[TracksideCallback("runs/")], ...)

    It records training, validation, testing and prediction with their iterations; loading data, forward, backward and
    the optimizer's step, as spans and as sections for straggler detection; checkpoints saved and loaded; the values
    that the model logs; and the exception that ended a run. Telemetry is on from the trainer's first run to the end of
    the process, or to `close`. If a trainer has several callbacks, only the first records. Errors in the callback are
    logged, and stay out of the training.

    Args:
        directory: The directory of the event log, the same on all ranks; None if the script turns telemetry on itself.
        job: The identity of the run, as `trackside.start` takes it; the trainer fills in missing fields.
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
        Return the callbacks of every trainer: none, unless the variable ``TRACKSIDE`` names a directory.

        This is the entry point that Lightning calls for callbacks.
        """
        directory = opted_in()
        return [] if directory is None else [cls(directory)]

    @classmethod
    def hook_trainer_cls(cls, trainer: T, callback: Any = None) -> tuple[T, Any]:
        """
        Add a callback to every trainer of the class *trainer* made from now on, before its other callbacks.

        ::

            hook_trainer_cls(Trainer)

        Args:
            trainer: The class; changed in place, once. If it has a callback already, or inherits one, it keeps that.
            callback: The callback; a new `TracksideCallback` unless given.

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
        """Turn telemetry on, and begin to watch the run that the trainer begins."""
        self._telemetry.begin(rank=trainer.global_rank, local_rank=trainer.local_rank, world_size=trainer.world_size)
        first = _watching.get(trainer)
        if first is not None and first is not self and first in trainer.callbacks:
            return
        try:
            if self._watch is not None:  # the run before ended with an exception that another callback kept from us
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

    def close(self) -> bool:
        """Turn off the telemetry turned on here, as at the process's end; return whether everything was written."""
        return self._telemetry.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close all open spans with the exception, flush the bus, and leave the trainer as it was found."""
        self._on_exception(trainer, pl_module, exception)
        self.teardown(trainer, pl_module, "")

    def _let_go(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            _watching.pop(watch.trainer, None)
            watch.close()

    def _give_up(self, trainer: Any, error: Exception) -> None:
        """Stop recording this run because of *error*; raise it if the bus is strict or a signal handler raised it."""
        if default_bus.strict or is_from_signal_handler(error):
            raise error
        LOGGER.warning("trackside records no more of this run", exc_info=error)
        _watching.pop(trainer, None)
        self._let_go()
        withhold(error)
        end_with(error)

    _on_exception = _hook(Watch.failed)

    on_train_start = _hook(Watch.train_begins)
    on_train_end = _hook(Watch.train_ended)
    on_train_epoch_end = _hook(Watch.epoch_ended)
    on_train_batch_start = _hook(Watch.batch_begins)
    on_train_batch_end = _hook(Watch.batch_ended)
    on_before_backward = _hook(Watch.backward_begins)
    on_after_backward = _hook(Watch.backward_ended)
    on_before_optimizer_step = _hook(Watch.optimizer_begins)
    on_sanity_check_start = _hook(Watch.sanity_check_begins)
    on_sanity_check_end = _hook(Watch.sanity_check_ended)
    on_validation_start = _hook(Watch.loop_begins, "validation")
    on_validation_end = _hook(Watch.loop_ended, "validation")
    on_validation_batch_start = _hook(Watch.evaluation_begins, "validation")
    on_validation_batch_end = _hook(Watch.evaluation_ended)
    on_test_start = _hook(Watch.loop_begins, "testing")
    on_test_end = _hook(Watch.loop_ended, "testing")
    on_test_batch_start = _hook(Watch.evaluation_begins, "testing")
    on_test_batch_end = _hook(Watch.evaluation_ended)
    on_predict_start = _hook(Watch.loop_begins, "predicting")
    on_predict_end = _hook(Watch.loop_ended, "predicting")
    on_predict_batch_start = _hook(Watch.evaluation_begins, "predicting")
    on_predict_batch_end = _hook(Watch.evaluation_ended)
