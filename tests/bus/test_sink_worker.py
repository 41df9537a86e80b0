"""Sinks on threads of their own: bounded, flushed, closed, or given up."""

from __future__ import annotations

import threading
import time

import pytest

from ticking import Ticked
from trackside.events import EventsDropped, RunsOn
from waiting import until

DEADLINE_S = 30.0


class Sink:
    """A sink that keeps the calls it gets."""

    runs_on = RunsOn.WORKER

    def __init__(self):
        self.calls = []
        self.timeouts = []
        self.answer = True

    def __call__(self, one):
        """Keep the number."""
        self.calls.append(one.number)

    def flush(self, timeout_s):
        """Keep the request."""
        self.calls.append("flush")
        self.timeouts.append(timeout_s)
        return self.answer

    def close(self, timeout_s):
        """Keep the request."""
        self.calls.append("close")
        self.timeouts.append(timeout_s)
        return self.answer


class TestOrder:
    def test_flush_between_events(self, bus):
        """A flush reaches the sink after what was logged before and ahead of what comes after."""
        sink = Sink()
        bus.subscribe(sink, to=Ticked)
        for number in range(3):
            bus.log(Ticked(number=number))
            assert bus.flush(60)
        bus.close()
        assert sink.calls == [0, "flush", 1, "flush", 2, "flush", "close"]

    def test_time_left(self, bus):
        """The sink learns how long it may take."""
        sink = Sink()
        bus.subscribe(sink, to=Ticked)
        bus.log(Ticked())
        bus.flush(3.0)
        assert 0 < sink.timeouts[0] <= 3.0

    @pytest.mark.parametrize(("answer", "expected"), [(True, True), (None, True), (False, False)])
    def test_answer(self, bus, answer, expected):
        """The return values of the sink's flush and close decide, and None means success."""
        sink = Sink()
        sink.answer = answer
        subscription = bus.subscribe(sink, to=Ticked)
        bus.log(Ticked())
        assert bus.flush(60) is expected
        assert subscription.close(60) is expected

    def test_own_thread(self, bus, make_model):
        """Each sink has a thread of its own."""
        threads = []
        for _ in range(3):
            bus.subscribe(lambda _event: threads.append(threading.get_ident()), to=Ticked, runs_on=RunsOn.WORKER)
        bus.log(Ticked())
        bus.flush()
        assert len({*threads, threading.get_ident()}) == 4

    def test_never_used(self, bus):
        """A sink that got nothing is not asked to flush, but closed."""
        sink = Sink()
        subscription = bus.subscribe(sink, to=Ticked)
        assert bus.flush(60)
        assert sink.calls == []
        assert subscription.close(60)
        assert sink.calls == ["close"]

    def test_closed_once(self, bus):
        """Closing twice closes the sink once, and does not wait the second time."""
        sink = Sink()
        subscription = bus.subscribe(sink, to=Ticked)
        bus.log(Ticked())
        assert bus.close(60)
        started = time.monotonic()
        assert subscription.close(20)
        assert time.monotonic() - started < 5
        assert sink.calls == [0, "close"]

    def test_closed_by_two_threads(self, bus):
        """Two threads that close a bus at once both return."""
        sink = Sink()
        bus.subscribe(sink, to=Ticked)
        bus.log(Ticked())
        threads = [threading.Thread(target=bus.close, args=(20.0,)) for _ in range(4)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - started < 10
        assert sink.calls == [0, "close"]

    def test_thread_ends(self, bus, new_threads):
        """The sink worker's thread ends with the subscription."""
        subscription = bus.subscribe(Sink(), to=Ticked)
        bus.log(Ticked())
        bus.flush()
        started = new_threads()
        assert len(started) == 2
        subscription.close()
        bus.close()
        for thread in started:
            thread.join(DEADLINE_S)
        assert not any(thread.is_alive() for thread in started)


class TestBounds:
    def log_slowly(self, bus, count, **fields):
        """Log without filling the queue before the sink worker."""
        for number in range(count):
            bus.log(Ticked(number=number, **fields))
            if number % 8_000 == 7_999:
                assert bus._dispatcher.settle(DEADLINE_S)
        assert bus._dispatcher.settle(DEADLINE_S)

    def test_items(self, bus, gate):
        """A sink worker holds 16,384 events; further ones are counted as dropped."""
        subscription = bus.subscribe(gate, to=Ticked, runs_on=RunsOn.WORKER)
        bus.log(Ticked(number=-1))
        assert gate.entered.wait(10)
        self.log_slowly(bus, 20_000)
        stats = subscription.stats()
        assert (stats.logged, stats.in_queue, stats.dropped) == (20_001, 16_384, 20_001 - 16_384)
        gate.go_on.set()
        assert bus.flush(20)
        assert [one.number for one in gate.events] == list(range(-1, 16_383))

    def test_bytes(self, bus, gate):
        """A sink worker holds 32 MiB of encoded events."""
        subscription = bus.subscribe(gate, to=Ticked, runs_on=RunsOn.WORKER)
        bus.log(Ticked(number=-1))
        assert gate.entered.wait(10)
        self.log_slowly(bus, 1_000, text="x" * 60_000)
        stats = subscription.stats()
        # 559 texts of 60,000 bytes fit into 32 MiB; the few bytes around each text decide whether it is one less.
        assert 555 <= stats.in_queue <= 560
        assert stats.dropped == 1_001 - stats.in_queue

    def test_others_get_all(self, bus, gate, model):
        """A full sink worker takes no room from the others."""
        got = []
        bus.subscribe(gate, to=Ticked, runs_on=RunsOn.WORKER)
        other = bus.subscribe(got.append, to=Ticked, runs_on=RunsOn.WORKER)
        bus.subscribe(model, to=Ticked)
        for _ in range(4):
            self.log_slowly(bus, 5_000)
            assert other._subscriber.worker.flush(DEADLINE_S)
        assert len(model.events) == 20_000
        assert len(got) == 20_000

    def test_reported_in_the_stream(self, bus, gate, model):
        """
        The events that a full sink worker refused are in an event that names the handler, and lead to no further one.
        """
        bus.subscribe(gate, runs_on=RunsOn.WORKER)
        bus.subscribe(model, to=EventsDropped)
        bus.log(Ticked(number=-1))
        assert gate.entered.wait(10)
        self.log_slowly(bus, 20_000)
        for _ in range(5):
            bus.flush(0.05)
        printed = [one for one in model.events if one.where != "queue"]
        assert {one.where for one in printed} == {"tests.bus.conftest.Gate"} or all(
            "Gate" in one.where for one in printed
        )
        # The sink worker also holds the stream's start, and is handling that or the first event.
        assert sum(one.by_type["test.ticked"] for one in printed) in {
            20_001 + 1 - 16_384,
            20_001 + 1 - 16_385,
        }
        assert len(printed) <= 5


class TestGivenUp:
    def test_close_in_time(self, bus, gate, model):
        """Closing returns in time though a sink is blocked; the events it did not get are counted as dropped."""
        subscription = bus.subscribe(gate, to=Ticked, runs_on=RunsOn.WORKER)
        for number in range(10):
            bus.log(Ticked(number=number))
        assert gate.entered.wait(10)
        assert bus._dispatcher.settle(DEADLINE_S)
        started = time.monotonic()
        assert not subscription.close(0.3)
        assert time.monotonic() - started < 5
        assert bus._dispatcher.settle(DEADLINE_S)
        stats = subscription.stats()
        assert (stats.logged, stats.handled, stats.dropped, stats.in_queue) == (10, 0, 10, 0)

    def test_late_return(self, bus, gate):
        """If the sink returns after that, the event it was handling is counted as handled, the rest stays dropped."""
        done = threading.Event()

        def stuck(one):
            gate(one)
            done.set()

        subscription = bus.subscribe(stuck, to=Ticked, runs_on=RunsOn.WORKER)
        for number in range(10):
            bus.log(Ticked(number=number))
        assert gate.entered.wait(10)
        assert bus._dispatcher.settle(DEADLINE_S)
        subscription.close(0.1)
        assert bus._dispatcher.settle(DEADLINE_S)
        gate.go_on.set()
        assert done.wait(10)
        until(lambda: subscription.stats().handled)
        stats = subscription.stats()
        assert (stats.handled, stats.dropped, stats.in_queue, stats.balance) == (1, 9, 0, 0)
        assert len(gate.events) == 1

    def test_fair_shares(self, bus, gate):
        """A blocked sink does not use up the time in which the next ones are flushed and closed."""
        sinks = [Sink(), gate, Sink()]
        for sink in sinks:
            bus.subscribe(sink, to=Ticked, runs_on=RunsOn.WORKER)
        bus.log(Ticked())
        started = time.monotonic()
        assert not bus.close(3.0)
        assert time.monotonic() - started < 15
        assert sinks[0].calls == sinks[2].calls == [0, "close"]

    def test_second_close_is_quick(self, bus, gate):
        """No call waits twice for a sink that was given up."""
        subscription = bus.subscribe(gate, to=Ticked, runs_on=RunsOn.WORKER)
        bus.log(Ticked())
        assert gate.entered.wait(10)
        assert not subscription.close(0.1)
        started = time.monotonic()
        bus.close(20)
        assert time.monotonic() - started < 5

    def test_loss_is_reported(self, make_bus, gate, caplog):
        """A line at the close of the bus says exactly how many events were lost, and where."""
        bus = make_bus()
        bus.subscribe(gate, to=Ticked, runs_on=RunsOn.WORKER)
        for number in range(10):
            bus.log(Ticked(number=number))
        assert bus._dispatcher.settle(DEADLINE_S)
        bus.close(0.2)
        (record,) = caplog.records
        assert record.getMessage().startswith("lost 10 event(s): ")
        assert "Gate (10 dropped)" in record.getMessage()
