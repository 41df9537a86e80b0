"""
Scores: the CPU time of a report on a whole job, from its last rank's window to the events, and of the windows before.
"""

from __future__ import annotations

import random
import time
from typing import Any

from benchmarks.measure import Row, Timing, timing
from trackside.events import Event, KernelWindow, SectionWindow, Source
from trackside.handlers.models.scores import ScoreAggregator

WINDOWS = 5
BUDGET_S = 1.0
SLOW = 3
"""Ranks that are slow, so that there is something to report."""


def rows() -> list[Row]:
    """Measure, and return the rows."""
    return [
        *_measured(4_096, 8, 200, "4,096 ranks × (8 sections + 200 kernels)"),
        *_measured(16_384, 8, 0, "16,384 ranks × 8 sections"),
    ]


def _measured(ranks: int, sections: int, kernels: int, job: str) -> list[Row]:
    rng = random.Random(7)
    sources = [Source(id=str(rank), rank=rank, world_size=ranks, host=f"node{rank // 8:05d}") for rank in range(ranks)]
    slow = set(rng.sample(range(ranks), SLOW))
    published: list[Event] = []
    aggregator = ScoreAggregator(publish=published.append)
    taking, reporting = [], []
    for window in range(WINDOWS):
        events = [
            event
            for source in sources
            for event in _windows(rng, source, window, (sections, kernels), 1.5 if source.rank in slow else 1.0)
        ]
        start_ns = time.process_time_ns()
        for event in events[:-1]:
            aggregator(event)
        before_last_ns = time.process_time_ns()
        aggregator(events[-1])
        taking.append(float(before_last_ns - start_ns))
        reporting.append(float(time.process_time_ns() - before_last_ns))
    assert {event.wire_name for event in published} == {"trackside.straggler.report"}
    return [
        _beside_a_second(f"a report on {job}", reporting),
        _beside_a_second(f"taking in the windows of {job}", taking),
    ]


def _windows(rng: random.Random, source: Source, window: int, sizes: tuple[int, int], factor: float) -> list[Event]:
    sections, kernels = sizes
    found: list[Event] = []
    for kind, names in (
        (
            KernelWindow,
            [f"void kernel<{number}>(float*, int)_blk_128_1_1_grid_{number}_1_1" for number in range(kernels)],
        ),
        (SectionWindow, [f"section {number}" for number in range(sections)]),
    ):
        if not names:
            continue
        medians = [1e6 * factor * rng.gauss(1.0, 0.01) for _ in names]
        counts = [100] * len(names)
        given: dict[str, Any] = {"entries": counts} if kind is SectionWindow else {}
        event = kind(
            at_ns=(window + 1) * 10**9,
            span_id=0,
            step=window,
            window=window,
            first_step=window,
            last_step=window,
            start_ns=window * 10**9,
            names=names,
            counts=counts,
            min_ns=medians,
            max_ns=medians,
            median_ns=medians,
            mean_ns=medians,
            std_ns=medians,
            **given,
        )
        event._source = source  # noqa: SLF001  as the decoder does
        found.append(event)
    return found


def _beside_a_second(operation: str, samples_ns: list[float]) -> Row:
    ours = timing(samples_ns)
    second = BUDGET_S * 1e9
    return Row(operation, ours, "one second", Timing(second, second, second), 1.0, ours.median_ns / second)
