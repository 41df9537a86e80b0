"""The registry of a bus: its counters, stats and gauges, their collectors, and the thread that serves these."""

from __future__ import annotations

import contextlib
import fnmatch
import operator
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, TypeVar

from trackside.core import LateThread, Mailbox, complain, deadline_in, is_from_signal_handler, left_s
from trackside.counters._aggregation import Aggregation, in_order
from trackside.counters._instruments import LOCK_TIMEOUT_S, Counter, CounterSnapshot, Gauge, Instrument, Stat
from trackside.counters._window_collector import CounterCollector, Raw
from trackside.events import ConfigError, CounterWindow, Event, clock
from trackside.events._settings import settings_check

Kind = TypeVar("Kind", bound=Instrument)

MAX_INSTRUMENTS: Final = 10_000
MAX_NAME_LENGTH: Final = 256
SHORTEST_INTERVAL_S: Final = 0.001
LONGEST_INTERVAL_S: Final = 1e9
_RETRY_S: Final = 1.0


class CounterRegistry:
    """
    Makes counters, stats and gauges, once for each name, and lets collectors publish their windows.

    Args:
        publish: Called with each `CounterWindow`, never while a lock is held.
        wants: Returns whether a handler is subscribed to the windows.
        strict: Raise for an invalid sample where it is added.
        threaded: Whether collectors get a thread; without one, call `tick`.
    """

    def __init__(
        self,
        publish: Callable[[Event], None],
        wants: Callable[[type[Event]], bool],
        *,
        strict: bool = False,
        threaded: bool = True,
    ) -> None:
        self._publish = publish
        self._wants = wants
        self._strict = strict
        self._threaded = threaded
        self._instruments: dict[str, Instrument] = {}
        self._collectors: tuple[CounterCollector, ...] = ()
        self._called: tuple[Gauge, ...] = ()
        """Gauges that have had a callback."""
        self._sampler = Sampler(self._beat)
        self._is_closed = False
        self._dropped_before = 0
        self._tolerated: set[tuple[str, str]] = set()
        self._renew_locks()

    def _renew_locks(self) -> None:
        self._lock = threading.RLock()
        """Held while instruments and collectors come and go."""
        self._publishing = threading.RLock()
        """Held while windows are handed out, which keeps each counter's in order."""

    # --- instruments -------------------------------------------------------------------------------------------

    def counter(
        self,
        name: str,
        *,
        unit: str = "",
        help: str = "",  # noqa: A002  the field's own word
        aggregations: Iterable[Aggregation | str] | None = None,
        **_unknown: NoReturn,
    ) -> Counter:
        """
        Return the counter called *name*, made at the first call: a sum that only grows.

        A later call may declare what an earlier one left out. Beyond 10,000 names all further counters are one; so are
        further stats, and further gauges: a name stands for a quantity, not for each item that has it.

        Args:
            name: 1 to 256 printable characters, by custom dotted: ``"train.tokens"``.
            unit: The unit of the values: ``"s"``, ``"tokens"``, ``"bytes"``.
            help: One sentence on the meaning of the values.
            aggregations: The figures in a window, unless a collector says otherwise: members of `Aggregation` or their
                names. Count and sum by default.

        Raises:
            ConfigError: if an argument is malformed. If the bus is strict, also if the name is a stat's or a gauge's,
                or unit, help or aggregations differ from an earlier call. Otherwise a line says so, and training goes
                on: the counter is called ``name.counter`` then, and what was declared first holds.
        """
        if _unknown:
            _refuse_settings(self.counter, _unknown)
        return self._instrument(Counter, name, unit, help, aggregations)

    def stat(
        self,
        name: str,
        *,
        unit: str = "",
        help: str = "",  # noqa: A002
        aggregations: Iterable[Aggregation | str] | None = None,
        **_unknown: NoReturn,
    ) -> Stat:
        """
        Return the stat called *name*, made at the first call: a distribution of values.

        Args:
            name: As for `counter`, and so are the next two.
            unit: The unit of the values.
            help: One sentence.
            aggregations: The figures in a window, unless a collector says otherwise. Count, sum and mean by default.

        Raises:
            ConfigError: as for `counter`.
        """
        if _unknown:
            _refuse_settings(self.stat, _unknown)
        return self._instrument(Stat, name, unit, help, aggregations)

    def gauge(
        self,
        name: str,
        *,
        callback: Callable[[], float | None] | None = None,
        unit: str = "",
        help: str = "",  # noqa: A002
        aggregations: Iterable[Aggregation | str] | None = None,
        **_unknown: NoReturn,
    ) -> Gauge:
        """
        Return the gauge called *name*, made at the first call: the latest value of what goes up and down.

        A *callback* is called on the registry's thread. While it blocks, no window of any instrument is published.

        Args:
            name: As for `counter`.
            callback: Called once in each cycle of a collector for the value; returns None for no value now.
            unit: As for `counter`.
            help: As for `counter`.
            aggregations: The figures in a window, unless a collector says otherwise. The last value by default.

        Raises:
            ConfigError: as for `counter`, or if the gauge has another callback already.
        """
        if _unknown:
            _refuse_settings(self.gauge, _unknown)
        if callback is not None and not callable(callback):
            raise ConfigError("callback", callback, "give a function without arguments that returns a number")
        gauge = self._instrument(Gauge, name, unit, help, aggregations)
        if callback is not None:
            with self._lock:
                if gauge.has_callback:
                    raise ConfigError("name", name, "it has a callback already; close that gauge first")
                gauge.call(callback)
                if gauge not in self._called:
                    self._called += (gauge,)
        return gauge

    def _instrument(
        self,
        cls: type[Kind],
        name: str,
        unit: str,
        help: str,  # noqa: A002
        aggregations: Iterable[Aggregation | str] | None,
    ) -> Kind:
        known = self._instruments.get(name) if isinstance(name, str) else None
        if type(known) is cls and not unit and not help and aggregations is None:
            return known
        figures = None if aggregations is None else in_order(aggregations)
        _check_text("unit", unit)
        _check_text("help", help)
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
            raise ConfigError("name", name, f"give 1 to {MAX_NAME_LENGTH} printable characters")
        with self._lock:
            known = self._instruments.get(name)
            if known is None:
                return self._add(cls, name, unit, help, figures)
            if type(known) is not cls:
                other = f"{name[: MAX_NAME_LENGTH - len(cls.kind) - 1]}.{cls.kind}"
                remedy = f"it is a {known.kind} already; give the {cls.kind} another name"
                self._tolerate(ConfigError("name", name, remedy), f"it is recorded as {other!r}", (name, cls.kind))
                return self._instrument(cls, other, unit, help, figures)
            try:
                _forbid_change(known, unit, help, figures)
            except ConfigError as error:
                self._tolerate(error, "what was declared first holds", (name, error.field))
                return known
            known.declare(unit, help, figures)
            for collector in self._collectors:
                collector.refresh(known)
            return known

    def _tolerate(self, error: ConfigError, instead: str, about: tuple[str, str]) -> None:
        """Log once what is wrong *about* a name, instead of raising: training must not end because of it."""
        if self._strict:
            raise error
        if about not in self._tolerated and len(self._tolerated) < MAX_INSTRUMENTS:
            self._tolerated.add(about)
            complain("%s; %s", error, instead)

    def _add(self, cls: type[Kind], name: str, unit: str, help: str, figures: tuple[Aggregation, ...] | None) -> Kind:  # noqa: A002
        beyond = f"trackside.{cls.kind}s.beyond"
        if len(self._instruments) >= MAX_INSTRUMENTS and name != beyond:
            if beyond not in self._instruments:
                complain("%d names are in use; %s %r and all further ones are one", MAX_INSTRUMENTS, cls.kind, name)
            return self._instrument(cls, beyond, "", "", None)
        instrument = cls(name, unit=unit, help=help, aggregations=figures, strict=self._strict)
        for collector in self._collectors:
            collector.cover(instrument)
        self._instruments[name] = instrument
        return instrument

    def counters(self, match: str = "*") -> list[Instrument]:
        """
        Return the counters, stats and gauges whose names match, by name.

        Args:
            match: A pattern as for file names: ``"train.*"``.
        """
        known = self._instruments.copy()
        return [known[name] for name in sorted(known) if fnmatch.fnmatchcase(name, match)]

    def snapshots(self, match: str = "*", *, of_job: bool = False) -> list[CounterSnapshot]:
        """
        Return the totals of the counters, stats and gauges whose names match, by name.

        Args:
            match: As for `counters`.
            of_job: Leave out what was recorded in earlier jobs of this process.
        """
        return [instrument.snapshot(of_job=of_job) for instrument in self.counters(match)]

    def end_job(self) -> None:
        """Publish all windows as far as they have come; the totals of the next ones begin at zero."""
        now_ns = clock.now_ns()
        for instrument in self.counters():
            instrument.end_job(now_ns)
        self._hand_out(self._collectors, LOCK_TIMEOUT_S)

    # --- collectors --------------------------------------------------------------------------------------------

    def collect(
        self,
        *,
        interval_s: float | None = None,
        count: int | None = None,
        match: str = "*",
        aggregations: Iterable[Aggregation | str] | None = None,
        raw: Raw | None = None,
    ) -> CounterCollector:
        """
        Publish a `CounterWindow` of each counter, stat and gauge again and again, until the collector is closed.

        A window of *count* samples is exact, and an instrument without samples has none. A window of *interval_s* ends
        when the registry's thread comes by; one without samples says so with a count of 0. With both, the first of the
        two ends it. Windows are published by that thread, a second at most after their last sample.

        Args:
            interval_s: The length of a window, in seconds, from 0.001.
            count: The length of a window, in samples.
            match: A pattern for the names to cover, also of instruments made later.
            aggregations: The figures in each window; by default those with which each instrument was made.
            raw: Called on the registry's thread with the name of an instrument and an array of the samples of each
                window, the first 65,536 of them.

        Raises:
            ConfigError: if neither length is given, or an argument is malformed, or the registry is closed.
        """
        if interval_s is None and count is None:
            raise ConfigError("interval_s", None, "give interval_s, count or both")
        collector = CounterCollector(
            interval_s=_checked_interval(interval_s),
            count=_checked_count(count),
            match=_check_text("match", match),
            aggregations=None if aggregations is None else in_order(aggregations),
            raw=raw,
            on_close=self._release,
        )
        with self._lock:
            if self._is_closed:
                raise ConfigError("collect()", "a closed bus", "collect before closing it")
            for instrument in self._instruments.values():
                collector.cover(instrument)
            self._collectors += (collector,)
        self.resume()
        return collector

    def collect_as_child(self) -> CounterCollector:
        """
        Publish one window of each instrument that has values, when the registry or the collector is closed.

        So a process that multiprocessing has started afresh collects like a forked child: without a thread.
        """
        collector = CounterCollector(
            interval_s=LONGEST_INTERVAL_S, count=None, match="*", aggregations=None, raw=None, on_close=self._release
        )
        with self._lock:
            collector.become_child(list(self._instruments.values()))
            self._collectors += (collector,)
        return collector

    def _release(self, collector: CounterCollector) -> bool:
        with self._lock:
            before = self._collectors
            self._collectors = tuple(other for other in before if other is not collector)
        done = collector.finish(clock.now_ns(), timeout_s=LOCK_TIMEOUT_S)
        done = self._hand_out((collector,), LOCK_TIMEOUT_S) and done
        if collector in before:
            self._dropped_before += collector.dropped.value
        return done

    def _hand_out(self, collectors: Iterable[CounterCollector], timeout_s: float) -> bool:
        """Publish closed windows; in order, unless another thread is stuck in doing so."""
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
            if is_from_signal_handler(error):
                raise
            complain("a window of %s %s could not be published: %s", window.kind, window.name, error, error=error)

    # --- time --------------------------------------------------------------------------------------------------

    def tick(self, now_ns: int | None = None) -> None:
        """
        Call the callbacks that are due, close the windows whose time is over, and publish closed windows.

        Args:
            now_ns: The time, in ns since the epoch; the clock's unless given.
        """
        called_ns = clock.now_ns() if now_ns is None else now_ns
        due = [collector for collector in self._collectors if collector.due_ns <= called_ns]
        if due:
            for gauge in self._called:
                if any(collector.covers(gauge.name) for collector in due):
                    gauge.read()
            end_ns = clock.now_ns() if now_ns is None else now_ns
            for collector in due:
                collector.roll(end_ns)
        self._hand_out(self._collectors, LOCK_TIMEOUT_S)

    def _beat(self) -> float | None:
        self.tick()
        collectors = self._collectors
        if not collectors:
            return None
        wait_ns = min(collector.due_ns for collector in collectors) - clock.now_ns()
        return max(SHORTEST_INTERVAL_S / 2, wait_ns / 1e9)

    def flush(self, timeout_s: float = 2.0) -> bool:
        """
        Publish the windows that are complete; those of a time go on.

        Returns:
            False if an instrument could not be read within *timeout_s*, or another thread is stuck in publishing.
        """
        deadline_s = deadline_in(timeout_s)
        collectors = self._collectors
        done = True
        if collectors:
            for instrument in self.counters():
                done = instrument.fold(timeout_s=left_s(deadline_s)) and done
        return self._hand_out(collectors, left_s(deadline_s)) and done

    def close(self, timeout_s: float = 2.0) -> bool:
        """
        Publish the last windows as far as they have come, and stop the thread. Instruments go on recording.

        Args:
            timeout_s: The longest this may take, in seconds, whatever a callback does.

        Returns:
            False if the thread was stuck in a callback; the windows are published all the same, by the caller.
        """
        deadline_s = deadline_in(timeout_s)
        with self._lock:
            self._is_closed = True
            collectors = self._collectors  # each stays here until it is done: an exception may come between
        done = self._sampler.stop(timeout_s / 2)
        now_ns = clock.now_ns()
        for collector in collectors:
            done = collector.finish(now_ns, timeout_s=left_s(deadline_s)) and done
        done = self._hand_out(collectors, left_s(deadline_s)) and done
        self._dropped_before += sum(collector.dropped.value for collector in collectors)
        self._collectors = ()
        return done

    @property
    def dropped(self) -> int:
        """Windows given up because 4,096 of their collector waited to be published."""
        return self._dropped_before + sum(collector.dropped.value for collector in self._collectors)

    # --- forks -------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """
        Begin anew in a forked child: instruments at zero, collectors with new windows, no callbacks and no thread.

        The child's windows are published when it closes, or by the thread once `resume` is called.
        """
        self._renew_locks()
        self._sampler.forget()
        self._called = ()
        self._dropped_before = 0
        instruments = list(self._instruments.values())
        for instrument in instruments:
            instrument.forget()
        for collector in self._collectors:
            collector.become_child(instruments)

    def resume(self) -> None:
        """Start the thread if there is something to collect; it runs already unless this is a forked child."""
        with self._lock:  # so that a close in between cannot leave a thread behind that is never stopped
            if self._threaded and self._collectors:
                self._sampler.start()


class Sampler:
    """
    The one thread of a registry. It calls *beat* when its time has come; once stopped, never again.

    Args:
        beat: Returns the seconds until its next call; None waits for `start`.
    """

    def __init__(self, beat: Callable[[], float | None]) -> None:
        self._beat = beat
        self.forget()

    def forget(self) -> None:
        """Drop the thread, which a forked child does not have."""
        self._thread = LateThread(self._run, "trackside-sampler")
        self._nudges: Mailbox[None] = Mailbox()
        self._is_stopping = False

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive

    def start(self) -> None:
        """Start the thread, or let a running one compute again when to beat next."""
        self._thread.start()  # where none can be started any more, closing publishes the windows
        self._nudges.put(None)

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread; False if it did not end within *timeout_s*."""
        self._is_stopping = True
        self._nudges.put(None)
        return self._thread.is_current or self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                wait_s = self._beat()
            except BaseException as error:
                complain("the thread of the counters failed: %s; it goes on", error, error=error)
                wait_s = _RETRY_S
            with contextlib.suppress(queue.Empty):
                self._nudges.get(wait_s)
                while True:
                    self._nudges.get(0.0)


def _refuse_settings(called: Callable[..., Any], unknown: dict[str, Any]) -> None:
    settings_check(called, f"{called.__name__}()")(unknown)


def _check_text(field: str, text: Any) -> str:
    if not isinstance(text, str):
        raise ConfigError(field, text, "give a text")
    return text


def _checked_interval(interval_s: Any) -> float | None:
    """Return *interval_s* if it is the length of a window in seconds, or None."""
    if interval_s is None:
        return None
    is_number = isinstance(interval_s, (int, float)) and not isinstance(interval_s, bool)
    if not is_number or not SHORTEST_INTERVAL_S <= interval_s <= LONGEST_INTERVAL_S:
        raise ConfigError(
            "interval_s", interval_s, f"give seconds from {SHORTEST_INTERVAL_S:g} to {LONGEST_INTERVAL_S:g}"
        )
    return float(interval_s)


def _checked_count(count: Any) -> int | None:
    """Return *count* if it is the length of a window in samples, or None."""
    if count is None:
        return None
    try:
        number = operator.index(count)
    except TypeError:
        number = 0
    if isinstance(count, bool) or number < 1:
        raise ConfigError("count", count, "give a whole number from 1")
    return number


def _forbid_change(
    known: Instrument,
    unit: str,
    help: str,  # noqa: A002
    figures: tuple[Aggregation, ...] | None,
) -> None:
    """Raise if a declaration of *known* differs from an earlier one."""
    for field, before, now in (
        ("unit", known.unit, unit),
        ("help", known.help, help),
        ("aggregations", known.aggregations, figures),
    ):
        if now and before and now != before:
            raise ConfigError(field, now, f"{known.kind} {known.name!r} has {before!r}; give the same, or nothing")
