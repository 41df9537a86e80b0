"""The package ``lightning``: a callback that turns telemetry on and records what a trainer does."""

from __future__ import annotations

from trackside.events import MissingExtraError
from trackside.integrations._lightning_hooks import LightningHooks
from trackside.integrations._lightning_stragglers import StragglerHooks
from trackside.job import JobConfig
from trackside.job._settings import suggests_settings

try:
    from lightning.pytorch import Callback
except ImportError as missing:
    raise MissingExtraError("Lightning", "lightning", missing) from None


@suggests_settings(job=JobConfig)
class TracksideCallback(LightningHooks, Callback):  # type: ignore[misc]  # noqa: D101  its types are not read
    __doc__ = LightningHooks.__doc__


class StragglerDetectionCallback(StragglerHooks, Callback):  # type: ignore[misc]  # noqa: D101  as above
    __doc__ = StragglerHooks.__doc__


callbacks = TracksideCallback.of_every_trainer
hook_trainer_cls = TracksideCallback.hook_trainer_cls
