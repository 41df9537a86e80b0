"""The package ``pytorch_lightning``: a callback that turns telemetry on and records what a trainer does."""

from __future__ import annotations

from typing import Any, TypeVar

from trackside.events import MissingExtraError
from trackside.integrations._auto_start import opted_in
from trackside.integrations._lightning import LightningHooks, hooked
from trackside.integrations._lightning_stragglers import StragglerHooks

try:
    from pytorch_lightning import Callback
except ImportError as missing:
    raise MissingExtraError("PyTorch Lightning", "pytorch-lightning", missing) from None

T = TypeVar("T", bound=type)


class TracksideCallback(LightningHooks, Callback):  # type: ignore[misc]  # its types are not read
    """
    Turn telemetry on and record what a trainer does, with no code in the model.

    ::

        trainer = Trainer(callbacks=[TracksideCallback("runs/")], ...)

    Training, validation, testing and prediction with their iterations; loading data, forward, backward and the
    optimizer's step, as spans and as sections for straggler detection; checkpoints saved and loaded; the values that
    the model logs; and the exception that ended it. Telemetry is on from the trainer's first run to the end of the
    process, or to `close`.

    Args:
        directory: Where the event log goes, the same on all ranks. None leaves it to the script to turn telemetry on.
        job: The identity of the run, as `trackside.start` takes it; the trainer fills in what it leaves open.
        handlers: Models, sinks and callables to subscribe.
        call_on_app_start: Open the application's span now, for a script that calls
            `trackside.instruments.callbacks.on_app_end` itself.
    """


class StragglerDetectionCallback(StragglerHooks, Callback):  # type: ignore[misc]  # as above
    """
    NVRx's callback over trackside's parts; its arguments are those of `StragglerHooks`.

    It needs no GPU, scores sections as well, and makes no rank wait for another but for *stop_if_detected*.
    """


def callbacks() -> list[Any]:
    """
    Return the callbacks of every trainer: none, unless the variable ``TRACKSIDE`` says where telemetry is to go.

    The entry point that Lightning asks for callbacks.
    """
    directory = opted_in()
    return [] if directory is None else [TracksideCallback(directory)]


def hook_trainer_cls(cls: T, callback: Any = None) -> tuple[T, Any]:
    """
    Add a `TracksideCallback` to every trainer of the class *cls* made from now on, before those that it is given.

    ::

        hook_trainer_cls(Trainer)

    Args:
        cls: The class; changed in place, once.
        callback: The callback, if it is to be another one.

    Returns:
        The class, and the callback that its trainers share.
    """
    return hooked(cls, callback or TracksideCallback())
