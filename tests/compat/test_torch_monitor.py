from __future__ import annotations

import datetime
import threading

import pytest

import trackside
from children import printed_by
from trackside.counters import Aggregation
from trackside.events import CounterWindow
from trackside.handlers import Capture

monitor = pytest.importorskip("torch.monitor")

from trackside.compat.torch_monitor import TorchMonitorEvent, ToTorchMonitor, from_torch_monitor  # noqa: E402

WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5)


@trackside.event("test.torch_monitor.stepped")
class Stepped(trackside.Event):
    step_time_s: float
    parts: dict[str, float]
    note: str | None = None


@pytest.fixture
def heard():
    """Return the events logged through torch.monitor meanwhile, as names and data."""
    found = []
    handle = monitor.register_event_handler(lambda event: found.append((event.name, event.data)))
    yield found
    monitor.unregister_event_handler(handle)


class TestFrom:
    def test_event(self, bus):
        """An event of torch.monitor is one of ours, with its name, data and time."""
        with bus.subscribe(Capture()) as capture:
            with from_torch_monitor(bus):
                monitor.log_event(monitor.Event(name="job.said", timestamp=WHEN, data={"a": 1, "b": "two"}))
            (event,) = capture.handler.events
        assert (event.name, event.data) == ("job.said", {"a": 1, "b": "two"})
        assert event.at_ns == WHEN.timestamp() * 1e9

    def test_stat(self, bus):
        """A window of a stat becomes a window of a counter, with the totals so far."""
        with bus.subscribe(Capture(), to=CounterWindow) as capture:
            with from_torch_monitor(bus):
                for value in (1.0, 2.0, 3.0, 4.0):
                    stat = monitor.Stat("loss", [monitor.Aggregation.SUM, monitor.Aggregation.COUNT], 3600.0, 2)
                    stat.add(value)
                    stat.add(10 * value)
            windows = capture.handler.events
        assert [window.values for window in windows] == [{"sum": 11.0 * n, "count": 2.0} for n in (1, 2, 3, 4)]
        assert (windows[-1].total_count, windows[-1].total_sum) == (8, 110.0)

    def test_closed(self, bus):
        """After the bridge was closed no event comes, and closing it again is harmless."""
        with bus.subscribe(Capture()) as capture:
            bridge = from_torch_monitor(bus)
            bridge.close()
            bridge.close()
            monitor.log_event(monitor.Event(name="job.said", timestamp=WHEN, data={}))
        assert capture.handler.events == []

    @pytest.mark.hang_guard(60)
    def test_threads(self, bus, scaled):
        """
        While a handler is slow, threads that log through torch.monitor do not block each other, and nothing is lost.
        """
        each = scaled(10_000)

        def log():
            for number in range(each):
                monitor.log_event(monitor.Event(name="job.said", timestamp=WHEN, data={"number": number}))

        with bus.subscribe(Capture(), to=TorchMonitorEvent) as capture:
            with from_torch_monitor(bus):
                threads = [threading.Thread(target=log) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            assert len(capture.handler.events) == 4 * each

    @pytest.mark.unmeasured
    def test_exit(self):
        """A process that ends with the bridge open ends well, and the events logged last arrive."""
        source = """
            import datetime, torch.monitor, trackside
            from trackside.compat.torch_monitor import from_torch_monitor

            trackside.subscribe(lambda event: print(event.name, flush=True))
            from_torch_monitor()
            when = datetime.datetime.now()
            torch.monitor.log_event(torch.monitor.Event(name="the.last", timestamp=when, data={}))
        """
        assert printed_by(source) == "the.last\n"


class TestTo:
    def test_event(self, bus, heard):
        """A trackside event becomes one of torch.monitor's, with nested fields under dotted names and None left out."""
        with bus.subscribe(ToTorchMonitor(), to=Stepped):
            bus.log(Stepped(step_time_s=0.5, parts={"forward": 0.25}))
            bus.flush()
        assert heard == [("test.torch_monitor.stepped", {"step_time_s": 0.5, "parts.forward": 0.25})]

    def test_counter(self, bus, heard):
        """A counter's window becomes the event that torch.monitor's own TensorBoard handler reads as a stat."""
        counter = bus.stat("loss", aggregations=[Aggregation.SUM])
        with bus.subscribe(ToTorchMonitor(), to=CounterWindow):
            with bus.collect(interval_s=3600):
                counter.record(2.0)
                counter.record(3.0)
            bus.flush()
        assert heard == [("torch.monitor.Stat", {"loss.sum": 5.0})]

    def test_no_echo(self, bus, heard):
        """With both directions at once, an event from one side does not come back to it."""
        both = (Stepped, TorchMonitorEvent)
        with bus.subscribe(Capture()) as capture, bus.subscribe(ToTorchMonitor(), to=both), from_torch_monitor(bus):
            bus.log(Stepped(step_time_s=0.5, parts={}))
            monitor.log_event(monitor.Event(name="job.said", timestamp=WHEN, data={}))
            bus.flush()
        assert [type(event) for event in capture.handler.events] == [Stepped, TorchMonitorEvent]
        assert sorted(name for name, _ in heard) == ["job.said", "test.torch_monitor.stepped"]
