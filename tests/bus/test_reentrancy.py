"""An event can be logged from anywhere: nothing deadlocks and nothing is lost without a count."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import warnings

import pytest

from ticking import Ticked
from trackside.events import ITERATION, Event, RunsOn, event
from trackside.rules import every

DEEPEST = 16
ROUNDS = 10_000


@event("test.reentrancy.tocked", priority=ITERATION)
class Tocked(Event):
    number: int = 0


class TestDepth:
    @pytest.mark.parametrize("keep", [None, every(1)], ids=["plain", "ruled"])
    def test_exactly_sixteen(self, bus, keep):
        """A handler that logs its own event is called 16 deep; the seventeenth is suppressed and counted."""
        numbers = []

        def again(ticked):
            numbers.append(ticked.number)
            bus.log(Ticked(number=ticked.number + 1))

        subscription = bus.subscribe(again, to=Ticked, keep=keep)
        for rounds in (1, 2, 3):
            numbers.clear()
            bus.log(Ticked(number=1))
            assert numbers == list(range(1, DEEPEST + 1))
            assert bus.stats().suppressed == rounds
        stats = subscription.stats()
        assert (stats.logged, stats.handled, stats.balance) == (3 * DEEPEST, 3 * DEEPEST, 0)

    def test_suppressed_events_are_recorded(self, bus, model):
        """An event that is too deep for a plain callable is still queued for the model."""

        def again(ticked):
            bus.log(Ticked(number=ticked.number + 1))

        bus.subscribe(again, to=Ticked)
        bus.subscribe(model, to=Ticked)
        bus.log(Ticked(number=1))
        bus.flush()
        assert sorted(ticked.number for ticked in model.events) == list(range(1, DEEPEST + 2))

    def test_logs_twice(self, bus):
        """
        A handler that logs two of its own events ends: 2**16 − 1 calls, and as many suppressed events are counted.
        """
        calls = 0

        def twice(_event):
            nonlocal calls
            calls += 1
            bus.log(Ticked())
            bus.log(Ticked())

        bus.subscribe(twice, to=Ticked)
        bus.log(Ticked())
        assert calls == 2**DEEPEST - 1
        assert bus.stats().suppressed == 2**DEEPEST

    def test_alternating(self, bus):
        """Two handlers that call each other end as well, hardly deeper than one that calls itself."""
        depths = []

        def answer(event):
            depths.append(event.number)
            other = Tocked if type(event) is Ticked else Ticked
            bus.log(other(number=event.number + 1))

        bus.subscribe(answer, to=Ticked)
        bus.subscribe(answer, to=Tocked)
        bus.log(Ticked(number=1))
        assert DEEPEST <= max(depths) <= DEEPEST + 4
        assert bus.stats().total("balance") == 0

    def test_two_that_hear_each_other(self, bus):
        """Two handlers of all events that log one each end in the time that 2**17 calls take, not for ever."""
        calls = 0

        def handler(_event):
            nonlocal calls
            calls += 1
            bus.log(Tocked())

        bus.subscribe(handler)
        bus.subscribe(lambda event: handler(event))
        bus.log(Ticked())
        assert 2**DEEPEST <= calls <= 2 ** (DEEPEST + 4)

    def test_deep_stacks_are_not_deep_logs(self, bus):
        """A program that is deep in calls of its own loses nothing."""
        got = []
        bus.subscribe(got.append, to=Ticked)

        def down(levels):
            if levels:
                down(levels - 1)
            else:
                bus.log(Ticked())

        down(200)
        assert len(got) == 1

    def test_many_threads_are_not_deep(self, bus):
        """Forty threads inside one handler at once are not forty deep."""
        count = 40
        inside = threading.Barrier(count)
        subscription = bus.subscribe(lambda _event: inside.wait(20), to=Ticked)
        threads = [threading.Thread(target=bus.log, args=(Ticked(),)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (subscription.stats().handled, bus.stats().suppressed) == (count, 0)

    def test_depth_under_threads(self, bus, in_threads):
        """
        The limit holds for each thread by itself, however many there are; it is one more where other threads finish
        between the count of an arrival and the check of it.
        """
        deepest = {}

        def again(ticked):
            index, depth = divmod(ticked.number, 100)
            deepest[index] = max(depth, deepest.get(index, 0))
            bus.log(Ticked(number=ticked.number + 1))

        subscription = bus.subscribe(again, to=Ticked)

        def work(index):
            for _ in range(20):
                bus.log(Ticked(number=index * 100 + 1))

        in_threads(8, work)
        assert sorted(deepest) == list(range(8))
        assert all(DEEPEST <= depth <= DEEPEST + 4 for depth in deepest.values())
        assert (subscription.stats().balance, bus.stats().suppressed) == (0, 8 * 20)


class TestHandlerThatLogs:
    def test_another_type(self, bus, scaled):
        """A handler may log other events, any number of times."""
        got = []
        bus.subscribe(lambda ticked: bus.log(Tocked(number=ticked.number)), to=Ticked)
        bus.subscribe(got.append, to=Tocked)
        for number in range(scaled(ROUNDS)):
            bus.log(Ticked(number=number))
        assert [tocked.number for tocked in got] == list(range(scaled(ROUNDS)))

    def test_on_a_sink_worker(self, bus, model, scaled):
        """A queued handler may log, and flush() delivers what was logged before it."""
        bus.subscribe(lambda ticked: bus.log(Tocked(number=ticked.number)), to=Ticked, runs_on=RunsOn.WORKER)
        bus.subscribe(model, to=Tocked)
        for number in range(scaled(ROUNDS)):
            bus.log(Ticked(number=number))
        assert bus.flush(20)
        assert bus.flush(20)
        assert len(model.events) == scaled(ROUNDS)

    def test_its_own_events_on_a_sink_worker(self, bus):
        """A queued handler that logs its own type for ever blocks no other, and close() returns."""
        subscription = bus.subscribe(lambda _event: bus.log(Ticked()), to=Ticked, runs_on=RunsOn.WORKER)
        bus.log(Ticked())
        bus.flush(0.5)
        bus.close(1.0)
        assert subscription.stats().balance == 0

    def test_model_that_feeds_itself(self, bus, make_model):
        """A model that publishes what it reads itself, for ever, keeps neither flush() nor other handlers waiting."""
        got = []
        greedy = make_model(lambda _event: bus.publish(Ticked()))
        subscription = bus.subscribe(greedy, to=Ticked)
        bus.subscribe(got.append, to=Tocked, runs_on=RunsOn.WORKER)
        bus.log(Ticked())
        bus.log(Tocked())
        assert bus.flush(10)
        assert len(got) == 1
        bus.close(2.0)
        assert subscription.stats().balance == 0


class TestFlushFromWithin:
    def test_inline(self, bus, model):
        """An inline handler that flushes sees what was logged before it, and returns."""
        seen = []

        def flush(_event):
            seen.append((bus.flush(10), len(model.events)))

        bus.subscribe(model, to=Tocked)
        bus.subscribe(flush, to=Ticked)
        bus.log(Tocked())
        bus.log(Ticked())
        assert seen == [(True, 1)]

    def test_inline_without_dispatcher(self, bus):
        """So does one on a bus on which nothing was ever queued."""
        seen = []
        bus.subscribe(lambda _event: seen.append(bus.flush(10)), to=Ticked)
        bus.log(Ticked())
        assert seen == [True]

    def test_sink_worker(self, bus):
        """A queued handler that flushes cannot wait for itself: flush() returns False at once."""
        seen = []
        bus.subscribe(lambda _event: seen.append(bus.flush(60)), to=Ticked, runs_on=RunsOn.WORKER)
        bus.log(Ticked())
        assert bus.flush(20)
        assert seen == [False]

    def test_model(self, bus, make_model):
        """A model that flushes gets False at once."""
        seen = []
        bus.subscribe(make_model(lambda _event: seen.append(bus.flush(60))), to=Ticked)
        bus.log(Ticked())
        assert bus.flush(20)
        assert seen == [False]

    def test_forwarded(self, bus, make_model):
        """A plain callable that flushes on what a model published returns."""
        seen = []
        bus.subscribe(make_model(lambda _event: bus.publish(Tocked())), to=Ticked)
        bus.subscribe(lambda _event: seen.append(bus.flush(60)), to=Tocked)
        bus.log(Ticked())
        assert bus.flush(20)
        assert seen == [False]

    def test_stats(self, bus, make_model):
        """Counts can be read from everywhere."""
        seen = []

        def read_stats(_event):
            seen.append(bus.stats())

        bus.subscribe(read_stats, to=Ticked)
        bus.subscribe(read_stats, to=Ticked, runs_on=RunsOn.WORKER)
        bus.subscribe(make_model(read_stats), to=Ticked)
        bus.log(Ticked())
        assert bus.flush(20)
        assert len(seen) == 3

    @pytest.mark.parametrize("runs_in", ["inline", "model", "queued", "forwarded"])
    def test_close(self, bus, make_model, runs_in):
        """Every handler may close the bus; a second close finishes what the first could not."""
        done = threading.Event()

        def close(_event):
            bus.close(1.0)
            done.set()

        if runs_in == "forwarded":
            bus.subscribe(make_model(lambda _event: bus.publish(Tocked())), to=Ticked)
            bus.subscribe(close, to=Tocked)
        else:
            bus.subscribe(
                make_model(close) if runs_in == "model" else close,
                to=Ticked,
                runs_on=RunsOn.WORKER if runs_in == "queued" else None,
            )
        bus.log(Ticked())
        assert done.wait(20)
        bus.close(5.0)
        assert bus.stats().total("balance") == 0
        bus.log(Ticked())
        assert bus.stats().after_close == 1


class TestFromOddPlaces:
    def test_finalizer(self, bus, scaled):
        """An event that a finalizer logs, whenever the garbage collector comes by, is delivered."""

        class Dying:
            def __init__(self, number):
                self.number = number
                self.circle = self

            def __del__(self):
                bus.log(Tocked(number=self.number))

        got, rounds = [], scaled(ROUNDS)
        bus.subscribe(lambda _event: None, to=Ticked)
        bus.subscribe(got.append, to=Tocked)
        queued = bus.subscribe(lambda _event: None, to=Tocked, runs_on=RunsOn.WORKER)
        kept = gc.get_threshold()
        gc.set_threshold(7, 2, 2)
        try:
            for number in range(rounds):
                Dying(number)
                bus.log(Ticked(number=number))
                if number % 100 == 0:
                    bus.subscribe(print, to=Tocked).close()
                    bus.flush()
        finally:
            gc.set_threshold(*kept)
        gc.collect()
        assert sorted(tocked.number for tocked in got) == list(range(rounds))
        bus.flush(20)
        assert queued.stats().handled == rounds

    def test_logging_handler(self, bus, scaled):
        """A logging handler that logs events gets no loop going, not even with trackside's own complaints."""

        class ToBus(logging.Handler):
            def emit(self, record):
                bus.log(Ticked())

        handler = ToBus()
        logging.getLogger().addHandler(handler)
        try:
            warn = logging.getLogger("test.reentrancy").warning
            subscription = bus.subscribe(lambda _event: warn("again"), to=Ticked)
            broken = bus.subscribe(lambda event: event.missing, to=Ticked)
            for _ in range(scaled(ROUNDS) // 10):
                bus.log(Ticked())
        finally:
            logging.getLogger().removeHandler(handler)
        assert subscription.stats().balance == broken.stats().balance == 0
        assert bus.stats().suppressed >= scaled(ROUNDS) // 10

    def test_warnings_hook(self, bus, monkeypatch, scaled):
        """A hook for warnings may log."""
        got = []
        bus.subscribe(got.append, to=Ticked)
        bus.subscribe(lambda _event: warnings.warn("from a handler", stacklevel=1), to=Tocked)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            monkeypatch.setattr(warnings, "showwarning", lambda *_args, **_kwargs: bus.log(Ticked()))
            for _ in range(scaled(ROUNDS)):
                bus.log(Tocked())
        assert len(got) == scaled(ROUNDS)

    def test_trace_function(self, bus):
        """A profiler that logs at each call inside the bus gets no loop going."""
        got = []
        bus.subscribe(got.append, to=Ticked)
        bus.subscribe(lambda _event: None, to=Tocked, runs_on=RunsOn.WORKER)
        busy = False

        def profile(frame, kind, argument):
            nonlocal busy
            if not busy and kind == "call":
                busy = True
                bus.log(Ticked())
                busy = False

        sys.setprofile(profile)
        try:
            bus.log(Tocked())
            bus.subscribe(print, to=Tocked).close()
            bus.flush()
        finally:
            sys.setprofile(None)
        assert len(got) > 10


class TestSignals:
    @pytest.mark.parametrize("inside", ["log", "subscribe", "flush", "add", "stats", "suspended"])
    def test_handler_while_inside(self, run_script, scaled, seed, inside):
        """
        A signal handler that logs, subscribes, flushes and counts while the main thread is inside the bus, 10,000
        times: it never deadlocks and every event is accounted for.
        """
        outcome = run_script("signals.py", inside, scaled(ROUNDS), seed, timeout_s=110)
        assert outcome.code == 0, outcome.err
        assert outcome.err == ""
        (printed,) = outcome.printed
        assert printed["signals"] >= scaled(ROUNDS)
        assert printed["balances"] == [0] * len(printed["balances"])
        assert printed["from_signals"] == printed["expected_from_signals"]
