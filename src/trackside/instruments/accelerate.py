"""The ``accelerate`` library: the one module that imports it."""

from __future__ import annotations

from typing import Any

from trackside.events import ConfigError
from trackside.instruments._accelerator import AcceleratorWatch
from trackside.instruments._logged import publish_logged
from trackside.instruments._taps import Taps

try:
    from accelerate import Accelerator, PartialState
    from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.tracking import GeneralTracker
except ImportError as missing:
    remedy = "it is an extra: pip install 'trackside[accelerate]'"
    raise ConfigError("accelerate", str(missing), remedy) from None


def ranks() -> dict[str, int]:
    """Return which of the processes this is, as accelerate knows it."""
    state = PartialState()
    return {
        "rank": state.process_index,
        "local_rank": state.local_process_index,
        "world_size": state.num_processes,
    }


class TracksideTracker(GeneralTracker):  # type: ignore[misc]  # its types are not read
    """
    Tells what a training loop under accelerate does and logs, on all its processes.

    ::

        accelerator = Accelerator(log_with=TracksideTracker())
        accelerator.init_trackers("my-project")

    From ``init_trackers`` to ``end_training``: iterations (optimizer steps), waits for data, forward, backward and the
    optimizer's step, as spans and sections; states saved and loaded; and what is logged, as an event and counters. Of
    several trackers of this kind the first does it all.
    """

    name = "trackside"
    requires_logging_directory = False
    main_process_only = False

    _started: TracksideTracker | None = None

    def __init__(self) -> None:
        super().__init__()
        self._watch: AcceleratorWatch | None = None
        self._is_told = False
        # Accelerate calls trackers on its main process alone, whatever they say of themselves.
        self._taps = Taps()
        self._taps.put(Accelerator, "init_trackers", self._on_all_start)
        self._taps.put(Accelerator, "log", self._on_all_log)

    def _on_all_start(self, init_trackers: Any) -> Any:
        def on_all(accelerator: Any, project_name: str, config: Any = None, *args: Any, **kwargs: Any) -> Any:
            done = init_trackers(accelerator, project_name, config, *args, **kwargs)
            if self in accelerator.log_with and self not in accelerator.trackers:
                accelerator.trackers.append(self)
                self.start()
                self.store_init_configuration(config or {})
            return done

        return on_all

    def _on_all_log(self, log: Any) -> Any:
        def on_all(accelerator: Any, values: dict[str, Any], step: int | None = None, *args: Any, **kwargs: Any) -> Any:
            self._is_told = False
            done = log(accelerator, values, step, *args, **kwargs)
            if self in accelerator.trackers and not self._is_told:
                self.log(values, step)
            return done

        return on_all

    @property
    def tracker(self) -> AcceleratorWatch | None:
        """What watches the loop; None before ``init_trackers`` and after ``end_training``."""
        return self._watch

    def start(self) -> None:
        """Begin to watch."""
        if TracksideTracker._started is None:
            TracksideTracker._started = self
            loaders = (DataLoaderShard, DataLoaderDispatcher)
            self._watch = AcceleratorWatch(Accelerator, AcceleratedOptimizer, loaders)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Publish the configuration, as an event named ``configuration``."""
        if self._watch is not None and values:
            publish_logged(values, -1, name="configuration", counts=False)

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Publish what is logged."""
        self._is_told = True
        if self._watch is not None:
            publish_logged(values, self._watch.step - 1 if step is None else step)

    def finish(self) -> None:
        """Close what is open, and leave accelerate as it was found."""
        self._taps.remove()
        watch, self._watch = self._watch, None
        if watch is not None:
            TracksideTracker._started = None
            watch.close()
