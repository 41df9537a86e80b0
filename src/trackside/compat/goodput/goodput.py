"""The peer's module of the recorder and the calculator."""

from trackside.compat.goodput._calculator import GoodputCalculator
from trackside.compat.goodput._records import GoodputRecorder
from trackside.compat.goodput.goodput_utils import (
    BadputType,
    GoodputType,
    IntervalMetricType,
    IntervalWorkloadMetricDetails,
    MetricType,
    WorkloadMetricDetails,
)

__all__ = [
    "BadputType",
    "GoodputCalculator",
    "GoodputRecorder",
    "GoodputType",
    "IntervalMetricType",
    "IntervalWorkloadMetricDetails",
    "MetricType",
    "WorkloadMetricDetails",
]
