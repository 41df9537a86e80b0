"""Lightning, as the package ``pytorch_lightning``: the one module that imports it."""

from __future__ import annotations

from typing import Any, TypeVar

from trackside.events import ConfigError
from trackside.instruments._lightning import LightningHooks, hooked

try:
    from pytorch_lightning import Callback
except ImportError as missing:
    remedy = "it is an extra: pip install 'trackside[pytorch-lightning]'"
    raise ConfigError("pytorch_lightning", str(missing), remedy) from None

T = TypeVar("T", bound=type)


class TracksideCallback(LightningHooks, Callback):  # type: ignore[misc]  # its types are not read
    """
    Tells what a trainer does, with no code in the model.

    ::

        trainer = Trainer(callbacks=[TracksideCallback()], ...)

    Training, validation, testing and prediction with their iterations; loading data, forward, backward and the
    optimizer's step, as spans and as sections for straggler detection; checkpoints saved and loaded; and what ended it.

    Args:
        call_on_app_start: Open the application's span now, for a script that calls
            `trackside.instruments.callbacks.on_app_end` itself.
    """


def hook_trainer_cls(cls: T, callback: Any = None) -> tuple[T, Any]:
    """
    Give every trainer of the class *cls* made from now on a `TracksideCallback`, before those that it is given.

    ::

        hook_trainer_cls(Trainer)

    Args:
        cls: The class; changed in place, once.
        callback: The callback, if it is to be another one.

    Returns:
        The class, and the callback that its trainers share.
    """
    return hooked(cls, callback or TracksideCallback())
