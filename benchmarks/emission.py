"""Events: built and logged to one handler, and without a handler."""

from __future__ import annotations

import datetime
import logging
import tempfile
import time

import blinker
import torch.monitor

import trackside
from benchmarks.measure import Row, budget, compared, interleaved, timing

_MANY = 1_000_000
_LONGEST_NS = 1e6


@trackside.event("benchmark.step.measured")
class StepMeasured(trackside.Event):
    """An event of two fields that a handler wants."""

    index: int
    value: float


@trackside.event("benchmark.step.ignored")
class StepIgnored(trackside.Event):
    """An event that no handler wants."""

    index: int
    value: float


def _nothing(_event: object) -> None:
    pass


def _receive(_sender: object, event: object) -> None:
    pass


def rows() -> list[Row]:
    """Measure, and return the rows."""
    bus = trackside.Bus()
    with bus.subscribe(_nothing, to=StepMeasured):
        return [*_heard(bus), *_unheard(bus), _longest()]


def _heard(bus: trackside.Bus) -> list[Row]:
    log = bus.log
    signal = blinker.Signal()
    signal.connect(_receive)
    now = datetime.datetime.now

    def ours(loops: int) -> None:
        for index in range(loops):
            log(StepMeasured(index=index, value=1.0))

    def theirs(loops: int) -> None:
        for index in range(loops):
            data = {"index": index, "value": 1.0}
            torch.monitor.log_event(torch.monitor.Event(name="step", timestamp=now(), data=data))

    def sent(loops: int) -> None:
        for index in range(loops):
            signal.send(None, event=index)

    def empty(loops: int) -> None:
        for index in range(loops):
            _nothing(index)

    handle = torch.monitor.register_event_handler(_nothing)
    try:
        times = interleaved({"trackside": ours, "torch.monitor": theirs, "blinker": sent, "empty": empty}, loops=20_000)
    finally:
        torch.monitor.unregister_event_handler(handle)
    operation = "build and log a two-field event, one inline handler"
    return [
        compared(operation, times, "trackside", "torch.monitor", budget(compiled=0.06, pure=0.20), floor="empty"),
        compared(operation, times, "trackside", "blinker", budget(compiled=0.15, pure=0.50), floor="empty"),
    ]


def _unheard(bus: trackside.Bus) -> list[Row]:
    log, wants = bus.log, bus.wants
    now = datetime.datetime.now  # naive, as torch.monitor wants it
    ready = StepIgnored(index=1, value=1.0)
    monitored = torch.monitor.Event(name="step", timestamp=now(), data={"index": 1, "value": 1.0})
    logger = logging.getLogger("benchmarks.disabled")
    logger.setLevel(logging.WARNING)
    debug, log_event = logger.debug, torch.monitor.log_event

    def asked(loops: int) -> None:
        for _ in range(loops):
            wants(StepIgnored)

    def logged(loops: int) -> None:
        for _ in range(loops):
            log(ready)

    def disabled(loops: int) -> None:
        for index in range(loops):
            debug("step %d", index)

    def theirs(loops: int) -> None:
        for _ in range(loops):
            log_event(monitored)

    def empty(loops: int) -> None:
        for index in range(loops):
            _nothing(index)

    runs = {"wants": asked, "log": logged, "logging, disabled": disabled, "torch.monitor": theirs, "empty": empty}
    times = interleaved(runs, loops=100_000)
    asking, logging_it = budget(compiled=0.15, pure=0.70), budget(compiled=0.30, pure=1.20)
    return [
        compared("no handler wants it: wants()", times, "wants", "logging, disabled", asking, floor="empty"),
        compared(
            "no handler wants it: log() of a ready event", times, "log", "torch.monitor", logging_it, floor="empty"
        ),
    ]


def _longest() -> Row:
    """Measure the longest of a million calls of `log`, into an event log and the models of a job."""
    with tempfile.TemporaryDirectory() as directory, trackside.start(directory, report=False):
        log, now = trackside.log, time.perf_counter_ns
        longest_ns = 0
        for index in range(_MANY):
            event = StepMeasured(index=index, value=1.0)
            began_ns = now()
            log(event)
            longest_ns = max(longest_ns, now() - began_ns)
    return Row(
        f"the longest log() of {_MANY:,}, into an event log and models",
        timing([longest_ns]),
        "1 ms",
        timing([_LONGEST_NS]),
        budget(compiled=1.0),
        longest_ns / _LONGEST_NS,
    )
