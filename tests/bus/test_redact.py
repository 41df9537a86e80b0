from __future__ import annotations

import threading

import attrs
import pytest

from trackside.events import ITERATION, Event, RunsOn, SourceStarted, event


@event("test.redact.said", priority=ITERATION)
class Said(Event):
    text: str = ""


@event("test.redact.counted", priority=ITERATION)
class Counted(Event):
    number: int = 0


class TestRedact:
    def test_replaces(self, make_bus, make_model, frames):
        """Every queued handler gets the event that the redaction returns, and none the one that was logged."""

        def mask(one):
            return attrs.evolve(one, text="***") if isinstance(one, Said) else one

        bus, queued, model = make_bus(redact=mask), [], make_model()
        bus.subscribe(queued.append, to=Said, runs_on=RunsOn.WORKER)
        bus.subscribe(model, to=Said)
        bus.subscribe(frames, to=Said)
        bus.log(Said(text="my password"))
        bus.flush()
        for got in (queued, model.events, frames.events()):
            assert [one.text for one in got] == ["***"]

    def test_numbered(self, make_bus, model):
        """The replacement carries the number and the source."""
        bus = make_bus(redact=lambda one: attrs.evolve(one))
        bus.subscribe(model, to=Said)
        bus.log(Said())
        bus.flush()
        assert model.events[0].seq == 1

    def test_drops(self, make_bus, model, frames, caplog):
        """
        An event that the redaction drops gets no number and is counted as filtered; it is no loss and not reported.
        """
        bus = make_bus(redact=lambda one: None if isinstance(one, Said) else one)
        subscription = bus.subscribe(model, to=(Said, Counted))
        bus.subscribe(frames)
        for number in range(3):
            bus.log(Said(text="secret"))
            bus.log(Counted(number=number))
        assert bus.close(60)
        assert [(one.number, one.seq) for one in model.events] == [(0, 1), (1, 2), (2, 3)]
        stats = subscription.stats()
        assert (stats.logged, stats.handled, stats.filtered, stats.invalid, stats.balance) == (6, 3, 3, 0, 0)
        assert model.missed_events == 3
        assert bus.stats().by_type["test.redact.counted"] == 3
        assert "test.redact.said" not in bus.stats().by_type
        assert caplog.records == []
        assert b"secret" not in b"".join(frame for frame, _ in frames.frames)

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, BaseException])
    def test_raises(self, make_bus, model, frames, caplog, error):
        """If it raises, the event is not recorded: it is counted as invalid, and the dispatcher lives on."""

        def fail(one):
            if isinstance(one, Said):
                raise error("cannot say")
            return one

        bus = make_bus(redact=fail)
        subscription = bus.subscribe(model, to=(Said, Counted))
        bus.subscribe(frames)
        bus.log(Counted(number=1))
        bus.flush()
        bus.log(Said(text="secret"))
        bus.log(Counted(number=2))
        assert bus.flush(60)
        assert [one.number for one in model.events] == [1, 2]
        assert (subscription.stats().invalid, subscription.stats().balance) == (1, 0)
        assert "cannot say" in caplog.text
        assert b"secret" not in b"".join(frame for frame, _ in frames.frames)

    @pytest.mark.parametrize("wrong", ["a text", Counted(), 5, True])
    def test_another_type(self, make_bus, model, wrong):
        """It cannot make an event of another type: the handlers that get it were chosen by its type."""
        bus = make_bus(redact=lambda one: wrong if isinstance(one, Said) else one)
        subscription = bus.subscribe(model, to=(Said, Counted))
        bus.log(Said(text="secret"))
        bus.flush()
        assert model.events == []
        assert (subscription.stats().invalid, subscription.stats().balance) == (1, 0)

    def test_before_plain_callables(self, make_bus):
        """Plain callables get the event as it was logged: they belong to the program."""
        bus, got = make_bus(redact=lambda _one: None), []
        bus.subscribe(got.append)
        bus.log(Said(text="as it is"))
        assert [one.text for one in got] == ["as it is"]

    def test_the_identity_too(self, make_bus, frames):
        """It sees the stream's own events, so that a host name can be hidden."""

        def hide(one):
            if isinstance(one, SourceStarted):
                return attrs.evolve(one, identity={**one.identity, "host": "hidden"})
            return one

        bus = make_bus(redact=hide)
        bus.subscribe(frames)
        bus.log(Said())
        bus.flush()
        assert frames.events(SourceStarted)[0].identity["host"] == "hidden"

    def test_set_later(self, bus, model):
        """It can be set, looked up and taken away on a running bus."""
        bus.subscribe(model, to=Said)
        bus.log(Said(text="1"))
        bus.flush()
        bus.redact = mask = lambda one: attrs.evolve(one, text="***") if isinstance(one, Said) else one
        assert bus.redact is mask
        bus.log(Said(text="2"))
        bus.flush()
        bus.redact = None
        bus.log(Said(text="3"))
        bus.flush()
        assert [one.text for one in model.events] == ["1", "***", "3"]

    def test_where_it_runs(self, make_bus, model):
        """It runs once for each event, however many handlers there are, and not in the caller's thread."""
        calls = []

        def note(one):
            calls.append((type(one), threading.get_ident()))
            return one

        bus = make_bus(redact=note)
        for _ in range(3):
            bus.subscribe(lambda _event: None, to=Said, runs_on=RunsOn.WORKER)
        bus.subscribe(model, to=Said)
        bus.log(Said())
        bus.flush()
        assert [kind for kind, _ in calls] == [SourceStarted, Said]
        assert threading.get_ident() not in {thread for _, thread in calls}
