"""The package ``pytorch_lightning``: a callback that turns telemetry on and records what a trainer does."""

from __future__ import annotations

from typing import Final

from trackside.events._errors import needing_extra
from trackside.events._settings import suggests_settings
from trackside.integrations._lightning_hooks import LightningHooks
from trackside.integrations._lightning_stragglers import StragglerHooks
from trackside.job import JobConfig

with needing_extra("PyTorch Lightning", "pytorch-lightning"):
    from pytorch_lightning import Callback


@suggests_settings(job=JobConfig)
class TracksideCallback(LightningHooks, Callback):  # type: ignore[misc]  # noqa: D101  its types are not read
    __doc__ = LightningHooks.__doc__


class StragglerDetectionCallback(StragglerHooks, Callback):  # type: ignore[misc]  # noqa: D101  as above
    __doc__ = StragglerHooks.__doc__


callbacks: Final = TracksideCallback.of_every_trainer
hook_trainer_cls: Final = TracksideCallback.hook_trainer_cls
