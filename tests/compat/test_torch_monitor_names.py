"""torch.monitor's names over the bus: the facts of PyTorch's own tests, beside torch itself if it is installed."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import time

import pytest

import trackside
from trackside.compat import torch_monitor
from trackside.compat.torch_monitor import _names
from trackside.events import CounterWindow

HOUR = datetime.timedelta(hours=1)


def the_peer():
    """Return torch.monitor, or skip the test."""
    pytest.importorskip("torch")
    return importlib.import_module("torch.monitor")


@pytest.fixture(params=["trackside", "torch"])
def monitor(request):
    """Give trackside's names, and then those of torch: each fact holds for both."""
    return torch_monitor if request.param == "trackside" else the_peer()


@pytest.fixture
def events(monitor):
    """Collect the logged events."""
    found = []
    handle = monitor.register_event_handler(found.append)
    yield found
    monitor.unregister_event_handler(handle)


class TestSameAsTorch:
    def test_event(self, monitor, events):
        """A handler gets an event's name, its time and its data."""
        when = datetime.datetime.now()
        data = {"a": 1, "b": True, "c": "text", "d": 1.5}
        monitor.log_event(monitor.Event(name="torch.monitor.TestEvent", timestamp=when, data=data))
        (event,) = events
        assert (event.name, dict(event.data)) == ("torch.monitor.TestEvent", data)
        assert abs(event.timestamp - when) < datetime.timedelta(milliseconds=1)

    def test_unregistered(self, monitor):
        """A handler that was unregistered gets nothing more."""
        found = []
        handle = monitor.register_event_handler(found.append)
        event = monitor.Event("e", datetime.datetime.now(), {})
        monitor.log_event(event)
        monitor.unregister_event_handler(handle)
        monitor.log_event(event)
        assert len(found) == 1

    def test_bad_data(self, monitor):
        """Data that is no text or number is a TypeError."""
        with pytest.raises(TypeError):
            monitor.Event("e", datetime.datetime.now(), {"a": [1]})

    def test_fixed_count(self, monitor, events):
        """A window with all its samples is logged at once; samples added later in its time are left out."""
        kinds = monitor.Aggregation
        stat = monitor.Stat("asdf", (kinds.SUM, kinds.COUNT), HOUR, 3)
        stat.add(1)
        stat.add(2)
        assert (stat.name, stat.count, stat.get()) == ("asdf", 2, {kinds.SUM: 0.0, kinds.COUNT: 0.0})
        stat.add(3)
        stat.add(9)
        assert (stat.count, stat.get()) == (0, {kinds.SUM: 6.0, kinds.COUNT: 3.0})
        assert [(event.name, dict(event.data)) for event in events] == [
            ("torch.monitor.Stat", {"asdf.sum": 6.0, "asdf.count": 3.0})
        ]

    def test_interval(self, monitor, events):
        """A window of time is logged with the first value after it."""
        kinds = monitor.Aggregation
        stat = monitor.Stat("asdf", (kinds.MEAN, kinds.MIN, kinds.MAX), datetime.timedelta(milliseconds=1))
        stat.add(2)
        deadline_s = time.monotonic() + 10
        while not events and time.monotonic() < deadline_s:
            stat.add(2)
        assert dict(events[0].data) == {"asdf.mean": 2.0, "asdf.min": 2.0, "asdf.max": 2.0}

    def test_rest(self, monitor, events):
        """The last samples of a stat are logged when it is deleted."""
        stat = monitor.Stat("asdf", (monitor.Aggregation.SUM,), HOUR)
        stat.add(4)
        del stat
        assert [dict(event.data) for event in events] == [{"asdf.sum": 4.0}]

    def test_tensorboard(self, monitor, events):
        """The handler for TensorBoard writes each statistic of a stat's event, and nothing of another."""

        class Writer:
            def __init__(self):
                self.points = []

            def add_scalar(self, tag, value, walltime):
                self.points.append((tag, value, walltime > 0))

        writer = Writer()
        handle = monitor.register_event_handler(monitor.TensorboardEventHandler(writer))
        stat = monitor.Stat("asdf", (monitor.Aggregation.SUM, monitor.Aggregation.COUNT), HOUR, 1)
        stat.add(1)
        monitor.log_event(monitor.Event("another", datetime.datetime.now(), {"a": 1}))
        monitor.unregister_event_handler(handle)
        assert sorted(writer.points) == [("asdf.count", 1.0, True), ("asdf.sum", 1.0, True)]


class TestOurs:
    def test_names(self):
        """Every public name of torch.monitor exists."""
        public = {name for name in vars(the_peer()) if name[0].isupper() and not name.isupper()}
        assert public - {"TYPE_CHECKING"} <= set(torch_monitor.__all__)

    def test_value(self):
        """VALUE is the last value, as torch's documentation says; torch itself leaves it out."""
        kinds = torch_monitor.Aggregation
        stat = torch_monitor.Stat("asdf", (kinds.VALUE,), HOUR, 2)
        stat.add(5)
        stat.add(3)
        assert stat.get() == {kinds.VALUE: 3.0}

    def test_windows(self, fake_clock):
        """A stat's windows are those of a trackside counter, with the totals so far."""
        windows = []
        with trackside.subscribe(windows.append, to=CounterWindow):
            stat = torch_monitor.Stat("asdf", (torch_monitor.Aggregation.SUM,), datetime.timedelta(milliseconds=1), 2)
            for value in (1, 2, 3, 4):
                stat.add(value)
                fake_clock.advance(0.002 if value == 2 else 0)
            del stat
        assert [(window.total_count, window.total_sum) for window in windows] == [(2, 3.0), (4, 10.0)]

    def test_a_handler_that_fails(self):
        """A handler's error does not reach the caller of log; the other handlers get the event."""
        found = []

        def fail(event):
            raise ValueError("boom")

        handles = [torch_monitor.register_event_handler(handler) for handler in (fail, found.append)]
        torch_monitor.log_event(torch_monitor.Event("e", datetime.datetime.now(), {}))
        for handle in handles:
            torch_monitor.unregister_event_handler(handle)
        assert [event.name for event in found] == ["e"]


class TestWaitCounter:
    def test_recorded(self, monkeypatch):
        """A wait of a quarter of a second is a value of 0.25 of the stat of that name, also if an exception ends it."""
        bus = trackside.Bus()
        monkeypatch.setattr(_names, "default_bus", bus)
        monkeypatch.setattr(_names.time, "perf_counter_ns", iter([0, 250_000_000]).__next__)
        windows = []
        bus.subscribe(windows.append, to=CounterWindow)

        with (
            bus.collect(interval_s=3600.0),
            contextlib.suppress(TimeoutError),
            torch_monitor._WaitCounter("store.get").guard(),
        ):
            raise TimeoutError
        bus.flush()

        (window,) = windows
        assert (window.name, window.count, window.total_sum) == ("store.get", 1, 0.25)
