"""Accelerate: a tracker that turns telemetry on and records what a training loop does and logs."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trackside.bus import default_bus
from trackside.core import is_from_signal_handler
from trackside.events import clock, span_names
from trackside.events._errors import needing_extra
from trackside.events._settings import suggests_settings
from trackside.instruments import callbacks, config, metrics
from trackside.instruments import torch as pytorch
from trackside.instruments._checkpoint import checkpoint_load, checkpoint_save
from trackside.instruments._moments import end_with, watched_loops
from trackside.instruments.section_windows import close_section_window
from trackside.integrations._auto_start import AutoStart, opted_in
from trackside.integrations._parts import Parts, Patches, TimedBatches, WatchedEvaluation, samples_in, watch_forward
from trackside.job import JobConfig

LOGGER: Final = logging.getLogger("trackside")

STEP_FILE: Final = "trackside.json"
"""A file that is added to a saved state, with the number of steps done; after a load, the count continues from it."""


class AcceleratorWatch:
    """
    The spans of a loop that is written by hand: there are no hooks, but the loop calls accelerate's methods.

    An iteration is a step of the optimizer. It begins with the batch of its first forward pass with gradients, so
    batches without such a pass begin none. Forward passes while no model is in training mode are a validation loop. It
    ends with the last of these passes before the next iteration or save.

    Args:
        accelerator: The class ``Accelerator``.
        optimizer: The class of the optimizers that it prepares.
        loaders: The classes of the data loaders that it prepares.
    """

    def __init__(self, accelerator: Any, optimizer: Any, loaders: tuple[Any, ...]) -> None:
        self._parts = Parts()
        self._evaluation = WatchedEvaluation()
        self._models: list[Any] = []
        self._hooks: list[Any] = []
        self.step: int = 0
        self._is_in_loop = self._is_in_iteration = False
        self._batch_ns = 0
        self._batch_samples = 0
        self._samples = 0
        self._losses: list[Any] = []
        self._is_off = False
        self._patches = Patches()
        self._patches.replace(accelerator, "prepare", self._prepare)
        self._patches.replace(accelerator, "backward", self._backward)
        self._patches.replace(accelerator, "save_state", self._save)
        self._patches.replace(accelerator, "load_state", self._load)
        self._patches.replace(optimizer, "step", self._optimizer_step)
        for loader in loaders:
            self._patches.replace(loader, "__iter__", self._iterate)
        watched_loops.append(self._end_with_job)

    def close(self) -> None:
        """Close all open spans, and leave accelerate as it was found."""
        watched_loops.remove(self._end_with_job)
        self._patches.remove()
        for hook in self._hooks:
            hook.remove()
        self._safely(self._end)

    def _end_with_job(self, error: BaseException | None) -> None:
        """End the evaluation and the open parts when the job ends; callbacks end the iteration and the loop."""
        is_training = self._is_training()
        self._evaluation.end(error=None if is_training else error)
        if error is not None:
            if is_training and self._batch_ns:
                self._safely(self._begin_iteration)
            self._safely(self._parts.end_all, error)

    def _end(self) -> None:
        self._evaluation.end()
        self._close_iteration(failed=True)
        if self._is_in_loop:
            self._is_in_loop = False
            callbacks.on_train_end()
            close_section_window()

    def _safely(self, record: Callable[..., None], *args: Any) -> None:
        """Keep errors of *record* out of training, except on a strict bus; after one, nothing more is recorded."""
        if self._is_off:
            return
        try:
            record(*args)
        except Exception as error:
            if default_bus.strict or is_from_signal_handler(error):
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

    # --- the models --------------------------------------------------------------------------------------------

    def _prepare(self, prepare: Any) -> Any:
        def watching(accelerator: Any, *args: Any, **kwargs: Any) -> Any:
            prepared = prepare(accelerator, *args, **kwargs)
            self._safely(self.watch_models, accelerator)
            return prepared

        return watching

    def watch_models(self, accelerator: Any) -> None:
        """Watch the forward passes of the models that *accelerator* has prepared until now."""
        self._parts.gpu = getattr(accelerator.device, "type", "cpu") == "cuda"
        self._parts.is_shared = accelerator.num_processes > 1
        for model in accelerator._models:  # noqa: SLF001  accelerate shows them nowhere else
            if not any(model is known for known in self._models):
                self._models.append(model)
                self._hooks += watch_forward(model, self._before_forward, self._after_forward)

    def _is_training(self) -> bool:
        return any(model.training for model in self._models)

    def _before_forward(self, module: Any, inputs: Any) -> None:
        self._safely(self._forward_begins, module, inputs)

    def _after_forward(self, _module: Any, _outputs: Any, error: BaseException | None) -> None:
        self._safely(self._forward_ends, error)

    def _forward_begins(self, module: Any, inputs: Any) -> None:
        if not self._is_training():
            self._evaluation.begin_batch(self._batch_samples or samples_in(inputs))
            self._batch_ns = self._batch_samples = 0
        elif module.training and pytorch.has_gradients():
            self._begin_iteration()
            self._parts.begin(span_names.MODEL_FORWARD)

    def _forward_ends(self, error: BaseException | None) -> None:
        self._parts.end(span_names.MODEL_FORWARD, error)
        if self._evaluation.is_open:
            self._evaluation.end_forward(error)

    # --- the step ----------------------------------------------------------------------------------------------

    def _begin_iteration(self) -> None:
        began_ms = (self._batch_ns or clock.now_ns()) / 1e6
        self._batch_ns = 0
        self._evaluation.end()
        if not self._is_in_loop:
            self._is_in_loop = True
            callbacks.on_train_start(train_iterations_start=self.step, start_time_msec=began_ms)
        if not self._is_in_iteration:
            self._is_in_iteration = True
            callbacks.on_training_single_iteration_start(began_ms, step=self.step)

    @contextmanager
    def _ending(self, part: str) -> Iterator[None]:
        """End *part* with the block, and with the exception that the block raises."""
        error = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._safely(self._parts.end, part, error)

    def _backward(self, backward: Any) -> Any:
        def timed(accelerator: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
            self._safely(self._backward_begins, accelerator, loss)
            with self._ending(span_names.MODEL_BACKWARD):
                return backward(accelerator, loss, *args, **kwargs)

        return timed

    def _backward_begins(self, accelerator: Any, loss: Any) -> None:
        self._begin_iteration()
        self._samples += self._batch_samples * int(accelerator.num_processes)
        self._batch_samples = 0
        if hasattr(loss, "detach"):
            self._losses.append(loss.detach())
        self._parts.begin_backward(loss)

    def _optimizer_step(self, step: Any) -> Any:
        def timed(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            # While gradients are accumulated the call does nothing.
            if not optimizer.gradient_state.sync_gradients:
                return step(optimizer, *args, **kwargs)
            self._safely(self._parts.begin, span_names.OPTIMIZER_UPDATE)
            with self._ending(span_names.OPTIMIZER_UPDATE):
                done = step(optimizer, *args, **kwargs)
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
            self._safely(self._evaluation.end)
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
    """Return how many steps were done when the state in *place* was saved; None if that is not recorded."""
    try:
        step = json.loads((place / STEP_FILE).read_text(encoding="utf-8"))["step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) and step >= 0 else None


with needing_extra("Accelerate", "accelerate"):
    from accelerate import Accelerator, PartialState
    from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.tracking import GeneralTracker


if TYPE_CHECKING:
    from trackside.events import Handler


def _ranks() -> dict[str, int]:
    """Return the ranks of this process and the number of processes, as accelerate knows them."""
    state = PartialState()
    return {
        "rank": state.process_index,
        "local_rank": state.local_process_index,
        "world_size": state.num_processes,
    }


@suggests_settings(job=JobConfig)
class TracksideTracker(GeneralTracker):  # type: ignore[misc]  # its types are not read
    """
    Turn telemetry on and record what a training loop does and logs, on all its processes.

    ::

        accelerator = Accelerator(log_with=TracksideTracker("runs/"))
        accelerator.init_trackers("my-project")

    It records iterations (optimizer steps), waits for data, forward, backward and the optimizer's step, as spans and
    sections; states saved and loaded; and logged values, as an event and counters. If there are several trackers of
    this kind, only the first records. Telemetry is on from ``init_trackers`` to ``end_training``.

    Args:
        directory: The directory of the event log, the same on all processes; by default the one in the variable
            ``TRACKSIDE``. If there is none, the script turns telemetry on itself.
        job: The identity of the run, as `trackside.start` takes it; accelerate fills in missing fields.
        handlers: Models, sinks and callables to subscribe.
    """

    name = "trackside"
    requires_logging_directory = False
    main_process_only = False

    _started: TracksideTracker | None = None

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        job: JobConfig | None = None,
        handlers: Sequence[Handler] = (),
    ) -> None:
        super().__init__()
        self._telemetry = AutoStart(opted_in() if directory is None else directory, job, handlers)
        self._watch: AcceleratorWatch | None = None
        self._is_started = self._is_logged = False
        # Accelerate calls trackers only on its main process, even those without ``main_process_only``.
        self._patches = Patches()
        self._patches.replace(Accelerator, "init_trackers", self._on_all_start)
        self._patches.replace(Accelerator, "log", self._on_all_log)

    def _on_all_start(self, init_trackers: Any) -> Any:
        def on_all(accelerator: Any, project_name: str, config: Any = None, *args: Any, **kwargs: Any) -> Any:
            done = init_trackers(accelerator, project_name, config, *args, **kwargs)
            # Accelerate starts trackers only since 1.8, and only on its main process.
            if self in accelerator.log_with and not self._is_started:
                if self not in accelerator.trackers:
                    accelerator.trackers.append(self)
                self.start()
                self.store_init_configuration(config or {})
            if self._watch is not None:
                self._watch.watch_models(accelerator)
            return done

        return on_all

    def _on_all_log(self, log: Any) -> Any:
        def on_all(accelerator: Any, values: dict[str, Any], step: int | None = None, *args: Any, **kwargs: Any) -> Any:
            self._is_logged = False
            done = log(accelerator, values, step, *args, **kwargs)
            if self in accelerator.trackers and not self._is_logged:
                self.log(values, step)
            return done

        return on_all

    @property
    def tracker(self) -> AcceleratorWatch | None:
        """The watch over the loop; None before ``init_trackers`` and after ``end_training``."""
        return self._watch

    def start(self) -> None:
        """Turn telemetry on, and begin to watch."""
        self._is_started = True
        self._telemetry.begin(**_ranks())
        if TracksideTracker._started is None:
            TracksideTracker._started = self
            loaders = (DataLoaderShard, DataLoaderDispatcher)
            self._watch = AcceleratorWatch(Accelerator, AcceleratedOptimizer, loaders)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Record the configuration."""
        if self._watch is not None and values:
            config(values)

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Record the logged values."""
        self._is_logged = True
        if self._watch is not None:
            metrics(values, step=self._watch.step - 1 if step is None else step)

    def finish(self) -> None:
        """Close all open spans, leave accelerate as it was found, and turn off the telemetry turned on here."""
        self._patches.remove()
        self._is_started = False
        watch, self._watch = self._watch, None
        if watch is not None:
            TracksideTracker._started = None
            watch.close()
        self._telemetry.end()
