"""
``torch.monitor`` both ways: its events and stats onto our bus, ours to its handlers.

::

    from_torch_monitor()  # what others report through torch.monitor is in our stream
    trackside.subscribe(ToTorchMonitor())  # handlers registered there hear of our events
"""

from __future__ import annotations

import datetime
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import attrs

from trackside.bus import Bus, default_bus
from trackside.events import ITERATION, SIDING, CounterWindow, Event, event, own_fields
from trackside.instruments import torch as pytorch

if TYPE_CHECKING:
    from typing_extensions import Self

STAT_EVENT: Final = "torch.monitor.Stat"
"""What torch.monitor calls the events of its stats."""
LOOK_EVERY_S: Final = 0.05
_SUMMED: Final = ("count", "sum")
_INT64: Final = 1 << 63

_MOST_SENT: Final = 65_536

_sent: OrderedDict[int, Any] = OrderedDict()
"""By identity, what came from us and may come back: every handler there gets the same object."""


@event("torch.monitor.event", detail=ITERATION)
class TorchMonitorEvent(Event):
    """An event was logged through ``torch.monitor``."""

    name: str
    data: dict[str, Any] = attrs.field(factory=dict)


def from_torch_monitor(bus: Bus = default_bus) -> TorchMonitorTap:
    """
    Bring what is logged through ``torch.monitor`` onto *bus*, until the result is closed.

    Its events become `TorchMonitorEvent`, the windows of its stats `CounterWindow`.

    Raises:
        ConfigError: if torch is not installed.
    """
    return TorchMonitorTap(bus)


class TorchMonitorTap:
    """
    What brings torch.monitor's events; made by `from_torch_monitor`, and usable with ``with``.

    torch.monitor calls its handlers under a lock for which other threads wait with the interpreter's own lock in their
    hands: a handler that lets another thread run, for a moment, stops the process for ever. So what is registered
    there is one call into C that stores the event, and a thread takes it from there, 20 times a second.
    """

    def __init__(self, bus: Bus) -> None:
        self._monitor = pytorch.monitor()
        self._bus = bus
        self._heard: deque[Any] = deque()
        self._totals: dict[str, tuple[float, float]] = {}
        self._ends_ns: dict[str, int] = {}
        self._stop = threading.Event()
        self._closing = threading.Lock()
        self._handle: Any = self._monitor.register_event_handler(self._heard.append)
        self._thread = threading.Thread(target=self._serve, name="trackside-torch-monitor", daemon=True)
        self._thread.start()
        # torch crashes at the interpreter's end where a handler is registered still; daemon threads are met earlier.
        threading._register_atexit(self.close)  # type: ignore[attr-defined]  # noqa: SLF001  before threads are joined

    def close(self) -> None:
        """Unregister, and bring what was heard until now."""
        with self._closing:
            handle, self._handle = self._handle, None
        if handle is None:  # to unregister twice ends the process
            return
        self._monitor.unregister_event_handler(handle)
        self._stop.set()
        self._thread.join(timeout=1.0)
        self._bring()

    def _serve(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self._bring()

    def _bring(self) -> None:
        while self._heard:
            try:
                heard = self._heard.popleft()
            except IndexError:
                return  # close() was faster
            for told in self._events_of(heard):
                self._bus.log(told)

    def _events_of(self, heard: Any) -> Iterator[Event]:
        if _sent.pop(id(heard), None) is not None:
            return  # it is an event of ours that came back
        data = dict(heard.data)
        at_ns = round(heard.timestamp.timestamp() * 1e9)
        if heard.name != STAT_EVENT:
            yield TorchMonitorEvent(at_ns=at_ns, span_id=0, step=-1, name=heard.name, data=data)
            return
        stats: dict[str, dict[str, float]] = {}
        for key, value in data.items():
            name, _, aggregation = key.rpartition(".")
            stats.setdefault(name, {})[aggregation] = value
        for name, values in stats.items():
            yield self._window(name, values, at_ns)

    def _window(self, name: str, values: dict[str, float], at_ns: int) -> CounterWindow:
        count, total = (
            found + values.get(key, 0.0) for found, key in zip(self._totals.get(name, (0.0, 0.0)), _SUMMED, strict=True)
        )
        self._totals[name] = count, total
        start_ns, self._ends_ns[name] = self._ends_ns.get(name, at_ns), at_ns
        return CounterWindow(
            at_ns=at_ns,
            span_id=0,
            step=-1,
            name=name,
            unit="",
            start_ns=start_ns,
            end_ns=at_ns,
            count=int(values.get("count", 0)),
            values=values,
            total_count=int(count),
            total_sum=total,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ToTorchMonitor:
    """
    A handler that logs our events through ``torch.monitor``, on a thread of its own: its handlers hear of them.

    An event's fields are its data, nested ones under dotted names; what torch.monitor has no type for is left out. A
    counter's window is an event of a stat, as ``torch.monitor.TensorboardEventHandler`` reads it.

    Raises:
        ConfigError: if torch is not installed.
    """

    runs_on = SIDING

    def __init__(self) -> None:
        self._monitor = pytorch.monitor()

    def __call__(self, event: Event) -> None:
        """
        Log *event* there.

        Raises:
            Exception: what a handler registered there raises.
        """
        if isinstance(event, TorchMonitorEvent):
            return  # it came from there
        when = datetime.datetime.fromtimestamp(event.at_ns / 1e9)  # noqa: DTZ006  torch.monitor wants it naive, and local
        if isinstance(event, CounterWindow):
            name = STAT_EVENT
            data: dict[str, Any] = {f"{event.name}.{key}": value for key, value in event.values.items()}
        else:
            name = event.wire_name
            data = dict(_flat({field: getattr(event, field) for field in own_fields(type(event))}))
        told = self._monitor.Event(name=name, timestamp=when, data=data)
        _sent[id(told)] = told
        if len(_sent) > _MOST_SENT:
            _sent.popitem(last=False)
        self._monitor.log_event(told)


def _flat(fields: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in fields.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, (str, float)) or (isinstance(value, int) and -_INT64 <= value < _INT64):
            yield name, value
