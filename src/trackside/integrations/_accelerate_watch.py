"""The spans of a loop under ``accelerate``; imports nothing of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trackside.bus import default_bus
from trackside.events import clock, span_names
from trackside.instruments import callbacks
from trackside.instruments._checkpoint import checkpoint_load, checkpoint_save
from trackside.instruments._moments import end_with
from trackside.instruments.section_windows import close_section_window
from trackside.integrations._parts import Parts, TimedBatches, samples_in
from trackside.integrations._patches import Patches

LOGGER: Final = logging.getLogger("trackside")

STEP_FILE: Final = "trackside.json"
"""What a saved state has besides: how many steps were done. Who loads it goes on counting there."""


class AcceleratorWatch:
    """
    The spans of a loop that is written by hand: there are no hooks, but the loop calls accelerate's methods.

    An iteration is a step of the optimizer. It begins with the batch of its first backward pass, so batches that are
    only looked at, as in an evaluation, begin none.

    Args:
        accelerator: The class ``Accelerator``.
        optimizer: The class of the optimizers that it prepares.
        loaders: The classes of the data loaders that it prepares.
    """

    def __init__(self, accelerator: Any, optimizer: Any, loaders: tuple[Any, ...]) -> None:
        self._parts = Parts()
        self.step = 0
        self._is_in_loop = self._is_in_iteration = False
        self._batch_ns = 0
        self._batch_samples = 0
        self._samples = 0
        self._losses: list[Any] = []
        self._is_off = False
        self._patches = Patches()
        self._patches.replace(accelerator, "backward", self._backward)
        self._patches.replace(accelerator, "save_state", self._save)
        self._patches.replace(accelerator, "load_state", self._load)
        self._patches.replace(optimizer, "step", self._optimizer_step)
        for loader in loaders:
            self._patches.replace(loader, "__iter__", self._iterate)

    def close(self) -> None:
        """Close what is open, and leave accelerate as it was found."""
        self._patches.remove()
        self._safely(self._end)

    def _end(self) -> None:
        self._close_iteration(failed=True)
        if self._is_in_loop:
            self._is_in_loop = False
            callbacks.on_train_end()
            close_section_window()

    def _safely(self, record: Callable[..., None], *args: Any) -> None:
        """Keep what *record* raises out of the training, unless the bus is strict; nothing more is recorded then."""
        if self._is_off:
            return
        try:
            record(*args)
        except Exception as error:
            if default_bus.strict:
                raise
            self._is_off = True
            LOGGER.warning("trackside records no more of this loop", exc_info=error)
            end_with(error)

    # --- data --------------------------------------------------------------------------------------------------

    def _iterate(self, iterate: Any) -> Any:
        def timed(loader: Any) -> Any:
            return TimedBatches(iter(iterate(loader)), self._parts, self._fetched)

        return timed

    def _fetched(self, batch: Any) -> None:
        self._batch_ns = clock.now_ns()
        self._batch_samples = samples_in(batch) or 0

    # --- the step ----------------------------------------------------------------------------------------------

    def _backward(self, backward: Any) -> Any:
        def timed(accelerator: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
            self._safely(self._backward_begins, accelerator, loss)
            try:
                return backward(accelerator, loss, *args, **kwargs)
            finally:
                self._safely(self._parts.end, span_names.MODEL_BACKWARD)

        return timed

    def _backward_begins(self, accelerator: Any, loss: Any) -> None:
        self._parts.gpu = getattr(accelerator.device, "type", "cpu") == "cuda"
        self._parts.is_shared = accelerator.num_processes > 1
        began_ns = self._batch_ns or clock.now_ns()
        began_ms = began_ns / 1e6
        if not self._is_in_loop:
            self._is_in_loop = True
            callbacks.on_train_start(train_iterations_start=self.step, start_time_msec=began_ms)
        if not self._is_in_iteration:
            self._is_in_iteration = True
            callbacks.on_training_single_iteration_start(began_ms, step=self.step)
        if self._batch_ns:
            self._parts.took(span_names.MODEL_FORWARD, began_ns)
        self._samples += self._batch_samples * int(accelerator.num_processes)
        self._batch_ns = self._batch_samples = 0
        if hasattr(loss, "detach"):
            self._losses.append(loss.detach())
        self._parts.begin_backward(loss)

    def _optimizer_step(self, step: Any) -> Any:
        def timed(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            # While gradients are accumulated the call does nothing.
            if not optimizer.gradient_state.sync_gradients:
                return step(optimizer, *args, **kwargs)
            self._safely(self._parts.begin, span_names.OPTIMIZER_UPDATE)
            try:
                done = step(optimizer, *args, **kwargs)
            finally:
                self._safely(self._parts.end, span_names.OPTIMIZER_UPDATE)
            self._safely(self._close_iteration)
            return done

        return timed

    def _close_iteration(self, *, failed: bool = False) -> None:
        self._parts.end_all()
        if self._is_in_iteration:
            losses = self._losses
            loss = sum(losses[1:], losses[0]) / len(losses) if losses else None
            callbacks.on_training_single_iteration_end(samples=self._samples or None, loss=loss, failed=failed)
            self.step += not failed
        self._is_in_iteration, self._samples, self._losses = False, 0, []

    # --- checkpoints -------------------------------------------------------------------------------------------

    def _save(self, save: Any) -> Any:
        def timed(accelerator: Any, output_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
            with checkpoint_save(self.step - 1, path=output_dir) as span:
                saved = save(accelerator, output_dir, *args, **kwargs)
                place = saved if isinstance(saved, (str, Path)) else output_dir
                if place is not None and Path(place).is_dir():
                    span.set(path=str(place))
                    if accelerator.is_main_process:
                        self._write(Path(place))
                return saved

        return timed

    def _write(self, place: Path) -> None:
        try:
            (place / STEP_FILE).write_text(json.dumps({"step": self.step}), encoding="utf-8")
        except OSError as error:
            LOGGER.warning("how many steps were done is not saved with the state: %s", error)

    def _load(self, load: Any) -> Any:
        def timed(accelerator: Any, input_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
            with checkpoint_load(path=input_dir) as span:
                loaded = load(accelerator, input_dir, *args, **kwargs)
                step = None if input_dir is None else _steps_done(Path(input_dir))
                if step is not None:
                    self.step = step
                    span.set(**{span_names.CURRENT_ITERATION: step - 1})
                return loaded

        return timed


def _steps_done(place: Path) -> int | None:
    """Return how many steps were done when the state in *place* was saved; None if it does not say."""
    try:
        step = json.loads((place / STEP_FILE).read_text(encoding="utf-8"))["step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) and step >= 0 else None
