"""The circuit breaker: a handler that keeps failing is reported once a minute, suspended, and tried again."""

from __future__ import annotations

import threading

import pytest

from ticking import Ticked
from trackside.events import HandlerSuspended, RunsOn
from trackside.rules import every, where


def raising(error):
    def handler(event):
        raise error

    return handler


class TestReports:
    def test_once_a_minute(self, bus, caplog, fake_clock):
        """A failure is reported once a minute, with how many there were since."""
        broken = bus.subscribe(raising(ValueError("no")), to=Ticked, keep=every(1))
        for _ in range(4):
            bus.log(Ticked())
        assert len(caplog.records) == 1
        fake_clock.advance(59.9)
        broken_again = bus.subscribe(raising(ValueError("other")), to=Ticked)
        bus.log(Ticked())
        assert [record.getMessage().count("other") for record in caplog.records] == [0, 1]
        broken_again.close()
        fake_clock.advance(0.2)
        # Five in a row: the handler suspended with the last one; its next try comes after 30 s.
        assert broken.stats().failed == 5
        fake_clock.advance(30)
        bus.log(Ticked())
        assert "(4 more since the last report)" in caplog.records[-1].getMessage()
        assert len(caplog.records) == 3

    def test_names_and_trace(self, bus, caplog):
        """A report names the handler and shows where it failed."""

        def my_handler(event):
            raise ValueError("the reason")

        bus.subscribe(my_handler, to=Ticked)
        bus.log(Ticked())
        (record,) = caplog.records
        assert "my_handler" in record.getMessage()
        assert "ValueError: the reason" in record.getMessage()
        assert record.exc_info[2] is not None
        assert record.name == "trackside"


class Flaky:
    """A handler that fails until the test stops it."""

    def __init__(self):
        self.fails = True
        self.calls = 0

    def __call__(self, event):
        """Fail, or not."""
        self.calls += 1
        if self.fails:
            raise ValueError("flaky")


class TestSuspension:
    @pytest.fixture(params=["inline", "ruled", "model", "queued"])
    def runs_in(self, request):
        """Give where the handler runs."""
        return request.param

    @pytest.fixture
    def log(self, bus):
        """Give a function that logs and waits until everybody has it."""

        def log(count=1):
            for _ in range(count):
                bus.log(Ticked())
            assert bus.flush(20)

        return log

    @pytest.fixture
    def flaky(self, bus, make_model, runs_in):
        """Give a handler that fails, subscribed."""
        flaky = Flaky()
        handler = make_model(flaky) if runs_in == "model" else flaky
        options = {"ruled": {"keep": every(1)}, "queued": {"runs_on": RunsOn.WORKER}}
        self.subscription = bus.subscribe(handler, to=Ticked, **options.get(runs_in, {}))
        return flaky

    def counts(self):
        """Return what was handled, failed and suspended."""
        stats = self.subscription.stats()
        assert stats.balance == 0
        return stats.handled, stats.failed, stats.suspended

    def test_after_five_in_a_row(self, fake_clock, flaky, log):
        """A handler that fails five times in a row is suspended."""
        log(4)
        assert self.counts() == (0, 4, 0)
        log(6)
        assert flaky.calls == 5
        assert self.counts() == (0, 5, 5)

    def test_a_success_forgives(self, fake_clock, flaky, log):
        """Four failures, a success and four more do not suspend a handler."""
        log(4)
        flaky.fails = False
        log(1)
        flaky.fails = True
        log(4)
        assert self.counts() == (1, 8, 0)

    def test_tried_again_ever_later(self, fake_clock, flaky, log):
        """It is tried with one event after 30 s, then after twice as long each time, ten minutes at most."""
        log(5)
        for tries, pause_s in enumerate([30, 60, 120, 240, 480, 600, 600], start=1):
            fake_clock.advance(pause_s - 0.001)
            log(3)
            assert flaky.calls == 5 + tries - 1
            fake_clock.advance(0.002)
            log(3)
            assert flaky.calls == 5 + tries

    def test_recovers(self, fake_clock, flaky, log):
        """After a try that succeeds everything is delivered, and the next suspension lasts 30 s again."""
        log(5)
        fake_clock.advance(31)
        log(1)
        flaky.fails = False
        fake_clock.advance(61)
        log(10)
        assert self.counts() == (10, 6, 0)
        flaky.fails = True
        log(6)
        assert self.counts() == (10, 11, 1)
        fake_clock.advance(31)
        log(1)
        assert flaky.calls == 10 + 11 + 1

    def test_published(self, fake_clock, bus, flaky, log, runs_in):
        """A suspension is an event, with the handler, the reason and the duration."""
        seen = []
        bus.subscribe(seen.append, to=HandlerSuspended)
        log(5)
        fake_clock.advance(31)
        log(1)
        bus.flush()
        assert [(one.failures, one.retry_after_s, one.error) for one in seen] == [
            (5, 30.0, "ValueError: flaky"),
            (6, 60.0, "ValueError: flaky"),
        ]
        assert all(("Model" if runs_in == "model" else "Flaky") in one.handler for one in seen)

    @pytest.fixture(params=["inline", "model", "queued", "frames"])
    def picky(self, request, bus, make_model, frames):
        """Give a predicate that fails, in the rule of a subscription."""
        flaky = Flaky()
        handler = {"model": make_model(), "frames": frames}.get(request.param, lambda _event: None)
        self.subscription = bus.subscribe(
            handler,
            to=Ticked,
            keep=where(lambda event: flaky(event) or event.number),
            runs_on=RunsOn.WORKER if request.param == "queued" else None,
        )
        return flaky

    def test_predicate(self, fake_clock, bus, picky, log):
        """A predicate that keeps failing is suspended like a handler, and tried again."""
        suspended = []
        bus.subscribe(suspended.append, to=HandlerSuspended)
        log(10)
        assert (picky.calls, self.counts()) == (5, (0, 5, 5))
        fake_clock.advance(31)
        log(2)
        assert (picky.calls, self.counts()) == (6, (0, 6, 6))
        picky.fails = False
        fake_clock.advance(61)
        bus.log(Ticked(number=0))
        bus.log(Ticked(number=1))
        bus.log(Ticked(number=1))
        bus.flush()
        assert (self.counts(), self.subscription.stats().filtered) == ((2, 6, 6), 1)
        assert [one.retry_after_s for one in suspended] == [30.0, 60.0]

    def test_rule_before_the_try(self, fake_clock, bus):
        """If a rule drops the event meant as the try, the next event is the try."""
        flaky = Flaky()
        subscription = bus.subscribe(flaky, to=Ticked, keep=where(lambda event: event.number))
        for _ in range(5):
            bus.log(Ticked(number=1))
        fake_clock.advance(31)
        flaky.fails = False
        for number in (0, 0, 1, 1):
            bus.log(Ticked(number=number))
        stats = subscription.stats()
        assert (stats.handled, stats.filtered, stats.failed, stats.suspended) == (2, 2, 5, 0)

    def test_its_own_suspension(self, fake_clock, bus, make_model, runs_in):
        """A handler that gets all events and fails on each does not turn its own suspension into an endless loop."""
        flaky = Flaky()
        handler = make_model(flaky) if runs_in == "model" else flaky
        options = {"ruled": {"keep": every(1)}, "queued": {"runs_on": RunsOn.WORKER}}
        bus.subscribe(handler, **options.get(runs_in, {}))
        for _ in range(10):
            bus.log(Ticked())
        assert bus.flush(20)
        assert flaky.calls == 5
        assert bus.stats().total("balance") == 0


class TestThreads:
    def test_one_suspension_for_many_failures_at_once(self, bus, fake_clock):
        """Threads that are inside a handler as it fails cause one suspension of 30 s, not one for each of them."""
        count = 16
        inside = threading.Barrier(count)
        suspended = []

        def fail_together(event):
            inside.wait(20)
            raise ValueError("together")

        bus.subscribe(suspended.append, to=HandlerSuspended)
        broken = bus.subscribe(fail_together, to=Ticked)
        threads = [threading.Thread(target=bus.log, args=(Ticked(),)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert broken.stats().failed == count
        assert [one.retry_after_s for one in suspended] == [30.0]

    def test_always_failing(self, bus, in_threads, scaled):
        """A handler that always fails is suspended under threads too, and the counts balance."""
        broken = bus.subscribe(raising(ValueError("no")), to=Ticked)
        count = scaled(20_000)

        def work(index):
            for _ in range(count):
                bus.log(Ticked())

        in_threads(8, work)
        stats = broken.stats()
        assert stats.balance == 0
        assert stats.logged == 8 * count
        assert stats.suspended > 0
