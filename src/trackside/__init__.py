"""
Telemetry for machine-learning training.

Training never notices trackside, and trackside never lies about what it lost.
"""

from __future__ import annotations

import importlib as _importlib
import os as _os
from typing import TYPE_CHECKING as _TYPE_CHECKING

from trackside._implementation import implementation
from trackside.bus import (
    Bus,
    close,
    collect,
    counter,
    flush,
    gauge,
    log,
    stat,
    stats,
    subscribe,
    wants,
)
from trackside.events import (
    ITERATION,
    LIFECYCLE,
    PROFILE,
    ConfigError,
    Event,
    IterationEnded,
    RunsOn,
    Source,
    TracksideError,
    __version__,
    event,
)
from trackside.instruments import (
    application,
    checkpoint_load,
    checkpoint_save,
    checkpoint_save_finalization,
    config,
    data_loading,
    dataloader_init,
    distributed_init,
    metrics,
    model_backward,
    model_forward,
    model_init,
    optimizer_init,
    optimizer_update,
    section,
    span,
    testing_iteration,
    testing_loop,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
    zero_grad,
)
from trackside.rules import all_of, any_of, at_most, every, fraction, where

if _TYPE_CHECKING:
    from trackside.handlers import EventLog, JsonlSink, check_logs, feed, follow, replay
    from trackside.handlers.zeromq import attach
    from trackside.job import JobConfig, StragglerWatch, TrainingConfig, start

__all__ = [
    "ITERATION",
    "LIFECYCLE",
    "PROFILE",
    "Bus",
    "ConfigError",
    "Event",
    "EventLog",
    "IterationEnded",
    "JobConfig",
    "JsonlSink",
    "Remote",
    "RunsOn",
    "Source",
    "StragglerWatch",
    "TracksideError",
    "TrainingConfig",
    "__version__",
    "all_of",
    "any_of",
    "application",
    "at_most",
    "attach",
    "check_logs",
    "checkpoint_load",
    "checkpoint_save",
    "checkpoint_save_finalization",
    "close",
    "collect",
    "config",
    "counter",
    "data_loading",
    "dataloader_init",
    "distributed_init",
    "event",
    "every",
    "feed",
    "flush",
    "follow",
    "fraction",
    "gauge",
    "implementation",
    "instrument",
    "log",
    "metrics",
    "model_backward",
    "model_forward",
    "model_init",
    "optimizer_init",
    "optimizer_update",
    "replay",
    "section",
    "span",
    "start",
    "stat",
    "stats",
    "subscribe",
    "testing_iteration",
    "testing_loop",
    "training_iteration",
    "training_loop",
    "validation_iteration",
    "validation_loop",
    "wants",
    "where",
    "zero_grad",
]

# Names that a job needs once, or only a reader needs, load at their first use: an import costs what emitting needs.
_LATER = {
    "EventLog": "trackside.handlers",
    "JobConfig": "trackside.job",
    "JsonlSink": "trackside.handlers",
    "StragglerWatch": "trackside.job",
    "TrainingConfig": "trackside.job",
    "attach": "trackside.handlers.zeromq",
    "feed": "trackside.handlers",
    "follow": "trackside.handlers",
    "instrument": "trackside.integrations.pytorch",
    "check_logs": "trackside.handlers",
    "Remote": "trackside.job",
    "replay": "trackside.handlers",
    "start": "trackside.job",
}


def __getattr__(name: str) -> object:
    """Load the module of a lazy name and keep the name, so that only its first use comes here."""
    if name == "integrations":  # a room, so that its modules can be named without an import of their own
        return _importlib.import_module("trackside.integrations")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(_importlib.import_module(_LATER[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return all public names, also those that have not been used yet."""
    return sorted({*globals(), *__all__})


if "TRACKSIDE_JOB" in _os.environ:
    from trackside.job import join_parent as _join_parent

    _join_parent()
