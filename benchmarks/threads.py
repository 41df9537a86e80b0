"""One thread, and two at once that share its work: without an interpreter lock, two do it faster."""

from __future__ import annotations

import os
import sysconfig
import threading
import time
from collections.abc import Callable

import trackside
from benchmarks.measure import Row, compared
from trackside._free_threading import kept
from trackside.events import IterationSpanEnded, Source

LOOPS = 4_000
"""In a turn: some ms, in which other work on the machine interrupts few turns."""
_REPEATS = 25
_IS_FREE = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
_BUDGET = 1 / 1.5 if _IS_FREE else 1.5
"""Of the time for all the work: half as much again gets done without the lock; with it, alternating may cost half."""

_COUNTER = trackside.counter("benchmark.threads")


@trackside.event("benchmark.thread.worked")
class ThreadWorked(trackside.Event):
    """An event of two fields."""

    index: int
    value: float


class _Taker:
    """Takes frames, and does nothing with them."""

    def open(self, source: Source) -> None:
        pass

    def accept(self, _frame: bytes, *, events: int) -> bool:  # noqa: ARG002  the protocol's
        return True

    def flush(self, _timeout_s: float) -> bool:
        return True

    close = flush

    def after_fork(self, source: Source) -> None:
        pass


def _nothing(_event: object) -> None:
    pass


def _calculate(loops: int) -> None:
    number = 0
    for index in range(20 * loops):
        number = (number * 31 + index) % 251


def _log_to(bus: trackside.Bus) -> Callable[[int], None]:
    # A default is loaded as a global is, without counting a reference. What is loaded from a closure is counted, and so
    # is a bound method that two threads share: they would be what the threads wait for.
    def work(loops: int, to: trackside.Bus = bus) -> None:
        for index in range(loops):
            to.log(ThreadWorked(index=index, value=1.0))

    for constant in work.__code__.co_consts:
        kept(constant)  # as those of code are that was read from a cache of bytecode, and not compiled here
    return work


def _open_spans(loops: int) -> None:
    for _ in range(loops):
        with trackside.span("work"):
            pass


def _count(loops: int) -> None:
    for _ in range(5 * loops):
        _COUNTER.add(1)


def _time_ns(work: Callable[[int], None], count: int) -> float:
    """Return the ns per operation when *count* threads share the work, from when all run to when all are done."""
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    is_running = [False] * count
    times: list[tuple[int, int]] = []

    def share(index: int) -> None:
        if processors:  # a scheduler takes its time to part new threads
            os.sched_setaffinity(0, {processors[index % len(processors)]})
        is_running[index] = True
        while not all(is_running):  # not by a lock: the scheduler may take its time to wake who waits
            pass
        started_ns = time.perf_counter_ns()
        work(LOOPS // count)
        times.append((started_ns, time.perf_counter_ns()))

    threads = [threading.Thread(target=share, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (max(end_ns for _, end_ns in times) - min(start_ns for start_ns, _ in times)) / LOOPS


def rows() -> list[Row]:
    """Measure, and return the rows."""
    found = []
    # Room for what one turn logs: its dispatcher is not to drop any.
    with trackside.Bus() as inline, trackside.Bus(queue_limit=4 * LOOPS) as queued:
        inline.subscribe(_nothing, to=ThreadWorked)
        queued.subscribe(_Taker(), to=ThreadWorked)
        queued.log(ThreadWorked(index=0, value=1.0))  # its dispatcher's thread starts here, bound to no processor
        with trackside.subscribe(_nothing, to=IterationSpanEnded):
            for operation, work in {
                "calculations without trackside, twenty: what the machine has to give": _calculate,
                "an event built and logged to a callable": _log_to(inline),
                "an event built and queued": _log_to(queued),
                "a span opened and closed": _open_spans,
                "five values added to one counter": _count,
            }.items():
                times: dict[str, list[float]] = {"one": [], "two": []}
                for _ in range(_REPEATS):
                    for name, count in (("two", 2), ("one", 1)):
                        times[name].append(_time_ns(work, count))
                        queued.flush()
                found.append(compared(f"{operation}, two threads at once", times, "two", "one", _BUDGET))
    return found
