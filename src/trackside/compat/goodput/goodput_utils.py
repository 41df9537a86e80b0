"""The peer's enumerations, typed dictionaries and options."""

from __future__ import annotations

import datetime
import enum
import logging
import os
import statistics
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

import attrs

logger: logging.Logger = logging.getLogger(__name__)


class BadputType(enum.Enum):
    """The cause of unproductive time."""

    TPU_INITIALIZATION = 1
    TRAINING_PREP = 2
    PROGRAM_STARTUP = 3
    DATA_LOADING_SYNC = 4
    DATA_LOADING_ASYNC = 5
    """Loading in the background: reported beside the others, and part of no sum."""
    UNPRODUCTIVE_CHECKPOINT_SAVE_TIME = 6
    UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME = 7
    WASTED_PROGRESS_FROM_DISRUPTION = 8
    INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION = 9
    CUSTOM_BADPUT_EVENTS = 10
    """Its value is a dictionary of times by type, not a number."""
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
    """The result of `get_job_goodput_details`; times are in seconds."""

    goodput_time: dict[GoodputType, float]
    badput_time: dict[BadputType, Any]
    max_productive_step: int
    total_elapsed_time: float
    disruption_count: int
    step_time_deviation: dict[int, float]
    ideal_step_time: float
    total_excluded_time: float


class IntervalWorkloadMetricDetails(TypedDict):
    """The result of `get_interval_metric_details`; shares are in percent."""

    interval_goodput: dict[GoodputType, float]
    interval_badput: dict[BadputType, Any]
    interval_size: int
    """In whole seconds."""


class ElasticWorkloadMetricDetails(WorkloadMetricDetails, total=False):
    """The result of `get_job_goodput_details` for an elastic job; efficiencies are from 0 to 1."""

    stepping_slice_efficiency: float
    available_slice_efficiency: float


class MonitoringWindowType(enum.Enum):
    """Whether `compute_step_deviation_from_baseline` compares the latest steps with a baseline."""

    CUMULATIVE = "cumulative"
    INTERVAL = "interval"


@attrs.define
class GCPOptions:
    """
    The metrics that a monitor sends to Google Cloud Monitoring, and their owner.

    Missing values are read from the machine's metadata, if it is one of Google's.
    """

    project_id: str | None = None
    location: str | None = None
    replica_id: str = "0"
    acc_type: str | None = None
    cluster_name: str | None = None
    enable_gcp_goodput_metrics: bool = True
    enable_gcp_step_deviation_metrics: bool = True


_MIN_IDEAL_S: Final = 1.0
"""The peer ignores shorter steps."""
_RECENT, _BASELINE, _SPIKE = 100, 1000, 90


def get_timestamp_from_log_entry(entry: Mapping[str, Any]) -> datetime.datetime | None:
    """Return the time of a record: its first field whose name has ``time`` in it. None if there is none."""
    found = next((value for name, value in entry.items() if "time" in name), None)
    return None if found is None else datetime.datetime.fromtimestamp(found, datetime.timezone.utc)


def compute_percentile(values: Sequence[float], percentile: float) -> float:
    """Return a percentile, from 0 to 100, interpolated between the two nearest values; 0.0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    below, share = divmod((len(ordered) - 1) * percentile / 100, 1)
    lower = ordered[int(below)]
    return lower + share * (ordered[min(int(below) + 1, len(ordered) - 1)] - lower)


def compute_ideal_step_time(step_times: Sequence[float]) -> float | None:
    """Return the mean of the steps, in seconds, without slow ones and those below 1 s; None if none is left."""
    long = [length for length in step_times if length >= _MIN_IDEAL_S]
    if not long:
        return None
    middle = statistics.median(long)
    most = middle + 3 * statistics.median(abs(length - middle) for length in long)
    return statistics.fmean(length for length in long if length <= most)


def compute_step_deviation_from_baseline(
    step_time_deviation: Mapping[int, float],
    mode: MonitoringWindowType = MonitoringWindowType.CUMULATIVE,
    recent_window_size: int = _RECENT,
    baseline_window_size: int = _BASELINE,
    spike_percentile: int = _SPIKE,
) -> float:
    """
    Return by how many seconds the latest steps deviate more than the steps before them.

    Args:
        step_time_deviation: The deviations by step, in order, in seconds.
        mode: Whether to subtract a baseline, if there are enough steps for one.
        recent_window_size: The number of the latest steps.
        baseline_window_size: The number of steps before them, which are the baseline.
        spike_percentile: The percentile of the latest steps that counts, from 0 to 100.
    """
    deviations = [abs(value) for value in step_time_deviation.values()]
    if len(deviations) < _RECENT:
        return statistics.fmean(deviations) if deviations else 0.0
    spike = compute_percentile(deviations[-recent_window_size:], spike_percentile)
    has_baseline = len(deviations) >= recent_window_size + baseline_window_size > recent_window_size
    if mode is MonitoringWindowType.INTERVAL or not has_baseline:
        return spike
    first = -(recent_window_size + baseline_window_size)
    return spike - statistics.median(deviations[first:-recent_window_size])


# --- what a machine of Google's says about itself ---------------------------------------------------------------------

_METADATA_HOST: Final = "169.254.169.254"
"""The numeric address: on another machine, looking up the name would take longer than the timeout."""
_METADATA_BYTES: Final = 4096
_METADATA_S: Final = 1.0

MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING: Final = {
    "tpu7x": "TPU-7x",
    "ct6e": "TPU-v6e",
    "ct5p": "TPU-v5p",
    "ct5l": "TPU-v5e",
    "ct4p": "TPU-v4p",
    "ct3": "TPU-v3",
    "tpu-v2": "TPU-v2",
    "tpu": "TPU",
    "a3-ultragpu": "NVIDIA-H200",
    "a3-": "NVIDIA-H100",
    "a2": "NVIDIA-A100",
    "gpu": "GPU",
}
"""By a part of the machine type's name; the first that fits counts. The names are those of the peer's dashboards."""


def get_gcp_metadata(category: str, attribute: str, timeout: float = _METADATA_S) -> str | None:
    """
    Return a value from the machine's metadata server; None after *timeout* seconds, or if it is not Google's.

    ``GCE_METADATA_HOST`` names another server, as it does for Google's own libraries.
    """
    host = os.environ.get("GCE_METADATA_HOST") or _METADATA_HOST
    url = f"http://{host}/computeMetadata/v1/{category}/{attribute}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            found: str = answer.read(_METADATA_BYTES).decode()
    except (OSError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # the error is the response, too, and still open
        logger.info("the metadata server has no %s/%s: %s", category, attribute, error)
        return None
    return found


def get_gcp_project_id() -> str | None:
    """Return the id of the machine's project."""
    return get_gcp_metadata("project", "project-id")


def get_node_zone() -> str | None:
    """Return the machine's zone, for example ``europe-west4-a``."""
    zone = get_gcp_metadata("instance", "zone")
    return zone.rpartition("/")[2] if zone else None


def get_accelerator_type() -> str:
    """Return the accelerator of the machine's type, for example ``NVIDIA-H100``; ``UNKNOWN`` if it is not known."""
    machine = (get_gcp_metadata("instance", "machine-type") or "").rpartition("/")[2].lower()
    known = MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING.items()
    return next((name for part, name in known if machine and part in machine), "UNKNOWN")


def get_cluster_name() -> str | None:
    """Return the name of the machine's cluster."""
    return get_gcp_metadata("instance", "attributes/cluster-name")
