"""Timing a block or a function into a counter."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trackside.events import ConfigError, clock

if TYPE_CHECKING:
    from typing_extensions import Self

    from trackside.bus.counters._counter import Counter

F = TypeVar("F", bound=Callable[..., Any])

_NS_PER: Final = {"": 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3, "ns": 1}


class Timer:
    """
    Adds to its counter how long a block took; made by `Counter.time`.

    As a decorator it serves any number of threads and calls within calls. As a context manager it can be entered
    again inside its own block, but belongs to one thread or task: each takes a timer of its own.
    """

    __slots__ = ("_counter", "_failed", "_ns_per_unit", "_outer_ns", "_started_ns")

    def __init__(self, counter: Counter, failed: bool) -> None:  # noqa: FBT001  called by `Counter.time` alone
        try:
            self._ns_per_unit = _NS_PER[counter.unit]
        except KeyError:
            remedy = f"counter {counter.name!r} cannot take times; give it the unit s, ms, us or ns"
            raise ConfigError("unit", counter.unit, remedy) from None
        self._counter = counter
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
            self._add_since(started_ns)

    def _add_since(self, started_ns: int) -> None:
        duration_ns = clock.monotonic_ns() - started_ns
        self._counter.add(duration_ns if self._ns_per_unit == 1 else duration_ns / self._ns_per_unit)

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
                    self._add_since(started_ns)
                raise
            self._add_since(started_ns)
            return result

        return timed

    def _timed_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def timed(*args: Any, **kwargs: Any) -> Any:
            with Timer(self._counter, self._failed):
                return await function(*args, **kwargs)

        return timed
