"""Models: one thread, numbered events, and the events that models publish themselves."""

from __future__ import annotations

import sys
import threading
import time
import types

import pytest

from ticking import Unencodable
from trackside._free_threading import FREE_THREADED
from trackside.bus import _dispatcher, _turns
from trackside.events import ITERATION, PROFILE, Event, RunsOn, SourceStarted, event, process_source
from trackside.rules import every
from waiting import until


@event("test.dispatcher.ticked", priority=ITERATION)
class Ticked(Event):
    number: int = 0
    value: object = 0


@event("test.dispatcher.summed", priority=ITERATION, derived=True)
class Summed(Event):
    total: int = 0


@event("test.dispatcher.noticed", priority=ITERATION)
class Noticed(Event):
    number: int = 0


@event("test.dispatcher.detailed", priority=PROFILE)
class Detailed(Event):
    number: int = 0


class TestModels:
    def test_one_thread(self, bus, make_model, in_threads):
        """Models are called on one thread, whichever thread logs, and not on a caller's."""
        models = [make_model(), make_model()]
        for model in models:
            bus.subscribe(model)

        def work(index):
            for number in range(200):
                bus.log(Ticked(number=number))

        in_threads(4, work)
        bus.flush()
        assert models[0].threads == models[1].threads
        assert len(models[0].threads) == 1
        assert threading.get_ident() not in models[0].threads

    def test_numbers(self, bus, model, in_threads):
        """A model of all events sees each number once, in order and from 0, with this process as the source."""
        bus.subscribe(model)

        def work(index):
            for number in range(500):
                bus.log(Ticked(number=number))

        in_threads(8, work)
        bus.flush()
        assert [one.seq for one in model.events] == list(range(1 + 8 * 500))
        assert {one.source.id for one in model.events} == {process_source().id}

    def test_numbers_of_a_part(self, bus, model, make_model):
        """A model of some types sees the numbers that the events have in the whole stream."""
        whole = make_model()
        bus.subscribe(model, to=Noticed)
        bus.subscribe(whole)
        for number in range(6):
            bus.log((Ticked, Noticed)[number % 2](number=number))
        bus.flush()
        assert [(one.number, one.seq) for one in model.events] == [(1, 2), (3, 4), (5, 6)]

    def test_given_source(self, make_bus, model):
        """A bus with a source of its own numbers as that source."""
        from trackside.events import Source

        bus = make_bus(source=Source(run_id="mine"))
        bus.subscribe(model)
        bus.log(Ticked())
        bus.flush()
        assert {one.source.run_id for one in model.events} == {"mine"}

    def test_unencodable_value(self, bus, model, frames, caplog):
        """An event that cannot be recorded gets no number and reaches no model; it is counted and reported."""
        subscription = bus.subscribe(model, to=Ticked)
        bus.subscribe(frames)
        for value in (1, Unencodable(), 3):
            bus.log(Ticked(value=value))
        bus.flush()
        assert [one.seq for one in model.events] == [1, 2]
        assert [one.value for one in frames.events(Ticked)] == [1, 3]
        assert (subscription.stats().invalid, subscription.stats().balance) == (1, 0)
        assert "test.dispatcher.ticked could not be recorded" in caplog.text

    def test_many_alike(self, bus, frames, held_still):
        """Events of one type in a row that only a frame sink wants: numbers are dense, frames small enough."""
        subscription = bus.subscribe(frames)
        release = held_still(bus)  # a busy machine would cut more frames, by time
        for number in range(10_000):
            bus.log(Ticked(number=number, value=number if number != 300 else 1 << 99))
        bus.log(Noticed())
        release()
        assert bus.flush(60)
        ticked = frames.events(Ticked)
        assert [one.number for one in ticked] == [*range(300), *range(301, 10_000)]
        assert [one.seq for one in ticked] == list(range(1, 10_000))
        assert [one.seq for one in frames.events(Noticed)] == [10_000]
        assert (subscription.stats().invalid, subscription.stats().balance) == (1, 0)
        assert 1 < len(frames.frames) < 5
        assert all(len(frame) <= 160 << 10 for frame, _ in frames.frames)

    def test_no_dispatcher_without_queue(self, bus, new_threads):
        """Plain callables alone need no thread."""
        bus.subscribe(lambda _event: None)
        bus.log(Ticked())
        assert bus.flush(60)
        bus.close()
        assert new_threads() == set()

    def test_thread_at_first_event(self, bus, model, new_threads):
        """Subscribing starts no thread; the first event that is wanted does."""
        bus.subscribe(model, to=Ticked)
        bus.subscribe(lambda _event: None, to=Ticked, runs_on=RunsOn.WORKER)
        bus.log(Noticed())
        assert new_threads() == set()
        bus.log(Ticked())
        assert len(new_threads()) == 2  # the dispatcher and the sink worker

    def test_without_flush(self, bus, make_model):
        """No flush is needed: the dispatcher reads the queue by itself."""
        seen = threading.Event()
        bus.subscribe(make_model(lambda _event: seen.set()), to=Ticked)
        bus.log(Ticked())
        assert seen.wait(10)


class TestWhoCameWhen:
    @pytest.mark.parametrize("queued", [False, True], ids=["model", "sink_worker"])
    def test_before_and_after(self, bus, model, held_still, queued):
        """
        A queued handler gets the events that were logged after it subscribed and none from before, though both still
        wait.
        """
        bus.subscribe(lambda _event: None, to=Ticked, runs_on=RunsOn.WORKER)
        bus.log(Ticked(number=0))
        bus.flush()
        go_on = held_still(bus)
        bus.log(Ticked(number=1))
        got = []
        late = (
            bus.subscribe(got.append, to=Ticked, runs_on=RunsOn.WORKER) if queued else bus.subscribe(model, to=Ticked)
        )
        bus.log(Ticked(number=2))
        assert late.stats().logged == late.stats().in_queue == 1
        go_on()
        bus.flush()
        assert [one.number for one in (got if queued else model.events)] == [2]

    def test_early_leaver(self, bus, model, held_still):
        """A handler that leaves gets the events logged before, and none logged after."""
        subscription = bus.subscribe(model, to=Ticked)
        bus.subscribe(lambda _event: None, to=Ticked, runs_on=RunsOn.WORKER)
        bus.flush()
        go_on = held_still(bus)
        bus.log(Ticked(number=1))
        assert not subscription.close(0.0)
        bus.log(Ticked(number=2))
        assert subscription.stats().in_queue == 1
        go_on()
        bus.flush()
        assert [one.number for one in model.events] == [1]
        assert (subscription.stats().logged, subscription.stats().handled) == (1, 1)

    def test_the_stream_begins_with_the_first_event(self, bus, model, make_model):
        """All handlers that subscribed before the first event see the stream's start."""
        second = make_model()
        bus.subscribe(model)
        bus.subscribe(second)
        bus.flush()
        assert model.events == []
        bus.log(Ticked())
        bus.flush()
        for one in (model, second):
            assert [type(event) for event in one.events] == [SourceStarted, Ticked]


class TestDerived:
    def test_not_read_by_models(self, bus, model, frames):
        """Derived events are recorded and go to sinks, and no model reads them, not even one of all events."""
        got = []
        subscription = bus.subscribe(model)
        bus.subscribe(frames)
        bus.subscribe(got.append, to=Summed, runs_on=RunsOn.WORKER)
        bus.log(Summed(total=1))
        bus.log(Ticked())
        bus.flush()
        assert Summed not in {type(one) for one in model.events}
        assert [one.total for one in frames.events(Summed)] == [1]
        assert len(got) == 1
        assert subscription.stats().balance == 0
        assert subscription.stats().logged == len(model.events)

    def test_published_after(self, bus, make_model, frames):
        """
        An event that a model publishes is numbered after the event that it was computed from, and one flush delivers
        both.
        """
        total = 0

        def add(ticked):
            nonlocal total
            total += ticked.number
            bus.publish(Summed(total=total))

        bus.subscribe(make_model(add), to=Ticked)
        bus.subscribe(frames)
        for number in (1, 2, 3):
            bus.log(Ticked(number=number))
            bus.flush()
        printed = [
            (type(one).__name__, getattr(one, "total", None), one.seq) for one in frames.events((Ticked, Summed))
        ]
        assert printed == [
            ("Ticked", None, 1),
            ("Summed", 1, 2),
            ("Ticked", None, 3),
            ("Summed", 3, 4),
            ("Ticked", None, 5),
            ("Summed", 6, 6),
        ]

    def test_published_while_closing(self, make_bus, make_model, frames):
        """Events that a model publishes while the bus is closed are recorded before the stream's end."""
        bus = make_bus()
        bus.subscribe(make_model(lambda ticked: bus.publish(Summed(total=ticked.number))), to=Ticked)
        bus.subscribe(frames)
        for number in range(5):
            bus.log(Ticked(number=number))
        assert bus.close(60)
        kinds = [type(one).__name__ for one in frames.events()]
        assert (kinds[0], kinds[-1]) == ("SourceStarted", "SourceEnded")
        assert sorted(kinds[1:-1]) == [*["Summed"] * 5, *["Ticked"] * 5]
        assert frames.is_closed

    def test_events_for_other_models(self, bus, make_model):
        """A model may publish an event that is not derived; other models read it."""
        reader = make_model()
        bus.subscribe(make_model(lambda ticked: bus.publish(Noticed(number=ticked.number))), to=Ticked)
        bus.subscribe(reader, to=Noticed)
        bus.log(Ticked(number=7))
        bus.flush()
        assert [one.number for one in reader.events] == [7]

    def test_not_an_event(self, bus, make_model):
        """An object that is no event, published by a model, is counted as such."""
        bus.subscribe(make_model(lambda _event: bus.publish("nonsense")), to=Ticked)
        bus.log(Ticked())
        bus.flush()
        assert bus.stats().not_events == 1

    def test_publish_elsewhere(self, bus):
        """Off the dispatcher, publishing is logging: plain callables have run when it returns."""
        got = []
        bus.subscribe(got.append, to=Summed)
        bus.publish(Summed())
        assert len(got) == 1


class TestInlineForwarder:
    def test_never_on_the_dispatcher(self, bus, make_model):
        """Plain callables get what models publish, in order, and never on the dispatcher's thread."""
        got, threads = [], set()

        def keep(summed):
            got.append(summed.total)
            threads.add(threading.get_ident())

        model = make_model(lambda ticked: bus.publish(Summed(total=ticked.number)))
        bus.subscribe(model, to=Ticked)
        subscription = bus.subscribe(keep, to=Summed)
        for number in range(100):
            bus.log(Ticked(number=number))
        assert bus.flush(60)
        assert got == list(range(100))
        assert not threads & model.threads
        assert (subscription.stats().handled, subscription.stats().balance) == (100, 0)

    def test_rules_and_failures(self, bus, make_model):
        """Rules and failures are counted for events that arrive by the inline forwarder as well."""
        bus.subscribe(make_model(lambda ticked: bus.publish(Summed(total=ticked.number))), to=Ticked)
        got = []
        ruled = bus.subscribe(got.append, to=Summed, keep=every(2))
        broken = bus.subscribe(lambda event: event.missing, to=Summed)
        for number in range(8):
            bus.log(Ticked(number=number))
        bus.flush()
        assert [one.total for one in got] == [0, 2, 4, 6]
        assert (ruled.stats().sampled, ruled.stats().balance) == (4, 0)
        assert (broken.stats().failed, broken.stats().suspended, broken.stats().balance) == (5, 3, 0)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_interrupts(self, bus, make_model, error):
        """An exception that would interrupt a caller does not end the inline forwarder."""

        def interrupt(summed):
            got.append(summed)
            raise error

        got = []
        bus.subscribe(make_model(lambda _event: bus.publish(Summed())), to=Ticked)
        bus.subscribe(interrupt, to=Summed)
        for _ in range(4):
            bus.log(Ticked())
        assert bus.flush(60)
        assert len(got) == 4

    def test_blocked(self, bus, make_model, gate):
        """A plain callable that blocks delays the inline forwarder, and neither models nor log()."""
        model = make_model(lambda ticked: bus.publish(Summed(total=ticked.number)))
        bus.subscribe(model, to=Ticked)
        subscription = bus.subscribe(gate, to=Summed)
        for number in range(10):
            bus.log(Ticked(number=number))
        assert gate.entered.wait(10)
        assert not bus.flush(0.1)
        assert bus._dispatcher.settle(30)  # what a busy machine may need
        assert len(model.events) == 10
        stats = subscription.stats()
        assert (stats.logged, stats.in_queue) == (10, 9)  # and one call is in progress
        gate.go_on.set()
        assert bus.flush(60)
        assert subscription.stats().handled == 10

    def test_lost_at_the_end(self, make_bus, make_model, gate, caplog):
        """
        Events that the inline forwarder could not deliver to a blocked callable are reported when the bus is closed.
        """
        bus = make_bus()
        bus.subscribe(make_model(lambda _event: bus.publish(Summed())), to=Ticked)
        bus.subscribe(gate, to=Summed)
        for _ in range(10):
            bus.log(Ticked())
        assert gate.entered.wait(10)
        assert bus._dispatcher.settle(30)
        assert not bus.close(0.2)
        assert "Gate (9 in queue)" in caplog.text

    def test_left_meanwhile(self, bus, make_model, gate):
        """A handler that left before the inline forwarder reached it gets nothing; the event is counted as dropped."""
        got = []
        bus.subscribe(make_model(lambda _event: bus.publish(Summed())), to=Ticked)
        bus.subscribe(gate, to=Summed)
        leaving = bus.subscribe(got.append, to=Summed)
        bus.log(Ticked())
        assert gate.entered.wait(10)
        leaving.close()
        gate.go_on.set()
        assert bus.flush(60)
        assert got == []
        assert (leaving.stats().dropped, leaving.stats().balance) == (1, 0)
        assert bus.stats().total("balance") == 0


class TestBusyCallers:
    def test_flush_under_load(self, bus, model, frames):
        """Threads that log without end do not keep flush(), sinks and frames waiting."""
        stop = threading.Event()
        got = []
        bus.subscribe(model, to=Noticed)
        bus.subscribe(got.append, to=Noticed, runs_on=RunsOn.WORKER)
        bus.subscribe(frames, to=Noticed)
        bus.subscribe(lambda _event: None, to=Detailed, runs_on=RunsOn.WORKER)

        def work():
            while not stop.is_set():
                bus.log(Detailed())

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(3):
                bus.log(Noticed(number=number))
                assert bus.flush(60)
                assert [one.number for one in model.events] == list(range(number + 1))
                assert len(got) == len(frames.events()) == number + 1
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def test_without_flush_under_load(self, bus, frames):
        """Nor is a flush needed: sink workers and frames are served while callers keep the queue full."""
        stop = threading.Event()
        got = threading.Event()
        bus.subscribe(lambda _event: got.set(), to=Noticed, runs_on=RunsOn.WORKER)
        bus.subscribe(frames, to=Noticed)
        bus.subscribe(lambda _event: None, to=Detailed, runs_on=RunsOn.WORKER)

        def work():
            while not stop.is_set():
                bus.log(Detailed())

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            bus.log(Noticed())
            assert got.wait(30)
            assert len(until(frames.events)) == 1
        finally:
            stop.set()
            for thread in threads:
                thread.join()


class TestCalled:
    """The wake-ups of a dispatcher that does not wake up by itself."""

    @pytest.fixture(autouse=True)
    def asleep(self, monkeypatch):
        """Let it wake up by itself only once an hour."""
        monkeypatch.setattr(_dispatcher, "POLL_S", 3600.0)
        monkeypatch.setattr(_dispatcher, "BUSY_POLL_S", 3600.0)

    @pytest.mark.parametrize(("kind", "crowd"), [(Detailed, 37), (Ticked, 60)])
    def test_by_a_crowd(self, make_bus, make_model, kind, crowd):
        """At three quarters of a priority's share of a queue for 100: 37 of 50 PROFILE, 60 of 80 ITERATION events."""
        is_here, bus = threading.Event(), make_bus(queue_limit=100)
        model = make_model(on_event=lambda event: isinstance(event, kind) and is_here.set())
        bus.subscribe(model)
        bus.log(Noticed())
        bus.flush()
        for number in range(crowd):
            bus.log(kind(number=number))
        assert not is_here.wait(0.05)
        bus.log(kind(number=crowd))
        assert is_here.wait(30)

    def test_again(self, make_bus, make_model):
        """Each burst of events wakes it up anew."""
        arrived, bus = threading.Semaphore(0), make_bus(queue_limit=100)
        bus.subscribe(make_model(on_event=lambda event: isinstance(event, Detailed) and arrived.release()))
        bus.log(Noticed())
        bus.flush()
        for _ in range(3):
            for number in range(38):
                bus.log(Detailed(number=number))
            for _ in range(37):  # the event that wakes it may come too late
                assert arrived.acquire(timeout=30)
            assert bus.flush()  # after which it sleeps; after a barrier it may still take what comes
            assert arrived.acquire(blocking=False)

    def test_what_is_worth_a_frame(self, make_bus, frames):
        """A batch of 32 KiB is handed over at once when the dispatcher has emptied the queue."""
        is_here, bus = threading.Event(), make_bus(queue_limit=100)
        bus.subscribe(frames)
        bus.log(Noticed())
        bus.flush()
        accept = frames.accept
        frames.accept = lambda frame, *, events: accept(frame, events=events) and not is_here.set()
        for number in range(61):  # the last of which wakes the dispatcher
            bus.log(Ticked(number=number, value="x" * 1000))
        assert is_here.wait(30)
        bus.flush()  # the event that wakes it may come too late
        assert [one.number for one in frames.events(Ticked)] == list(range(61))

    def test_more_often_while_busy(self, make_bus, make_model, monkeypatch):
        """After it found as many events as are worth a wake-up, it wakes up again soon."""
        monkeypatch.setattr(_dispatcher, "BUSY_POLL_S", 0.05)
        monkeypatch.setattr(_dispatcher, "_WORTH_EVENTS", 0)
        is_here, bus = threading.Event(), make_bus()
        bus.subscribe(make_model(on_event=lambda event: isinstance(event, Detailed) and is_here.set()))
        bus.log(Noticed())
        bus.flush()
        bus.log(Ticked())
        bus.flush()
        bus.log(Detailed())
        assert is_here.wait(30)

    def test_by_what_is_to_be_done(self, bus, model):
        """A barrier wakes the dispatcher."""
        seen, is_here = [], threading.Event()
        bus.subscribe(model)
        bus.log(Ticked())
        bus.flush()
        bus.log(Ticked())
        bus.at_barrier(lambda view: seen.append(view.next_seq) or is_here.set())
        assert is_here.wait(30)
        assert seen == [3]  # after SourceStarted and two ticks

    def test_by_many_foreign_ones(self, make_bus, make_model):
        """A queue that is a quarter full of injected events wakes the dispatcher."""
        is_here, bus = threading.Event(), make_bus(queue_limit=100)
        bus.subscribe(make_model(on_event=lambda event: isinstance(event, Ticked) and is_here.set()))
        bus.log(Noticed())
        bus.flush()
        bus.inject([Ticked()] * 24)
        assert not is_here.wait(0.05)
        bus.inject([Ticked()])
        assert is_here.wait(30)


@pytest.mark.skipif(FREE_THREADED, reason="all threads run at once")
class TestTurns:
    """The interpreter enforces no turns here: another thread runs only if the dispatcher lets it."""

    def start_long_work(self, bus, is_enough):
        """Have the dispatcher work for two seconds, or until *is_enough*; return the numbers that it has read."""
        read = []

        def work(event):
            read.append(event.number)
            busy_until_s = time.perf_counter() + 1e-3
            while time.perf_counter() < busy_until_s and not is_enough():
                pass

        bus.subscribe(work, to=Ticked, runs_on=RunsOn.DISPATCHER)
        sys.setswitchinterval(60)
        for number in range(2_000):
            bus.log(Ticked(number=number))
        while not read:
            time.sleep(1e-4)
        return read

    def test_long_work(self, bus):
        """Another thread has its turns while the dispatcher works for long."""
        counts = set()
        read = self.start_long_work(bus, lambda: len(counts) > 20)
        while len(read) < 2_000:
            counts.add(len(read))
            time.sleep(1e-4)
        assert len(counts) > 20

    def test_awaited(self, bus, monkeypatch):
        """If it waits for the result, it has none: the dispatcher sleeps no more until all is done."""
        read, sleeps = self.start_long_work(bus, lambda: bus._dispatcher._turns.is_awaited), []
        seen = len(read)
        monkeypatch.setattr(_turns, "time", types.SimpleNamespace(monotonic=time.monotonic, sleep=sleeps.append))
        assert bus.flush()
        assert (seen < 2_000, len(read)) == (True, 2_000)
        assert len(sleeps) <= 1
