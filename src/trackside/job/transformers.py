"""One line for a trainer of ``transformers``: telemetry turned on, and what the trainer does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trackside.instruments import transformers as instrument
from trackside.job._config import JobConfig
from trackside.job._hands_free import HandsFree, opted_in

if TYPE_CHECKING:
    from trackside.events import Handler


class TracksideCallback(instrument.TracksideCallback):
    """
    Turns telemetry on and tells what a trainer does.

    ::

        trainer = Trainer(callbacks=[TracksideCallback("runs/")], ...)

    Telemetry is on from when the trainer is made to the end of the process, or to `close`.

    Args:
        directory: Where the event log goes, the same on all ranks; where none is given, the variable ``TRACKSIDE``
            may say it, and else it is left to the script to turn telemetry on.
        job: Who the run is, as `trackside.start` takes it; what it leaves open the trainer tells.
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

    def on_init_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Turn telemetry on."""
        self._begin(args)
        super().on_init_end(args, state, control, **more)

    def before_load(self, args: Any) -> None:
        """Turn telemetry on, if the callback came later than the trainer."""
        self._begin(args)

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Turn telemetry on, if the callback came later than the trainer, and open the training loop."""
        self._begin(args)
        super().on_train_begin(args, state, control, **more)

    def _begin(self, args: Any) -> None:
        self._telemetry.begin(rank=args.process_index, local_rank=args.local_process_index, world_size=args.world_size)

    def close(self) -> None:
        """Turn off what was turned on here, as at the end of the process."""
        self._telemetry.end()
