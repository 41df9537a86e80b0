"""The registry: all counters of a bus, who collects them, and the thread that does."""

from __future__ import annotations

import fnmatch
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from trackside.bus._patience import complain
from trackside.bus.counters._aggregation import Aggregation, in_order
from trackside.bus.counters._checks import (
    SHORTEST_INTERVAL_S,
    checked_count,
    checked_interval,
    checked_name,
    checked_text,
    forbid_change,
)
from trackside.bus.counters._collector import Collector, Raw
from trackside.bus.counters._counter import Counter, CounterSnapshot, StrictCounter
from trackside.bus.counters._observation import Observation
from trackside.bus.counters._sampler import Sampler
from trackside.events import ConfigError, CounterWindow, Event, clock

MAX_COUNTERS: Final = 10_000
THE_REST: Final = "trackside.counters.beyond"
_PATIENCE_S: Final = 1.0


class CounterRegistry:
    """
    Makes counters, once for each name, and lets collectors publish their windows.

    Args:
        publish: Called with each `CounterWindow`, never while a lock is held.
        wants: Asked whether anybody wants the windows.
        now_ns: The clock, in ns since the epoch.
        strict: Raise for an invalid sample where it is added.
        threaded: Whether collectors get a thread; without one, somebody has to call `tick`.
    """

    def __init__(
        self,
        publish: Callable[[Event], None],
        wants: Callable[[type[Event]], bool],
        *,
        now_ns: Callable[[], int] = clock.now_ns,
        strict: bool = False,
        threaded: bool = True,
    ) -> None:
        self._publish = publish
        self._wants = wants
        self._now_ns = now_ns
        self._kind = StrictCounter if strict else Counter
        self._threaded = threaded
        self._counters: dict[str, Counter] = {}
        self._collectors: tuple[Collector, ...] = ()
        self._observations: tuple[Observation, ...] = ()
        self._sampler = Sampler(self._beat)
        self._is_closed = False
        self._shed_before = 0
        self._renew_locks()

    def _renew_locks(self) -> None:
        self._lock = threading.RLock()
        """Held while counters, collectors and observations come and go."""
        self._publishing = threading.RLock()
        """Held while windows are handed out, which keeps each counter's in order."""

    # --- counters ----------------------------------------------------------------------------------------------

    def counter(
        self,
        name: str,
        *,
        unit: str = "",
        help: str = "",  # noqa: A002  the field's own word
        aggregations: Iterable[Aggregation | str] | None = None,
    ) -> Counter:
        """
        Return the counter called *name*, made at the first call.

        What one caller leaves open, a later one may say. Beyond 10,000 names all further ones share one counter:
        name what is counted, not each thing that is counted.

        Args:
            name: 1 to 256 printable characters, by custom dotted: ``"train.tokens"``.
            unit: What the values are counted in: ``"s"``, ``"tokens"``, ``"bytes"``.
            help: One sentence on what is counted.
            aggregations: What windows tell unless a collector says otherwise: members of `Aggregation` or their
                names. Count, sum and mean if nobody says.

        Raises:
            ConfigError: if an argument is malformed, or says something else than it did before.
        """
        known = self._counters.get(name) if isinstance(name, str) else None
        if known is not None and not unit and not help and aggregations is None:
            return known
        told = None if aggregations is None else in_order(aggregations)
        checked_text("unit", unit)
        checked_text("help", help)
        checked_name(name)
        with self._lock:
            known = self._counters.get(name)
            if known is None:
                return self._add(name, unit, help, told)
            forbid_change(known, unit, help, told)
            known.declare(unit, help, told)
            for collector in self._collectors:
                collector.relearn(known)
            return known

    def _add(self, name: str, unit: str, help: str, told: tuple[Aggregation, ...] | None) -> Counter:  # noqa: A002
        if len(self._counters) >= MAX_COUNTERS and name != THE_REST:
            if THE_REST not in self._counters:
                complain("there are %d counters; %r and all further ones are counted together", MAX_COUNTERS, name)
            return self.counter(THE_REST)
        counter = self._kind(name, unit=unit, help=help, aggregations=told)
        for collector in self._collectors:
            collector.cover(counter)
        self._counters[name] = counter
        return counter

    def counters(self, match: str = "*") -> list[Counter]:
        """
        Return the counters whose names match, by name.

        Args:
            match: A pattern as for file names: ``"train.*"``.
        """
        known = self._counters.copy()
        return [known[name] for name in sorted(known) if fnmatch.fnmatchcase(name, match)]

    def snapshots(self, match: str = "*") -> list[CounterSnapshot]:
        """Return what the counters whose names match have counted so far, by name."""
        return [counter.snapshot() for counter in self.counters(match)]

    def observe(
        self,
        name: str,
        callback: Callable[[], float | None],
        *,
        unit: str = "",
        help: str = "",  # noqa: A002  the field's own word
        aggregations: Iterable[Aggregation | str] | None = None,
    ) -> Observation:
        """
        Let *callback* be asked for the value of the counter called *name* once in each cycle of a collector.

        It is called on the sampler's thread and may return None for no value now. While it blocks, no window
        of any counter is published.

        Args:
            name: As for `counter`.
            callback: Returns a number, or None.
            unit: What the value is counted in.
            help: One sentence on what it is.
            aggregations: What windows tell of it; the last value, unless anybody says.

        Raises:
            ConfigError: if an argument is malformed, or the counter has a callback already.
        """
        if not callable(callback):
            raise ConfigError("callback", callback, "give a function without arguments that returns a number")
        with self._lock:
            if aggregations is None and checked_name(name) not in self._counters:
                aggregations = (Aggregation.VALUE,)
            counter = self.counter(name, unit=unit, help=help, aggregations=aggregations)
            if any(observation.counter is counter for observation in self._observations):
                raise ConfigError("name", name, "it has a callback already; close that observation first")
            observation = Observation(counter, callback, on_close=self._drop)
            self._observations += (observation,)
        return observation

    def _drop(self, observation: Observation) -> None:
        with self._lock:
            self._observations = tuple(other for other in self._observations if other is not observation)

    # --- collectors --------------------------------------------------------------------------------------------

    def collect(
        self,
        *,
        interval_s: float | None = None,
        count: int | None = None,
        match: str = "*",
        aggregations: Iterable[Aggregation | str] | None = None,
        raw: Raw | None = None,
    ) -> Collector:
        """
        Publish a `CounterWindow` of each counter again and again, until the collector is closed.

        A window of *count* samples is exact, and counters that stand still have none. A window of *interval_s* ends
        when the sampler comes by; one without samples says so with a count of 0. With both, whichever
        comes first ends it. Windows are published by the sampler, a second at most after their last sample.

        Args:
            interval_s: The length of a window, in seconds, from 0.001.
            count: The length of a window, in samples.
            match: Which counters, by a pattern for their names, also of those made later.
            aggregations: What to tell of each window; what each counter was made with, unless given.
            raw: Called on the sampler's thread with the name of a counter and an array of the samples of each window,
                the first 65,536 of them.

        Raises:
            ConfigError: if neither length is given, or an argument is malformed, or the registry is closed.
        """
        if interval_s is None and count is None:
            raise ConfigError("interval_s", None, "give interval_s, count or both")
        collector = Collector(
            interval_s=checked_interval(interval_s),
            count=checked_count(count),
            match=checked_text("match", match),
            aggregations=None if aggregations is None else in_order(aggregations),
            raw=raw,
            now_ns=self._now_ns,
            on_close=self._release,
        )
        with self._lock:
            if self._is_closed:
                raise ConfigError("collect()", "a closed bus", "collect before closing it")
            for counter in self._counters.values():
                collector.cover(counter)
            self._collectors += (collector,)
        self.resume()
        return collector

    def _release(self, collector: Collector) -> None:
        with self._lock:
            before = self._collectors
            self._collectors = tuple(other for other in before if other is not collector)
        collector.finish(self._now_ns(), timeout_s=_PATIENCE_S)
        self._hand_out((collector,), _PATIENCE_S)
        if collector in before:
            self._shed_before += collector.shed.value

    def _hand_out(self, collectors: Iterable[Collector], timeout_s: float) -> bool:
        """Publish closed windows; in order, unless somebody else is stuck in doing so."""
        is_alone = self._publishing.acquire(timeout=timeout_s)
        try:
            wanted = self._wants(CounterWindow)
            for collector in collectors:
                collector.publish(self._publish_safely, wanted=wanted)
        finally:
            if is_alone:
                self._publishing.release()
        return is_alone

    def _publish_safely(self, window: CounterWindow) -> None:
        try:
            self._publish(window)
        except Exception as error:
            complain("a window of counter %s could not be published: %s", window.name, error, error=error)

    # --- time --------------------------------------------------------------------------------------------------

    def tick(self, now_ns: int | None = None) -> None:
        """
        Do what is due: ask callbacks, close windows whose time is over, publish those that closed.

        Args:
            now_ns: The time, in ns since the epoch; the clock's unless given.
        """
        asked_at_ns = self._now_ns() if now_ns is None else now_ns
        due = [collector for collector in self._collectors if collector.due_ns <= asked_at_ns]
        if due:
            for observation in self._observations:
                if any(collector.covers(observation.counter.name) for collector in due):
                    observation.read()
            end_ns = self._now_ns() if now_ns is None else now_ns
            for collector in due:
                collector.roll(end_ns)
        self._hand_out(self._collectors, _PATIENCE_S)

    def _beat(self) -> float | None:
        self.tick()
        collectors = self._collectors
        if not collectors:
            return None
        wait_ns = min(collector.due_ns for collector in collectors) - self._now_ns()
        return max(SHORTEST_INTERVAL_S / 2, wait_ns / 1e9)

    def flush(self, timeout_s: float = 2.0) -> bool:
        """
        Publish the windows that are complete; those of a time go on.

        Returns:
            False if a counter could not be read within *timeout_s*, or another thread is stuck in publishing.
        """
        deadline_s = time.monotonic() + timeout_s
        collectors = self._collectors
        done = True
        if collectors:
            for counter in self.counters():
                done = counter.fold(timeout_s=_left_s(deadline_s)) and done
        return self._hand_out(collectors, _left_s(deadline_s)) and done

    def close(self, timeout_s: float = 2.0) -> bool:
        """
        Publish the last windows as far as they have come, and stop the sampler. Counters go on counting.

        Args:
            timeout_s: The longest this may take, in seconds, whatever a callback does.

        Returns:
            False if the sampler was stuck in a callback; the windows are published all the same, in this thread.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            self._is_closed = True
            collectors, self._collectors = self._collectors, ()
        done = self._sampler.stop(timeout_s / 2)
        now_ns = self._now_ns()
        for collector in collectors:
            done = collector.finish(now_ns, timeout_s=_left_s(deadline_s)) and done
        done = self._hand_out(collectors, _left_s(deadline_s)) and done
        self._shed_before += sum(collector.shed.value for collector in collectors)
        return done

    @property
    def shed(self) -> int:
        """Windows given up because 4,096 of their collector waited to be published."""
        return self._shed_before + sum(collector.shed.value for collector in self._collectors)

    # --- forks -------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """
        Begin anew in a forked child: counters at zero, collectors with new windows, no callbacks and no thread.

        What the child adds is published when it closes, or by the sampler once `resume` is called.
        """
        self._renew_locks()
        self._sampler.forget()
        self._observations = ()
        self._shed_before = 0
        counters = list(self._counters.values())
        for counter in counters:
            counter.forget()
        for collector in self._collectors:
            collector.become_child(counters)

    def resume(self) -> None:
        """Start the sampler if there is something to collect; it runs already unless this is a forked child."""
        with self._lock:  # so that nobody closes in between, and leaves a thread behind that nobody stops
            if self._threaded and self._collectors:
                self._sampler.start()


def _left_s(deadline_s: float) -> float:
    return max(0.0, deadline_s - time.monotonic())
