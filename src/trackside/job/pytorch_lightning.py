"""One line for a trainer of ``pytorch_lightning``: telemetry turned on, and the options that need models."""

from __future__ import annotations

from typing import Any

from trackside.instruments import pytorch_lightning as instrument
from trackside.job._hands_free import opted_in
from trackside.job._lightning import JobHooks, StragglerHooks


class TracksideCallback(JobHooks, instrument.TracksideCallback):
    """
    Turns telemetry on and tells what a trainer does.

    ::

        trainer = Trainer(callbacks=[TracksideCallback("runs/")], ...)

    Telemetry is on from the trainer's first run to the end of the process, or to `close`.

    Args:
        directory: Where the event log goes, the same on all ranks; None leaves it to the script to turn telemetry on.
        job: Who the run is, as `trackside.start` takes it; what it leaves open the trainer tells.
        handlers: Models, sinks and callables to subscribe.
        call_on_app_start: As the callback in `trackside.instruments.pytorch_lightning` has it.
    """


class StragglerDetectionCallback(StragglerHooks, instrument.TracksideCallback):
    """
    The resiliency extension's callback over trackside's parts: what `trackside.job._lightning.StragglerHooks` says.

    It needs no GPU, scores sections as well, and makes no rank wait for another but for *stop_if_detected*.
    """


def callbacks() -> list[Any]:
    """
    Return what every trainer gets: nothing, unless the variable ``TRACKSIDE`` says where telemetry is to go.

    The entry point that Lightning asks for callbacks.
    """
    directory = opted_in()
    return [] if directory is None else [TracksideCallback(directory)]
