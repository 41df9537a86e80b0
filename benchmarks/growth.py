"""
The growth of cost: with events, steps, ranks, and with spans that are deep or wide.

Each size has a process of its own, so that none sees another's memory; a measurement of few seconds has three, of which
the fastest counts, since a machine that is slow for a second bends a line through three points. The exponent is the
slope of the line through the measured times on double logarithmic paper, of the three largest sizes: 1 is as fast at
any size. Memory is what the process grew by at its peak.

``python -m benchmarks.growth WHAT SIZE`` is such a process; it prints its figures as JSON.
"""

from __future__ import annotations

import json
import math
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import attrs

import trackside
from benchmarks.measure import Row, Timing, timing
from trackside.bus import Bus
from trackside.events import Event, IterationEnded, SectionWindow, Source, SourceStarted, SpanEnded, SpanStarted
from trackside.handlers.models import SpanBuilder, TrainingMetrics
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.handlers.models.scores import ScoreAggregator

EXPONENT = 1.1
"""The limit of an exponent: linear, and an allowance for caches that get too small."""
CHUNK = 8_000
"""Events that the queue has room for, whatever their priority."""
SECTIONS = 8
_FEW_S = 5.0


@trackside.event("benchmark.growth.measured")
class GrowthMeasured(Event):
    """An event of two fields."""

    index: int
    value: float


@attrs.frozen
class Growth:
    """The dimension that grows."""

    title: str
    unit: str
    sizes: tuple[int, ...]
    work: Callable[[int], float]
    """Measures at one size and returns the CPU time, in nanoseconds."""


def rows() -> list[Row]:
    """Measure, print a line for each size, and return a row for each dimension that grew."""
    return [_row(name, growth) for name, growth in GROWTHS.items()]


def _row(name: str, growth: Growth) -> Row:
    times, found = [], []
    for size in growth.sizes:
        figures = _figures(name, size)
        if figures["ns"] < _FEW_S * 1e9:
            figures = min(figures, _figures(name, size), _figures(name, size), key=lambda output: output["ns"])
        times.append(figures["ns"])
        found.append(figures["ns"] / size)
        print(
            f"  {growth.title:<44} {size:>10,} {growth.unit:<6} {figures['ns'] / 1e9:>9.3f} s"
            f" {figures['ns'] / size:>10,.0f} ns each {figures['grown_bytes'] / 2**20:>8.1f} MiB",
            flush=True,
        )
    power = exponent(growth.sizes[-3:], times[-3:])
    least = Timing(found[0], found[0], found[0])
    operation = f"{growth.title}, {growth.sizes[0]:,} to {growth.sizes[-1]:,}: exponent"
    return Row(operation, timing(found), f"at {growth.sizes[0]:,} {growth.unit}", least, EXPONENT, power)


def _figures(name: str, size: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.growth", name, str(size)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603  ours
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return the slope of the least-squares line through the logarithms of *sizes* and *times*."""
    xs, ys = [math.log(size) for size in sizes], [math.log(spent) for spent in times]
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True))
    return above / sum((x - middle_x) ** 2 for x in xs)


def _log_events(count: int) -> float:
    with tempfile.TemporaryDirectory() as directory, Bus() as bus:
        log = bus.subscribe(trackside.EventLog(pathlib.Path(directory) / "log", fsync_s=None))
        began_ns = time.process_time_ns()
        for start in range(0, count, CHUNK):
            for index in range(start, min(start + CHUNK, count)):
                bus.log(GrowthMeasured(index=index, value=1.0))
            bus.flush(30.0)
        taken_ns = time.process_time_ns() - began_ns
        lost = log.stats().lost
    if lost:
        raise RuntimeError(f"{lost} events were lost: the figures would compare different work")
    return taken_ns


def _replay_events(count: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        with Bus() as bus:
            bus.subscribe(trackside.EventLog(pathlib.Path(directory) / "log", fsync_s=None))
            for start in range(0, count, CHUNK):
                for index in range(start, min(start + CHUNK, count)):
                    bus.log(GrowthMeasured(index=index, value=1.0))
                bus.flush(30.0)
        began_ns = time.process_time_ns()
        read = sum(isinstance(event, GrowthMeasured) for event in trackside.replay(directory))
        taken_ns = time.process_time_ns() - began_ns
    if read != count:
        raise RuntimeError(f"{read} events were read of {count}")
    return taken_ns


def _feed(model: Callable[[Event], object], events: Iterator[Event]) -> float:
    """Return the CPU time that *model* takes over *events*, made in chunks outside of it."""
    spent_ns = 0
    while True:
        chunk = [event for event, _ in zip(events, range(CHUNK), strict=False)]
        began_ns = time.process_time_ns()
        for event in chunk:
            model(event)
        spent_ns += time.process_time_ns() - began_ns
        if len(chunk) < CHUNK:
            return spent_ns


def _of(source: Source, events: Iterator[Event]) -> Iterator[Event]:
    """Yield *events* as the dispatcher passes them to a model: numbered, and with their source."""
    started = SourceStarted(identity=source.to_wire(), at_ns=0, span_id=0, step=-1)
    for seq, event in enumerate(chain([started], events), start=1):
        event._source, event._seq = source, seq  # noqa: SLF001  as the dispatcher does
        yield event


def _steps(count: int) -> Iterator[Event]:
    for step in range(count):
        at_ns = (step + 1) * 10**9
        yield IterationEnded(at_ns=at_ns, parent_span_id=1, step=step, span_id=step + 2, duration_ns=9 * 10**8)


def _feed_steps(make: Callable[[], Callable[[Event], object]]) -> Callable[[int], float]:
    def work(count: int) -> float:
        return _feed(make(), _of(Source(id="growth"), _steps(count)))

    return work


def _deep(count: int) -> Iterator[Event]:
    """Open *count* spans, each inside the one before, and close them."""
    for number in range(1, count + 1):
        yield SpanStarted(at_ns=number, step=-1, span_id=number, parent_span_id=number - 1, name="inner")
    for number in range(count, 0, -1):
        duration_ns = 2 * (count - number) + 1
        yield SpanEnded(
            at_ns=number + duration_ns,
            step=-1,
            span_id=number,
            parent_span_id=number - 1,
            name="inner",
            duration_ns=duration_ns,
        )


def _wide(count: int) -> Iterator[Event]:
    """Open one span, and *count* others in it that stay open; close all."""
    yield SpanStarted(at_ns=1, step=-1, span_id=1, parent_span_id=0, name="outer")
    for number in range(2, count + 2):
        yield SpanStarted(at_ns=number, step=-1, span_id=number, parent_span_id=1, name="inner")
    for number in range(2, count + 2):
        at_ns = count + number
        yield SpanEnded(
            at_ns=at_ns, step=-1, span_id=number, parent_span_id=1, name="inner", duration_ns=at_ns - number
        )


def _feed_spans(events: Callable[[int], Iterator[Event]]) -> Callable[[int], float]:
    def work(count: int) -> float:
        return _feed(SpanBuilder(), _of(Source(id="growth"), events(count)))

    return work


def _score_ranks(count: int) -> float:
    model = ScoreAggregator(publish=_ignore)
    names = [f"section {number}" for number in range(SECTIONS)]
    taken_ns = 0
    sources = [Source(id=str(rank), rank=rank, world_size=count) for rank in range(count)]
    windows = 3
    for window in range(windows):
        for source in sources:
            median_ns = [1e6 * (1 + (source.rank * 7 + window) % 5 / 100)] * SECTIONS
            event = SectionWindow(
                at_ns=(window + 1) * 10**9,
                span_id=0,
                step=window,
                window=window,
                first_step=window,
                last_step=window,
                start_ns=window * 10**9,
                names=names,
                counts=[100] * SECTIONS,
                entries=[100] * SECTIONS,
                min_ns=median_ns,
                max_ns=median_ns,
                median_ns=median_ns,
                mean_ns=median_ns,
                std_ns=median_ns,
            )
            event._source = source  # noqa: SLF001  as the decoder does
            began_ns = time.process_time_ns()
            model(event)
            taken_ns += time.process_time_ns() - began_ns
    return taken_ns / windows


def _ignore(_event: Event) -> None:
    pass


_EVENTS = (10_000, 100_000, 1_000_000, 10_000_000)
_STEPS = (10_000, 100_000, 1_000_000)
_SPANS = (1_000, 10_000, 100_000)

GROWTHS = {
    "log": Growth("events logged and written to a file", "events", _EVENTS, _log_events),
    "replay": Growth("events read from a file", "events", _EVENTS, _replay_events),
    "metrics": Growth("steps read by TrainingMetrics", "steps", _STEPS, _feed_steps(TrainingMetrics)),
    "goodput": Growth("steps read by GoodputAccumulator", "steps", _STEPS, _feed_steps(GoodputAccumulator)),
    "iterations": Growth("steps read by SpanBuilder", "steps", _STEPS, _feed_steps(SpanBuilder)),
    "deep": Growth("spans inside each other, read by SpanBuilder", "spans", _SPANS, _feed_spans(_deep)),
    "wide": Growth("spans beside each other, read by SpanBuilder", "spans", _SPANS, _feed_spans(_wide)),
    "ranks": Growth("ranks scored in a window of 8 sections", "ranks", (1, 16, 256, 4_096, 16_384), _score_ranks),
}


def main() -> None:
    """Measure one dimension at one size and print the figures."""
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken_ns = GROWTHS[sys.argv[1]].work(int(sys.argv[2]))
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) << 10
    print(json.dumps({"ns": taken_ns, "grown_bytes": grown_bytes}))


if __name__ == "__main__":
    main()
