"""The figures that a window can have of its values."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

from trackside.events import ConfigError

EXTREMES: Final = 1
SPREAD: Final = 2
SKETCH: Final = 4


class Aggregation(enum.Enum):
    """
    One figure about the values in a window.

    Its value is the key under which it stands in `CounterWindow.values`. A percentile is the value of rank
    ``floor(q × (count − 1))``, counted from 0, within 1 %.
    """

    VALUE = "value"
    """The last value."""
    COUNT = "count"
    """The number of values."""
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    STDDEV = "stddev"
    """The standard deviation of the window's own values: divided by the count, so 0 for a single value."""
    HISTOGRAM = "histogram"
    """The window's mergeable sketch, in `CounterWindow.sketch`."""
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"


QUANTILES: Final = {
    Aggregation.P50: 0.5,
    Aggregation.P90: 0.9,
    Aggregation.P95: 0.95,
    Aggregation.P99: 0.99,
}

# A percentile is kept within the extremes, which are exact.
_NEEDS: Final = {
    Aggregation.MIN: EXTREMES,
    Aggregation.MAX: EXTREMES,
    Aggregation.STDDEV: SPREAD,
    Aggregation.HISTOGRAM: SKETCH | EXTREMES,
    **dict.fromkeys(QUANTILES, SKETCH | EXTREMES),
}


def needs_of(aggregations: Iterable[Aggregation]) -> int:
    """Return the further figures to keep for *aggregations*; count, sum and last value always are kept."""
    needs = 0
    for aggregation in aggregations:
        needs |= _NEEDS.get(aggregation, 0)
    return needs


def in_order(given: Iterable[Aggregation | str]) -> tuple[Aggregation, ...]:
    """
    Return the aggregations *given* by member or by name, each once, in the order of `Aggregation`.

    Raises:
        ConfigError: for none at all, or a name that is not one.
    """
    names = [given] if isinstance(given, str) else list(given)
    right = ", ".join(aggregation.value for aggregation in Aggregation)
    try:
        wanted = {Aggregation(name) for name in names}
    except ValueError:
        raise ConfigError("aggregations", given, f"choose from {right}") from None
    if not wanted:
        raise ConfigError("aggregations", given, f"choose at least one from {right}")
    return tuple(aggregation for aggregation in Aggregation if aggregation in wanted)
