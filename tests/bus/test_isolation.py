"""The caller and the other handlers do not notice a handler's errors."""

from __future__ import annotations

import logging
import time

import pytest

from ticking import Ticked
from trackside.events import HandlerSuspended, RunsOn
from trackside.rules import where

EVENTS = 100_000
DEADLINE_S = 30.0


class Strange(BaseException):
    """An exception that no ``except Exception`` catches."""


class BrokenText(Exception):
    def __str__(self):
        raise RuntimeError("not even this works")


def raising(error):
    def handler(event):
        raise error

    return handler


class TestInline:
    @pytest.mark.parametrize(
        "error",
        [ValueError("no"), Strange("no"), BrokenText(), GeneratorExit(), StopIteration(), RecursionError()],
        ids=lambda error: type(error).__name__,
    )
    def test_raises(self, bus, scaled, error):
        """The caller sees no exception, the others get every event, and the counts show the failure."""
        before, after = [], []
        bus.subscribe(before.append, to=Ticked)
        broken = bus.subscribe(raising(error), to=Ticked)
        bus.subscribe(after.append, to=Ticked)
        events = [Ticked(number=number) for number in range(scaled(EVENTS))]
        for one in events:
            bus.log(one)
        assert before == after == events
        stats = broken.stats()
        assert (stats.failed, stats.suspended) == (5, len(events) - 5)
        assert type(error).__name__ in stats.last_error

    @pytest.mark.parametrize("result", [None, False, object(), NotImplemented, ValueError("a value, not raised")])
    def test_returns_garbage(self, bus, result):
        """The return value of a handler is ignored."""
        got = []
        strange = bus.subscribe(lambda _event: result, to=Ticked)
        bus.subscribe(got.append, to=Ticked)
        for number in range(10):
            bus.log(Ticked(number=number))
        assert len(got) == strange.stats().handled == 10

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_interrupts_pass(self, bus, error):
        """Ctrl-C and an exit raised in a handler reach the program."""
        broken = bus.subscribe(raising(error()), to=Ticked)
        with pytest.raises(error):
            bus.log(Ticked())
        stats = broken.stats()
        assert (stats.logged, stats.failed, stats.balance) == (1, 1, 0)

    def test_recursion_without_end(self, bus):
        """A handler that never stops calling itself is one that fails."""

        def endless(event):
            endless(event)

        got = []
        subscription = bus.subscribe(endless, to=Ticked)
        bus.subscribe(got.append, to=Ticked)
        bus.log(Ticked())
        assert (len(got), subscription.stats().failed) == (1, 1)

    def test_predicate(self, bus, caplog):
        """A predicate that raises is a failure of its own subscription."""
        got = []
        broken = bus.subscribe(print, to=Ticked, keep=where(lambda event: event.no_such_field))
        bus.subscribe(got.append, to=Ticked)
        bus.log(Ticked())
        assert (len(got), broken.stats().failed, broken.stats().balance) == (1, 1, 0)
        assert "no_such_field" in caplog.text

    def test_broken_logging(self, bus):
        """A logging handler that raises while a failure is reported does not reach the caller either."""

        class Broken(logging.Handler):
            def emit(self, record):
                raise ValueError("no disk")

        logger, broken = logging.getLogger("trackside"), Broken()
        logger.addHandler(broken)
        try:
            subscription = bus.subscribe(raising(ValueError("first")), to=Ticked)
            bus.log(Ticked())
        finally:
            logger.removeHandler(broken)
        assert subscription.stats().failed == 1


class TestStrict:
    def test_raises(self, make_bus):
        """A strict bus raises what handlers raise, each time: no handler is suspended."""
        bus = make_bus(strict=True)
        broken = bus.subscribe(raising(ValueError("seen")), to=Ticked)
        for _ in range(10):
            with pytest.raises(ValueError, match="seen"):
                bus.log(Ticked())
        assert (broken.stats().failed, broken.stats().suspended) == (10, 0)

    def test_threads_of_ours_live(self, make_bus, make_model):
        """An exception raised on a thread of the bus has no caller to reach, and ends nothing."""
        bus = make_bus(strict=True)
        got = []
        bus.subscribe(raising(ValueError("inline")), to=HandlerSuspended)
        bus.subscribe(raising(ValueError("queued")), to=Ticked, runs_on=RunsOn.WORKER)
        bus.subscribe(make_model(raising(ValueError("model"))), to=Ticked)
        bus.subscribe(got.append, to=Ticked, runs_on=RunsOn.WORKER)
        for number in range(100):
            bus.log(Ticked(number=number))
            if number % 10 == 0:
                assert bus.flush(60)
        assert bus.flush(60)
        assert [one.number for one in got] == list(range(100))
        assert bus.stats().total("balance") == 0


class TestModel:
    @pytest.mark.parametrize("error", [ValueError, Strange, KeyboardInterrupt, SystemExit])
    def test_raises(self, bus, make_model, scaled, error):
        """A model that raises anything costs no other model and no sink an event, and the dispatcher lives on."""
        model, got = make_model(), []
        broken = bus.subscribe(make_model(raising(error("no"))), to=Ticked)
        bus.subscribe(model, to=Ticked)
        bus.subscribe(got.append, to=Ticked, runs_on=RunsOn.WORKER)
        count = scaled(EVENTS)
        for number in range(count):
            bus.log(Ticked(number=number))
            if number % 5000 == 0:
                assert bus.flush(20)
        assert bus.flush(20)
        assert [one.number for one in model.events] == [one.number for one in got] == list(range(count))
        assert (broken.stats().failed, broken.stats().suspended) == (5, count - 5)

    def test_predicate(self, bus, make_model):
        """A predicate behind the queue that raises is a failure of its own subscription."""
        model = make_model()
        broken = bus.subscribe(make_model(), to=Ticked, keep=where(raising(Strange("no"))))
        bus.subscribe(model, to=Ticked)
        bus.log(Ticked())
        bus.flush()
        assert (len(model.events), broken.stats().failed, broken.stats().balance) == (1, 1, 0)


class TestSinkWorker:
    @pytest.mark.parametrize("error", [ValueError, Strange, KeyboardInterrupt, SystemExit])
    def test_raises(self, bus, scaled, error):
        """A queued handler that raises anything costs no other handler an event, and its thread lives on."""
        got = []
        broken = bus.subscribe(raising(error("no")), to=Ticked, runs_on=RunsOn.WORKER)
        bus.subscribe(got.append, to=Ticked, runs_on=RunsOn.WORKER)
        count = scaled(EVENTS)
        for number in range(count):
            bus.log(Ticked(number=number))
            if number % 5000 == 0:
                assert bus.flush(20)
        assert bus.flush(20)
        assert len(got) == count
        assert (broken.stats().failed, broken.stats().suspended) == (5, count - 5)

    @pytest.mark.parametrize("seconds", [10.0, None], ids=["sleeps 10 s", "blocks for ever"])
    def test_stalls(self, bus, gate, model, scaled, seconds):
        """A queued handler that sleeps or blocks delays no log(), no model and no other sink."""
        got = []
        stalled = gate if seconds is None else lambda _event: gate.go_on.wait(seconds)
        lost = bus.subscribe(stalled, to=Ticked, runs_on=RunsOn.WORKER)
        bus.subscribe(model, to=Ticked)
        other = bus.subscribe(got.append, to=Ticked, runs_on=RunsOn.WORKER)
        count = scaled(EVENTS)
        in_flushes_s = 0.0
        for number in range(count):
            bus.log(Ticked(number=number))
            if number % 5000 == 0 or number == count - 1:
                started = time.monotonic()
                assert not bus.flush(0.2)
                in_flushes_s += time.monotonic() - started
                # A busy machine may need longer than that; but it must not wait for the stalled handler.
                assert bus._dispatcher.settle(DEADLINE_S)
                assert other._subscriber.worker.flush(DEADLINE_S)
        # Some flushes of 0.2 s wait for the stalled handler; ten seconds would be waiting for it.
        assert in_flushes_s < 0.2 * (count / 5000 + 2) + 9.0
        assert [one.number for one in model.events] == [one.number for one in got] == list(range(count))
        stats = lost.stats()
        assert stats.balance == 0
        assert stats.handled + stats.dropped + stats.in_queue == count

    def test_flush_method_raises(self, bus, caplog):
        """A sink whose ``flush`` or ``close`` raises is reported, and costs no event."""

        class Sink:
            def __call__(self, event):
                pass

            def flush(self, timeout_s):
                raise Strange("flush")

            def close(self, timeout_s):
                raise Strange("close")

        subscription = bus.subscribe(Sink(), to=Ticked, runs_on=RunsOn.WORKER)
        bus.log(Ticked())
        assert not bus.flush()
        assert not subscription.close()
        stats = subscription.stats()
        assert (stats.handled, stats.failed, stats.balance) == (1, 0, 0)
        assert "Strange: flush" in caplog.text


class TestFrames:
    @pytest.mark.parametrize("error", [ValueError, Strange])
    def test_accept_raises(self, bus, make_frames, caplog, error):
        """A frame sink that raises loses its frames, counted and reported once; another gets all."""

        class Broken(make_frames):
            def accept(self, frame, *, events):
                raise error("no")

        good = make_frames()
        broken = bus.subscribe(Broken(), to=Ticked)
        bus.subscribe(good, to=(Ticked,))
        for number in range(30):
            bus.log(Ticked(number=number))
            if number % 10 == 9:
                bus.flush()
        stats = broken.stats()
        assert (stats.logged, stats.dropped, stats.handled, stats.balance) == (30, 30, 0, 0)
        assert len(good.events()) == 30
        assert len(caplog.records) == 1

    @pytest.mark.parametrize("method", ["open", "flush", "close"])
    def test_other_methods_raise(self, bus, make_frames, caplog, method):
        """A frame sink whose other methods raise is reported; the counts balance and the others get their frames."""

        def fail(*arguments):
            raise ValueError(f"{method} is broken")

        broken, good = make_frames(), make_frames()
        setattr(broken, method, fail)
        subscription = bus.subscribe(broken, to=Ticked)
        bus.subscribe(good, to=(Ticked,))
        bus.log(Ticked())
        bus.flush()
        subscription.close()
        assert subscription.stats().balance == 0
        assert len(good.events()) == 1
        assert f"{method} is broken" in caplog.text

    def test_lost_raises(self, bus, make_frames):
        """A frame sink that cannot say how much it lost does not break the counts."""

        class Broken(make_frames):
            raises = False

            def __init__(self):
                pass

            accepts = True
            opened = frames = ()

            @property
            def lost(self):
                if self.raises:
                    raise ValueError("unknown")
                return 0

        broken = Broken()
        subscription = bus.subscribe(broken, to=Ticked)
        broken.raises = True
        assert subscription.stats().balance == 0
