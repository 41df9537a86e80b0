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

# Names that a job needs once, or only a reader needs, load at their first use: an import costs what emitting needs.
_LATER = {
    "EventLog": "trackside.handlers",
    "JobConfig": "trackside.job",
    "JsonlSink": "trackside.handlers",
    "Remote": "trackside.job",
    "TrainingConfig": "trackside.job",
    "all_of": "trackside.rules",
    "any_of": "trackside.rules",
    "application": "trackside.instruments",
    "at_most": "trackside.rules",
    "attach": "trackside.handlers.zeromq",
    "check_logs": "trackside.handlers",
    "checkpoint_load": "trackside.instruments",
    "checkpoint_save": "trackside.instruments",
    "config": "trackside.instruments",
    "data_loading": "trackside.instruments",
    "dataloader_init": "trackside.instruments",
    "distributed_init": "trackside.instruments",
    "every": "trackside.rules",
    "feed": "trackside.handlers",
    "follow": "trackside.handlers",
    "fraction": "trackside.rules",
    "instrument": "trackside.integrations.pytorch",
    "integrations": "trackside.integrations",
    "metrics": "trackside.instruments",
    "model_backward": "trackside.instruments",
    "model_forward": "trackside.instruments",
    "model_init": "trackside.instruments",
    "optimizer_init": "trackside.instruments",
    "optimizer_update": "trackside.instruments",
    "replay": "trackside.handlers",
    "section": "trackside.instruments",
    "span": "trackside.instruments",
    "start": "trackside.job",
    "testing_iteration": "trackside.instruments",
    "testing_loop": "trackside.instruments",
    "training_iteration": "trackside.instruments",
    "training_loop": "trackside.instruments",
    "validation_iteration": "trackside.instruments",
    "validation_loop": "trackside.instruments",
    "where": "trackside.rules",
    "zero_grad": "trackside.instruments",
}


__getattr__, __dir__ = _load_later(__name__, _LATER)

if "TRACKSIDE_JOB" in _os.environ:
    from trackside.job import join_parent as _join_parent

    _join_parent()
