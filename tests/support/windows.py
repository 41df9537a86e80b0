"""Windows of sections and of kernels, from the times that these took."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside.events import KernelWindow, SectionWindow, Source, StragglerReport
from trackside.handlers.models.scores import ScoreAggregator
from trackside.testing import recorded

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from trackside.events import Event

S = 10**9


class Taken(NamedTuple):
    """The times of a section or a kernel, in ns, and how often it ran."""

    median_ns: float
    mean_ns: float
    runs: int


def section_window(times: Mapping[str, float | Sequence[float] | Taken], **fields: Any) -> SectionWindow:
    """Return the window of sections of which each took *times*; as for `window_fields`."""
    known = window_fields(times, **fields)
    return SectionWindow(**{"entries": known["counts"], **known})


def kernel_window(times: Mapping[str, float | Sequence[float] | Taken], **fields: Any) -> KernelWindow:
    """Return the window of kernels of which each took *times*; as for `window_fields`."""
    return KernelWindow(**window_fields(times, **fields))


def window_fields(
    times: Mapping[str, float | Sequence[float] | Taken],
    *,
    window: int = 0,
    steps: int = 10,
    count: int | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """
    Return the fields of one of the windows of a process, of 1 s each, from second 0 on.

    Args:
        times: By name, all the times in ns, or the same time for every run, or a summary.
        window: The window's number.
        steps: The number of steps in each window.
        count: The number of runs where one time is given; once in each step if None.
        fields: Fields that are to have other values.
    """
    columns: dict[str, list[Any]] = {
        name: [] for name in ("counts", "min_ns", "max_ns", "median_ns", "mean_ns", "std_ns")
    }
    for taken in times.values():
        row: tuple[float, ...]
        if isinstance(taken, Taken):
            row = (taken.runs, *[taken.median_ns] * 3, taken.mean_ns, 0.0)
        elif isinstance(taken, (int, float)):
            row = (steps if count is None else count, *[taken] * 4, 0.0)
        else:
            median, mean = statistics.median(taken), statistics.fmean(taken)
            row = (len(taken), min(taken), max(taken), median, mean, statistics.pstdev(taken))
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    first, last = window * steps, window * steps + steps - 1
    place = {"window": window, "first_step": first, "last_step": last, "step": last, "span_id": 0}
    return {**place, "start_ns": window * S, "at_ns": (window + 1) * S, "names": list(times), **columns, **fields}


def straggler_reports(ranks: int, slow: Container[int] = (), windows: int = 1) -> list[StragglerReport]:
    """
    Return the reports on ranks of which each takes 1 ms for its forward pass, and the *slow* ones 2 ms.

    Steps take 10 ms.
    """
    found: list[Event] = []
    aggregator = ScoreAggregator(publish=found.append)
    sources = [Source(rank=rank, world_size=ranks, run_id="run", host=f"node{rank // 8}") for rank in range(ranks)]
    for number in range(windows):
        for rank, source in enumerate(sources):
            times = {"forward": 2e6 if rank in slow else 1e6 + rank}
            window = section_window(times, window=number, steps=10, start_ns=0, at_ns=S // 10)
            aggregator(recorded(window, source=source))
    return [report for report in found if isinstance(report, StragglerReport)]
