"""The callback for Lightning Fabric: it turns telemetry on and records iterations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trackside.instruments import training_iteration
from trackside.integrations._auto_start import AutoStart, opted_in

if TYPE_CHECKING:
    from trackside.events import Handler
    from trackside.instruments._iteration import Iteration
    from trackside.job import JobConfig


class TracksideCallback:
    """
    Turns telemetry on when a model is set up, and records each training iteration.

    ::

        fabric = Fabric(callbacks=[TracksideCallback("runs/")], ...)
        model, optimizer = fabric.setup(model, optimizer)

    An iteration lasts from the first forward pass of a model in training to the end of an optimizer's step. Fabric has
    no hook for the parts of a step: to record those, use `trackside.instrument` instead.

    Args:
        directory: The directory of the event log, the same on all ranks; None if the script turns telemetry on itself.
        job: The identity of the run, as `trackside.start` takes it; Fabric fills in missing fields.
        handlers: Models, sinks and callables to subscribe.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        job: JobConfig | None = None,
        handlers: Sequence[Handler] = (),
    ) -> None:
        self._telemetry = AutoStart(directory, job, handlers)
        self._iteration: Iteration | None = None

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Turn telemetry on, and watch each forward pass of *module*."""
        self._telemetry.begin(rank=fabric.global_rank, local_rank=fabric.local_rank, world_size=fabric.world_size)
        module.register_forward_pre_hook(self._on_forward)

    def _on_forward(self, module: Any, _inputs: Any) -> None:
        if self._iteration is None and module.training:
            self._iteration = training_iteration()
            self._iteration.open()

    def on_after_optimizer_step(self, strategy: Any, optimizer: Any) -> None:  # noqa: ARG002  Fabric names them
        """End the iteration."""
        iteration, self._iteration = self._iteration, None
        if iteration is not None:
            iteration.close()

    def close(self) -> bool:
        """
        Turn off the telemetry that this callback turned on; without this call it ends with the process.

        Returns:
            Whether everything was written.
        """
        return self._telemetry.end()


def callbacks() -> list[Any]:
    """
    Return the callbacks of every ``Fabric``: none unless the variable ``TRACKSIDE`` names a directory.

    This is the entry point that Fabric calls for callbacks.
    """
    directory = opted_in()
    return [] if directory is None else [TracksideCallback(directory)]
