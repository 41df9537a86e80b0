"""Timing several alternatives so that noise of the machine affects all of them alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping

import attrs

from trackside import implementation

Run = Callable[[int], object]
"""Do the operation that many times."""


@attrs.frozen
class Timing:
    """The cost of one alternative: nanoseconds per operation, over the repeats."""

    median_ns: float
    best_ns: float
    worst_ns: float


@attrs.frozen
class Row:
    """A line of the table: trackside's alternative against a peer's, in one run."""

    operation: str
    ours: Timing
    peer: str
    theirs: Timing
    budget: float
    """The largest ratio of ours to theirs that is good enough."""
    ratio: float
    """The median of the ratios, repeat by repeat."""

    @property
    def is_met(self) -> bool:
        """Whether the ratio is within the budget."""
        return self.ratio <= self.budget


def budget(*, compiled: float, pure: float = math.inf) -> float:
    """Return the largest ratio that is good enough, of the implementation that is measured; infinite for no limit."""
    return compiled if implementation == "compiled" else pure


def _nothing() -> None:
    pass


def interleaved(
    runs: Mapping[str, Run],
    *,
    loops: int,
    repeats: int = 25,
    settle: Callable[[], object] = _nothing,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, list[float]]:
    """
    Time each of *runs* once in every repeat, alternately.

    Args:
        runs: The alternatives, by name.
        loops: The number of operations for each time taken.
        repeats: The number of times taken of each alternative.
        settle: Called after each, outside of the time: work on other threads is to be done before the next.
        clock: What is measured, in nanoseconds: the time, or `time.process_time_ns`, the CPU time of all threads.

    Returns:
        For each name the nanoseconds per operation, one for each repeat.
    """
    for run in runs.values():
        run(max(1, loops // 10))
        settle()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = clock()
            run(loops)
            times[name].append((clock() - start) / loops)
            settle()
    return times


def timing(samples: list[float]) -> Timing:
    """Summarize the repeats of one alternative."""
    return Timing(statistics.median(samples), min(samples), max(samples))


def compared(
    operation: str, times: Mapping[str, list[float]], ours: str, peer: str, budget: float, *, floor: str | None = None
) -> Row:
    """
    Compare *ours* with *peer*, repeat by repeat.

    Args:
        operation: The name of the operation.
        times: The result of `interleaved`.
        ours: The name of trackside's alternative.
        peer: The name of the peer's.
        budget: The largest ratio that is good enough.
        floor: The alternative whose time is subtracted from both: an empty call.
    """
    empty = times[floor] if floor is not None else [0.0] * len(times[ours])
    mine = [sample - nothing for sample, nothing in zip(times[ours], empty, strict=True)]
    theirs = [sample - nothing for sample, nothing in zip(times[peer], empty, strict=True)]
    ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
    return Row(operation, timing(mine), peer, timing(theirs), budget, ratio)
