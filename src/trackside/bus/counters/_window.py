"""A window of a counter: one collector's view of it, from one closing to the next."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from trackside.bus.counters._aggregation import EXTREMES
from trackside.bus.counters._chunk import Chunk
from trackside.bus.counters._summary import Summary, Total

if TYPE_CHECKING:
    from trackside.bus.counters._counter import Counter

MAX_RAW_SAMPLES: Final = 1 << 16


class ClosedWindow(NamedTuple):
    """A window that has ended and waits to be published."""

    counter: Counter
    start_ns: int
    end_ns: int
    summary: Summary
    total_count: int
    total_sum: float
    raw: array[float] | None
    """The window's samples, the first 65,536, if its collector wants them."""


class Window:
    """
    What one collector accumulates of one counter.

    Changed under the counter's lock alone.

    Args:
        counter: Whose samples they are.
        needs: What the collector's aggregations need to know.
        limit: Close after so many samples; None for never.
        keeps_raw: Whether the samples themselves are wanted too.
        put: Called with each window that closes.
        now_ns: The clock that says when a window of *limit* samples closed.
    """

    __slots__ = (
        "_counter",
        "_has_ended",
        "_limit",
        "_now_ns",
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
        counter: Counter,
        *,
        needs: int,
        limit: int | None,
        keeps_raw: bool,
        put: Callable[[ClosedWindow], None],
        now_ns: Callable[[], int],
    ) -> None:
        # A chunk that knows its extremes is proven to hold nothing but floats, in whatever parts it is cut.
        self.needs = needs if limit is None else needs | EXTREMES
        self._counter = counter
        self._limit = limit
        self._put = put
        self._now_ns = now_ns
        self._raw = array("d") if keeps_raw else None
        self._has_ended = False
        self.begin(now_ns(), 0, Total())

    def begin(self, start_ns: int, total_count: int, total: Total) -> None:
        """Start the first window, of a counter that has counted *total_count* values so far."""
        self._start_ns = start_ns
        self._summary = Summary(self.needs)
        self._total_count = total_count
        self._total = total.copy()

    def learn(self, needs: int) -> None:
        """Know *needs* too: of this window if it has no values yet, of the next ones in any case."""
        self.needs |= needs
        if self._summary.count == 0:
            self._summary = Summary(self.needs)

    def take(self, chunk: Chunk) -> None:
        """Take the samples of *chunk* in, and close each window that they complete."""
        if self._limit is None:
            self._take(chunk)
            return
        first, size = 0, len(chunk.values)
        while first < size:
            end = min(size, first + self._limit - self._summary.count)
            self._take(chunk.part(first, end))
            if self._summary.count == self._limit:
                self.close(self._now_ns())
            first = end

    def _take(self, chunk: Chunk) -> None:
        self._summary.take(chunk)
        self._total.add(chunk.total)
        self._total_count += len(chunk.values)
        if self._raw is not None:
            self._raw.extend(chunk.values[: MAX_RAW_SAMPLES - len(self._raw)])

    def close(self, end_ns: int) -> None:
        """Close the window at *end_ns* and begin the next one there."""
        if self._has_ended:
            return
        # A clock that a test or a suspended machine sets back must not make a window of negative length.
        end_ns = max(end_ns, self._start_ns)
        raw = self._raw
        self._put(
            ClosedWindow(
                self._counter, self._start_ns, end_ns, self._summary, self._total_count, self._total.value, raw
            )
        )
        self._start_ns = end_ns
        self._summary = Summary(self.needs)
        if raw is not None:
            self._raw = array("d")

    def end(self, end_ns: int) -> None:
        """Close the window at *end_ns*, the last time."""
        self.close(end_ns)
        self._has_ended = True
