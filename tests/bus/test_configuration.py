"""Configuration that is refused, and events that no handler wants."""

from __future__ import annotations

import threading

import pytest

from kinds import Animal, Dog, Puppy, Stone
from trackside.events import ITERATION, ConfigError, Event, RunsOn, event
from trackside.rules import every

DOG = Dog()


class TestWants:
    @pytest.mark.parametrize("runs_on", ["inline", "queued", "model", "frames"])
    def test_while_subscribed(self, bus, model, frames, runs_on):
        """A handler wants a type and those derived from it as long as there is a subscription."""
        handler = {"model": model, "frames": frames}.get(runs_on, print)
        assert not bus.wants(Dog)
        subscription = bus.subscribe(handler, to=Dog, runs_on=RunsOn.WORKER if runs_on == "queued" else None)
        assert [bus.wants(cls) for cls in (Dog, Puppy, Animal, Stone)] == [True, True, False, False]
        subscription.close()
        assert not bus.wants(Dog)

    def test_min_priority(self, bus):
        """No handler wants a type whose priority is below the one that is asked for."""
        bus.subscribe(print, min_priority=ITERATION)
        assert [bus.wants(cls) for cls in (Dog, Animal, Puppy)] == [True, True, False]

    def test_closed(self, bus):
        """No handler wants anything of a closed bus."""
        bus.subscribe(print)
        bus.close()
        assert not bus.wants(Dog)

    @pytest.mark.parametrize("cls", [int, None, "Dog", print])
    def test_no_event(self, bus, cls):
        """No handler wants an object that is no event type."""
        bus.subscribe(print)
        assert not bus.wants(cls)

    def test_derived_of_a_model(self, bus, model):
        """A model does not want derived events."""

        @event("test.configuration.derived", derived=True)
        class Derived(Event):
            pass

        bus.subscribe(model)
        assert not bus.wants(Derived)
        assert bus.wants(Dog)


class TestConfiguration:
    @pytest.mark.parametrize("handler", [None, 5, "print", object()])
    def test_handler(self, bus, handler):
        """An object that cannot be called is refused when it is subscribed, not when an event comes."""
        with pytest.raises(ConfigError, match="handler"):
            bus.subscribe(handler)
        bus.log(DOG)

    def test_class_instead_of_instance(self, bus, make_model, make_frames):
        """A class that was not called is refused."""
        for cls in (make_model, make_frames):
            with pytest.raises(ConfigError, match="instance"):
                bus.subscribe(cls)

    @pytest.mark.parametrize("to", [int, "dog", (), (Dog, None), Dog(), [Dog]])
    def test_to(self, bus, to):
        """Types that are no event types are refused."""
        with pytest.raises(ConfigError, match="to: got"):
            bus.subscribe(print, to=to)

    @pytest.mark.parametrize("keep", [5, print, every, "every(3)", type(every(3))])
    def test_keep(self, bus, keep):
        """An object that is no rule is refused."""
        with pytest.raises(ConfigError, match="keep: got"):
            bus.subscribe(print, keep=keep)

    @pytest.mark.parametrize("min_priority", [0, 7, "LIFECYCLE", 2.5])
    def test_min_priority(self, bus, min_priority):
        """A value that is no priority is refused."""
        with pytest.raises(ConfigError, match="min_priority: got"):
            bus.subscribe(print, min_priority=min_priority)

    def test_runs_on(self, bus):
        """A handler whose ``runs_on`` names no thread is refused."""

        class Lost:
            runs_on = "dispatcher"

            def __call__(self, event):
                pass

        with pytest.raises(ConfigError, match="runs_on"):
            bus.subscribe(Lost())

    def test_frame_sink_without_methods(self, bus, make_frames):
        """A frame sink that lacks a method is refused, and the missing one is named."""

        class Half(make_frames):
            after_fork = None

        with pytest.raises(ConfigError, match="missing after_fork"):
            bus.subscribe(Half())

    def test_queue_limit(self, make_bus):
        """A queue without capacity is refused."""
        with pytest.raises(ConfigError, match="queue_limit"):
            make_bus(queue_limit=0)

    def test_queued_wins_over_inline(self, bus):
        """A class that says it runs inline is queued if its subscriber says so."""

        class Quick:
            runs_on = RunsOn.INLINE

            def __init__(self):
                self.thread = None

            def __call__(self, event):
                self.thread = threading.current_thread()

        quick = Quick()
        bus.subscribe(quick, to=Dog, runs_on=RunsOn.WORKER)
        bus.log(DOG)
        bus.flush()
        assert quick.thread is not threading.current_thread()

    @pytest.mark.parametrize("runs_on", list(RunsOn))
    def test_subscriber_decides(self, bus, model, runs_on):
        """The subscriber's ``runs_on`` wins over the handler's."""
        assert bus.subscribe(model, runs_on=runs_on).stats().runs_on == runs_on.value

    def test_frame_sink(self, bus, frames):
        """A frame sink is recognised by its methods, and takes no ``runs_on``."""
        assert bus.subscribe(frames).stats().runs_on == "frames"
        with pytest.raises(ConfigError, match="runs_on"):
            bus.subscribe(frames, runs_on=RunsOn.WORKER)

    def test_closed_bus(self, bus, model, frames):
        """Subscribing to a closed bus is harmless and gets nothing."""
        bus.close()
        for handler in (print, model, frames):
            subscription = bus.subscribe(handler)
            assert subscription.closed
            assert subscription.close(60)
            assert subscription.stats().logged == 0
        bus.log(DOG)
        assert bus.stats().after_close == 1
        assert not frames.opened


class TestNotEvents:
    @pytest.mark.parametrize("given", [None, 5, "dog", Dog, object(), [1], {}, ValueError("x")])
    def test_counted(self, bus, caplog, given):
        """An object that is no event is counted, reported and delivered to no handler."""
        got = []
        bus.subscribe(got.append)
        bus.log(given)
        assert got == []
        assert bus.stats().not_events == 1
        assert len(caplog.records) == 1

    def test_reported_once(self, bus, caplog):
        """A loop that logs objects that are no events is reported the first time, and each is counted."""
        for _ in range(20):
            bus.log("nonsense")
        assert bus.stats().not_events == 20
        assert len(caplog.records) == 1

    def test_broken_repr(self, bus):
        """An object whose ``repr`` raises is counted like any other."""

        class Broken:
            def __repr__(self):
                raise ValueError("no")

        bus.log(Broken())
        assert bus.stats().not_events == 1

    def test_strict(self, make_bus):
        """A strict bus raises for an object that is no event."""
        with pytest.raises(ConfigError, match=r"log\(\)"):
            make_bus(strict=True).log(5)

    def test_undeclared_class(self, bus, model, caplog):
        """An event whose class was not declared runs inline, and is counted as invalid behind the queue."""

        class Undeclared(Event):
            pass

        got = []
        bus.subscribe(got.append)
        subscription = bus.subscribe(model, to=Undeclared)
        bus.log(Undeclared())
        bus.flush()
        assert (len(got), model.events) == (1, [])
        assert (subscription.stats().logged, subscription.stats().invalid) == (1, 1)
        assert "not declared" in caplog.text

    def test_odd_level(self, bus):
        """A class with a priority that does not exist is no event type."""

        class Odd(Event):
            priority = "high"

        got = []
        bus.subscribe(got.append)
        bus.log(Odd())
        assert (got, bus.stats().not_events) == ([], 1)
