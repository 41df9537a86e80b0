"""The peer's enumerations, typed dictionaries and options."""

from __future__ import annotations

import enum
from typing import Any, TypedDict

import attrs


class BadputType(enum.Enum):
    """What time that is not productive was spent on."""

    TPU_INITIALIZATION = 1
    TRAINING_PREP = 2
    PROGRAM_STARTUP = 3
    DATA_LOADING_SYNC = 4
    DATA_LOADING_ASYNC = 5
    """In the background: reported beside the others, part of no sum."""
    UNPRODUCTIVE_CHECKPOINT_SAVE_TIME = 6
    UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME = 7
    WASTED_PROGRESS_FROM_DISRUPTION = 8
    INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION = 9
    CUSTOM_BADPUT_EVENTS = 10
    """Its value is a dictionary of type to time, and no number."""
    OTHER = 11
    ELASTIC_SLICE_DOWN = 12
    ELASTIC_SCALE_UP = 13
    ELASTIC_REINITIALIZATION = 14


class GoodputType(enum.Enum):
    """Kinds of productive time; only TOTAL exists."""

    TOTAL = 1


class MetricType(enum.Enum):
    """The keys of `get_job_goodput_details`."""

    GOODPUT_TIME = "goodput_time"
    BADPUT_TIME = "badput_time"
    MAX_PRODUCTIVE_STEP = "max_productive_step"
    TOTAL_ELAPSED_TIME = "total_elapsed_time"
    DISRUPTION_COUNT = "disruption_count"
    STEP_TIME_DEVIATION = "step_time_deviation"
    IDEAL_STEP_TIME = "ideal_step_time"
    TOTAL_EXCLUDED_TIME = "total_excluded_time"


class IntervalMetricType(enum.Enum):
    """The keys of `get_interval_metric_details`."""

    INTERVAL_GOODPUT = "interval_goodput"
    INTERVAL_BADPUT = "interval_badput"
    INTERVAL_SIZE = "interval_size"


class WorkloadMetricDetails(TypedDict):
    """What `get_job_goodput_details` returns; times are in seconds."""

    goodput_time: dict[GoodputType, float]
    badput_time: dict[BadputType, Any]
    max_productive_step: int
    total_elapsed_time: float
    disruption_count: int
    step_time_deviation: dict[int, float]
    ideal_step_time: float
    total_excluded_time: float


class IntervalWorkloadMetricDetails(TypedDict):
    """What `get_interval_metric_details` returns; shares are in percent."""

    interval_goodput: dict[GoodputType, float]
    interval_badput: dict[BadputType, Any]
    interval_size: int
    """In whole seconds."""


@attrs.define
class GCPOptions:
    """The peer's options for Google Cloud Monitoring; what a monitor cannot honour it names in a warning."""

    project_id: str | None = None
    location: str | None = None
    replica_id: str = "0"
    acc_type: str | None = None
    cluster_name: str | None = None
    enable_gcp_goodput_metrics: bool = True
    enable_gcp_step_deviation_metrics: bool = True
