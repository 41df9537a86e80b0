"""Delivery by types, priorities and rules."""

from __future__ import annotations

import threading

import pytest

from kinds import Animal, Dog, Puppy, Stone
from trackside._free_threading import FREE_THREADED
from trackside.events import ITERATION, LIFECYCLE, PROFILE, Event, RunsOn, SourceEnded, SourceStarted, event
from trackside.rules import all_of, every, fraction, where

ANIMAL, DOG, PUPPY, STONE = Animal(), Dog(), Puppy(), Stone()
ALL = [ANIMAL, DOG, PUPPY, STONE]


def ignore(_event):
    pass


def log_all(bus):
    for one in ALL:
        bus.log(one)


class TestThreads:
    @pytest.mark.skipif(not FREE_THREADED, reason="with the interpreter lock all threads have one lane")
    def test_own_steps(self, bus, in_threads):
        """Without the lock two threads at once follow routes of their own to one handler, and their counts add up."""
        subscription = bus.subscribe(ignore, to=Stone)
        at_once = threading.Barrier(2)
        steps = []

        def log(_index):
            at_once.wait(30)
            for _ in range(100):
                bus.log(STONE)
            steps.extend(bus._routes[Stone])
            at_once.wait(30)

        in_threads(2, log)
        (*_, one), (*_, other) = steps
        assert one is not other
        assert one.subscriber is other.subscriber
        assert (one.arrived.value, other.arrived.value) == (100, 100)
        assert subscription.stats().handled == 200


class TestTypes:
    @pytest.mark.parametrize(
        ("to", "expected"),
        [
            (Event, [ANIMAL, DOG, PUPPY, STONE]),
            (Animal, [ANIMAL, DOG, PUPPY]),
            (Dog, [DOG, PUPPY]),
            (Puppy, [PUPPY]),
            (Stone, [STONE]),
            ((Puppy, Stone), [PUPPY, STONE]),
            ((Dog, Puppy), [DOG, PUPPY]),
        ],
    )
    def test_inline(self, bus, to, expected):
        """A plain callable gets the types it names and those derived from them, each event once and in order."""
        got = []
        bus.subscribe(got.append, to=to)
        log_all(bus)
        assert got == expected

    @pytest.mark.parametrize(
        ("to", "expected"),
        [
            (Animal, [ANIMAL, DOG, PUPPY]),
            (Dog, [DOG, PUPPY]),
            ((Puppy, Stone), [PUPPY, STONE]),
        ],
    )
    def test_model(self, bus, model, to, expected):
        """A model gets the types it names and those derived from them."""
        bus.subscribe(model, to=to)
        log_all(bus)
        assert bus.flush(60)
        assert model.events == expected

    def test_sink_worker(self, bus):
        """A queued callable gets the types it names."""
        got = []
        bus.subscribe(got.append, to=Dog, runs_on=RunsOn.WORKER)
        log_all(bus)
        assert bus.flush(60)
        assert got == [DOG, PUPPY]

    def test_frames(self, bus, frames):
        """A frame sink gets the types it names."""
        bus.subscribe(frames, to=(Dog, Stone))
        log_all(bus)
        assert bus.flush(60)
        assert [type(one) for one in frames.events()] == [Dog, Puppy, Stone]

    def test_everything(self, bus, model):
        """A handler that subscribes to all events sees the stream's own too."""
        bus.subscribe(model)
        bus.log(ANIMAL)
        bus.close()
        assert [type(one) for one in model.events] == [SourceStarted, Animal, SourceEnded]

    def test_same_handler_twice(self, bus):
        """A handler that is subscribed twice is called twice."""
        got = []
        bus.subscribe(got.append, to=Dog)
        bus.subscribe(got.append, to=Animal)
        bus.log(DOG)
        assert got == [DOG, DOG]

    def test_order_of_subscription(self, bus):
        """Plain callables are called in the order in which they were subscribed."""
        order = []
        for name in "cab":
            bus.subscribe(lambda _event, name=name: order.append(name))
        bus.log(DOG)
        assert order == ["c", "a", "b"]

    def test_same_object(self, bus):
        """All plain callables get the very event that was logged."""
        got = []
        bus.subscribe(got.append)
        bus.subscribe(got.append)
        bus.log(DOG)
        assert got[0] is got[1] is DOG

    def test_type_made_later(self, bus):
        """A class that is declared after a handler subscribed to its base is delivered."""
        got = []
        bus.subscribe(got.append, to=Animal)
        bus.log(ANIMAL)

        @event("test.routes.late")
        class Late(Animal):
            pass

        late = Late()
        bus.log(late)
        assert got == [ANIMAL, late]


class TestDetail:
    @pytest.mark.parametrize(
        ("min_priority", "expected"),
        [
            (None, [ANIMAL, DOG, PUPPY, STONE]),
            (PROFILE, [ANIMAL, DOG, PUPPY, STONE]),
            (ITERATION, [ANIMAL, DOG, STONE]),
            (LIFECYCLE, [DOG]),
        ],
    )
    def test_lowest_level(self, bus, min_priority, expected):
        """A subscription with a priority gets the events of that priority and of higher ones."""
        got = []
        bus.subscribe(got.append, min_priority=min_priority)
        log_all(bus)
        assert got == expected

    def test_queued(self, bus, model):
        """The priority also counts behind the queue."""
        bus.subscribe(model, to=(Animal, Stone), min_priority=LIFECYCLE)
        log_all(bus)
        bus.flush()
        assert model.events == [DOG]


class TestRules:
    def test_inline(self, bus):
        """A rule decides what a plain callable gets, and the rest is counted as sampled."""
        got = []
        subscription = bus.subscribe(got.append, to=Stone, keep=every(3))
        stones = [Stone(number=number) for number in range(10)]
        for stone in stones:
            bus.log(stone)
        stats = subscription.stats()
        assert got == [stones[0], stones[3], stones[6], stones[9]]
        assert (stats.logged, stats.handled, stats.sampled, stats.filtered) == (10, 4, 6, 0)

    @pytest.mark.parametrize("queued", [False, True])
    def test_predicate(self, bus, queued):
        """Events that a predicate drops are counted as filtered."""
        got = []
        subscription = bus.subscribe(
            got.append, to=Stone, keep=where(lambda stone: stone.number > 6), runs_on=RunsOn.WORKER if queued else None
        )
        for number in range(10):
            bus.log(Stone(number=number))
        bus.flush()
        stats = subscription.stats()
        assert [stone.number for stone in got] == [7, 8, 9]
        assert (stats.logged, stats.handled, stats.filtered, stats.balance) == (10, 3, 7, 0)

    def test_frames(self, bus, frames, held_still):
        """A rule decides which events are recorded; the frames account for the numbers of the rest."""
        subscription = bus.subscribe(frames, to=Stone, keep=all_of(where(lambda stone: stone.number >= 4), every(2)))
        go_on = held_still(bus)  # a pause of this thread would let it cut a frame between two of the events
        for number in range(10):
            bus.log(Stone(number=number))
        go_on()
        bus.flush()
        stats = subscription.stats()
        assert [stone.number for stone in frames.events()] == [4, 6, 8]
        assert (stats.logged, stats.handled, stats.filtered, stats.sampled) == (10, 3, 4, 3)
        # SourceStarted has number 0.
        assert [(frame.first_seq, frame.last_seq) for frame in frames.decoded()] == [(0, 10)]

    def test_fresh_state(self, bus):
        """One rule serves two subscriptions, each with a count of its own."""
        rule, first, second = every(2), [], []
        bus.subscribe(first.append, to=Stone, keep=rule)
        bus.log(Stone(number=0))
        bus.subscribe(second.append, to=Stone, keep=rule)
        bus.log(Stone(number=1))
        bus.log(Stone(number=2))
        assert [stone.number for stone in first] == [0, 2]
        assert [stone.number for stone in second] == [1]

    def test_same_fraction_everywhere(self, make_bus, model):
        """Two buses keep the same share of steps, inline and behind the queue."""
        inline = []
        one, other = make_bus(), make_bus()
        one.subscribe(inline.append, to=Stone, keep=fraction(0.3))
        other.subscribe(model, to=Stone, keep=fraction(0.3))
        for step in range(400):
            one.log(Stone(step=step))
            other.log(Stone(step=step))
        other.flush()
        assert [stone.step for stone in model.events] == [stone.step for stone in inline]
        assert 80 <= len(inline) <= 160
