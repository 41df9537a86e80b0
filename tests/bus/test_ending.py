"""Logging while the bus or the interpreter ends."""

from __future__ import annotations

import gc
import sys

import pytest

from ticking import Ticked
from trackside.events import Event, RunsOn, event


@event("test.late.published")
class Published(Event):
    pass


class TestInterrupted:
    def test_while_reading_counts(self, bus, model):
        """Ctrl-C in any moment of `stats`, after any call there was entered or has returned, stops no dispatcher."""
        bus.subscribe(model, to=Ticked)
        bus.log(Ticked())
        assert bus.flush(60)
        moments = 0
        while interrupted_after(moments, bus.stats):
            bus.log(Ticked())
            assert bus.flush(60)
            moments += 1
        assert moments > 20
        assert len(model.events) == 1 + moments


def interrupted_after(moments, call):
    """Interrupt *call* once so many functions in it were entered or have returned; False if it had fewer moments."""
    left = moments

    def count(_frame, kind, _):
        nonlocal left
        if kind != "c_call":  # no signal is handled between a call and its beginning, if it is one of C
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    gc.disable()  # what a collection calls swallows the exception
    sys.setprofile(count)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


class TestAfterClose:
    def test_counted(self, bus, frames, model):
        """An event logged on a closed bus is counted, and reaches no handler."""
        got = []
        bus.subscribe(got.append, to=Ticked)
        bus.subscribe(model, to=Ticked)
        bus.subscribe(frames, to=Ticked)
        bus.log(Ticked())
        assert bus.close(60)
        for _ in range(7):
            bus.log(Ticked())
        assert (len(got), len(model.events), len(frames.events())) == (1, 1, 1)
        assert bus.stats().after_close == 7
        assert bus.stats().logged == 3

    def test_everything_is_harmless(self, bus):
        """Every other call on a closed bus is harmless, and quick."""
        bus.close()
        assert bus.close(60)
        assert bus.flush(60)
        bus.begin(bus._identity.find())
        bus.end()
        bus.publish(Ticked())
        assert not bus.wants(Ticked)
        bus.subscribe(print).close()
        assert bus.stats().after_close == 1

    def test_context_manager(self, make_bus):
        """A bus closes with its block."""
        with make_bus() as bus:
            bus.log(Ticked())
        bus.log(Ticked())
        assert bus.stats().after_close == 1

    def test_raced(self, make_bus, in_threads):
        """Of events that threads log while the bus is closed, each is counted in exactly one place."""
        for _ in range(20):
            bus = make_bus()
            subscription = bus.subscribe(lambda _event: None, to=Ticked, runs_on=RunsOn.WORKER)
            bus.log(Ticked())

            def work(index, bus=bus):
                if index == 0:
                    bus.close()
                else:
                    for _ in range(200):
                        bus.log(Ticked())

            in_threads(5, work)
            stats = subscription.stats()
            assert stats.balance == 0
            assert stats.logged + bus.stats().after_close == 1 + 4 * 200
            # The last of them may still be in the queue of a bus that no thread empties any more.
            assert stats.handled + stats.dropped + stats.in_queue == stats.logged

    def test_no_second_stream(self, make_bus, frames, in_threads):
        """An event that comes too late begins no second stream."""
        for _ in range(20):
            bus = make_bus()
            bus.subscribe(frames)

            def work(index, bus=bus):
                if index == 0:
                    bus.close()
                else:
                    for _ in range(50):
                        bus.log(Ticked())

            in_threads(4, work)
        ended = [type(one).__name__ for one in frames.events()]
        assert ended.count("SourceStarted") == ended.count("SourceEnded") <= 20


class TestInterpreter:
    @pytest.mark.parametrize(
        "case", ["closed", "later atexit", "teardown", "daemons", "thread after main", "never used"]
    )
    def test_silence(self, run_script, case):
        """Events logged while the interpreter ends leave no trace on stderr, and are counted where that is possible."""
        outcome = run_script("ending.py", case)
        assert (outcome.code, outcome.err) == (0, "")
        for printed in outcome.printed:
            assert printed["after_close"] == printed["expected"]
        assert len(outcome.printed) == (case in {"closed", "later atexit"})

    def test_daemons_again_and_again(self, run_script, scaled):
        """Daemon threads that log as the interpreter ends do not crash it."""
        for _ in range(scaled(30)):
            outcome = run_script("ending.py", "daemons")
            assert (outcome.code, outcome.err) == (0, "")


class TestDerived:
    def test_published_while_closing(self, bus, frames):
        """
        Events that a model publishes about the last events reach the other handlers, though nothing was flushed before
        the close.
        """

        class Publisher:
            runs_on = RunsOn.DISPATCHER

            def __call__(self, event):
                if type(event) is Ticked:
                    bus.publish(Published())

        bus.subscribe(frames, to=Published)
        bus.subscribe(Publisher())
        bus.log(Ticked())
        assert bus.close(60)
        assert len(frames.events(Published)) == 1
