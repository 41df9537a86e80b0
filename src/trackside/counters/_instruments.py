"""The three instruments: `Counter` adds up, `Stat` keeps a distribution, `Gauge` keeps the latest value."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import attrs

from trackside._free_threading import FREE_THREADED, LANES, shared
from trackside._implementation import native
from trackside.core import CircuitBreaker, Closing, RateLimitedLog, ThreadSafeCount, complain, is_from_signal_handler
from trackside.counters._aggregation import EXTREMES, Aggregation, needs_of
from trackside.counters._samples import SampleChunk, SampleSummary, Total, checked, number
from trackside.events import ConfigError, Value, clock

if TYPE_CHECKING:
    from typing_extensions import Self

    from trackside.counters._window_collector import ClosedWindow, CollectorWindow

F = TypeVar("F", bound=Callable[..., Any])

_get_ident: Final = threading.get_ident

FOLD_AT: Final = 1024
FULL_AT: Final = 1 << 16
LOCK_TIMEOUT_S: Final = 1.0
_NS_PER: Final = {"": 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3, "ns": 1}


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CounterSnapshot(Value):
    """The values of an instrument since it was made."""

    name: str
    kind: str
    """``counter``, ``stat`` or ``gauge``."""
    unit: str
    help: str
    count: int
    sum: float
    """An int as long as all values were ints."""
    last: float | None
    """
    The last value; None before the first, as are the next two.

    Of a counter without the interpreter lock: the last one of any of the threads that add to it.
    """
    minimum: float | None
    """Over all values; None also if MIN and MAX were not asked for from the first value on."""
    maximum: float | None
    invalid: int
    """Samples left out because they were not one number, or were negative in a counter."""
    refused: int
    """Samples left out because 65,536 waited for a fold that did not end."""


class _StrictBuffer(list[Any]):
    """A buffer that raises for an invalid sample when it is appended."""

    def __init__(self, lowest: float | None) -> None:
        super().__init__()
        self._lowest = lowest

    def append(self, sample: Any) -> None:
        number(sample, self._lowest)
        super().append(sample)


if TYPE_CHECKING or native is None:

    class Recorder:
        """
        The place where samples wait to be folded: a list.

        The compiled one has a list too, and beside it an array for plain numbers and the figures of full arrays.
        """

        __slots__ = ("_buffer", "_is_folding", "_needs_samples")

        _buffer: list[Any]
        _is_folding: bool
        _needs_samples: bool

        @property
        def waiting(self) -> int:
            """The number of samples that wait to be folded."""
            return len(self._buffer)

        def _take(self, as_list: bool, /) -> list[tuple[int, float, float, float, float] | list[Any]]:  # noqa: ARG002, FBT001
            """Take the samples that wait outside of the list; there are none."""
            return []

        def _discard(self) -> None:
            """Forget the samples that wait."""
            self._buffer.clear()

else:
    Recorder = native.Recorder


class Instrument(Recorder):
    """
    A buffer of recorded values, and their totals.

    Threads, signal handlers and finalizers may record at any time.

    Attributes:
        name: Unique in its registry.
        unit: The unit of the values; empty for a bare number.
        help: One sentence on the meaning of the values.
        aggregations: The figures in a window, unless a collector says otherwise; None for *default_aggregations*.
    """

    __slots__ = (
        "_by_lane",
        "_earlier",
        "_invalid",
        "_is_stuck",
        "_lock",
        "_log",
        "_marks",
        "_needs",
        "_reason",
        "_refused",
        "_reported",
        "_strict",
        "_taken",
        "_totals",
        "_windows",
        "aggregations",
        "closed",
        "help",
        "name",
        "unit",
    )

    kind: ClassVar[str]
    lowest: ClassVar[float | None] = None
    """The smallest valid sample; None if every number is valid."""
    default_aggregations: ClassVar[tuple[Aggregation, ...]]

    def __init__(
        self,
        name: str,
        *,
        unit: str = "",
        help: str = "",  # noqa: A002  the field's own word
        aggregations: tuple[Aggregation, ...] | None = None,
        strict: bool = False,
    ) -> None:
        self.name: str = name
        self.unit: str = unit
        self.help: str = help
        self.aggregations = aggregations
        self._strict = strict
        self._buffer = self._new_buffer()
        self._by_lane: dict[int, list[Any]] = shared({})
        self.forget()
        shared(self)

    def _new_buffer(self) -> list[Any]:
        return _StrictBuffer(self.lowest) if self._strict else []

    def _buffers(self) -> list[list[Any]]:
        """Return the lists in which samples wait."""
        return [self._buffer, *list(self._by_lane.values())]

    def forget(self) -> None:
        """Start at zero with a lock of its own, as a forked child must."""
        # The lists stay: a signal handler that forked may have interrupted an append to one.
        self._discard()
        for buffer in self._buffers():
            buffer.clear()
        self._lock = threading.RLock()
        self._is_folding = False
        self._is_stuck = False
        self._invalid = 0
        self._reported = 0
        self._reason = ""
        self._log = RateLimitedLog()
        self._refused = ThreadSafeCount()
        self._totals = SampleSummary(0)
        self._earlier = SampleSummary(0)
        """The totals of earlier jobs of this process; *_totals* are those since then."""
        self._windows: tuple[CollectorWindow, ...] = ()
        self._taken: list[Any] = []
        self._marks: tuple[Any, ...] | None = None
        self.closed: list[tuple[Callable[[ClosedWindow], None], ClosedWindow]] = []
        self._refresh_needs()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _overflow(self, value: float) -> None:
        """Fold to make room, then append *value*."""
        if self._make_room():
            self._buffer.append(value)

    def _make_room(self, buffer: list[Any] | None = None) -> bool:
        """Fold *buffer*, or all; if the most samples wait even so, count one as refused and return False."""
        # Each other lane may fill up to its next fold without asking.
        most = max(FOLD_AT, FULL_AT - max(0, len(self._by_lane) - 1) * FOLD_AT)
        if sum(map(len, self._buffers())) < most:
            self.fold(only=buffer)  # does nothing if a thread is folding, be it this one below a signal handler
        elif not self.fold(timeout_s=0.0 if self._is_stuck else LOCK_TIMEOUT_S):
            self._is_stuck = True
            self._refused.add()
            return False
        return True

    def fold(
        self, then: Callable[[], None] | None = None, *, only: list[Any] | None = None, timeout_s: float = 0.0
    ) -> bool:
        """
        Read the values recorded so far.

        Args:
            then: Called when all are read, before another thread can change the totals.
            only: The list of samples to read; all unless given.
            timeout_s: The longest wait for another thread that folds, in seconds.

        Returns:
            False if another thread kept folding, or this one is further down the stack; *then* was not called.
        """
        if self._is_folding and not timeout_s:
            return False
        lock = self._lock
        acquired: list[bool] = []
        try:
            # In C, which keeps the result before a signal handler can run: so the lock is released whatever is raised.
            acquired.extend(map(lock.acquire, (True,), (timeout_s,)))
            if not acquired[0] or self._is_folding:
                return False
            self._is_folding = True
            try:
                self._fold([only] if only is not None else self._buffers(), then)
            except Exception as error:
                if is_from_signal_handler(error):
                    raise
                self._taken, self._marks = [], None
                complain("%s %s could not be read: %s", self.kind, self.name, error, error=error)
            finally:
                self._is_folding = False
                self._is_stuck = False
        finally:
            if acquired and acquired[0]:
                lock.release()
        total = self._invalid
        if total != self._reported:
            self._reported = total
            self._log.complain(
                "%s %s left out %d invalid sample(s) so far: %s", self.kind, self.name, total, self._reason
            )
        return True

    def _fold(self, buffers: list[list[Any]], then: Callable[[], None] | None) -> None:
        """
        Read *buffers* and call *then*: all of it or, if an exception of the program comes between, nothing for now.

        A signal handler runs after a call and may raise. What it interrupts is undone by the next fold, which reads the
        same samples again; so what belongs together here is written without a call between.
        """
        if self._marks is not None:
            self._undo(*self._marks)
        windows = self._windows
        self._marks = (
            [(window, window.state()) for window in windows],
            (
                self._totals.copy(),
                self._earlier,
                windows,
                self._needs,
                self._needs_samples,
                self._invalid,
                self._reason,
            ),
            len(self.closed),
        )
        taken = self._taken
        taken.extend(chain.from_iterable(map(self._take, (self._needs_samples,))))
        for buffer in buffers:
            waiting = len(buffer)
            if waiting:
                # Other threads may append meanwhile: their samples stand behind these.
                taken += (buffer[:waiting],)
                del buffer[:waiting]
        for samples in taken:
            if isinstance(samples, tuple):
                self._add_chunk(SampleChunk.of_figures(*samples))
            else:
                self._check(samples)
        if then is not None:
            then()
        self._taken, self._marks = [], None
        closed = self.closed
        while closed:
            put, window = closed[0]
            put(window)
            del closed[0]

    def _undo(self, windows: list[tuple[CollectorWindow, tuple[Any, ...]]], own: tuple[Any, ...], closed: int) -> None:
        """Restore the state before a fold that was interrupted. If interrupted itself, the next fold repeats it."""
        for window, state in windows:
            window.restore(state)
        (
            self._totals,
            self._earlier,
            self._windows,
            self._needs,
            self._needs_samples,
            self._invalid,
            self._reason,
        ) = own
        del self.closed[closed:]

    def _check(self, samples: list[Any]) -> None:
        chunk, invalid, reason, non_finite = checked(samples, self._needs, self.lowest)
        if invalid:
            self._invalid += invalid
            self._reason = reason
        if non_finite.samples:
            for window in self._windows:
                window.add_non_finite(non_finite)
        if chunk is not None:
            self._add_chunk(chunk)

    def _add_chunk(self, chunk: SampleChunk) -> None:
        self._totals.add(chunk)
        for window in self._windows:
            window.add(chunk)

    # --- reading -----------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of values recorded since the instrument was made."""
        self.fold(timeout_s=LOCK_TIMEOUT_S)
        return self._earlier.count + self._totals.count

    @property
    def sum(self) -> float:
        """The sum of all values since the instrument was made; an int as long as all of them were ints."""
        self.fold(timeout_s=LOCK_TIMEOUT_S)
        return self._earlier.plus(self._totals).total.value

    def snapshot(self, *, of_job: bool = False) -> CounterSnapshot:
        """Return the totals since the instrument was made; with *of_job*, without those of earlier jobs."""
        snapshots: list[CounterSnapshot] = []
        self.fold(lambda: snapshots.append(self._snapshot(of_job)), timeout_s=LOCK_TIMEOUT_S)
        return snapshots[0] if snapshots else self._snapshot(of_job)

    def _snapshot(self, of_job: bool) -> CounterSnapshot:  # noqa: FBT001  called by `snapshot` alone
        totals = self._totals if of_job else self._earlier.plus(self._totals)
        has_extremes = totals.count and totals.needs & EXTREMES
        return CounterSnapshot(
            name=self.name,
            kind=self.kind,
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

    def end_job(self, end_ns: int) -> None:
        """Close all windows, and let the totals of the next ones begin at zero, for another job of this process."""

        def end() -> None:
            for window in self._windows:
                window.close(end_ns)
                window.begin(end_ns, 0, Total())
            self._earlier, self._totals = self._earlier.plus(self._totals), SampleSummary(self._totals.needs)

        self.fold(end, timeout_s=LOCK_TIMEOUT_S)

    def attach(self, window: CollectorWindow, start_ns: int) -> bool:
        """Give *window* the values recorded from now on; False if the instrument could not be locked."""

        def begin() -> None:
            window.begin(start_ns, self._totals.count, self._totals.total)
            self._windows += (window,)
            self._refresh_needs()

        return self.fold(begin, timeout_s=LOCK_TIMEOUT_S)

    def extend(self, window: CollectorWindow, needs: int) -> None:
        """Let *window* compute *needs* too, from the values recorded from now on."""

        def extend() -> None:
            window.extend(needs)
            self._refresh_needs()

        self.fold(extend, timeout_s=LOCK_TIMEOUT_S)

    def detach(self, window: CollectorWindow, end_ns: int, *, timeout_s: float) -> bool:
        """Close *window* for good; False if the instrument could not be locked in time."""

        def end() -> None:
            window.end(end_ns)
            self._windows = tuple(other for other in self._windows if other is not window)
            self._refresh_needs()

        return self.fold(end, timeout_s=timeout_s)

    def declare(self, unit: str, help: str, aggregations: tuple[Aggregation, ...] | None) -> None:  # noqa: A002
        """Set the declarations that are still open."""
        self.unit = self.unit or unit
        self.help = self.help or help
        self.aggregations = self.aggregations or aggregations
        self.fold(self._refresh_needs, timeout_s=LOCK_TIMEOUT_S)

    def _refresh_needs(self) -> None:
        needs = needs_of(self.aggregations or ()) & EXTREMES
        for window in self._windows:
            needs |= window.needs
        if self._totals.count == 0:  # later they would not cover all values
            self._totals = SampleSummary(needs & EXTREMES)
        self._needs = needs | self._totals.needs
        self._needs_samples = any(window.needs_samples for window in self._windows)


class Counter(Instrument):
    """A sum that only grows: tokens, bytes, retries. Made by `counter`."""

    __slots__ = ()
    kind = "counter"
    lowest: ClassVar[float | None] = 0
    default_aggregations: ClassVar[tuple[Aggregation, ...]] = (Aggregation.COUNT, Aggregation.SUM)

    def add(self, amount: float) -> None:
        """
        Add *amount*; nothing is raised, whatever it is.

        Any kind of number will do, and an array without dimensions. It is read later, so a tensor that is changed in
        place counts as what it is then. What is not one number, NaN, a negative number, and a tensor on another device
        (to read it would wait for the device) count as invalid samples.
        """
        # No lock and no call but two into C: the budget is a third of torch.monitor's Stat.add.
        buffer = self._buffer
        if len(buffer) < 1024:  # noqa: PLR2004  FOLD_AT, which as a name would cost a look-up
            buffer.append(amount)
        else:
            self._overflow(amount)


class Stat(Instrument):
    """A distribution of values: a loss, a gradient norm, a duration. Made by `stat`."""

    __slots__ = ()
    kind = "stat"
    default_aggregations: ClassVar[tuple[Aggregation, ...]] = (Aggregation.COUNT, Aggregation.SUM, Aggregation.MEAN)

    def record(self, value: float) -> None:
        """Record one *value*; as for `Counter.add`, but it may be negative."""
        buffer = self._buffer
        if len(buffer) < 1024:  # noqa: PLR2004  as in `Counter.add`
            buffer.append(value)
        else:
            self._overflow(value)

    def time(self, *, failed: bool = False) -> Timer:
        """
        Return a context manager that records the duration of its block, in the stat's unit.

        It is a decorator too, also of coroutine functions.

        Args:
            failed: Also record a block that raised. By default its duration is left out: it measures something else.

        Raises:
            ConfigError: if the stat's unit is not ``s`` (or none), ``ms``, ``us`` or ``ns``.
        """
        return Timer(self, failed)


class Gauge(Instrument, Closing):
    """
    The latest value of what goes up and down: the length of a queue, memory in use. Made by `gauge`.

    A gauge with a callback is read once in each cycle of a collector. A callback that raises is counted and reported,
    and suspended after five failures in a row, as any handler is. Leaving the gauge's ``with`` block closes it.
    """

    __slots__ = ("_callback", "_circuit_breaker", "_readings")
    kind = "gauge"
    default_aggregations: ClassVar[tuple[Aggregation, ...]] = (Aggregation.VALUE,)

    def set(self, value: float) -> None:
        """Record *value* as the latest; as for `Counter.add`, but it may be negative."""
        buffer = self._buffer
        if len(buffer) < 1024:  # noqa: PLR2004  as in `Counter.add`
            buffer.append(value)
        else:
            self._overflow(value)

    def forget(self) -> None:
        """Start at zero and without a callback, as a forked child must."""
        super().forget()
        self._callback: Callable[[], float | None] | None = None
        self._readings = 0
        self._circuit_breaker = CircuitBreaker(f"gauge({self.name!r})")

    @property
    def has_callback(self) -> bool:
        """Whether a callback is called for the value."""
        return self._callback is not None

    def call(self, callback: Callable[[], float | None]) -> None:
        """Read the value from *callback* from now on."""
        self._callback = callback

    def close(self) -> None:
        """Call the callback no more. Closing twice is harmless, and another callback may be given then."""
        self._callback = None

    @property
    def failed(self) -> int:
        """The number of calls of the callback that raised."""
        return self._circuit_breaker.failed.value

    @property
    def last_error(self) -> str:
        """The last exception of the callback; empty if there was none."""
        return self._circuit_breaker.last_error

    def read(self) -> None:
        """Call the callback once; never raises but KeyboardInterrupt."""
        callback = self._callback
        if callback is None:
            return
        if self._circuit_breaker.open_until_ns is not None and self._circuit_breaker.is_open():
            return
        try:
            value = callback()
            if value is not None:
                self.set(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Also SystemExit: a callback must not end the thread that serves all the others.
            self._circuit_breaker.record_failure(error, self._readings)
            return
        self._readings += 1
        self._circuit_breaker.close()


class Timer:
    """
    Records the duration of a block in a stat; made by `Stat.time`.

    As a decorator it serves any number of threads and calls within calls. As a context manager it can be entered
    again inside its own block, but belongs to one thread or task: each makes a timer of its own.
    """

    __slots__ = ("_failed", "_ns_per_unit", "_outer_ns", "_started_ns", "_stat")

    def __init__(self, stat: Stat, failed: bool) -> None:  # noqa: FBT001  called by `Stat.time` alone
        try:
            self._ns_per_unit = _NS_PER[stat.unit]
        except KeyError:
            remedy = f"stat {stat.name!r} cannot record durations; give it the unit s, ms, us or ns"
            raise ConfigError("unit", stat.unit, remedy) from None
        self._stat = stat
        self._failed = failed
        self._outer_ns: list[int] | None = None
        self._started_ns: int | None = None

    def __enter__(self) -> Self:
        if self._started_ns is not None:
            if self._outer_ns is None:
                self._outer_ns = []
            self._outer_ns.append(self._started_ns)
        self._started_ns = clock.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        started_ns = self._started_ns
        self._started_ns = self._outer_ns.pop() if self._outer_ns else None
        if started_ns is not None and (kind is None or self._failed):
            self._record_since(started_ns)

    def _record_since(self, started_ns: int) -> None:
        duration_ns = clock.monotonic_ns() - started_ns
        self._stat.record(duration_ns if self._ns_per_unit == 1 else duration_ns / self._ns_per_unit)

    def __call__(self, function: F) -> F:
        """
        Return *function*, timed at each call.

        Raises:
            ConfigError: for a generator function: the call only makes the generator, its work comes later.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError("time()", function, "time the loop over a generator in a with block")
        timed = self._timed_coroutine(function) if inspect.iscoroutinefunction(function) else self._timed(function)
        return functools.wraps(function)(timed)  # type: ignore[return-value]

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started_ns = clock.monotonic_ns()
            try:
                result = function(*args, **kwargs)
            except BaseException:
                if self._failed:
                    self._record_since(started_ns)
                raise
            self._record_since(started_ns)
            return result

        return timed

    def _timed_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def timed(*args: Any, **kwargs: Any) -> Any:
            with Timer(self._stat, self._failed):
                return await function(*args, **kwargs)

        return timed


if FREE_THREADED:

    @functools.wraps(Counter.add)
    def _add_by_lane(self: Counter, amount: float) -> None:
        try:
            buffer = self._by_lane[_get_ident() % LANES]
        except KeyError:
            buffer = self._by_lane.setdefault(_get_ident() % LANES, self._new_buffer())
        waiting = len(buffer)
        # Room is asked for at eight samples in 1,024 while another thread folds, which may have lost its processor:
        # threads of one lane that append at once pass the first.
        if waiting < 1024 or waiting % 1024 > 7 or self._make_room(buffer):  # noqa: PLR2004  as in `Counter.add`
            buffer.append(amount)

    # The constants of a copy are never counted, also where its module was not read from a cache of bytecode.
    _add_by_lane.__code__ = _add_by_lane.__code__.replace()  # type: ignore[attr-defined]  # a function all the same
    Counter.add = _add_by_lane  # type: ignore[method-assign]
    Counter.waiting = property(lambda self: sum(map(len, self._buffers())))  # type: ignore[assignment,method-assign]

if native is not None:
    Counter.add, Stat.record, Gauge.set = native.compile_recording(Counter, Stat, Gauge)  # type: ignore[method-assign]
