"""
Events with the times of sections and kernels, and the straggler scores that are computed from them.

Values per name and per rank are columnar: parallel lists and packed arrays, so that many kernels or many ranks do not
exceed the limits on maps.
"""

from __future__ import annotations

from typing import Any

import attrs

from trackside.events._event import ITERATION, LIFECYCLE, Event, event


@event("trackside.section.window", priority=ITERATION)
class SectionWindow(Event):
    """
    The times of one rank's sections during one window. Published by the sections, when the window is over.

    The lists are parallel: one entry for each section that was timed in the window.
    """

    window: int
    """The number of the window; the same on all ranks for the same stretch of training."""
    first_step: int
    last_step: int
    """The window covers the steps from ``first_step`` to this one on this rank, both included; -1 if not known."""
    start_ns: int
    """The time when it began, in ns since the epoch; it ended at ``at_ns``."""
    names: list[str]
    counts: list[int]
    """Entries that were timed; a profiling interval skips some."""
    entries: list[int]
    """All entries."""
    min_ns: list[float]
    max_ns: list[float]
    median_ns: list[float]
    """For an even number of values, the mean of the two in the middle."""
    mean_ns: list[float]
    std_ns: list[float]
    """Of the population; 0 for a single value."""
    dropped: int = 0
    """Sections left out because there were too many names."""
    waits: list[str] = attrs.field(factory=list)
    """Those of `names` in which the rank waits for others: a rank with long times there is not slow."""
    groups: dict[str, str] = attrs.field(factory=dict)
    """The rank's position in the job, by key: ``{"pipeline_stage": "3"}``. Ranks that share a value are peers."""


@event("trackside.kernel.window", priority=ITERATION)
class KernelWindow(Event):
    """
    The times of the kernels of one rank's GPU during one window. Published by the GPU timer, when the window is over.

    The lists are parallel: one entry for each kernel and launch shape seen in the window.
    """

    window: int
    """The number of the window; the same on all ranks and in `SectionWindow`."""
    first_step: int
    last_step: int
    start_ns: int
    names: list[str]
    """The kernel's name and launch shape."""
    counts: list[int]
    """Launches that were timed."""
    min_ns: list[float]
    max_ns: list[float]
    median_ns: list[float]
    mean_ns: list[float]
    std_ns: list[float]
    dropped: int = 0
    """Launches that were lost or left out for lack of room."""
    groups: dict[str, str] = attrs.field(factory=dict)


@event("trackside.gpu_timing.unavailable", priority=LIFECYCLE)
class GpuTimingUnavailable(Event):
    """
    GPU times were requested and are not available, or not for single kernels.

    Published by the sections, when they find that out.
    """

    reason: str
    instead: str = ""
    """The timings that replace them; empty if there are none."""


@event("trackside.straggler.report", priority=LIFECYCLE, derived=True)
class StragglerReport(Event):
    """
    The scores of all ranks for one window. Published by `ScoreAggregator`, when the window closed or was amended.

    A report of many ranks comes in several parts, each with its share of the ranks.
    """

    attempt: int
    """The attempt of the run that the window belongs to."""
    window: int
    first_step: int
    last_step: int
    revision: int
    """The number of ranks' windows in it; a later report with more replaces it."""
    part: int = 0
    parts: int = 1
    group: str = ""
    """Ranks with the same value of this key are peers; if it is empty, all ranks are."""
    ranks: bytes
    """Packed unsigned 32-bit integers, little-endian."""
    nodes: list[str]
    """The hosts, each once."""
    node_of: bytes
    """For each rank an index into `nodes`, packed like `ranks`."""
    columns: list[str]
    """``relative gpu``, ``individual gpu``, ``relative section NAME`` and ``individual section NAME``."""
    scores: bytes
    """Ranks × columns, packed 64-bit floats, little-endian; NaN where one is missing."""
    reasons: bytes
    """Ranks × columns, a byte each: 0 for a score, else 1 + the index into `reason_names`."""
    reason_names: list[str]
    coverage: bytes
    """For each rank the share of its kernel time that its relative GPU score covers, packed like `scores`."""
    columns_left_out: int = 0
    """The number of further columns."""
    stragglers: list[list[Any]] = attrs.field(factory=list)
    """Rank, node, column, score, seconds lost per step, and the window and the step since which; the worst first."""
    stragglers_left_out: int = 0
    """The number of further stragglers."""
