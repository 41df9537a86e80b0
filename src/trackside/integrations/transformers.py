"""Transformers: a callback that turns telemetry on and records what its trainer does."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import re
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from trackside.bus import default_bus
from trackside.core import is_from_signal_handler
from trackside.events import LIFECYCLE, clock, span_names
from trackside.events._errors import needing_extra
from trackside.events._settings import suggests_settings
from trackside.instruments import callbacks, config, metrics
from trackside.instruments._checkpoint import CheckpointSave, checkpoint_load, checkpoint_save
from trackside.instruments._iteration import testing_iteration, validation_iteration
from trackside.instruments._moments import begin, end_with
from trackside.instruments._phases import testing_loop, validation_loop
from trackside.instruments._raised import withhold
from trackside.instruments._span import RunError, span
from trackside.instruments.section_windows import close_section_window
from trackside.instruments.torch import is_compiling
from trackside.integrations._auto_start import AutoStart, opted_in
from trackside.integrations._parts import Parts, Patches, samples_in, time_loading
from trackside.job import JobConfig

LOGGER: Final = logging.getLogger("trackside")

BEST_MODEL_LOAD: Final = "best_model_load"

_Method = Callable[..., Any]
_Find = Callable[[Any], Any]

_LOG, _EVALUATE, _SAVE = "log", "evaluate", "save"
_CHECKPOINT: Final = re.compile(r"checkpoint-([0-9]{1,12})/?$")
"""The name that a trainer gives the directory of a checkpoint, with the number of its steps."""
_MOST_REMEMBERED: Final = 100_000


class TrainerWatch:
    """
    The spans of one trainer.

    An iteration is an optimizer step. The trainer reports the ends of its actions and not their starts: its next action
    is read off its control flags, and begins at the trainer's last call.
    """

    def __init__(self) -> None:
        self._parts = Parts()
        self._undo: list[Callable[[], None]] = []
        self._is_training = False
        self._called_ns = 0
        """The time of the trainer's last call of a hook."""
        self._batches = self._samples = 0
        self._losses: list[Any] = []
        self._is_loss_a_share = False
        self._save: CheckpointSave | None = None
        self._expected: list[str] = []
        """The trainer's next actions, as its flags show them."""
        self._step = -1
        self._path = ""
        self._is_validating = False
        self._batch_from_ns = 0
        self._ends_ns: list[int] = []
        """The times when the batches of an evaluation outside training ended."""
        self._world_size = self._nominal = 1

    # --- training ----------------------------------------------------------------------------------------------

    def train_begins(self, args: Any, state: Any, model: Any, loader: Any) -> None:
        """Open the training loop."""
        if self._is_training:  # the loop before ended with an exception, which the trainer does not report
            error = RunError()
            withhold(error)
            self._parts.end_all(error)
            end_with(error)
        self.release()
        self._is_training = True
        self._world_size = int(args.world_size)
        self._parts.is_shared = self._world_size > 1
        self._nominal = int(args.train_batch_size) * int(args.gradient_accumulation_steps)
        self._parts.gpu = getattr(args.device, "type", "cpu") == "cuda"
        if hasattr(args, "to_sanitized_dict"):
            config(args.to_sanitized_dict())
        callbacks.on_train_start(
            train_iterations_start=state.global_step, train_iterations_target_or_fn=state.max_steps or None
        )
        if loader is not None:
            self._undo.append(time_loading(loader, self._parts, self._fetched))
        if hasattr(model, "register_forward_pre_hook"):
            handles = [
                model.register_forward_pre_hook(self._forward_begins, with_kwargs=True),
                model.register_forward_hook(self._forward_ended),
            ]
            self._undo += [handle.remove for handle in handles]
        self._mark_call()

    def train_ended(self, *_: Any) -> None:
        """Close the training loop."""
        self._parts.end_all()
        if self._is_training:
            callbacks.on_train_end()
            close_section_window()
        self.release()

    def release(self) -> None:
        """Leave model and loader as they were found."""
        self._is_training = False
        while self._undo:
            self._undo.pop()()
        self._forget_step()
        self._expected, self._is_validating, self._save, self._ends_ns = [], False, None, []

    def _forget_step(self) -> None:
        self._batches = self._samples = 0
        self._losses = []

    def _mark_call(self) -> None:
        self._called_ns = clock.now_ns()

    def _fetched(self, batch: Any) -> None:
        self._batches += 1
        self._samples += samples_in(batch) or 0

    def _forward_begins(self, model: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        if is_compiling() or not model.training:
            return
        self._is_loss_a_share = kwargs.get("num_items_in_batch") is not None
        self._parts.end(span_names.MODEL_BACKWARD)
        self._parts.begin(span_names.MODEL_FORWARD)

    def _forward_ended(self, model: Any, _args: Any, output: Any) -> None:
        if is_compiling() or not model.training:
            return
        self._parts.end(span_names.MODEL_FORWARD)
        loss = output.get("loss") if hasattr(output, "get") else None
        if loss is not None:
            self._losses.append(loss.detach())
        self._parts.begin_backward(loss)

    def step_begins(self, _args: Any, state: Any, _control: Any) -> None:
        """Open an iteration; all its batches have been fetched."""
        if not self._batches and self._called_ns and self._is_training:
            # A loader that the trainer made for the rest of an epoch: the wait is the time since its last call.
            self._parts.took(span_names.DATA_LOADING, self._called_ns)
        callbacks.on_training_single_iteration_start(step=state.global_step)
        self._mark_call()

    def backward_ended(self, *_: Any) -> None:
        """Close the backward pass of a batch after which the optimizer does not step."""
        self._parts.end(span_names.MODEL_BACKWARD)
        self._mark_call()

    def optimizer_begins(self, *_: Any) -> None:
        """Close the backward pass, and open the optimizer's step."""
        self._parts.end(span_names.MODEL_BACKWARD)
        self._parts.begin(span_names.OPTIMIZER_UPDATE)

    def optimizer_ended(self, *_: Any) -> None:
        """Close the optimizer's step."""
        self._parts.end(span_names.OPTIMIZER_UPDATE)

    def step_ended(self, args: Any, state: Any, control: Any) -> None:
        """Close the iteration, and begin the next action."""
        self._parts.end_all()
        samples = (self._samples if self._batches else self._nominal) * self._world_size
        callbacks.on_training_single_iteration_end(samples=samples or None, loss=self._loss())
        self._forget_step()
        self.comes_next(args, state, control)

    def _loss(self) -> Any:
        """Return the loss of the step: the sum of shares, or the mean of the batches' own."""
        if not self._losses:
            return None
        total = sum(self._losses[1:], self._losses[0])
        return total if self._is_loss_a_share or len(self._losses) == 1 else total / len(self._losses)

    # --- what the trainer does between steps -------------------------------------------------------------------

    def comes_next(self, args: Any, state: Any, control: Any) -> None:
        """Read the next actions off the flags, and begin the first."""
        due = {_LOG: control.should_log, _EVALUATE: control.should_evaluate, _SAVE: control.should_save}
        self._expected = [what for what, is_due in due.items() if is_due]
        self._step = state.global_step - 1
        self._path = f"{args.output_dir}/checkpoint-{state.global_step}"
        self._mark_call()
        self._begin_next()

    def _begin_next(self) -> None:
        if not self._is_training or not self._expected:
            return
        if self._expected[0] == _EVALUATE:
            self._begin_validation()
        elif self._expected[0] == _SAVE:
            self._save = checkpoint_save(self._step, path=self._path).open()

    def _done(self, what: str) -> None:
        """Begin the action after *what*, which the trainer did, perhaps without the actions expected before it."""
        if what in self._expected:
            del self._expected[: self._expected.index(what) + 1]
        self._mark_call()
        self._begin_next()

    def logged(self, state: Any, values: dict[str, Any]) -> None:
        """Record the values that the trainer logs."""
        metrics(values, step=state.global_step - 1)
        if not self._is_validating:
            self._done(_LOG)

    def saved(self, args: Any, state: Any, _control: Any) -> None:
        """Close the save."""
        save, self._save = self._save, None
        if save is None:  # no hook announced it
            path = f"{args.output_dir}/checkpoint-{state.global_step}"
            save = checkpoint_save(state.global_step - 1, path=path).open(at_ns=self._called_ns or None)
        save.close()
        self._done(_SAVE)

    # --- evaluation --------------------------------------------------------------------------------------------

    def _begin_validation(self) -> None:
        self._is_validating = True
        self._batch_from_ns = self._called_ns
        begin(validation_loop(), self._called_ns / 1e6)

    def predicted(self, *_: Any) -> None:
        """Record an iteration of an evaluation."""
        now_ns = clock.now_ns()
        if not self._is_training:
            # Its step is known only at its end, and the start of its first batch is not reported at all.
            if len(self._ends_ns) < _MOST_REMEMBERED:
                self._ends_ns.append(now_ns)
            return
        if not self._is_validating:
            self._begin_validation()
        validation_iteration(self._step).open(at_ns=self._batch_from_ns).close(at_ns=now_ns)
        self._batch_from_ns = now_ns

    def evaluated(self, *_: Any, is_prediction: bool = False) -> None:
        """Close the validation loop, or record the loop of an evaluation outside training, now that it is over."""
        if self._is_validating:
            self._is_validating = False
            callbacks.on_validation_end()
            self._done(_EVALUATE)
            return
        ends_ns, self._ends_ns = self._ends_ns, []
        if not ends_ns:
            return
        loop, iteration = (
            (testing_loop, testing_iteration) if is_prediction else (validation_loop, validation_iteration)
        )
        with contextlib.closing(loop().open(at_ns=ends_ns[0])):
            for began_ns, ended_ns in itertools.pairwise(ends_ns):
                iteration(self._step).open(at_ns=began_ns).close(at_ns=ended_ns)


def time_loads(trainer: Any, find: _Find, patches: Patches) -> None:
    """
    Replace the methods with which trainers load checkpoints, because there is no hook for that.

    If training continues from a checkpoint, the model is one load, and the state of optimizer and schedule another: the
    trainer's preparations between them are no loading.

    Args:
        trainer: The class of the trainers. A version that has other methods is not watched.
        find: Returns, for a trainer, the function that turns telemetry on when it is called with the trainer's
            arguments; None if the trainer is not watched.
        patches: Keeps the replaced methods.
    """
    patches.replace(trainer, "_load_from_checkpoint", lambda load: _timed(load, find, _model))
    patches.replace(trainer, "_load_optimizer_and_scheduler", lambda load: _timed(load, find, _optimizer))
    patches.replace(trainer, "_load_best_model", lambda load: _timed(load, find, _best_model))


def _timed(load: _Method, find: _Find, made: _Method) -> _Method:
    def timed(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        with _span_of(trainer, find, made, [*args, *kwargs.values()]):
            return load(trainer, *args, **kwargs)

    return timed


def _span_of(trainer: Any, find: _Find, made: _Method, given: list[Any]) -> AbstractContextManager[Any]:
    """Return the span of a load; an error of ours stays out of the training, unless the bus is strict."""
    try:
        begin = find(trainer)
        if begin is None:
            return nullcontext()
        begin(trainer.args)
        found: AbstractContextManager[Any] = made(trainer, given[0] if given else None)
    except Exception as error:
        if default_bus.strict or is_from_signal_handler(error):
            raise
        LOGGER.warning("trackside does not record this load", exc_info=error)
        return nullcontext()
    return found


def _model(_trainer: Any, checkpoint: Any) -> Any:
    return checkpoint_load(path=checkpoint, part="model")


def _optimizer(trainer: Any, checkpoint: Any) -> Any:
    if checkpoint is None:
        return nullcontext()
    # From 5.0 on the trainer already knows the number of steps in the checkpoint; the last of them is one less.
    named = _CHECKPOINT.search(str(checkpoint))
    step = trainer.state.global_step or (int(named[1]) if named else 0)
    last = step - 1 if isinstance(step, int) and step > 0 else None
    return checkpoint_load(last, path=checkpoint, part="optimizer")


def _best_model(trainer: Any, _given: Any) -> Any:
    # Not a checkpoint_load, which would mean that training continues from there: no work is undone.
    return span(BEST_MODEL_LOAD, priority=LIFECYCLE, path=str(trainer.state.best_model_checkpoint))


with needing_extra("Transformers", "transformers"):
    from transformers import Trainer, TrainerCallback

if TYPE_CHECKING:
    from trackside.events import Handler


_claims: Final[weakref.WeakKeyDictionary[Any, weakref.ref[Any]]] = weakref.WeakKeyDictionary()
"""By model, the callback that records it; if a trainer has several, the others do nothing."""
_patches: Final = Patches()
"""The patches of the trainer's class, made with the first callback: a checkpoint is loaded before any hook call."""


def _loading_of(trainer: Any) -> Any:
    """Return the method to call before a load of *trainer*, of the callback that records it; None if there is none."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TracksideCallback) and callback.is_watching:
            return callback.before_load
    return None


def _hook(record: Callable[..., None]) -> Callable[..., None]:
    """Return a hook of the trainer's that calls *record* with the callback's watch and the trainer's state."""

    def hook(
        self: TracksideCallback, args: Any, state: Any, control: Any, *_more: Any, model: Any = None, **_: Any
    ) -> None:
        self._record(record, model, args, state, control)

    return hook


@suggests_settings(job=JobConfig)
class TracksideCallback(TrainerCallback):  # type: ignore[misc]  # its types are not read
    """
    Turn telemetry on and record what a trainer does, with no code in the model.

    ::

        trainer = Trainer(callbacks=[TracksideCallback("runs/")], ...)

    It records training with its iterations (optimizer steps), loading data, forward, backward and the optimizer's step,
    as spans and as sections for straggler detection; evaluations, predictions, saved checkpoints, and those from which
    training continues. Errors in the callback are logged, and stay out of the training. Telemetry is on from the making
    of the trainer to the end of the process, or to `close`.

    Args:
        directory: The directory of the event log, the same on all ranks; by default the one in the variable
            ``TRACKSIDE``. If there is none, the script turns telemetry on itself.
        job: The identity of the run, as `trackside.start` takes it; the trainer fills in missing fields.
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
        """Whether it records its trainer; false after an error in the callback."""
        return self._watch is not None

    def before_load(self, args: Any) -> None:
        """Turn telemetry on before a checkpoint is loaded, perhaps before any hook is called."""
        self._begin(args)

    def _begin(self, args: Any) -> None:
        self._telemetry.begin(rank=args.process_index, local_rank=args.local_process_index, world_size=args.world_size)

    def close(self) -> bool:
        """Turn off the telemetry turned on here, as at the process's end; return whether everything was written."""
        return self._telemetry.end()

    def _record(self, method: Callable[..., None], model: Any, *args: Any) -> None:
        watch = self._watch
        if watch is None:
            return
        try:
            owner = _claims.get(model) if model is not None else None
            if owner is None or owner() is None:
                self._claim(model)
            elif owner() is not self:
                return
            method(watch, *args)
        except Exception as error:
            if default_bus.strict or is_from_signal_handler(error):
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
        """Turn telemetry on, and claim the model from the callback that watched it under another trainer."""
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
        """Turn telemetry on, if the callback was added after the trainer was made, and open the training loop."""
        self._begin(args)
        # Transformers 4.49.0 gives the loader only to the state.
        loader = getattr(state, "train_dataloader", None) if train_dataloader is None else train_dataloader
        self._record(TrainerWatch.train_begins, model, args, state, model, loader)

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
        """Publish the logged values."""
        self._record(TrainerWatch.logged, model, state, logs or {})

    on_train_end: Final = _hook(TrainerWatch.train_ended)
    on_epoch_end: Final = _hook(TrainerWatch.comes_next)
    on_step_begin: Final = _hook(TrainerWatch.step_begins)
    on_substep_end: Final = _hook(TrainerWatch.backward_ended)
    on_pre_optimizer_step: Final = _hook(TrainerWatch.optimizer_begins)
    on_optimizer_step: Final = _hook(TrainerWatch.optimizer_ended)
    on_step_end: Final = _hook(TrainerWatch.step_ended)
    on_save: Final = _hook(TrainerWatch.saved)
    on_prediction_step: Final = _hook(TrainerWatch.predicted)
    on_evaluate: Final = _hook(TrainerWatch.evaluated)
    on_predict: Final = _hook(functools.partial(TrainerWatch.evaluated, is_prediction=True))
