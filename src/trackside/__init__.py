"""
Telemetry for machine-learning training.

Training never notices trackside, and trackside never lies about what it lost.
"""

from __future__ import annotations

import importlib as _importlib
import os as _os
from typing import TYPE_CHECKING as _TYPE_CHECKING

from trackside.bus import (
    Aggregation,
    Bus,
    BusStats,
    Counter,
    HandlerStats,
    Subscription,
    all_of,
    any_of,
    at_most,
    close,
    collect,
    counter,
    counters,
    every,
    flush,
    fraction,
    log,
    observe,
    stats,
    subscribe,
    wants,
    where,
)
from trackside.events import (
    ITERATION,
    LIFECYCLE,
    PROFILE,
    ConfigError,
    Event,
    IterationEnded,
    Source,
    TracksideError,
    UnknownEvent,
    UnreadableError,
    __version__,
    event,
)
from trackside.instruments import (
    application,
    checkpoint_load,
    checkpoint_save,
    checkpoint_save_finalization,
    configure_sections,
    data_loading,
    dataloader_init,
    distributed_init,
    instrument,
    model_backward,
    model_forward,
    model_init,
    optimizer_init,
    optimizer_update,
    restore_callables,
    section,
    span,
    testing_iteration,
    testing_loop,
    time_collectives,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
    wrap_callables,
    zero_grad,
)

if _TYPE_CHECKING:
    from trackside.handlers import Capture, EventLog, JsonlSink, feed, follow, inspect, replay
    from trackside.handlers.zeromq import Attachment, attach
    from trackside.job import Job, JobConfig, StragglerWatch, TrainingConfig, set_training_config, start

__all__ = [
    "ITERATION",
    "LIFECYCLE",
    "PROFILE",
    "Aggregation",
    "Attachment",
    "Bus",
    "BusStats",
    "Capture",
    "ConfigError",
    "Counter",
    "Event",
    "EventLog",
    "HandlerStats",
    "IterationEnded",
    "Job",
    "JobConfig",
    "JsonlSink",
    "Source",
    "StragglerWatch",
    "Subscription",
    "TracksideError",
    "TrainingConfig",
    "UnknownEvent",
    "UnreadableError",
    "__version__",
    "all_of",
    "any_of",
    "application",
    "at_most",
    "attach",
    "checkpoint_load",
    "checkpoint_save",
    "checkpoint_save_finalization",
    "close",
    "collect",
    "configure_sections",
    "counter",
    "counters",
    "data_loading",
    "dataloader_init",
    "distributed_init",
    "event",
    "every",
    "feed",
    "flush",
    "follow",
    "fraction",
    "inspect",
    "instrument",
    "log",
    "model_backward",
    "model_forward",
    "model_init",
    "observe",
    "optimizer_init",
    "optimizer_update",
    "replay",
    "restore_callables",
    "section",
    "set_training_config",
    "span",
    "start",
    "stats",
    "subscribe",
    "testing_iteration",
    "testing_loop",
    "time_collectives",
    "training_iteration",
    "training_loop",
    "validation_iteration",
    "validation_loop",
    "wants",
    "where",
    "wrap_callables",
    "zero_grad",
]

# What a job does once, or somebody who reads, loads at its first use: importing costs what emitting needs.
_LATER = {
    "Attachment": "trackside.handlers.zeromq",
    "Capture": "trackside.handlers",
    "EventLog": "trackside.handlers",
    "Job": "trackside.job",
    "JobConfig": "trackside.job",
    "JsonlSink": "trackside.handlers",
    "StragglerWatch": "trackside.job",
    "TrainingConfig": "trackside.job",
    "attach": "trackside.handlers.zeromq",
    "feed": "trackside.handlers",
    "follow": "trackside.handlers",
    "inspect": "trackside.handlers",
    "replay": "trackside.handlers",
    "set_training_config": "trackside.job",
    "start": "trackside.job",
}


def __getattr__(name: str) -> object:
    """Load the module of a lazy name and keep the name, so that only its first use comes here."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(_importlib.import_module(_LATER[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return all public names, those too that nobody has used yet."""
    return sorted({*globals(), *__all__})


if "TRACKSIDE_JOB" in _os.environ:
    from trackside.job import join_parent as _join_parent

    _join_parent()
