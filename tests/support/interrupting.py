"""Real signals whose handler raises, at random moments inside a call."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator

import attrs


class Interruption(Exception):
    """The exception of the program's own signal handler."""


@attrs.define
class Outcome:
    """The fate of the exceptions of a handler."""

    calls: int = 0
    """Calls begun."""
    done: int = 0
    """Calls that returned."""
    raised: int = 0
    came: int = 0
    """Exceptions that reached the program."""


class Interrupter:
    """A handler of SIGALRM that raises once each time it is armed."""

    def __init__(self, seed: int = 1) -> None:
        self.is_armed = False
        self.raised = 0
        self._random = random.Random(seed)

    def __call__(self, _number: int, _frame: object) -> None:
        """Raise, if armed."""
        if self.is_armed:
            self.is_armed = False
            self.raised += 1
            raise Interruption

    def interrupt(self, call: Callable[[], object], times: int, most_s: float = 0.0003) -> Outcome:
        """Call *call* again and again, with an exception within *most_s* of each beginning, until so many came."""
        outcome, before = Outcome(), self.raised
        deadline_s = time.monotonic() + 30
        while self.raised - before < times and time.monotonic() < deadline_s:
            try:
                self.is_armed = True
                # Again and again: CPython 3.11 may leave a single signal pending for ever.
                signal.setitimer(signal.ITIMER_REAL, self._random.uniform(0.00002, most_s), 0.01)
                while self.is_armed:
                    outcome.calls += 1
                    call()
                    outcome.done += 1
            except Interruption:
                outcome.came += 1
        outcome.raised = self.raised - before
        return outcome


@contextlib.contextmanager
def raising_signals() -> Iterator[Callable[[], None]]:
    """Give what has the program's handler of SIGUSR1 raise an `Interruption`, at once and in the calling thread."""

    def handle(_number: int, _frame: object) -> None:
        raise Interruption

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield lambda: signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def interrupter() -> Iterator[Interrupter]:
    """Handle SIGALRM by an `Interrupter`; without garbage collection, whose callbacks no exception leaves."""
    handler = Interrupter()
    before = signal.signal(signal.SIGALRM, handler)
    gc.disable()
    try:
        with _unmeasured():
            yield handler
    finally:
        handler.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.enable()
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _unmeasured() -> Iterator[None]:
    """Have coverage look at no function that is called: an exception while it does leaves a lock of its locked."""
    if sys.version_info < (3, 12) or sys.monitoring.get_tool(sys.monitoring.COVERAGE_ID) is None:
        yield
        return
    before = sys.monitoring.get_events(sys.monitoring.COVERAGE_ID)
    sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, 0)
    try:
        yield
    finally:
        sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, before)


@contextlib.contextmanager
def interrupting_once() -> Iterator[Callable[[], None]]:
    """Give a function whose first call sends this process a signal, whose handler raises an `Interruption`."""

    def handle(_number: int, _frame: object) -> None:
        raise Interruption

    def interrupt() -> None:
        if calls:
            calls.pop()
            signal.raise_signal(signal.SIGUSR1)

    calls = [None]
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGUSR1, before)
