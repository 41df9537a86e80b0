"""Counters: adding a value, in one thread and in four."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable

import prometheus_client
import torch.monitor

import trackside
from benchmarks.measure import Row, Run, budget, compared, interleaved

_THREADS = 4


def _nothing(_value: float) -> None:
    pass


def _repeated(add: Callable[[float], object]) -> Run:
    def run(loops: int) -> None:
        for _ in range(loops):
            add(1.0)

    return run


def _in_threads(run: Run) -> Run:
    def spread(loops: int) -> None:
        threads = [threading.Thread(target=run, args=(loops // _THREADS,)) for _ in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return spread


def rows() -> list[Row]:
    """Measure, and return the rows; each checks that no value was lost."""
    result = []
    for operation, wrap, most in (
        ("counter add", lambda run: run, budget(compiled=0.12, pure=0.35)),
        (f"counter add, {_THREADS} threads", _in_threads, budget(compiled=0.20, pure=0.35)),
    ):
        counter = trackside.Bus().counter("benchmark")
        aggregations = [
            torch.monitor.Aggregation.SUM,
            torch.monitor.Aggregation.COUNT,
            torch.monitor.Aggregation.MEAN,
            torch.monitor.Aggregation.MIN,
            torch.monitor.Aggregation.MAX,
        ]
        stat = torch.monitor.Stat("benchmark", aggregations, datetime.timedelta(seconds=1))
        registry = prometheus_client.CollectorRegistry()
        counted = prometheus_client.Counter("benchmark", "a benchmark", registry=registry)
        runs = {
            "trackside": wrap(_repeated(counter.add)),
            "torch.monitor.Stat": wrap(_repeated(stat.add)),
            "prometheus_client": wrap(_repeated(counted.inc)),
            "empty": wrap(_repeated(_nothing)),
        }
        loops, repeats = 100_000, 9
        times = interleaved(runs, loops=loops, repeats=repeats)
        expected = loops // 10 + loops * repeats
        if counter.snapshot().count != expected:
            raise RuntimeError(f"{expected} values were added, {counter.snapshot().count} counted")
        result.append(compared(operation, times, "trackside", "torch.monitor.Stat", most, floor="empty"))
        result.append(compared(operation, times, "trackside", "prometheus_client", most, floor="empty"))
    return result
