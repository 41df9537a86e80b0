"""A bridge between ``torch.monitor`` and trackside's bus, in both directions."""

from __future__ import annotations

import datetime
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from trackside.bus import Bus, default_bus
from trackside.core import Closing, StopEvent
from trackside.events import ITERATION, CounterWindow, Event, RunsOn, event, own_fields
from trackside.instruments import torch as pytorch

STAT_EVENT: Final = "torch.monitor.Stat"
"""torch.monitor's name for the events of its stats."""
_POLL_INTERVAL_S: Final = 0.05
_INT64: Final = 1 << 63

_MOST_SENT: Final = 65_536

_sent: OrderedDict[int, Any] = OrderedDict()
"""The events sent to torch.monitor, by ``id()``: its handlers get the same objects, so these may come back."""


@event("torch.monitor.event", priority=ITERATION)
class TorchMonitorEvent(Event):
    """An event was logged through ``torch.monitor``."""

    name: str
    data: dict[str, Any] = attrs.field(factory=dict)


def from_torch_monitor(bus: Bus = default_bus) -> TorchMonitorTap:
    """
    Publish the events that are logged through ``torch.monitor`` on *bus*, until the result is closed.

    Its events become `TorchMonitorEvent`, the windows of its stats `CounterWindow`.

    Raises:
        ConfigError: if torch is not installed.
    """
    return TorchMonitorTap(bus)


class TorchMonitorTap(Closing):
    """
    The registration with torch.monitor; made by `from_torch_monitor`, and usable with ``with``.

    torch.monitor calls its handlers under a lock. Other threads wait for it while they hold the interpreter's lock, so
    a handler that lets another thread run stops the process for ever. The registered handler is therefore one call
    into C, which stores the event; a thread publishes the stored events 20 times a second.
    """

    def __init__(self, bus: Bus) -> None:
        self._monitor = pytorch.monitor()
        self._bus = bus
        self._received: deque[Any] = deque()
        self._totals: dict[str, tuple[float, float]] = {}
        self._ends_ns: dict[str, int] = {}
        self._stop = StopEvent()
        self._closing = threading.Lock()
        self._handle: Any = self._monitor.register_event_handler(self._received.append)
        self._thread = threading.Thread(target=self._serve, name="trackside-torch-monitor", daemon=True)
        self._thread.start()
        # torch crashes at the interpreter's end if a handler is still registered.
        threading._register_atexit(self.close)  # type: ignore[attr-defined]  # noqa: SLF001  before threads are joined

    def close(self) -> None:
        """Unregister the handler, and publish the events received until now."""
        with self._closing:
            handle, self._handle = self._handle, None
        if handle is None:  # a second unregistration would abort the process
            return
        self._monitor.unregister_event_handler(handle)
        self._stop.set()
        self._thread.join(timeout=1.0)
        self._publish()

    def _serve(self) -> None:
        while not self._stop.wait(_POLL_INTERVAL_S):
            self._publish()

    def _publish(self) -> None:
        while self._received:
            try:
                received = self._received.popleft()
            except IndexError:
                return  # close() was faster
            for published in self._events_of(received):
                self._bus.log(published)

    def _events_of(self, received: Any) -> Iterator[Event]:
        if _sent.pop(id(received), None) is not None:
            return  # it is an event of trackside's that came back
        data = dict(received.data)
        at_ns = round(received.timestamp.timestamp() * 1e9)
        if received.name != STAT_EVENT:
            yield TorchMonitorEvent(at_ns=at_ns, span_id=0, step=-1, name=received.name, data=data)
            return
        for window in windows_of(data, at_ns):
            yield self._with_totals(window)

    def _with_totals(self, window: CounterWindow) -> CounterWindow:
        name = window.name
        before_count, before_sum = self._totals.get(name, (0, 0.0))
        totals = self._totals[name] = before_count + window.total_count, before_sum + window.total_sum
        start_ns, self._ends_ns[name] = self._ends_ns.get(name, window.end_ns), window.end_ns
        changed = {"start_ns": start_ns, "total_count": totals[0], "total_sum": totals[1]}
        return attrs.evolve(window, **changed)  # type: ignore[misc]  # checkers do not see that it is an attrs class


class ToTorchMonitor:
    """
    A handler that logs trackside's events through ``torch.monitor``, for its handlers, on a thread of its own.

    An event's fields become its data, nested ones under dotted names; values of types that torch.monitor lacks are left
    out. A counter's window becomes an event of a stat, which ``torch.monitor.TensorboardEventHandler`` can read.

    Raises:
        ConfigError: if torch is not installed.
    """

    runs_on = RunsOn.WORKER

    def __init__(self) -> None:
        self._monitor = pytorch.monitor()

    def __call__(self, event: Event) -> None:
        """
        Log *event* through ``torch.monitor``.

        Raises:
            Exception: the exception of a handler that is registered there.
        """
        if isinstance(event, TorchMonitorEvent):
            return  # it came from torch.monitor
        when = datetime.datetime.fromtimestamp(event.at_ns / 1e9)  # noqa: DTZ006  torch.monitor wants it naive, and local
        name, data = name_and_data(event)
        sent = self._monitor.Event(name=name, timestamp=when, data=data)
        _sent[id(sent)] = sent
        if len(_sent) > _MOST_SENT:
            _sent.popitem(last=False)
        self._monitor.log_event(sent)


def windows_of(data: Mapping[str, float], at_ns: int) -> Iterator[CounterWindow]:
    """Yield the windows of the stats that an event of torch.monitor holds; their totals cover only these windows."""
    stats: dict[str, dict[str, float]] = {}
    for key, value in data.items():
        name, _, aggregation = key.rpartition(".")
        stats.setdefault(name, {})[aggregation] = value
    for name, values in stats.items():
        count, total = int(values.get("count", 0)), values.get("sum", 0.0)
        yield CounterWindow(
            at_ns=at_ns,
            span_id=0,
            step=-1,
            name=name,
            kind="stat",
            start_ns=at_ns,
            end_ns=at_ns,
            count=count,
            values=values,
            total_count=count,
            total_sum=total,
        )


def name_and_data(event: Event) -> tuple[str, dict[str, Any]]:
    """Return the name and the data of torch.monitor's event for *event*."""
    if isinstance(event, TorchMonitorEvent):
        return event.name, event.data
    if isinstance(event, CounterWindow):
        return STAT_EVENT, {f"{event.name}.{key}": value for key, value in event.values.items()}
    return event.wire_name, dict(_flat({field: getattr(event, field) for field in own_fields(type(event))}))


def _flat(fields: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in fields.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, (str, float)) or (isinstance(value, int) and -_INT64 <= value < _INT64):
            yield name, value
