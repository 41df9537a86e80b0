"""A job: the room that knows the bus, the instruments and the handlers, and puts them together."""

from trackside.job._apply import AppliedConfig, apply, set_training_config
from trackside.job._config import JobConfig, RankHandler
from trackside.job._inherit import join_parent
from trackside.job._log_config import LogConfig
from trackside.job._presets import PRESETS, Preset, preset
from trackside.job._ranks import Ranks, is_among
from trackside.job._remote import Remote, RemoteAccess
from trackside.job._start import Job, running_job, start
from trackside.job._stragglers import StragglerWatch
from trackside.job._training_config import TrainingConfig

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
