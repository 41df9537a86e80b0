"""From the events of one rank to columns."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence

from trackside.events import KernelWindow, SectionWindow
from trackside.handlers.models.scores._formulas import total_times
from trackside.handlers.models.scores._history import Lowest
from trackside.handlers.models.scores._layout import Layout, Layouts
from trackside.handlers.models.scores._window import Summary, Timings


def is_sound(event: SectionWindow | KernelWindow) -> bool:
    """Return whether the columns of *event* are parallel, hold each name once, and its window can be one."""
    size = len(event.names)
    columns = (event.counts, event.min_ns, event.max_ns, event.median_ns, event.mean_ns, event.std_ns)
    return (
        all(len(column) == size for column in columns)
        and (isinstance(event, KernelWindow) or len(event.entries) == size)
        and len(set(event.names)) == size
        and event.window >= 0
    )


def section_timings(event: SectionWindow, history: Lowest, number: int, layouts: Layouts) -> Timings:
    """Return what *event* says, and let *history* learn of it."""
    layout = layouts.of(event.names)
    medians, entries = array("d", event.median_ns), array("d", event.entries)
    if event.waits or not _are_times(medians):
        waits = set(event.waits)
        kept = [place for place, median in enumerate(medians) if _is_time(median) and layout.names[place] not in waits]
        layout, (medians, entries) = _only(kept, layout, layouts, medians, entries)
    return Timings(layout, medians, entries, history.take(layout, medians, layouts), number)


def waited_ns(event: SectionWindow) -> float:
    """Return how long the rank waited for others in all, in the sections that say so."""
    if not event.waits:
        return 0.0
    waits = set(event.waits)
    rows = zip(event.names, event.mean_ns, event.entries, strict=True)
    return sum(mean * entries for name, mean, entries in rows if name in waits and _is_time(mean))


def kernel_timings(
    event: KernelWindow, history: Lowest, number: int, layouts: Layouts, exclude: Callable[[str], bool]
) -> Timings:
    """Return what *event* says without the kernels to *exclude*, and let *history* learn of it."""
    layout = layouts.of(event.names)
    medians, weights = array("d", event.median_ns), array("d", total_times(event.counts, event.mean_ns))
    left_out_ns = 0.0
    excluded = layout.excluded(exclude)
    if excluded or not _are_times(medians) or not _are_times(weights):
        left_out_ns = sum(weights[place] for place in excluded)
        kept = [
            place
            for place, (median, weight) in enumerate(zip(medians, weights, strict=True))
            if place not in excluded and _is_time(median) and _is_time(weight)
        ]
        layout, (medians, weights) = _only(kept, layout, layouts, medians, weights)
    return Timings(layout, medians, weights, history.take(layout, medians, layouts), number, left_out_ns)


def summary(event: SectionWindow | KernelWindow) -> Summary:
    """Return the statistics of *event* by name."""
    columns = zip(event.counts, event.min_ns, event.max_ns, event.median_ns, event.mean_ns, event.std_ns, strict=True)
    fields = ("count", "min", "max", "median", "mean", "std")
    return {name: dict(zip(fields, values, strict=True)) for name, values in zip(event.names, columns, strict=False)}


def _are_times(values: Sequence[float]) -> bool:
    # A sum that is finite has no infinity and no NaN in it.
    return not values or (min(values) > 0.0 and math.isfinite(sum(values)))


def _is_time(value: float) -> bool:
    return 0.0 < value < math.inf


def _only(
    kept: list[int], layout: Layout, layouts: Layouts, *columns: array[float]
) -> tuple[Layout, list[array[float]]]:
    names = layouts.of(layout.names[place] for place in kept)
    return names, [array("d", [column[place] for place in kept]) for column in columns]
