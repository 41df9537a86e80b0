"""Every event is accounted for, for each handler, at every moment at which no call is in progress."""

from __future__ import annotations

import random
import threading

import pytest

from kinds import Often, Once, Prioritized, Rare
from ticking import Unencodable
from trackside.bus import Bus
from trackside.events import ITERATION, LIFECYCLE, PROFILE, RunsOn, event
from trackside.rules import all_of, any_of, at_most, every, fraction, where

THREADS = 16
EVENTS = 100_000
SEQUENCES = 1_000
DEADLINE_S = 30.0


@event("test.balance.derived", priority=ITERATION, derived=True)
class Derived(Prioritized):
    value: object = 0


KINDS = [Often, Once, Rare, Derived]
RULES = [
    every(3),
    fraction(0.5),
    at_most(2, per=0.5),
    where(lambda one: one.step % 2),
    all_of(every(2), where(lambda one: one.step % 3)),
    any_of(every(5), fraction(0.2)),
    where(lambda one: one.no_such_field),
]


class Unreliable:
    """Fails now and then, with a generator of its own."""

    def __init__(self, rng, share):
        self.rng = random.Random(rng.random())
        self.share = share

    def __call__(self, _event):
        """Do nothing, or fail."""
        if self.rng.random() < self.share:
            raise ValueError("now and then")


class UnreliableModel(Unreliable):
    runs_on = RunsOn.DISPATCHER


class Sequence:
    """
    A random sequence of operations on a bus, with the number of events that each subscription should count as logged.
    """

    def __init__(self, rng, make_frames, make_model):
        self.rng = rng
        self.make_frames = make_frames
        self.make_model = make_model
        self.bus = Bus(queue_limit=rng.choice([1, 5, 20, 1000]))
        self.expected = {}
        self.logged = 0
        self.not_events = 0
        self.is_held = False

    def handler(self):
        """Return a handler and how to subscribe it."""
        rng = self.rng
        kind = rng.choice(["plain", "plain", "queued", "model", "frames"])
        share = rng.choice([0.0, 0.0, 0.1, 1.0])
        options = {"keep": rng.choice(RULES)} if rng.random() < 0.5 else {}
        if rng.random() < 0.2:
            options["min_priority"] = rng.choice([PROFILE, ITERATION, LIFECYCLE])
        if kind == "frames":
            frames = self.make_frames()
            frames.accepts = rng.random() < 0.7
            return frames, options
        if kind == "model":
            return UnreliableModel(rng, share), options
        return Unreliable(rng, share), {**options, "runs_on": RunsOn.WORKER if kind == "queued" else None}

    def subscribe(self):
        """Subscribe a handler."""
        handler, options = self.handler()
        to = tuple(self.rng.sample(KINDS, self.rng.randint(1, 4)))
        subscription = self.bus.subscribe(handler, to=to, **options)
        level = options.get("min_priority", PROFILE)
        reads_derived = not isinstance(handler, UnreliableModel)
        self.expected[subscription] = [
            0,
            lambda cls: issubclass(cls, to) and cls.priority >= level and (reads_derived or not cls.derived),
        ]

    def unsubscribe(self):
        """Let a handler leave."""
        open_ones = [subscription for subscription in self.expected if not subscription.closed]
        if open_ones:
            self.rng.choice(open_ones).close(0.0 if self.is_held else 5.0)

    def log(self):
        """Log a few events, some of which cannot be recorded, or an object that is no event."""
        if self.rng.random() < 0.05:
            self.bus.log("not an event")
            self.not_events += 1
        for _ in range(self.rng.choice([1, 3, 30])):
            cls = self.rng.choice(KINDS)
            value = Unencodable() if self.rng.random() < 0.05 else self.rng.random()
            self.bus.log(cls(step=self.rng.randint(-1, 50), value=value))
            for subscription, entry in self.expected.items():
                if not subscription.closed and entry[1](cls):
                    entry[0] += 1

    def flush(self):
        """Flush the bus."""
        assert self.bus.flush(10) or self.is_held

    def hold(self):
        """Stop the dispatcher, or let it go on."""
        if self.is_held:
            self.bus._dispatcher.draining.release()
        self.is_held = not self.is_held and self.bus._dispatcher.draining.acquire(timeout=10)

    def live(self, steps):
        """Do something random, *steps* times, check the counts whenever nothing is moving, and return how often."""
        doings = [self.subscribe, self.unsubscribe, self.log, self.log, self.log, self.flush, self.hold]
        checks = 2
        for _ in range(steps):
            doing = self.rng.choice(doings)
            doing()
            if self.is_held or doing == self.flush:
                self.check()
                checks += 1
        if self.is_held:
            self.hold()
        self.flush()
        self.check()
        self.bus.close(10)
        self.check()
        assert self.bus.stats().in_queue == 0
        return checks

    def check(self):
        """Check the equations between the counts."""
        stats = self.bus.stats()
        assert [handler.balance for handler in stats.handlers] == [0] * len(stats.handlers)
        for subscription, (logged, _) in self.expected.items():
            one = subscription.stats()
            assert (one.balance, one.logged) == (0, logged), one
            assert (
                min(one.handled, one.failed, one.filtered, one.sampled, one.dropped, one.suspended, one.in_queue) >= 0
            ), one
        assert stats.logged == sum(logged for logged, _ in self.expected.values())
        assert stats.not_events == self.not_events
        for admission in self.bus._dispatcher.admissions.values():
            waiting = sum(type(item) is admission.cls for item in self.bus._dispatcher.queue.copy())
            assert admission.offered.value == admission.taken + admission.dropped.value + waiting


class TestRandomSequences:
    def test_identity(self, rng, scaled, make_frames, make_model, caplog):
        """
        After each of 1,000 random sequences, and whenever the dispatcher stands still or all is flushed on the way,
        logged = handled + failed + filtered + sampled + dropped + suspended + invalid + in queue, for open and closed
        subscriptions, and logged is what the test counted itself.
        """
        caplog.set_level(100)
        sequences = scaled(SEQUENCES)
        checks = sum(Sequence(rng, make_frames, make_model).live(rng.randint(5, 40)) for _ in range(sequences))
        assert checks >= 2 * sequences


class TestThreads:
    @pytest.mark.hang_guard(300)
    def test_all_subscribers_at_once(self, make_bus, make_model, make_frames, in_threads, scaled):
        """Repeated, since threads interleave differently each time."""
        for _ in range(scaled(50)):
            with make_bus() as bus:
                self.check_all_subscribers(bus, make_model, make_frames, in_threads, scaled(EVENTS))

    def check_all_subscribers(self, bus, make_model, make_frames, in_threads, count):
        """
        16 threads log to a plain callable with a rule, a queued one, a model and frames: all counts balance, each
        thread's order is kept at each handler, and numbers are dense and unique.
        """
        inline, queued, model, frames = [], [], make_model(), make_frames()
        subscriptions = [
            bus.subscribe(inline.append, to=Prioritized, keep=every(7)),
            bus.subscribe(queued.append, to=Prioritized, runs_on=RunsOn.WORKER),
            bus.subscribe(model, to=Prioritized),
            bus.subscribe(frames, to=Prioritized),
        ]

        def work(index):
            for number in range(count):
                bus.log(KINDS[number % 3](step=index, value=number))

        in_threads(THREADS, work)
        assert bus.flush(60)
        total = THREADS * count
        stats = [subscription.stats() for subscription in subscriptions]
        assert [one.balance for one in stats] == [0, 0, 0, 0]
        assert [one.logged for one in stats] == [total] * 4
        assert stats[0].handled == len(inline) == -(-total // 7)
        assert stats[1].handled == len(queued)
        assert stats[2].handled == len(model.events)
        assert stats[3].handled == len(frames.events(Prioritized))
        assert stats[2].dropped == stats[3].dropped == sum(bus.stats().dropped_by_type.values())
        for events in (queued, model.events, frames.events(Prioritized)):
            for index in range(THREADS):
                numbers = [one.value for one in events if one.step == index]
                assert numbers == sorted(numbers)
        assert [one.seq for one in frames.events(Prioritized)] == [one.seq for one in model.events]
        ranges = [(frame.first_seq, frame.last_seq) for frame in frames.decoded()]
        assert ranges[0][0] == 0
        assert [first for first, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]
        assert ranges[-1][1] + 1 == bus.stats().published
        frame = frames.decoded()[-1]
        assert frame.dropped == bus.stats().dropped_by_type

    def test_subscribers_come_and_go(self, bus, make_model, in_threads, scaled, caplog):
        """Counts balance while four threads log and four others subscribe, fail and leave."""
        caplog.set_level(100)

        def work(index):
            rng = random.Random(index)
            for number in range(scaled(5_000)):
                if index < 4:
                    bus.log(rng.choice(KINDS)(step=number))
                elif number % 10 == 0:
                    handler = rng.choice([Unreliable, UnreliableModel])(rng, 0.3)
                    rule = rng.choice([None, *RULES])
                    with bus.subscribe(
                        handler, to=Prioritized, keep=rule, runs_on=RunsOn.WORKER if rng.random() < 0.5 else None
                    ):
                        bus.log(rng.choice(KINDS)(step=number))

        in_threads(8, work)
        assert bus.flush(60)
        stats = bus.stats()
        assert [handler.balance for handler in stats.handlers] == [0] * len(stats.handlers)
        assert stats.total("in_queue") == 0

    def test_first_event_by_many(self, make_bus, make_model):
        """Threads that log the first events of a bus at once start one dispatcher; the model is never entered twice."""
        before = threading.enumerate()
        for _ in range(30):
            bus = make_bus()
            model = make_model()
            bus.subscribe(model, to=Prioritized)
            start = threading.Barrier(8)

            def work(bus=bus, start=start):
                start.wait()
                bus.log(Once())

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert bus.flush(20)
            assert len(model.events) == 8
            bus.close()
        started = [thread for thread in threading.enumerate() if thread not in before]
        for thread in started:
            thread.join(DEADLINE_S)
        assert not any(thread.is_alive() for thread in started)


class TestAtAnyMoment:
    def test_while_the_queue_is_emptied(self, bus, make_model, make_frames, scaled):
        """
        While no thread logs, the counts balance each time they are read, though dispatcher and sink workers are at
        work.
        """
        queued = [bus.subscribe(lambda _event: None, to=Prioritized, runs_on=RunsOn.WORKER) for _ in range(2)]
        queued.append(bus.subscribe(Unreliable(random.Random(1), 0.1), to=Prioritized, runs_on=RunsOn.WORKER))
        queued.append(bus.subscribe(make_model(), to=Prioritized, keep=every(3)))
        queued.append(bus.subscribe(make_frames(), to=Prioritized))
        checks = 0
        for _ in range(scaled(50)):
            for number in range(2_000):
                bus.log(KINDS[number % 3](value=number))
            while True:
                stats = [subscription.stats(DEADLINE_S) for subscription in queued]
                stats += bus.stats(DEADLINE_S).handlers
                assert [one.balance for one in stats] == [0] * len(stats)
                assert min(one.in_queue for one in stats) >= 0
                checks += 1
                if not sum(one.in_queue for one in stats):
                    break
        assert checks > scaled(50)
