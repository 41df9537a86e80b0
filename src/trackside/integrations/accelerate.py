"""Accelerate: a tracker that turns telemetry on and records what a training loop does and logs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trackside.events import MissingExtraError
from trackside.instruments import config, metrics
from trackside.integrations._accelerate_watch import AcceleratorWatch
from trackside.integrations._auto_start import AutoStart, opted_in
from trackside.integrations._patches import Patches

try:
    from accelerate import Accelerator, PartialState
    from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.tracking import GeneralTracker
except ImportError as missing:
    raise MissingExtraError("Accelerate", "accelerate", missing) from None


if TYPE_CHECKING:
    from trackside.events import Handler
    from trackside.job import JobConfig


def _ranks() -> dict[str, int]:
    """Return which of the processes this is, as accelerate knows it."""
    state = PartialState()
    return {
        "rank": state.process_index,
        "local_rank": state.local_process_index,
        "world_size": state.num_processes,
    }


class TracksideTracker(GeneralTracker):  # type: ignore[misc]  # its types are not read
    """
    Turn telemetry on and record what a training loop does and logs, on all its processes.

    ::

        accelerator = Accelerator(log_with=TracksideTracker("runs/"))
        accelerator.init_trackers("my-project")

    From ``init_trackers`` to ``end_training``: iterations (optimizer steps), waits for data, forward, backward and the
    optimizer's step, as spans and sections; states saved and loaded; and what is logged, as an event and counters. Of
    several trackers of this kind the first does it all. Telemetry is on from ``init_trackers`` to ``end_training``.

    Args:
        directory: Where the event log goes, the same on all processes. Where none is given, the variable ``TRACKSIDE``
            may say it; else it is left to the script to turn telemetry on.
        job: The identity of the run, as `trackside.start` takes it; accelerate fills in what it leaves open.
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
        # Accelerate calls trackers on its main process alone, whatever they say of themselves.
        self._patches = Patches()
        self._patches.replace(Accelerator, "init_trackers", self._on_all_start)
        self._patches.replace(Accelerator, "log", self._on_all_log)

    def _on_all_start(self, init_trackers: Any) -> Any:
        def on_all(accelerator: Any, project_name: str, config: Any = None, *args: Any, **kwargs: Any) -> Any:
            done = init_trackers(accelerator, project_name, config, *args, **kwargs)
            # Accelerate starts trackers since 1.8, and on its main process alone.
            if self in accelerator.log_with and not self._is_started:
                if self not in accelerator.trackers:
                    accelerator.trackers.append(self)
                self.start()
                self.store_init_configuration(config or {})
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
        """What watches the loop; None before ``init_trackers`` and after ``end_training``."""
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
        """Record what is logged."""
        self._is_logged = True
        if self._watch is not None:
            metrics(values, step=self._watch.step - 1 if step is None else step)

    def finish(self) -> None:
        """Close what is open, leave accelerate as it was found, and turn off what was turned on here."""
        self._patches.remove()
        self._is_started = False
        watch, self._watch = self._watch, None
        if watch is not None:
            TracksideTracker._started = None
            watch.close()
        self._telemetry.end()
