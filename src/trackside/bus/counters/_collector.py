"""The collector: says when windows of counters end, and publishes them."""

from __future__ import annotations

import fnmatch
import functools
from array import array
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trackside.bus._patience import Patience, complain
from trackside.bus._tally import Tally
from trackside.bus.counters._aggregation import DEFAULT, Aggregation, needs_of
from trackside.bus.counters._chunk import as_float
from trackside.bus.counters._window import ClosedWindow, Window
from trackside.events import CounterWindow

if TYPE_CHECKING:
    from typing_extensions import Self

    from trackside.bus.counters._counter import Counter

Raw: TypeAlias = Callable[[str, "array[float]"], Any]

POLL_NS: Final = 10**9
MAX_WAITING: Final = 4096
REACH_S: Final = 1.0


class Collector:
    """
    Publishes windows of the counters that it covers, also of those made later; made by `collect`.

    What it accumulates is its own: other collectors of the same counters have other windows.

    Args:
        interval_s: Close a window after so many seconds; None for never.
        count: Close a window after so many samples; None for never.
        match: Which counters, by a pattern for their names.
        aggregations: What to tell of a window; None to leave it to each counter.
        raw: Called with each window's counter name and samples, before the window is published.
        now_ns: The clock.
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
        now_ns: Callable[[], int],
        on_close: Callable[[Collector], None],
    ) -> None:
        self.match = match
        self.aggregations = aggregations
        self.shed = Tally()
        """Windows given up because 4,096 waited to be published; later ones carry their totals."""
        self._interval_ns = None if interval_s is None else round(interval_s * 1e9)
        self._count = count
        self._raw = raw
        self._patience = Patience(f"collect(match={match!r}).raw")
        self._handed = 0
        self._now_ns = now_ns
        self._on_close = on_close
        self._windows: dict[Counter, Window] = {}
        self._waiting: deque[ClosedWindow] = deque()
        self._skips_empty = False
        self.due_ns = now_ns() + (self._interval_ns or POLL_NS)
        """When to `roll` next."""

    def __repr__(self) -> str:
        return f"<Collector of {self.match!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Publish the windows as far as they have come, and stop. Closing twice is harmless."""
        self._on_close(self)

    # --- what follows is for the registry ----------------------------------------------------------------------

    def covers(self, name: str) -> bool:
        """Return whether a counter called *name* is one of this collector's."""
        return fnmatch.fnmatchcase(name, self.match)

    def cover(self, counter: Counter) -> None:
        """Begin a window of *counter* if it is one of this collector's."""
        if not self.covers(counter.name) or counter in self._windows:
            return
        window = Window(
            counter,
            needs=needs_of(self.told_of(counter)),
            limit=self._count,
            keeps_raw=self._raw is not None,
            put=self._put,
            now_ns=self._now_ns,
        )
        if counter.attach(window, self._now_ns()):
            self._windows[counter] = window
        else:
            complain("counter %s cannot be collected: its samples cannot be read", counter.name)

    def relearn(self, counter: Counter) -> None:
        """See what windows of *counter* are to tell, now that more was said of it."""
        window = self._windows.get(counter)
        if window is not None:
            counter.teach(window, needs_of(self.told_of(counter)))

    def told_of(self, counter: Counter) -> tuple[Aggregation, ...]:
        """Return what this collector's windows tell of *counter*."""
        return self.aggregations or counter.aggregations or DEFAULT

    def roll(self, now_ns: int) -> None:
        """Close the windows whose time is over; where only samples count, read them."""
        for counter, window in list(self._windows.items()):
            if self._interval_ns is None:
                counter.fold()
            else:
                counter.fold(functools.partial(window.close, now_ns), timeout_s=REACH_S)
        step_ns = self._interval_ns or POLL_NS
        # Late or not, the next is due at a multiple of the interval from the first.
        self.due_ns += step_ns * max(1, (now_ns - self.due_ns) // step_ns + 1)

    def finish(self, now_ns: int, *, timeout_s: float) -> bool:
        """Close all windows for good; False if a counter could not be reached in time."""
        done = True
        for counter in list(self._windows):
            window = self._windows.pop(counter, None)
            if window is not None:
                done = counter.detach(window, now_ns, timeout_s=timeout_s) and done
        return done

    def become_child(self, counters: list[Counter]) -> None:
        """Begin anew in a forked child, where what was never added to is not worth a window."""
        self._waiting = deque()
        self._windows = {}
        self._skips_empty = True
        self.shed = Tally()
        for counter in counters:
            self.cover(counter)

    def _put(self, closed: ClosedWindow) -> None:
        if closed.summary.count == 0 and (
            self._skips_empty or self._interval_ns is None or closed.end_ns == closed.start_ns
        ):
            return
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(closed)
        else:
            self.shed.add()

    def publish(self, publish: Callable[[CounterWindow], None], *, wanted: bool) -> None:
        """Hand out the windows that closed; to *publish* only if anybody *wanted* them."""
        while self._waiting:
            try:
                closed = self._waiting.popleft()
            except IndexError:  # another thread was quicker
                return
            if closed.raw is not None and self._raw is not None:
                self._hand_over(closed.counter.name, closed.raw)
            if wanted:
                publish(self._event(closed))

    def _hand_over(self, name: str, raw: array[float]) -> None:
        assert self._raw is not None
        if self._patience.resting_until_ns is not None and self._patience.is_resting():
            return
        try:
            self._raw(name, raw)
        except Exception as error:
            self._patience.fail(error, self._handed)
        else:
            self._handed += 1
            self._patience.recover()

    def _event(self, closed: ClosedWindow) -> CounterWindow:
        counter, summary = closed.counter, closed.summary
        return CounterWindow(
            at_ns=closed.end_ns,
            span_id=0,
            step=-1,
            name=counter.name,
            unit=counter.unit,
            start_ns=closed.start_ns,
            end_ns=closed.end_ns,
            count=summary.count,
            values=summary.values(self.told_of(counter)),
            sketch=summary.sketch.to_wire() if summary.sketch is not None else b"",
            total_count=closed.total_count,
            total_sum=as_float(closed.total_sum),
        )
