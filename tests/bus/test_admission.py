"""Events that are dropped for lack of room, and the record of it."""

from __future__ import annotations

import threading
import time
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

import trackside
from kinds import Often, Once, Prioritized, Rare
from ticking import Unencodable
from trackside.bus import Bus, default_bus
from trackside.events import LIFECYCLE, CounterWindow, Event, EventsDropped, RunsOn, SpanEnded, event
from trackside.rules import where
from trackside.wire import size_of

MiB = 1 << 20


@event("test.large", priority=LIFECYCLE)
class Large(Event):
    text: str = ""
    values: list[Any] = attrs.field(factory=list)
    table: dict[Any, Any] = attrs.field(factory=dict)


class TestAdmission:
    @pytest.mark.parametrize(("kind", "admitted"), [(Often, 50), (Once, 80), (Rare, 100)])
    def test_share(self, make_bus, held_still, kind, admitted):
        """Of a queue for 100, PROFILE may fill half, ITERATION four fifths and LIFECYCLE all; the rest is dropped."""
        bus = make_bus(queue_limit=100)
        subscription = bus.subscribe(lambda _event: None, to=Prioritized, runs_on=RunsOn.WORKER)
        bus.log(Once())
        bus.flush()
        go_on = held_still(bus)
        for _ in range(150):
            bus.log(kind())
        assert (subscription.stats().in_queue, subscription.stats().dropped) == (admitted, 150 - admitted)
        go_on()
        bus.flush()
        assert bus.stats().dropped_by_type == {kind.wire_name: 150 - admitted}
        assert subscription.stats().handled == 1 + admitted

    def test_one_after_the_other(self, make_bus, held_still):
        """Events of a low priority are refused first: the same queue still takes those of a higher one."""
        bus = make_bus(queue_limit=100)
        bus.subscribe(lambda _event: None, to=Prioritized, runs_on=RunsOn.WORKER)
        bus.log(Once())
        bus.flush()
        held_still(bus)
        for kind in (Often, Once, Rare):
            for _ in range(60):
                bus.log(kind())
        assert bus.stats().dropped_by_type == {
            "test.often": 60 - 50,
            "test.once": 60 - 30,
            "test.rare": 60 - 20,
        }

    def test_least_queue(self, make_bus, model):
        """Even a queue for one event admits an event of each priority."""
        bus = make_bus(queue_limit=1)
        bus.subscribe(model, to=Prioritized)
        bus.flush()
        for kind in (Often, Once, Rare):
            bus.log(kind())
            bus.flush()
        assert [type(one) for one in model.events] == [Often, Once, Rare]

    def test_reported_in_the_stream(self, make_bus, held_still, frames, model, fake_clock):
        """Dropped events are recorded in an event, by type and since when, and cumulatively in the frames."""
        bus = make_bus(queue_limit=10)
        bus.subscribe(frames)
        bus.subscribe(model, to=EventsDropped)
        bus.log(Rare())
        bus.flush()
        since_ns = fake_clock.now_ns
        for rounds in (1, 2):
            go_on = held_still(bus)
            fake_clock.advance(1)
            for _ in range(20):
                bus.log(Once())
                bus.log(Rare())
            go_on()
            bus.flush()
            # Of ITERATION 8 may wait and of LIFECYCLE 10: alternately, 4 and 4 until 8, then 2 more of the latter.
            assert model.events[-1].by_type == {"test.once": 16, "test.rare": 14}
            assert model.events[-1].since_ns == since_ns
            since_ns = fake_clock.now_ns
            assert frames.decoded()[-1].dropped == {
                "test.once": 16 * rounds,
                "test.rare": 14 * rounds,
            }
        assert [one.where for one in model.events] == ["queue", "queue"]

    def test_missed_by_models(self, make_bus, held_still, model):
        """A model learns the exact number of the events that it missed."""
        bus = make_bus(queue_limit=10)
        subscription = bus.subscribe(model, to=Prioritized, keep=where(lambda one: one.step != 3))
        bus.log(Once(step=1))
        bus.flush()
        assert model.missed_events == 0
        go_on = held_still(bus)
        for _ in range(12):
            bus.log(Once(step=2))  # 8 are queued
        go_on()
        bus.flush()
        assert model.missed_events == 4
        bus.log(Once(step=3))
        bus.log(Once(value=Unencodable()))
        subscription.close()
        assert model.missed_events == 4 + 1 + 1
        assert len(model.events) + model.missed_events == subscription.stats().logged == 15

    def test_queue_peak(self, bus, held_still):
        """The counts show how full the queue got."""
        bus.subscribe(lambda _event: None, to=Once, runs_on=RunsOn.WORKER)
        bus.log(Once())
        bus.flush()
        go_on = held_still(bus)
        for _ in range(30):
            bus.log(Once())
        go_on()
        bus.flush()
        assert bus.stats().queue_peak == 30


class TestOverload:
    def test_overload(self, make_bus, make_frames, scale):
        """
        With ten times more than fits, for ten seconds, events of the highest priority are recorded completely, and the
        total of a counter is exact in its last window.
        """
        bus, frames = make_bus(queue_limit=1_000), make_frames()
        bus.subscribe(frames, to=(Rare, Often, CounterWindow))
        counter = bus.stat("test.overload")
        bus.collect(interval_s=0.05)
        stop = threading.Event()
        added = []

        def work():
            count = 0
            while not stop.is_set():
                for _ in range(50):
                    bus.log(Often())
                counter.record(1)
                count += 1
            added.append(count)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        deadline_s = time.monotonic() + 10 * scale
        rare = 0
        while time.monotonic() < deadline_s:
            bus.log(Rare(value=rare))
            rare += 1
            time.sleep(0.005)
        stop.set()
        for thread in threads:
            thread.join()
        bus.close(20)
        assert [one.value for one in frames.events(Rare)] == list(range(rare))
        assert bus.stats().dropped_by_type.keys() <= {"test.often"}
        assert frames.events(CounterWindow)[-1].total_count == sum(added)
        assert bus.stats().total("balance") == 0


class TestLargeEvents:
    """A place of the queue has room for less than 4 KiB of values."""

    @pytest.mark.parametrize(
        ("large", "places"),
        [
            pytest.param(Large(text="x" * 3_000), 1, id="short text"),
            pytest.param(Large(text="x" * 40_960), 11, id="text"),  # with 64 more bytes
            pytest.param(Large(values=[1] * 80), 1, id="few numbers"),
            pytest.param(Large(values=[1] * 1_000), 12, id="numbers"),  # 48,000 bytes
            pytest.param(Large(values=[["x" * 2_000], ["y" * 2_000] * 2]), 2, id="nested"),  # 6,000 and a few bytes
        ],
    )
    def test_places(self, make_bus, held_still, large, places):
        """An event takes as many places as its values need, however it comes into the queue."""
        bus = make_bus()
        bus.subscribe(lambda _event: None, to=Large, runs_on=RunsOn.DISPATCHER)
        bus.log(Large())  # Python finds the route of the first
        bus.flush()
        go_on = held_still(bus)
        before = len(bus._dispatcher.queue)
        bus.log(large)
        taken = len(bus._dispatcher.queue) - before
        go_on()
        assert taken == places

    def test_bound(self, make_bus, held_still):
        """Of texts of a MiB, 257 places each, 63 fit into 16,384; the others are dropped and counted."""
        bus = make_bus()
        subscription = bus.subscribe(lambda _event: None, to=Large, runs_on=RunsOn.DISPATCHER)
        bus.log(Large())
        bus.flush()
        go_on = held_still(bus)
        for number in range(100):
            bus.log(Large(text=f"{number:02}" + "x" * MiB))
        assert (subscription.stats().in_queue, subscription.stats().dropped) == (63, 37)
        go_on()
        bus.flush()
        assert (subscription.stats().in_queue, subscription.stats().handled) == (0, 1 + 63)

    def test_beyond_the_queue(self, make_bus, model):
        """An event that needs more places than there are is admitted if nothing else waits."""
        bus = make_bus(queue_limit=10)
        bus.subscribe(model, to=Large)
        bus.flush()
        for _ in range(3):
            bus.log(Large(text="x" * MiB))
            bus.flush()
        assert len(model.events) == 3

    def test_one_frame(self, make_bus, held_still, frames):
        """The places that it takes are nothing in the stream: all events are in one frame, numbered without a gap."""
        bus = make_bus()
        bus.subscribe(frames)
        bus.log(Large())
        bus.flush()
        go_on = held_still(bus)
        for number in range(3):
            bus.log(Large(text=str(number)))
            bus.log(Large(text="x" * 20_000))
        go_on()
        bus.flush()
        assert [len(each.text) for each in frames.decoded()[-1].events] == [1, 20_000] * 3

    def test_spans(self, make_bus, held_still):
        """So are the ends of spans with long names or large attributes, and a usual one takes one place."""
        bus = default_bus
        with bus.subscribe(lambda _event: None, to=SpanEnded, runs_on=RunsOn.DISPATCHER):
            with trackside.span("first"):
                pass
            bus.flush()
            go_on = held_still(bus)
            taken = []
            for name, attributes in [("s", {}), ("s" * 8_200, {}), ("s", {"text": "x" * 4_100}), ("s", {"a": 1})]:
                before = len(bus._dispatcher.queue)
                with trackside.span(name, **attributes):
                    pass
                taken.append(len(bus._dispatcher.queue) - before)
            go_on()
            bus.flush()
        assert taken == [1, 3, 2, 1]

    @given(
        text=st.text(st.characters(codec="utf-8"), max_size=30),
        times=st.integers(0, 200),
        length=st.integers(0, 90),
        table=st.dictionaries(st.one_of(st.text(), st.integers()), st.one_of(st.floats(), st.text())),
    )
    def test_compiled(self, text, times, length, table):
        """Whatever the values, the compiled log() takes the places that the Python method takes."""
        large = Large(text=text * times, values=[text] * length, table=table)
        taken = []
        for cls in (Bus, type("PythonBus", (Bus,), {})):  # compiled methods leave subclasses to Python
            bus = cls(queue_limit=100_000)
            bus.subscribe(lambda _event: None, to=Large, runs_on=RunsOn.DISPATCHER)
            bus.log(Large())
            bus.flush()
            assert bus._dispatcher.draining.acquire(timeout=10)
            before = len(bus._dispatcher.queue)
            bus.log(large)
            taken.append(len(bus._dispatcher.queue) - before)
            bus._dispatcher.draining.release()
            bus.close()
        assert taken[0] == taken[1] == size_of(large, ["text", "values", "table"]) // 4_096 + 1
