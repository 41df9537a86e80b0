"""Use of this process and its machine; the one module that imports psutil, and only when needed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from trackside.events import gauge_names
from trackside.instruments._gauges import MachineGauge, Share

_IDLE = ("idle", "iowait")
_WITHIN_OTHERS = ("guest", "guest_nice")  # counted in ``user`` and ``nice`` as well


def gauges() -> list[MachineGauge]:
    """
    Return the gauges of this process and its machine.

    Raises:
        RuntimeError: if psutil is not installed.
    """
    try:
        import psutil  # noqa: PLC0415  needed only by those who ask for it
    except ImportError:
        raise RuntimeError("psutil is not installed") from None
    return list(gauges_of(psutil))


def gauges_of(psutil: Any) -> Iterator[MachineGauge]:
    """Yield the gauges that the module *psutil* reads."""
    process = psutil.Process()

    def own_s() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    def used_bytes() -> float:
        memory = psutil.virtual_memory()
        return float(memory.total - memory.available)

    machine = Share(lambda: _cpu_s(psutil, busy=True), lambda: _cpu_s(psutil, busy=False))

    def busy_share() -> float | None:
        share = machine.read()
        # The two totals are read one after the other: with no idle time, the share may come out slightly above 1.
        return None if share is None else min(share, 1.0)

    yield MachineGauge(
        gauge_names.PROCESS_CPU,
        "1",
        "CPU time of this process per second; 1 is a whole core",
        Share(own_s, time.monotonic).read,
    )
    yield MachineGauge(
        gauge_names.PROCESS_MEMORY, "By", "RAM that this process occupies", lambda: process.memory_info().rss
    )
    yield MachineGauge(
        gauge_names.SYSTEM_CPU,
        "1",
        "share of the machine's CPU time that was not idle",
        busy_share,
    )
    yield MachineGauge(
        gauge_names.SYSTEM_MEMORY, "By", "RAM of the machine that no other process could have now", used_bytes
    )


def _cpu_s(psutil: Any, *, busy: bool) -> float:
    """Return the CPU time of all cores since the machine began; if *busy*, only the part that was not idle."""
    left_out = (*_WITHIN_OTHERS, *_IDLE) if busy else _WITHIN_OTHERS
    return float(sum(seconds for name, seconds in psutil.cpu_times()._asdict().items() if name not in left_out))
