"""
Sampling of the machine while it trains: CPU, memory and the rank's GPU, read in the background into counters.

A value that cannot be read is absent: it has no counter, or a window without values, and is never 0.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Sequence
from typing import Final

from trackside.bus import Bus, default_bus
from trackside.core import Closing, StopEvent
from trackside.counters import Gauge
from trackside.events import MissingExtraError, SystemSamplingStarted, process_source
from trackside.instruments import nvml, psutil
from trackside.instruments._gauges import MachineGauge

SAMPLING_INTERVAL_S: Final = 2.0
MAX_FAILURES: Final = 5
"""Failures in a row after which a gauge is read no more."""

_FINDERS: Final[dict[str, Callable[[], Sequence[MachineGauge]]]] = {
    "cpu": psutil.gauges,
    "gpu": lambda: nvml.gauges(process_source().local_rank),
}
"""Functions that return the gauges of this process and its machine, and of its rank's GPU, or raise the reason."""


class SystemSampling(Closing):
    """
    Reads gauges every *sampling_interval_s* seconds on a thread of its own, into counters of the gauges' names.

    One `SystemSamplingStarted` lists the gauges, with the reasons why others are missing. A reading that hangs, for
    example of a GPU that fell off its bus, delays only the other readings.

    Args:
        bus: The bus whose gauges are set.
        sampling_interval_s: Seconds between readings.

    Raises:
        MissingExtraError: if neither psutil nor nvidia-ml-py is installed.
    """

    def __init__(self, bus: Bus = default_bus, *, sampling_interval_s: float = SAMPLING_INTERVAL_S) -> None:
        if not any(map(importlib.util.find_spec, ("psutil", "pynvml"))):
            raise MissingExtraError("system sampling", "psutil,nvml")
        self._bus = bus
        self._sampling_interval_s = sampling_interval_s
        self._stop = StopEvent()
        self._thread = threading.Thread(target=self._run, name="trackside-system", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 1.0) -> bool:
        """Stop the readings; False if one did not return in time. Safe to call twice."""
        self._stop.set()
        if threading.current_thread() is self._thread:  # an inline handler of our event ends the job
            return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- on the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        readings = self._begin()
        while readings:
            readings = [reading for reading in readings if reading.sample()]
            if self._stop.wait(self._sampling_interval_s):
                return

    def _begin(self) -> list[_Reading]:
        """Find the gauges, and publish their names."""
        found: list[MachineGauge] = []
        absent: dict[str, str] = {}
        for what, find in _FINDERS.items():
            try:
                found += find()
            except Exception as error:
                absent[what] = str(error) or type(error).__name__
        self._bus.log(SystemSamplingStarted(sampled=[gauge.name for gauge in found], absent=absent, step=-1, span_id=0))
        return [_Reading(gauge, self._gauge(gauge)) for gauge in found]

    def _gauge(self, gauge: MachineGauge) -> Gauge:
        aggregations = ("mean", "min", "max", "value")
        return self._bus.gauge(gauge.name, unit=gauge.unit, help=gauge.help, aggregations=aggregations)


class _Reading:
    """A gauge of the machine, and the bus's gauge of its values."""

    def __init__(self, gauge: MachineGauge, values: Gauge) -> None:
        self._gauge = gauge
        self._values = values
        self._failures = 0

    def sample(self) -> bool:
        """Read the gauge once; return False if it has failed too often to be read again."""
        try:
            value = self._gauge.read()
        except Exception:
            self._failures += 1
            return self._failures < MAX_FAILURES
        self._failures = 0
        if value is not None:
            self._values.set(value)
        return True
