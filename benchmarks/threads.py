"""One thread logging, and two at once: without an interpreter lock, two do more than one."""

from __future__ import annotations

import sysconfig
import threading

import trackside
from benchmarks.measure import Row, compared, interleaved

LOOPS = 20_000
_IS_FREE = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
_BUDGET = 1 / 1.5 if _IS_FREE else 1.5
"""Of the time for each event: half as much again gets done without the lock; with it, alternating may cost half."""


@trackside.event("benchmark.thread.worked")
class ThreadWorked(trackside.Event):
    """An event of two fields."""

    index: int
    value: float


def _nothing(_event: object) -> None:
    pass


def rows() -> list[Row]:
    """Measure, and return the rows."""
    bus = trackside.Bus()
    log = bus.log

    def work(loops: int) -> None:
        for index in range(loops):
            log(ThreadWorked(index=index, value=1.0))

    def alone(loops: int) -> None:
        _at_once(1, loops)

    def together(loops: int) -> None:
        _at_once(2, loops // 2)

    def _at_once(count: int, loops: int) -> None:
        threads = [threading.Thread(target=work, args=(loops,)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with bus.subscribe(_nothing, to=ThreadWorked):
        times = interleaved({"two": together, "one": alone}, loops=LOOPS)
    bus.close()
    operation = "an event built and logged, two threads at once"
    return [compared(operation, times, "two", "one", _BUDGET)]
