"""The peer's module of the monitor; it needs the extra ``tensorboard``."""

from __future__ import annotations

from collections.abc import Sequence

from trackside.compat.goodput._monitor import UploadingMonitor
from trackside.events import Handler
from trackside.handlers.tensorboard import TensorBoardSink

__all__ = ["GoodputMonitor"]


class GoodputMonitor(UploadingMonitor):
    """
    Publishes a job's goodput on an interval, for TensorBoard and on trackside's bus.

    Its arguments are those of `UploadingMonitor`. Rolling windows, which the peer draws in its cloud alone, are curves
    like the rest.
    """

    def _sinks(self, directory: str) -> Sequence[Handler]:
        return [TensorBoardSink(directory)]
