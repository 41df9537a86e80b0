"""``torch.monitor``'s names, without torch: stats and events on trackside's bus, handlers subscribed to it."""

from __future__ import annotations

import contextlib
import datetime
import enum
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import attrs

from trackside import events
from trackside.bus import Subscription, default_bus
from trackside.compat.torch_monitor._tap import STAT_EVENT, TorchMonitorEvent, name_and_data, windows_of
from trackside.events import CounterWindow

EventHandlerHandle: TypeAlias = Subscription
"""The result of `register_event_handler`."""

_NO_LIMIT: Final = (1 << 63) - 1
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 10**9
_VALUES: Final = (str, int, float)


class Aggregation(enum.IntEnum):
    """The figures that a `Stat` computes of a window."""

    VALUE = 0
    """The last value."""
    MEAN = 2
    COUNT = 3
    SUM = 4
    MAX = 5
    MIN = 6


def _check_data(_event: object, _field: object, data: Any) -> None:
    for key, value in data.items():
        if not isinstance(key, str) or not isinstance(value, _VALUES):
            raise TypeError(f"data: {key!r} is {value!r}; give texts and numbers by name")


@attrs.define
class Event:
    """
    An event as torch.monitor's handlers get it.

    Raises:
        TypeError: if *data* holds anything but texts, numbers and truth values.
    """

    name: str
    timestamp: datetime.datetime
    """Naive times are local times."""
    data: dict[str, Any] = attrs.field(converter=dict, validator=_check_data)


def log_event(event: Event) -> None:
    """
    Publish *event*: as a `TorchMonitorEvent`, or if it is a stat's, as windows of a counter.

    A handler's exception is counted and reported; from torch.monitor it reaches the caller.
    """
    for published in published_as(event):
        default_bus.log(published)


def published_as(event: Event) -> Iterable[events.Event]:
    """Return trackside's events for *event*."""
    at_ns = round(event.timestamp.timestamp() * 1e9)
    if event.name == STAT_EVENT:
        return windows_of(event.data, at_ns)
    return [TorchMonitorEvent(at_ns=at_ns, name=event.name, data=event.data)]


def register_event_handler(callback: Callable[[Event], object]) -> EventHandlerHandle:
    """
    Call *callback* with every event that is logged, in the thread that logs it.

    It gets the windows of all counters on the bus too, as events of stats.
    """

    def handle(event: events.Event) -> None:
        name, data = name_and_data(event)
        callback(Event(name, datetime.datetime.fromtimestamp(event.at_ns / 1e9), data))  # noqa: DTZ006  as torch's

    return default_bus.subscribe(handle, to=(TorchMonitorEvent, CounterWindow))


def unregister_event_handler(handler: EventHandlerHandle) -> None:
    """Remove the handler."""
    handler.close()


class Stat:
    """
    Statistics of values over windows of equal length, each of which is logged as an event when it is over.

    A window ends at the first value after its time, or when this object is deleted. `Stat.get` returns the figures of
    the last window that ended.

    Args:
        name: The name of the measured quantity.
        aggregations: The figures to compute.
        window_size: The length of a window, in whole milliseconds.
        max_samples: The number of values after which a window ends early; later values within its time are left out.
    """

    def __init__(
        self,
        name: str,
        aggregations: Iterable[Aggregation],
        window_size: datetime.timedelta,
        max_samples: int = _NO_LIMIT,
    ) -> None:
        self._values, self._before = _Values(), _Values()
        self._began_ns = events.clock.now_ns()
        self._total_count, self._total_sum = 0, 0.0
        self.name = name
        self._aggregations = tuple(dict.fromkeys(aggregations))
        self._max_samples = max_samples
        self._lock = threading.Lock()
        self._window_ms = max(1, window_size // datetime.timedelta(milliseconds=1))
        self._window, self._logged = self._now(), -1

    @property
    def count(self) -> int:
        """The number of values in the window so far."""
        return self._values.count

    def add(self, v: float) -> None:
        """Record *v*."""
        with self._lock:
            ended = [self._end_window()]
            if self._logged != self._window:
                self._values.add(v)
                ended.append(self._end_window())
        for window in ended:
            if window is not None:
                default_bus.log(window)

    def get(self) -> dict[Aggregation, float]:
        """Return the statistics of the last window that ended; zeros if there was none."""
        with self._lock:
            return self._before.of(self._aggregations)

    def _now(self) -> int:
        return events.clock.monotonic_ns() // _NS_PER_MS // self._window_ms

    def _end_window(self) -> CounterWindow | None:
        """End the window if its time is over or it has all its values, and return its event."""
        now = self._now()
        is_over = self._window != now or self._values.count >= self._max_samples
        ended = self._close() if is_over and self._logged != self._window else None
        if is_over:
            self._logged = self._window
        self._window = now
        return ended

    def _close(self) -> CounterWindow | None:
        self._before, self._values = self._values, _Values()
        began_ns, self._began_ns = self._began_ns, events.clock.now_ns()
        if not self._before.count:
            return None
        self._total_count += self._before.count
        self._total_sum += self._before.sum
        return CounterWindow(
            at_ns=self._began_ns,
            name=self.name,
            kind="stat",
            unit="",
            start_ns=began_ns,
            end_ns=self._began_ns,
            count=self._before.count,
            values={kind.name.lower(): value for kind, value in self._before.of(self._aggregations).items()},
            total_count=self._total_count,
            total_sum=self._total_sum,
        )

    def __del__(self) -> None:
        window = self._close()
        if window is not None:
            default_bus.log(window)


@attrs.define
class _Values:
    """The values of one window."""

    count: int = 0
    sum: float = 0.0
    last: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def add(self, value: float) -> None:
        self.least = value if not self.count else min(self.least, value)
        self.most = value if not self.count else max(self.most, value)
        self.count += 1
        self.sum += value
        self.last = value

    def of(self, aggregations: Iterable[Aggregation]) -> dict[Aggregation, float]:
        found = {
            Aggregation.VALUE: self.last,
            Aggregation.MEAN: self.sum / self.count if self.count else 0.0,
            Aggregation.COUNT: float(self.count),
            Aggregation.SUM: self.sum,
            Aggregation.MAX: self.most,
            Aggregation.MIN: self.least,
        }
        return {kind: found[kind] for kind in aggregations}


class _WaitCounter:
    """
    Records the durations of waits, in seconds, as the stat *key*; private as in torch, whose own tests import it.

    Args:
        key: The name of the stat.
    """

    def __init__(self, key: str) -> None:
        self._waits = default_bus.stat(key, unit="s")

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Record the duration of the block."""
        began_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self._waits.record((time.perf_counter_ns() - began_ns) / _NS_PER_S)


class TensorboardEventHandler:
    """
    Draws stats: once it is registered, each statistic of each window is a point.

    Args:
        writer: Anything with the method ``add_scalar`` of torch's ``SummaryWriter``.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __call__(self, event: Event) -> None:
        """Draw *event* if it is a stat's."""
        if event.name == STAT_EVENT:
            for tag, value in event.data.items():
                self._writer.add_scalar(tag, value, walltime=event.timestamp.timestamp())
