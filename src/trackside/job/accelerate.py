"""One line for a loop under ``accelerate``: telemetry turned on, and what the loop does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trackside.instruments import accelerate as instrument
from trackside.job._config import JobConfig
from trackside.job._hands_free import HandsFree, opted_in

if TYPE_CHECKING:
    from trackside.events import Handler


class TracksideTracker(instrument.TracksideTracker):
    """
    Turns telemetry on, on all processes, and tells what a training loop does and logs.

    ::

        accelerator = Accelerator(log_with=TracksideTracker("runs/"))
        accelerator.init_trackers("my-project")

    Telemetry is on from ``init_trackers`` to ``end_training``.

    Args:
        directory: Where the event log goes, the same on all processes; where none is given, the variable ``TRACKSIDE``
            may say it, and else it is left to the script to turn telemetry on.
        job: Who the run is, as `trackside.start` takes it; what it leaves open accelerate tells.
        handlers: Models, sinks and callables to subscribe.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        job: JobConfig | None = None,
        handlers: Sequence[Handler] = (),
    ) -> None:
        super().__init__()
        self._telemetry = HandsFree(opted_in() if directory is None else directory, job, handlers)

    def start(self) -> None:
        """Turn telemetry on, and begin to watch."""
        self._telemetry.begin(**instrument.ranks())
        super().start()

    def finish(self) -> None:
        """Close what is open, and turn off what was turned on here."""
        super().finish()
        self._telemetry.end()
