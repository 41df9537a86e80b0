"""
Telemetry for machine-learning training.

Training never notices trackside, and trackside never lies about what it lost.
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING as _TYPE_CHECKING

from trackside._implementation import get_include, implementation
from trackside._later import load_later as _load_later
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
    TracksideError,
    __version__,
    event,
)

if _TYPE_CHECKING:
    from trackside.handlers import EventLog, JsonlSink, check_logs, feed, follow, replay
    from trackside.handlers.zeromq import attach
    from trackside.instruments import (
        application,
        checkpoint_load,
        checkpoint_save,
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
    from trackside.integrations.pytorch import instrument
    from trackside.job import JobConfig, Remote, TrainingConfig, start
    from trackside.rules import all_of, any_of, at_most, every, fraction, where

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
    "get_include",
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

# Names that a job needs once, or only a reader needs, load at their first use: the import loads what emitting needs.
_LATER = {
    "trackside.handlers": "EventLog JsonlSink check_logs feed follow replay",
    "trackside.handlers.zeromq": "attach",
    "trackside.instruments": (
        "application checkpoint_load checkpoint_save config data_loading dataloader_init distributed_init "
        "metrics model_backward model_forward model_init optimizer_init optimizer_update section span "
        "testing_iteration testing_loop training_iteration training_loop validation_iteration validation_loop "
        "zero_grad"
    ),
    "trackside.integrations": "integrations",
    "trackside.integrations.pytorch": "instrument",
    "trackside.job": "JobConfig Remote TrainingConfig start",
    "trackside.rules": "all_of any_of at_most every fraction where",
}


__getattr__, __dir__ = _load_later(__name__, _LATER)

if "TRACKSIDE_JOB" in _os.environ:
    from trackside.job import join_parent as _join_parent

    _join_parent()
