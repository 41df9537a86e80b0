"""Collectors: they close the windows of counters, stats and gauges, and publish them."""

from __future__ import annotations

import fnmatch
import functools
from array import array
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from trackside.core import CircuitBreaker, Closing, ThreadSafeCount, complain, is_from_signal_handler
from trackside.counters._aggregation import EXTREMES, SKETCH, SPREAD, Aggregation, needs_of
from trackside.counters._instruments import LOCK_TIMEOUT_S
from trackside.counters._samples import ALL_FINITE, NonFinite, SampleChunk, SampleSummary, Total, as_float
from trackside.events import CounterWindow, clock

if TYPE_CHECKING:
    from trackside.counters._instruments import Instrument

Raw: TypeAlias = Callable[[str, "array[float]"], Any]

POLL_NS: Final = 10**9
MAX_WAITING: Final = 4096
MAX_RAW_SAMPLES: Final = 1 << 16


class ClosedWindow(NamedTuple):
    """A window that has ended and waits to be published."""

    instrument: Instrument
    start_ns: int
    end_ns: int
    summary: SampleSummary
    total_count: int
    total_sum: float
    raw: array[float] | None
    """The window's samples, the first 65,536, if its collector wants them."""
    non_finite: NonFinite


class CollectorWindow:
    """
    The samples of one instrument that one collector accumulates from one closing to the next.

    Changed under the instrument's lock alone.

    Args:
        instrument: The source of the samples.
        needs: The figures that the collector's aggregations need.
        limit: Close after so many samples; None for never.
        keeps_raw: Whether the samples themselves are wanted too.
        put: Called with each window that closes, once the fold that closed it is complete.
    """

    __slots__ = (
        "_has_ended",
        "_instrument",
        "_limit",
        "_non_finite",
        "_put",
        "_raw",
        "_start_ns",
        "_summary",
        "_total",
        "_total_count",
        "needs",
    )

    def __init__(
        self,
        instrument: Instrument,
        *,
        needs: int,
        limit: int | None,
        keeps_raw: bool,
        put: Callable[[ClosedWindow], None],
    ) -> None:
        # A chunk that knows its extremes is proven to hold nothing but floats, in whatever parts it is cut.
        self.needs: int = needs if limit is None else needs | EXTREMES
        self._instrument = instrument
        self._limit = limit
        self._put = put
        self._raw = array("d") if keeps_raw else None
        self._non_finite = ALL_FINITE
        self._has_ended = False
        self.begin(clock.now_ns(), 0, Total())

    def begin(self, start_ns: int, total_count: int, total: Total) -> None:
        """Start the first window, of an instrument with *total_count* values so far."""
        self._start_ns = start_ns
        self._summary = SampleSummary(self.needs)
        self._total_count = total_count
        self._total = total.copy()

    def state(self) -> tuple[Any, ...]:
        """Return the values that a fold changes, for `restore`."""
        return (
            self.needs,
            self._start_ns,
            self._summary.copy(),
            self._total.copy(),
            self._total_count,
            self._non_finite,
            self._has_ended,
            self._raw,
            0 if self._raw is None else len(self._raw),
        )

    def restore(self, state: tuple[Any, ...]) -> None:
        """Return to *state*; to do so twice changes nothing."""
        (
            self.needs,
            self._start_ns,
            self._summary,
            self._total,
            self._total_count,
            self._non_finite,
            self._has_ended,
            self._raw,
            samples,
        ) = state
        if self._raw is not None:
            del self._raw[samples:]

    @property
    def needs_samples(self) -> bool:
        """Whether the window takes the samples themselves: not only their sum, extremes and last."""
        return self._limit is not None or self._raw is not None or bool(self.needs & (SKETCH | SPREAD))

    def extend(self, needs: int) -> None:
        """Know *needs* too: of this window if it has no values yet, of the next ones in any case."""
        self.needs |= needs
        if self._summary.count == 0:
            self._summary = SampleSummary(self.needs)

    def add_non_finite(self, added: NonFinite) -> None:
        """Count samples that were not finite, of the chunk that is added next."""
        own = self._non_finite
        before = own.before if own.samples else self._summary.count + added.before
        self._non_finite = NonFinite(own.samples + added.samples, before)

    def add(self, chunk: SampleChunk) -> None:
        """Add the samples of *chunk*, and close each window that they complete."""
        if self._limit is None:
            self._add(chunk)
            return
        first, size = 0, len(chunk.values)
        while first < size:
            end = min(size, first + self._limit - self._summary.count)
            self._add(chunk.part(first, end))
            if self._summary.count == self._limit:
                self.close(clock.now_ns())
            first = end

    def _add(self, chunk: SampleChunk) -> None:
        self._summary.add(chunk)
        self._total.add(chunk.total)
        self._total_count += chunk.count
        if self._raw is not None:
            self._raw.extend(chunk.values[: MAX_RAW_SAMPLES - len(self._raw)])

    def close(self, end_ns: int) -> None:
        """Close the window at *end_ns* and begin the next one there."""
        if self._has_ended:
            return
        # A clock that a test or a suspended machine sets back must not make a window of negative length.
        end_ns = max(end_ns, self._start_ns)
        raw = self._raw
        closed = ClosedWindow(
            self._instrument,
            self._start_ns,
            end_ns,
            self._summary,
            self._total_count,
            self._total.value,
            raw,
            self._non_finite,
        )
        self._instrument.closed += ((self._put, closed),)
        self._start_ns = end_ns
        self._non_finite = ALL_FINITE
        self._summary = SampleSummary(self.needs)
        if raw is not None:
            self._raw = array("d")

    def end(self, end_ns: int) -> None:
        """Close the window at *end_ns*, the last time."""
        self.close(end_ns)
        self._has_ended = True


class CounterCollector(Closing):
    """
    Publishes windows of the counters, stats and gauges that it covers, also of those made later; made by `collect`.

    Each collector accumulates windows of its own.

    Args:
        interval_s: Close a window after so many seconds; None for never.
        count: Close a window after so many samples; None for never.
        match: A pattern for the names that it covers.
        aggregations: The figures in a window; None to leave them to each instrument.
        raw: Called with each window's name and samples, before the window is published.
        on_close: Called by `close`.
    """

    def __init__(
        self,
        *,
        interval_s: float | None,
        count: int | None,
        match: str,
        aggregations: tuple[Aggregation, ...] | None,
        raw: Raw | None,
        on_close: Callable[[CounterCollector], bool],
    ) -> None:
        self.match = match
        self.aggregations = aggregations
        self.dropped: ThreadSafeCount = ThreadSafeCount()
        """Windows given up because 4,096 waited to be published; later ones carry their totals."""
        self._interval_ns = None if interval_s is None else round(interval_s * 1e9)
        self._count = count
        self._raw = raw
        self._circuit_breaker = CircuitBreaker(f"collect(match={match!r}).raw")
        self._handed = 0
        self._on_close = on_close
        self._windows: dict[Instrument, CollectorWindow] = {}
        self._waiting: deque[ClosedWindow] = deque()
        self._skips_empty = False
        self.due_ns: int = clock.now_ns() + (self._interval_ns or POLL_NS)
        """The time at which to `roll` next."""

    def __repr__(self) -> str:
        return f"<Collector of {self.match!r}>"

    def close(self) -> bool:
        """
        Publish the windows as far as they have come, and stop. Closing twice is harmless.

        Returns:
            False if another thread held an instrument, or the publishing of windows, for more than a second.
        """
        return self._on_close(self)

    # --- what follows is for the registry ----------------------------------------------------------------------

    def covers(self, name: str) -> bool:
        """Return whether this collector covers *name*."""
        return fnmatch.fnmatchcase(name, self.match)

    def cover(self, instrument: Instrument) -> None:
        """Begin a window of *instrument* if this collector covers it."""
        if not self.covers(instrument.name) or instrument in self._windows:
            return
        window = CollectorWindow(
            instrument,
            needs=needs_of(self.aggregations_of(instrument)),
            limit=self._count,
            keeps_raw=self._raw is not None,
            put=self._put,
        )
        if instrument.attach(window, clock.now_ns()):
            self._windows[instrument] = window
        else:
            complain("%s %s cannot be collected: its samples cannot be read", instrument.kind, instrument.name)

    def refresh(self, instrument: Instrument) -> None:
        """Adapt the window of *instrument*, now that more was declared about it."""
        window = self._windows.get(instrument)
        if window is not None:
            instrument.extend(window, needs_of(self.aggregations_of(instrument)))

    def aggregations_of(self, instrument: Instrument) -> tuple[Aggregation, ...]:
        """Return the figures in this collector's windows of *instrument*."""
        return self.aggregations or instrument.aggregations or instrument.default_aggregations

    def roll(self, now_ns: int) -> None:
        """Close the windows whose time is over; where only samples count, read them."""
        for instrument, window in list(self._windows.items()):
            if self._interval_ns is None:
                instrument.fold()
            else:
                instrument.fold(functools.partial(window.close, now_ns), timeout_s=LOCK_TIMEOUT_S)
        step_ns = self._interval_ns or POLL_NS
        # The next window ends at a multiple of the interval from the first, also if this one is late.
        self.due_ns += step_ns * max(1, (now_ns - self.due_ns) // step_ns + 1)

    def finish(self, now_ns: int, *, timeout_s: float) -> bool:
        """Close all windows for good; False if an instrument could not be locked in time."""
        done = True
        for instrument in list(self._windows):
            window = self._windows.get(instrument)
            if window is not None:
                done = instrument.detach(window, now_ns, timeout_s=timeout_s) and done
                self._windows.pop(instrument, None)
        return done

    def become_child(self, instruments: list[Instrument]) -> None:
        """Begin anew in a forked child, where an instrument without values is not worth a window."""
        self._waiting = deque()
        self._windows = {}
        self._skips_empty = True
        self.dropped = ThreadSafeCount()
        for instrument in instruments:
            self.cover(instrument)

    def _put(self, closed: ClosedWindow) -> None:
        if not (closed.summary.count or closed.non_finite.samples) and (
            self._skips_empty or self._interval_ns is None or closed.end_ns == closed.start_ns
        ):
            return
        if len(self._waiting) < MAX_WAITING:
            self._waiting += (closed,)  # and no call, after which a signal handler might raise: see `Instrument.fold`
        else:
            self.dropped.add()

    def publish(self, publish: Callable[[CounterWindow], None], *, wanted: bool) -> None:
        """Publish the windows that closed, if they are *wanted*; their samples go to *raw* in any case."""
        while self._waiting:
            try:
                closed = self._waiting.popleft()
            except IndexError:  # another thread was quicker
                return
            if closed.raw is not None and self._raw is not None:
                self._hand_over(closed.instrument.name, closed.raw)
            if wanted:
                publish(self._event(closed))

    def _hand_over(self, name: str, raw: array[float]) -> None:
        assert self._raw is not None
        if self._circuit_breaker.open_until_ns is not None and self._circuit_breaker.is_open():
            return
        try:
            self._raw(name, raw)
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            self._circuit_breaker.record_failure(error, self._handed)
        else:
            self._handed += 1
            self._circuit_breaker.close()

    def _event(self, closed: ClosedWindow) -> CounterWindow:
        instrument, summary = closed.instrument, closed.summary
        return CounterWindow(
            at_ns=closed.end_ns,
            span_id=0,
            step=-1,
            name=instrument.name,
            kind=instrument.kind,
            unit=instrument.unit,
            start_ns=closed.start_ns,
            end_ns=closed.end_ns,
            count=summary.count,
            values=summary.values(self.aggregations_of(instrument)),
            sketch=summary.sketch.to_wire() if summary.sketch is not None else b"",
            total_count=closed.total_count,
            total_sum=as_float(closed.total_sum),
            non_finite=closed.non_finite.samples,
            before_non_finite=closed.non_finite.before,
        )
