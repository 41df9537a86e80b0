"""The counter: values go in, and somebody else asks what they add up to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import attrs

from trackside.bus._patience import complain
from trackside.bus._tally import Tally
from trackside.bus.counters._aggregation import EXTREMES, Aggregation, needs_of
from trackside.bus.counters._chunk import checked, number
from trackside.bus.counters._summary import Summary
from trackside.bus.counters._timer import Timer
from trackside.bus.counters._window import Window
from trackside.events import Value, clock

FOLD_AT: Final = 1024
FULL_AT: Final = 1 << 16
PATIENCE_S: Final = 1.0
_COMPLAINT_EVERY_NS: Final = 60 * 10**9


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CounterSnapshot(Value):
    """What a counter has counted since it was made."""

    name: str
    unit: str
    help: str
    count: int
    sum: float
    """An int as long as all values were ints."""
    last: float | None
    """The last value; None before the first, as are the next two."""
    minimum: float | None
    """Over all values; None also if MIN and MAX were not asked for from the first value on."""
    maximum: float | None
    invalid: int
    """Samples left out because they were not one number."""
    refused: int
    """Samples left out because 65,536 waited for a fold that did not end."""


class Counter:
    """
    Accumulates values; collectors look at them.

    Get one from `counter`. Threads, signal handlers and finalizers may add at any time.

    Attributes:
        name: Which counter it is, in its registry.
        unit: What the values are counted in; empty for a bare number.
        help: One sentence on what it counts.
        aggregations: What windows tell, unless a collector says otherwise; None for `DEFAULT`.
    """

    __slots__ = (
        "_buffer",
        "_complained_ns",
        "_invalid",
        "_is_folding",
        "_is_stuck",
        "_lock",
        "_needs",
        "_reason",
        "_refused",
        "_said",
        "_totals",
        "_windows",
        "aggregations",
        "help",
        "name",
        "unit",
    )

    def __init__(
        self,
        name: str,
        *,
        unit: str = "",
        help: str = "",  # noqa: A002  the field's own word
        aggregations: tuple[Aggregation, ...] | None = None,
    ) -> None:
        self.name = name
        self.unit = unit
        self.help = help
        self.aggregations = aggregations
        self._buffer: list[Any] = []
        self.forget()

    def forget(self) -> None:
        """Start at zero with a lock of its own, as a forked child must."""
        # The list stays: add() may be running on it, in a signal handler that forked.
        self._buffer.clear()
        self._lock = threading.RLock()
        self._is_folding = False
        self._is_stuck = False
        self._invalid = 0
        self._said = 0
        self._reason = ""
        self._complained_ns: int | None = None
        self._refused = Tally()
        self._totals = Summary(0)
        self._windows: tuple[Window, ...] = ()
        self._refresh_needs()

    def __repr__(self) -> str:
        return f"<Counter {self.name!r}>"

    # --- adding ------------------------------------------------------------------------------------------------

    def add(self, value: float) -> None:
        """
        Add one *value*; nothing is raised, whatever it is.

        Any kind of number will do, and an array without dimensions, such as a loss. It is read later, so a tensor
        that is changed in place counts as what it is then. What is not one number, NaN, and a tensor on
        another device (to read it would wait for the device) count as invalid samples.
        """
        # No lock and no call but two into C: the budget is a third of torch.monitor's Stat.add.
        buffer = self._buffer
        if len(buffer) < 1024:  # noqa: PLR2004  FOLD_AT, which as a name would cost a look-up
            buffer.append(value)
        else:
            self._overflow(value)

    def _overflow(self, value: float) -> None:
        """Make room, then add *value*."""
        if len(self._buffer) < FULL_AT:
            self.fold()  # not if another thread is at it, or this very thread before a signal came
        elif not self.fold(timeout_s=0.0 if self._is_stuck else PATIENCE_S):
            self._is_stuck = True
            self._refused.add()
            return
        self._buffer.append(value)

    def fold(self, then: Callable[[], None] | None = None, *, timeout_s: float = 0.0) -> bool:
        """
        Read what was added so far.

        Args:
            then: Called when all is read, before anybody else can change what is kept.
            timeout_s: How long to wait for another thread that folds, in seconds.

        Returns:
            False if another thread kept folding, or this very thread is, further down the stack; *then* was not called.
        """
        lock = self._lock
        if not lock.acquire(timeout=timeout_s):
            return False
        try:
            if self._is_folding:
                return False
            self._is_folding = True
            try:
                self._take()
                if then is not None:
                    then()
            except Exception as error:
                complain("counter %s could not be read: %s", self.name, error, error=error)
            finally:
                self._is_folding = False
                self._is_stuck = False
        finally:
            lock.release()
        if self._invalid != self._said:
            self._report_invalid()
        return True

    def _take(self) -> None:
        buffer = self._buffer
        waiting = len(buffer)
        if not waiting:
            return
        # Two steps, each at once: what others append meanwhile stands behind.
        samples = buffer[:waiting]
        del buffer[:waiting]
        chunk, invalid, reason = checked(samples, self._needs)
        if invalid:
            self._invalid += invalid
            self._reason = reason
        if chunk is not None:
            self._totals.take(chunk)
            for window in self._windows:
                window.take(chunk)

    def _report_invalid(self) -> None:
        now = clock.monotonic_ns()
        if self._complained_ns is None or now - self._complained_ns >= _COMPLAINT_EVERY_NS:
            self._complained_ns = now
            fresh, self._said = self._invalid - self._said, self._invalid
            complain("counter %s left out %d invalid sample(s): %s", self.name, fresh, self._reason)

    def time(self, *, failed: bool = False) -> Timer:
        """
        Return a context manager that adds how long its block took, in the counter's unit.

        It is a decorator too, also of coroutine functions.

        Args:
            failed: Whether a block that raised counts too. It does not unless asked: its time measures something else.

        Raises:
            ConfigError: if the counter's unit is not ``s`` (or none), ``ms``, ``us`` or ``ns``.
        """
        return Timer(self, failed)

    # --- reading -----------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many values were added since the counter was made."""
        self.fold(timeout_s=PATIENCE_S)
        return self._totals.count

    @property
    def sum(self) -> float:
        """The sum of all values since the counter was made; an int as long as all of them were ints."""
        self.fold(timeout_s=PATIENCE_S)
        return self._totals.total.value

    def snapshot(self) -> CounterSnapshot:
        """Return what was counted since the counter was made."""
        taken: list[CounterSnapshot] = []
        if not self.fold(lambda: taken.append(self._snapshot()), timeout_s=PATIENCE_S):
            return self._snapshot()
        return taken[0]

    def _snapshot(self) -> CounterSnapshot:
        totals = self._totals
        has_extremes = totals.count and totals.needs & EXTREMES
        return CounterSnapshot(
            name=self.name,
            unit=self.unit,
            help=self.help,
            count=totals.count,
            sum=totals.total.value,
            last=totals.last if totals.count else None,
            minimum=totals.minimum if has_extremes else None,
            maximum=totals.maximum if has_extremes else None,
            invalid=self._invalid,
            refused=self._refused.value,
        )

    # --- windows -----------------------------------------------------------------------------------------------

    def attach(self, window: Window, start_ns: int) -> bool:
        """Let *window* have what is added from now on; False if the counter could not be reached."""

        def begin() -> None:
            window.begin(start_ns, self._totals.count, self._totals.total)
            self._windows += (window,)
            self._refresh_needs()

        return self.fold(begin, timeout_s=PATIENCE_S)

    def teach(self, window: Window, needs: int) -> None:
        """Let *window* know what *needs* says too, of what is added from now on."""

        def learn() -> None:
            window.learn(needs)
            self._refresh_needs()

        self.fold(learn, timeout_s=PATIENCE_S)

    def detach(self, window: Window, end_ns: int, *, timeout_s: float) -> bool:
        """Close *window* for good; False if the counter could not be reached in time."""

        def end() -> None:
            window.end(end_ns)
            self._windows = tuple(other for other in self._windows if other is not window)
            self._refresh_needs()

        return self.fold(end, timeout_s=timeout_s)

    def declare(self, unit: str, help: str, aggregations: tuple[Aggregation, ...] | None) -> None:  # noqa: A002
        """Add what was not said so far about the counter."""
        self.unit = self.unit or unit
        self.help = self.help or help
        self.aggregations = self.aggregations or aggregations
        self.fold(self._refresh_needs, timeout_s=PATIENCE_S)

    def _refresh_needs(self) -> None:
        needs = needs_of(self.aggregations or ()) & EXTREMES
        for window in self._windows:
            needs |= window.needs
        if self._totals.count == 0:  # later they would not be those of all values
            self._totals = Summary(needs & EXTREMES)
        self._needs = needs | self._totals.needs


class StrictCounter(Counter):
    """A counter that raises for an invalid sample where it is added; for tests and development."""

    __slots__ = ()

    def add(self, value: float) -> None:
        """
        Add one *value*.

        Raises:
            TypeError: if it is not one number.
            ValueError: if it is NaN.
            OverflowError: if it is an int beyond the range of floats.
        """
        number(value)
        super().add(value)
