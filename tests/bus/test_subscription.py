"""Subscribing and leaving, also from within handlers and while others log."""

from __future__ import annotations

import threading

import pytest

from kinds import Animal, Dog, Stone
from trackside.events import RunsOn
from trackside.rules import where

DOG, STONE = Dog(), Stone()


class TestUnsubscribe:
    @pytest.mark.parametrize("queued", [False, True])
    def test_close(self, bus, queued):
        """A handler that left gets nothing more, and its counts stay."""
        got = []
        subscription = bus.subscribe(got.append, to=Dog, runs_on=RunsOn.WORKER if queued else None)
        bus.log(DOG)
        assert not subscription.closed
        assert subscription.close(60)
        bus.log(DOG)
        bus.flush()
        assert got == [DOG]
        assert subscription.closed
        assert (subscription.stats().logged, subscription.stats().handled) == (1, 1)

    @pytest.mark.parametrize("queued", [False, True])
    def test_close_twice(self, bus, queued):
        """Closing twice changes nothing the second time."""
        subscription = bus.subscribe(print, to=Dog, runs_on=RunsOn.WORKER if queued else None)
        other = bus.subscribe(print, to=Dog, runs_on=RunsOn.WORKER if queued else None)
        assert subscription.close(60)
        assert subscription.close(60)
        assert not other.closed

    def test_one_of_two(self, bus):
        """Of a handler subscribed twice, closing one subscription leaves the other."""
        got = []
        first = bus.subscribe(got.append, to=Dog)
        bus.subscribe(got.append, to=Dog)
        first.close()
        bus.log(DOG)
        assert got == [DOG]

    def test_context_manager(self, bus):
        """A subscription ends with the block."""
        got = []
        with bus.subscribe(got.append, to=Dog) as subscription:
            bus.log(DOG)
            assert subscription.handler == got.append
        bus.log(DOG)
        assert got == [DOG]

    def test_queued_gets_what_came_before(self, bus, gate):
        """A queued handler gets what was logged before it left, then its ``close`` is called."""

        class Sink:
            def __init__(self):
                self.calls = []

            def __call__(self, event):
                self.calls.append(event)

            def close(self, timeout_s):
                self.calls.append("closed")

        sink = Sink()
        subscription = bus.subscribe(sink, to=Dog, runs_on=RunsOn.WORKER)
        for _ in range(3):
            bus.log(DOG)
        assert subscription.close(60)
        assert sink.calls == [DOG, DOG, DOG, "closed"]

    def test_dropped_subscription(self, bus):
        """The caller need not keep the subscription."""
        got = []
        bus.subscribe(got.append, to=Dog)
        bus.log(DOG)
        assert got == [DOG]

    def test_counts_stay_on_the_bus(self, bus):
        """The bus's counts include handlers that left, under their name."""
        for _ in range(3):
            with bus.subscribe(print, to=Stone, keep=where(lambda _event: False)):
                bus.log(STONE)
        (retired,) = bus.stats().handlers
        assert (retired.name, retired.logged, retired.filtered) == ("print", 3, 3)

    def test_many_who_left(self, bus):
        """The counts of handlers that left are bounded, and complete."""
        for number in range(100):

            def handler(event):
                pass

            handler.__qualname__ = f"handler_{number}"
            with bus.subscribe(handler, to=Stone):
                bus.log(STONE)
        stats = bus.stats()
        assert len(stats.handlers) == 65
        assert stats.handled == 100


class TestFromWithin:
    def test_unsubscribe_oneself(self, bus):
        """A handler may leave while it runs, and its counts balance."""
        got = []

        def once(event):
            got.append(event)
            subscription.close()

        subscription = bus.subscribe(once, to=Dog)
        bus.log(DOG)
        bus.log(DOG)
        assert got == [DOG]
        (retired,) = bus.stats().handlers
        assert (retired.logged, retired.handled, retired.balance) == (1, 1, 0)

    def test_unsubscribe_another(self, bus):
        """A handler may end another's subscription, for the next event at the latest."""
        got = []
        bus.subscribe(lambda _event: later.close(), to=Dog)
        later = bus.subscribe(got.append, to=Dog)
        bus.log(DOG)
        bus.log(DOG)
        assert len(got) <= 1
        assert bus.stats().total("balance") == 0

    def test_subscribe(self, bus):
        """A handler may subscribe another, which gets the next event."""
        got = []

        def recruit(event):
            bus.subscribe(got.append, to=Stone)

        with bus.subscribe(recruit, to=Dog):
            bus.log(DOG)
        bus.log(STONE)
        assert got == [STONE]

    def test_subscribe_for_the_same_type(self, bus):
        """A handler that subscribes another to the event that it is handling does not lead to an endless loop."""
        got = []
        bus.subscribe(lambda _event: bus.subscribe(got.append, to=Dog), to=Dog)
        bus.log(DOG)
        assert got == []
        bus.log(DOG)
        assert got == [DOG]

    def test_unsubscribe_oneself_on_a_sink_worker(self, bus):
        """A queued handler may leave while it runs; it still gets what was logged before, and is closed."""
        all_are_logged, done = threading.Event(), threading.Event()

        class Sink:
            def __init__(self):
                self.numbers = []

            def __call__(self, stone):
                self.numbers.append(stone.number)
                if stone.number == 0:
                    all_are_logged.wait(10)
                    subscription.close()

            def close(self, timeout_s):
                done.set()

        sink = Sink()
        subscription = bus.subscribe(sink, to=Stone, runs_on=RunsOn.WORKER)
        for number in range(5):
            bus.log(Stone(number=number))
        all_are_logged.set()
        assert done.wait(10)
        assert sink.numbers == [0, 1, 2, 3, 4]
        assert bus.stats().total("balance") == 0

    def test_model_unsubscribes_itself(self, bus, make_model):
        """A model may leave while it runs."""
        model = make_model(lambda _event: subscription.close())
        subscription = bus.subscribe(model, to=Dog)
        bus.log(DOG)
        bus.flush()
        bus.log(DOG)
        bus.flush()
        assert bus.stats().total("balance") == 0
        assert DOG in model.events


class TestWhileOthersLog:
    def test_subscribe(self, bus, scaled, in_threads):
        """A handler that subscribes while other threads log misses nothing logged after, and no other handler does."""
        logged = scaled(20_000)
        steady = []
        bus.subscribe(steady.append, to=Stone)

        def work(index):
            if index == 0:
                for _ in range(200):
                    bus.subscribe(lambda _event: None, to=Animal).close()
            else:
                for number in range(logged):
                    bus.log(Stone(number=number, step=index))

        in_threads(4, work)
        for index in (1, 2, 3):
            assert [stone.number for stone in steady if stone.step == index] == list(range(logged))

    def test_newcomer_sees_all_that_follows(self, bus, scaled, in_threads):
        """The first event that a thread logs after its own subscribe reaches the handler, inline or queued."""

        def work(index):
            for number in range(scaled(500)):
                got = []
                queued = index % 2 == 0
                with bus.subscribe(got.append, to=Stone, runs_on=RunsOn.WORKER if queued else None):
                    bus.log(Stone(number=number, step=index))
                assert number in {stone.number for stone in got if stone.step == index}

        in_threads(4, work)
        assert bus.stats().total("balance") == 0
