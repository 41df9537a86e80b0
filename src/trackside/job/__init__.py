"""A job: the package that knows the bus, the instruments and the handlers, and combines them."""

from trackside.job._config import (
    PRESETS,
    JobConfig,
    LogConfig,
    Preset,
    RankHandler,
    Ranks,
    TrainingConfig,
    is_among,
    preset,
)
from trackside.job._inherit import join_parent
from trackside.job._remote_access import Remote, RemoteAccess
from trackside.job._start import AppliedConfig, Job, apply, running_job, set_training_config, start
from trackside.job._stragglers import StragglerWatch

__all__ = [
    "PRESETS",
    "AppliedConfig",
    "Job",
    "JobConfig",
    "LogConfig",
    "Preset",
    "RankHandler",
    "Ranks",
    "Remote",
    "RemoteAccess",
    "StragglerWatch",
    "TrainingConfig",
    "apply",
    "is_among",
    "join_parent",
    "preset",
    "running_job",
    "set_training_config",
    "start",
]
