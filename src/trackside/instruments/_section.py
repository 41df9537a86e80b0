"""The section: a timed part of the training step, and its times within one window, in bounded memory."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import mul
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from trackside._implementation import native
from trackside.events import ConfigError, clock

if TYPE_CHECKING:
    from typing_extensions import Self

CHUNK: Final = 1024
"""The most times that are kept unsummarized; the median of up to this many is exact."""


class SectionSummary(NamedTuple):
    """The statistics of one section in one window, in ns."""

    timed: int
    entries: int
    min_ns: float
    max_ns: float
    median_ns: float
    mean_ns: float
    std_ns: float


class SectionTimes:
    """
    Collects times, and summarizes them once a window.

    Adding is an append to a list, which no thread can disturb. Count, minimum, maximum, mean and deviation are exact.
    The median is exact up to `CHUNK` times; beyond, it is the median of every second, fourth, … time.

    Attributes:
        every: The first of every so many entries is timed: 1 for all, 0 for none.
        count_entry: Counts an entry, and returns how many there were before.
        add: Adds a time in ns.
        times: The times that were added and not yet summarized.
        waits: Whether the time is spent waiting for other ranks.
    """

    __slots__ = (
        "_entries_before",
        "_kept",
        "_lock",
        "_stride",
        "add",
        "count",
        "count_entry",
        "every",
        "failed",
        "maximum",
        "mean",
        "minimum",
        "name",
        "squares",
        "times",
        "waits",
    )

    def __init__(self, name: str, every: int) -> None:
        self.name: str = name
        self.every: int = every
        self.waits: bool = False
        self.failed: int = 0
        self.times: list[int] = []
        self.add: Callable[[int], None] = self.times.append
        self.count_entry: Callable[[], int] = itertools.count().__next__
        self._entries_before = 0
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self.count: int = 0
        self.mean: float = 0.0
        self.squares: float = 0.0
        self.minimum: float = math.inf
        self.maximum: int = 0
        self._kept: list[int] = []
        self._stride = 1

    def after_fork(self) -> None:
        """Start empty, with a free lock."""
        self._lock = threading.Lock()
        self.times.clear()
        self._clear()

    def fold(self) -> None:
        """Summarize the added times, to make room; do nothing while another thread does so."""
        if self._lock.acquire(blocking=False):
            try:
                self._fold()
            finally:
                self._lock.release()

    def _fold(self) -> None:
        # Copied and deleted by number: the times that another thread appends meanwhile stay.
        size = len(self.times)
        if not size:
            return
        chunk = self.times[:size]
        del self.times[:size]
        summed, squares, lowest, highest = sum_times(chunk)
        total = self.count + size
        apart = summed / size - self.mean
        self.squares += (size * squares - summed * summed) / size + apart * apart * self.count * size / total
        self.mean += apart * size / total
        first = -self.count % self._stride
        self.count = total
        self.minimum, self.maximum = min(self.minimum, lowest), max(self.maximum, highest)
        self._kept += chunk[first :: self._stride]
        while len(self._kept) > CHUNK:
            self._kept = self._kept[::2]
            self._stride *= 2

    def close(self) -> SectionSummary | None:
        """Return the statistics since the last call, and begin anew; None if nothing was timed."""
        with self._lock:
            self._fold()
            entries = self._entries_since()
            if not self.count:
                return None
            summary = SectionSummary(
                self.count,
                max(entries, self.count),
                float(self.minimum),
                float(self.maximum),
                _median(self._kept),
                self.mean,
                math.sqrt(self.squares / self.count),
            )
            self._clear()
            return summary

    def _entries_since(self) -> int:
        """Return how often the section was entered since the last call."""
        if self.every <= 1:
            entries, self.failed = self.count + self.failed, 0
            return entries
        # Reading the counter advances it, so a new one continues from there and the rhythm is kept. An entry of another
        # thread at this very moment may be timed out of turn; no time is lost.
        now = self.count_entry()
        self.count_entry = itertools.count(now).__next__
        entries, self._entries_before = now - self._entries_before, now
        return entries


def sum_times(times: list[int]) -> tuple[int, int, int, int]:
    """Return the sum of *times*, that of their squares, the least and the greatest."""
    return sum(times), sum(map(mul, times, times)), min(times), max(times)


if native is not None:
    sum_times = native.compile_sums(sum_times)


def _median(times: list[int]) -> float:
    # `statistics` has one too, but imports fractions and decimals: a fortieth of the cost of importing trackside.
    ordered = sorted(times)
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


F = TypeVar("F", bound=Callable[..., Any])


def with_each_call(function: F, fresh: Callable[[], AbstractContextManager[Any]], what: str) -> F:
    """
    Return *function* with a context of its own around each call; for a coroutine function, around each run.

    Raises:
        ConfigError: for a generator function: the call only makes the generator, its work comes later.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(what, function, "put the loop over a generator in a with block")
    if inspect.iscoroutinefunction(function):

        async def in_coroutine(*args: Any, **kwargs: Any) -> Any:
            with fresh():
                return await function(*args, **kwargs)

        return functools.wraps(function)(in_coroutine)  # type: ignore[return-value]

    def in_context(*args: Any, **kwargs: Any) -> Any:
        with fresh():
            return function(*args, **kwargs)

    return functools.wraps(function)(in_context)  # type: ignore[return-value]


_CLOSED: Final = 0
_SKIPPED: Final = -1
_now_ns = clock.monotonic_ns


@clock.follow
def _set_clock(monotonic_ns: Callable[[], int], _offset_ns: int) -> None:
    global _now_ns  # noqa: PLW0603  a copy: it saves each entry two look-ups in another module
    _now_ns = monotonic_ns


class Section:
    """
    A timed part of the training step; made by `section`.

    As a context manager it times its block, and may be entered again inside it. As a decorator it times each call,
    of several threads too. A block that raises is not timed: it measured something else. An object belongs to the
    thread that enters it; another thread needs its own from `section`. Nothing is timed while no handler wants
    `SectionWindow`.
    """

    __slots__ = ("_outer", "_start_ns", "_times")

    def __init__(self, times: SectionTimes) -> None:
        self._times = times
        self._start_ns = _CLOSED
        self._outer: list[int] | None = None

    def __enter__(self) -> Self:
        if self._start_ns != _CLOSED:
            self._push()
        times = self._times
        if times.every == 1 or (times.every and not times.count_entry() % times.every):
            self._start_ns = _now_ns()
        else:
            self._start_ns = _SKIPPED
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        start_ns = self._start_ns
        if start_ns > 0:
            taken_ns = _now_ns() - start_ns
            times = self._times
            if kind is None:
                times.add(taken_ns)
                if len(times.times) >= CHUNK:
                    times.fold()
            elif times.every == 1:
                times.failed += 1
        self._start_ns = self._outer.pop() if self._outer else _CLOSED

    def _restart(self) -> None:
        """Restart the time of the current entry."""
        self._start_ns = _now_ns()

    def _push(self) -> None:
        if self._outer is None:
            self._outer = []
        self._outer.append(self._start_ns)

    @property
    def name(self) -> str:
        """The name of the section."""
        return self._times.name

    def __call__(self, function: F) -> F:
        """
        Return *function* with each call timed; for a coroutine function, each run.

        Raises:
            ConfigError: for a generator function: the call only makes the generator, its work comes later.
        """
        return with_each_call(function, self._fresh, "section")

    def _fresh(self) -> Section:
        """Return a new section like this one, for one call of a decorated function."""
        return Section(self._times)

    def __repr__(self) -> str:
        return f"<Section {self.name!r}>"


if native is not None:
    Section.__enter__, Section.__exit__ = map(  # type: ignore[method-assign]
        native.special_method, native.compile_sections(Section, SectionTimes, CHUNK)
    )
