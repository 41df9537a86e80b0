"""Changes in the course of a run: steps that got slower, memory that grows."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from trackside.report._statistics import TRIM, Difference, difference
from trackside.report._watched import StepTimes, Trace, Watched

_FEWEST_STEPS: Final = 100
_LEAST_SLOWDOWN: Final = 0.05
_MARGIN: Final = 0.1
"""The share of all steps that must lie on either side of a change."""
_FEWEST_POINTS: Final = 16
_LEAST_GROWTH: Final = 0.1
_WARM_UP: Final = 0.25


@attrs.frozen
class Change:
    """Where a series steps up."""

    place: int
    before: float
    after: float


def find_change(lengths: Sequence[float]) -> Change | None:
    """
    Return where the values became larger for good, if they did by at least a twentieth.

    The place is where the sum of deviations from the mean is furthest from zero (Page's CUSUM), of values whose ends
    are pulled in so that a few long steps do not count; whether there is a change at all is for `difference` to say.
    """
    count = len(lengths)
    if count < _FEWEST_STEPS:
        return None
    ordered = sorted(lengths)
    low, high = ordered[count // 20], ordered[-1 - count // 20]
    pulled = [min(max(one, low), high) for one in lengths]
    mean = statistics.fmean(pulled)
    total, lowest, place = 0.0, 0.0, 0
    for at, value in enumerate(pulled):
        if total < lowest:
            lowest, place = total, at
        total += value - mean
    margin = max(20, int(count * _MARGIN))
    if not margin <= place <= count - margin:
        return None
    found = difference([lengths[:place]], [lengths[place:]], TRIM)
    if found.change is None or found.low is None or found.change < _LEAST_SLOWDOWN or found.low < _LEAST_SLOWDOWN / 2:
        return None
    return Change(place, found.before, found.after)


def joined(runs: Iterable[StepTimes]) -> tuple[list[float], list[int]]:
    """Return the steps of all *runs*, one after the other, without the first of each: it includes starting up."""
    lengths: list[float] = []
    numbers: list[int] = []
    for run in runs:
        lengths += run.lengths_ns[2:]
        numbers += run.numbers[2:]
    return lengths, numbers


@attrs.frozen
class Rise:
    """A figure that rose steadily, and was still rising at the end."""

    process: Watched
    name: str
    first: float
    last: float
    since_ns: int
    until_ns: int


def find_rises(processes: Iterable[Watched]) -> list[Rise]:
    """Return what rose, the fastest first."""
    found = [
        rise
        for process in processes
        for name, trace in process.memory.items()
        if (rise := _rise(process, name, trace)) is not None
    ]
    return sorted(found, key=lambda rise: rise.first - rise.last)


def _rise(process: Watched, name: str, trace: Trace) -> Rise | None:
    start = int(len(trace.values) * _WARM_UP)
    values, times = trace.values[start:], trace.times_ns[start:]
    if len(values) < _FEWEST_POINTS:
        return None
    size = len(values) // 4
    quarters = [statistics.median(values[at * size : (at + 1) * size]) for at in range(4)]
    rose = [after - before for before, after in itertools.pairwise(quarters)]
    total = quarters[-1] - quarters[0]
    # What levels off is a cache that fills; a leak goes on as it began.
    if min(rose) <= 0 or rose[-1] < total / 6 or quarters[0] <= 0 or total / quarters[0] < _LEAST_GROWTH:
        return None
    return Rise(process, name, values[0], values[-1], times[0], times[-1])


def against(before: Iterable[Watched], after: Iterable[Watched]) -> Difference:
    """Return how the steps of *after* differ from those of *before*, by the first rank of each attempt."""
    return difference(_runs(before), _runs(after), TRIM)


def _runs(processes: Iterable[Watched]) -> list[list[float]]:
    kept = [process.lengths for process in processes if process.lengths is not None]
    return [lengths for run in kept if (lengths := joined([run])[0])]
