"""Exceptions of the program's own signal handlers, and the end of the stack, inside log()."""

from __future__ import annotations

import functools
import gc
import inspect
import signal
import sys
import threading
import time

import pytest

from interrupting import Interruption, interrupting_once
from ticking import Ticked
from trackside._implementation import native
from trackside.bus import Bus
from trackside.events import RunsOn
from trackside.rules import every, where

SECONDS = 1.5
IS_EXACT = sys.version_info >= (3, 11)
"""Python 3.10 runs signal handlers before and after each call, so a few events in 100,000 are counted wrongly there."""
INTERRUPTED = ("bus/_bus.py", "bus/_admission.py", "bus/_queue.py", "bus/_subscribers.py", "test_interrupts.py")


class Timeout(Exception):
    """The exception that the program's own signal handler raises."""


def begun_at():
    """Return the line of `Bus.log` from which on an event counts as logged."""
    lines, first = inspect.getsourcelines(Bus.log)
    return first + next(index for index, line in enumerate(lines) if "for arrived, handle" in line)


def timeouts(error):
    """Return *error* and those that were on their way when it was raised, as on Python 3.10 behind a call."""
    return [error, *timeouts(error.__context__)] if isinstance(error, Timeout) else []


class Alarm:
    """A signal handler that raises, a thousand times a second, wherever `log` has begun to deliver an event."""

    def __init__(self):
        self.raised = 0
        self._begun_at = begun_at()

    def __call__(self, number, frame):
        """Raise if an event is being delivered, and the last exception was dealt with."""
        if not frame.f_code.co_filename.endswith(INTERRUPTED):
            return  # an exception raised by a destructor or a callback of the garbage collector reaches no program
        while frame is not None and frame.f_code is not Bus._recover.__code__:
            if frame.f_code is Bus.log.__code__ and (frame.f_lineno or 0) >= self._begun_at:
                self.raised += 1
                raise Timeout
            frame = frame.f_back
        if frame is None and native is not None and native.calls_of_log():  # which has no frame
            self.raised += 1
            raise Timeout

    def __enter__(self):
        self._before = signal.signal(signal.SIGALRM, self)
        gc.disable()
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        return self

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.enable()
        signal.signal(signal.SIGALRM, self._before)


def is_wanted(ticked):
    return ticked.number % 2 == 0


@pytest.mark.hang_guard(60)
class TestSignalHandlers:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"keep": every(3)},
            {"keep": where(is_wanted)},
            {"runs_on": RunsOn.WORKER},
            {"runs_on": RunsOn.DISPATCHER},
        ],
        ids=["plain", "sampled", "filtered", "sink", "model"],
    )
    def test_reach_the_program(self, make_bus, options):
        """
        An exception raised by a signal handler inside log() comes out, and each event is in one count of each handler.
        """
        bus = make_bus(queue_limit=1 << 20)
        sums = []
        subscriptions = [
            bus.subscribe(lambda ticked: sums.append(ticked.number), to=Ticked, **options),
            bus.subscribe(lambda ticked: sorted([ticked.number, 1]), to=Ticked),
        ]
        logged = came = 0
        until = time.monotonic() + SECONDS
        ticked = Ticked()
        bus.log(ticked)
        with Alarm() as alarm:
            while time.monotonic() < until:
                ticked = Ticked(number=logged)
                try:
                    bus.log(ticked)
                except Timeout as error:
                    came += len(timeouts(error))
                logged += 1
        assert bus.flush(20)

        assert (came, came > 10) == (alarm.raised, True)
        for subscription in subscriptions if IS_EXACT else ():
            stats = subscription.stats()
            assert (stats.logged, stats.balance, stats.handled >= 0) == (logged + 1, 0, True)

    def test_suspend_nobody(self, bus):
        """A handler that is interrupted again and again did nothing wrong: it is not suspended."""

        def interrupt(number, frame):
            raise Timeout

        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            subscription = bus.subscribe(lambda _event: signal.raise_signal(signal.SIGUSR1), to=Ticked)
            for _ in range(20):
                with pytest.raises(Timeout):
                    bus.log(Ticked())
        finally:
            signal.signal(signal.SIGUSR1, before)
        stats = subscription.stats()
        assert (stats.logged, stats.failed, stats.suspended, stats.balance) == (20, 20, 0, 0)

    @pytest.mark.parametrize("kind", ["method", "partial", "object"])
    def test_of_any_kind(self, bus, kind):
        """Methods, partials and callable objects are signal handlers, too."""

        class Handler:
            def method(self, number, frame):
                raise Timeout

            __call__ = method

        handler = {"method": Handler().method, "partial": functools.partial(Handler().method), "object": Handler()}
        before = signal.signal(signal.SIGUSR1, handler[kind])
        try:
            bus.subscribe(lambda _event: signal.raise_signal(signal.SIGUSR1), to=Ticked)
            with pytest.raises(Timeout):
                bus.log(Ticked())
        finally:
            signal.signal(signal.SIGUSR1, before)

    def test_others_get_the_event(self, bus):
        """The handlers after the one that was interrupted get the event before the exception comes out."""

        def interrupt(number, frame):
            raise Timeout

        got = []
        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            bus.subscribe(lambda _event: signal.raise_signal(signal.SIGUSR1), to=Ticked)
            bus.subscribe(got.append, to=Ticked)
            with pytest.raises(Timeout):
                bus.log(Ticked(number=7))
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert [ticked.number for ticked in got] == [7]


@pytest.mark.hang_guard(60)
class TestFrameSinks:
    """Exceptions of signal handlers in what a frame sink does in the thread that flushes or closes."""

    @pytest.fixture
    def sink(self, make_frames):
        """Give a frame sink in which a signal handler of the program raises, in the first flush() or close()."""
        with interrupting_once() as interrupt:

            class Interrupted(make_frames):
                closes = 0

                def flush(self, timeout_s):
                    interrupt()
                    return super().flush(timeout_s)

                def close(self, timeout_s):
                    interrupt()
                    self.closes += 1
                    return super().close(timeout_s)

            yield Interrupted()

    def test_flush(self, bus, sink):
        """One that comes while the bus flushes reaches the program, and the next flush is done."""
        bus.subscribe(sink, to=Ticked)
        bus.log(Ticked())
        with pytest.raises(Interruption):
            bus.flush(20)
        assert bus.flush(20)
        assert (sink.flushes, len(sink.frames)) == (1, 1)

    def test_close(self, bus, sink):
        """One that comes while a subscription is closed reaches the program; closing it again closes the sink."""
        subscription = bus.subscribe(sink, to=Ticked)
        bus.log(Ticked())
        with pytest.raises(Interruption):
            subscription.close(20)
        assert [(stats.logged, stats.handled) for stats in bus.stats().handlers] == [(1, 1)]
        assert subscription.close(20)
        assert subscription.close(20)
        assert sink.closes == 1
        assert [(stats.logged, stats.handled) for stats in bus.stats().handlers] == [(1, 1)]

    def test_closed_with_the_bus(self, bus, sink):
        """A subscription whose close() was interrupted, and not called again, is closed with the bus."""
        subscription = bus.subscribe(sink, to=Ticked)
        bus.log(Ticked())
        with pytest.raises(Interruption):
            subscription.close(20)
        assert bus.close(20)
        assert sink.closes == 1


@pytest.mark.hang_guard(60)
@pytest.mark.unmeasured
class TestRecursionLimit:
    @pytest.mark.parametrize("keep", [None, every(1)], ids=["plain", "ruled"])
    def test_at_any_depth(self, bus, caplog, keep):
        """At any distance from the end of the stack log() raises nothing of its own, and no event is in no count."""
        handler = bus.subscribe(lambda ticked: sorted([ticked.number, 1], key=lambda number: -number), keep=keep)
        queued = bus.subscribe(lambda ticked: None, to=Ticked, runs_on=RunsOn.WORKER)
        ticked = Ticked()
        bus.log(ticked)
        calls = []
        outcomes = []
        code = Bus.log.__code__  # to look it up takes room on the stack where log() is compiled

        def descend(left):
            if left:
                descend(left - 1)
                return
            calls.append(1)
            try:
                bus.log(ticked)
            except RecursionError as error:
                # The call of log() itself did not fit, or it raised: the innermost frame says which.
                trace = error.__traceback__
                while trace.tb_next is not None:
                    trace = trace.tb_next
                outcomes.append(trace.tb_lineno if trace.tb_frame.f_code is code else None)

        depth = len(inspect.stack())
        limit = sys.getrecursionlimit()
        for left in range(limit - depth - 60, limit - depth + 5):
            try:
                descend(left)
            except RecursionError:
                continue
        assert bus.flush(20)
        entered = len(calls) - len(outcomes)
        assert ([line for line in outcomes if line is not None], entered > 10) == ([], True)
        for subscription in (handler, queued):
            stats = subscription.stats()
            assert (stats.logged + bus.stats().suppressed, stats.balance) == (entered + 1, 0)

    def test_endless_handler(self, bus, caplog):
        """A handler that calls itself for ever is a failing handler: counted, reported and suspended after five."""
        got = []

        def endless(ticked):
            return endless(ticked)

        subscription = bus.subscribe(endless, to=Ticked)
        bus.subscribe(got.append, to=Ticked)
        for _ in range(7):
            bus.log(Ticked())
        stats = subscription.stats()
        assert (stats.logged, stats.failed, stats.suspended, len(got)) == (7, 5, 2, 7)
        assert "RecursionError" in caplog.text

    def test_in_other_threads(self, bus):
        """A stack overflow in another thread is handled like one in the main thread."""
        subscription = bus.subscribe(lambda ticked: None, to=Ticked)
        bus.log(Ticked())

        def fall(count):
            bus.log(Ticked(number=count))
            fall(count + 1)

        errors = []

        def run():
            try:
                fall(0)
            except RecursionError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(20)
        assert (len(errors), subscription.stats().balance) == (1, 0)
