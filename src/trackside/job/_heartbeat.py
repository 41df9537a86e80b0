"""The heartbeat thread: heartbeats, readings of the clocks, and the check for stalls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from trackside._platform import clock_through_sleep_ns
from trackside.bus import Bus, BusStats
from trackside.core import RateLimitedLog, StopEvent, described
from trackside.events import ClockAnchored, Heartbeat, clock

CLOCK_EVERY_S: Final = 60.0
_SUSPENDED_FROM_NS: Final = 10**8


def _suspended_clock_ns() -> int:
    """Return the time of a monotonic clock that continues while the machine sleeps, if there is one."""
    now_ns = clock_through_sleep_ns()
    return clock.monotonic_ns() if now_ns is None else now_ns


class HeartbeatThread:
    """
    Publishes a `Heartbeat` every *interval_s* seconds and a `ClockAnchored` every minute.

    Plain callables that subscribe to these events run on its thread. A callable that blocks stops the heartbeats, just
    as it would block any caller.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        interval_s: float = 1.0,
        read_stats: Callable[[float], BusStats] | None = None,
        read_open_spans: Callable[[], dict[str, list[Any]]] = dict,
        on_beat: Callable[[], object] = lambda: None,
    ) -> None:
        self._bus = bus
        self._interval_s = interval_s
        self._read_stats = read_stats or bus.stats
        self._read_open_spans = read_open_spans
        self._on_beat = on_beat
        self._stop = StopEvent()
        self._sequence = 0
        self._clock_due_s = 0.0
        self._suspended_before_ns: int | None = None
        self._log = RateLimitedLog()
        self._thread = threading.Thread(target=self._run, name="trackside-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Publish a last heartbeat and end the thread."""
        deadline_s = time.monotonic() + timeout_s
        self._stop.set()
        if threading.current_thread() is not self._thread:  # else a plain callable of a heartbeat ends the job
            self._thread.join(timeout_s)
        self.beat(max(0.0, deadline_s - time.monotonic()))

    def cancel(self, timeout_s: float) -> None:
        """End the thread, if it was started, and publish nothing more."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            now_s = time.monotonic()
            if now_s >= self._clock_due_s:
                self._clock_due_s = now_s + CLOCK_EVERY_S
                self.anchor()
            self.beat()
            try:
                self._on_beat()
            except Exception as error:  # the next heartbeat is due whatever is wrong
                self._log.complain("a check at a heartbeat failed: %s", described(error))
            self._stop.wait(self._interval_s)

    def beat(self, timeout_s: float = 1.0) -> None:
        """Publish one heartbeat; after *timeout_s* its counts need not balance, like those of `Bus.stats`."""
        if not self._bus.wants(Heartbeat):
            return
        stats = self._read_stats(timeout_s)
        self._bus.log(
            Heartbeat(
                sequence=self._sequence,
                interval_s=self._interval_s,
                counts={**counts_of(stats), "suppressed": stats.suppressed},
                open_spans=self._read_open_spans(),
                span_id=0,
                step=-1,
            )
        )
        self._sequence += 1

    def anchor(self) -> None:
        """Read the clocks together and publish the readings."""
        reading = clock.read_anchor()
        asleep_ns = _suspended_clock_ns() - reading.mono_ns
        before_ns, self._suspended_before_ns = self._suspended_before_ns, asleep_ns
        slept_ns = asleep_ns - before_ns if before_ns is not None else 0
        self._bus.log(
            ClockAnchored(
                mono_ns=reading.mono_ns,
                wall_ns=reading.wall_ns,
                offset_ns=reading.wall_ns - reading.mono_ns - clock.offset_ns,
                uncertainty_ns=reading.uncertainty_ns,
                suspended_ns=slept_ns if slept_ns >= _SUSPENDED_FROM_NS else 0,
                span_id=0,
                step=-1,
            )
        )


def counts_of(stats: BusStats) -> dict[str, Any]:
    """Return the counts of a bus that its process reports in heartbeats and to viewers."""
    return {
        "published": stats.published,
        "in_queue": stats.in_queue,
        "dropped": sum(stats.dropped_by_type.values()),
        "failed": stats.failed,
        "invalid": stats.invalid,
    }
