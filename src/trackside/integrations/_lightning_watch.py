"""The state of one run of a trainer: the open spans, and the work done in the open iteration so far."""

from __future__ import annotations

from typing import Any, Final

from trackside.bus import default_bus
from trackside.events import LIFECYCLE, span_names
from trackside.instruments import callbacks, config, metrics
from trackside.instruments._moments import begin, end, end_with, take
from trackside.instruments._span import span
from trackside.instruments.section_windows import close_section_window
from trackside.integrations._lightning_checkpoints import Checkpoints
from trackside.integrations._parts import Parts, samples_in
from trackside.integrations._patches import Patches

SANITY_CHECK: Final = "sanity_check"
PREDICTING_LOOP: Final = "predicting_loop"
PREDICTING_ITERATION: Final = "predicting_single_iteration"

# What the trainer's profiler calls the actions that there is no hook for. The class names before these are the loop's,
# the strategy's and the model's own.
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
    found = take(name)
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

    An iteration is an optimizer step, of as many batches as gradients are accumulated over.
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
        # Lightning's loggers are called on rank 0 alone; every rank and every trainer without a logger passes by here.
        self._patches.replace(getattr(trainer, "_logger_connector", None), "log_metrics", self._logging)

    def close(self) -> None:
        """Put back what stood where this stood in."""
        self._checkpoints.end_load()
        self._patches.remove()

    def _logging(self, log_metrics: Any) -> Any:
        def logged(values: Any, *args: Any, **kwargs: Any) -> Any:
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

    def _part(self, action: str) -> str:
        """Return the part of the step that the profiler's *action* is; empty for none."""
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
        """Learn that a backward pass from *loss* begins."""
        self._parts.begin_backward(loss)

    def backward_ended(self) -> None:
        """Learn that it ended."""
        self._parts.end(span_names.MODEL_BACKWARD)

    def optimizer_begins(self) -> None:
        """Learn that the gradients are there, and the optimizer is about to use them."""
        self._parts.begin(span_names.OPTIMIZER_UPDATE)

    # --- training ----------------------------------------------------------------------------------------------

    def train_begins(self) -> None:
        """Learn that the training loop begins."""
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
        """Learn that it ended; gradients that no optimizer has used by now are lost."""
        self._close_iteration(failed=True)
        callbacks.on_train_end()
        close_section_window()

    def batch_begins(self) -> None:
        """Learn that a batch begins."""
        if self._is_in_batch:
            self._close_iteration(failed=True)
        self._is_in_batch = True
        if self._step is None:
            self._step = self.trainer.global_step
            callbacks.on_training_single_iteration_start(step=self._step)

    def batch_ended(self, outputs: Any, batch: Any) -> None:
        """Learn that a batch ended, and with it the iteration, if the optimizer has stepped."""
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
        """Learn that an epoch ended: a batch that the model has refused has no end of its own."""
        if self._is_in_batch:
            self._close_iteration(failed=True)

    def _close_iteration(self, *, failed: bool = False) -> None:
        self._parts.end_all()
        self._is_in_batch = False
        if self._step is not None:
            callbacks.on_training_single_iteration_end(samples=self._samples, loss=self._loss, failed=failed)
        self._step = self._samples = self._loss = None

    def _samples_of(self, batch: Any) -> int | None:
        """Return the samples of *batch* over all ranks: the others' batches are taken to be as large as ours."""
        found = samples_in(batch)
        spread = getattr(self.trainer.strategy, "distributed_sampler_kwargs", None) or {}
        return None if found is None else found * int(spread.get("num_replicas", 1))

    # --- evaluation --------------------------------------------------------------------------------------------

    def sanity_check_begins(self) -> None:
        """Learn that validation is tried out before training."""
        self._checkpoints.end_load()
        self._is_checking = True
        begin(span(SANITY_CHECK, priority=LIFECYCLE, badput_type="TRAINING_PREP"), None)

    def sanity_check_ended(self) -> None:
        """Learn that the trial is over."""
        self._is_checking = False
        _end(SANITY_CHECK)

    def loop_begins(self, kind: str) -> None:
        """Learn that a loop of *kind* begins: ``validation``, ``testing`` or ``predicting``."""
        if not self._is_checking:
            self._checkpoints.end_load()
            _LOOPS[kind][0]()

    def loop_ended(self, kind: str) -> None:
        """Learn that it ended."""
        if not self._is_checking:
            self._end_evaluation()
            _LOOPS[kind][1]()

    def evaluation_begins(self, kind: str) -> None:
        """Learn that a batch of such a loop begins; for one whose step returned nothing Lightning may report no end."""
        if self._is_checking:
            return
        self._end_evaluation()
        self._evaluates = kind
        _ITERATIONS[kind][0](step=None if self._step is not None else self.trainer.global_step - 1)

    def evaluation_ended(self, outputs: Any, batch: Any) -> None:
        """Learn that it ended."""
        if self._evaluates:
            self._end_evaluation(samples=self._samples_of(batch), loss=_loss_in(outputs))

    def _end_evaluation(self, **done: Any) -> None:
        kind, self._evaluates = self._evaluates, ""
        if kind:
            _ITERATIONS[kind][1](**done)

    # --- the end -----------------------------------------------------------------------------------------------

    def failed(self, error: BaseException) -> None:
        """Learn that *error* ended the run: it ends every open span, and what is known is written."""
        self._parts.fail(error)
        end_with(error)
        self._step, self._is_in_batch, self._evaluates = None, False, ""
        close_section_window()
        default_bus.flush(_FLUSH_S)


def _target_of(trainer: Any) -> int | None:
    """Return after how many optimizer steps training is to end; None if the trainer does not know."""
    try:
        target = trainer.estimated_stepping_batches
    except Exception:  # it asks loaders, strategies and other callbacks
        return None
    return target if isinstance(target, int) and target > 0 else None


def _loss_in(outputs: Any) -> Any:
    """Return the loss among the *outputs* of a step; None if there is no single number that can be it."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    size = getattr(loss, "numel", None)
    if isinstance(loss, float) or (size is not None and size() == 1):
        return loss
    return None
