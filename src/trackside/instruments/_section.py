"""The section: a timed part of the training step."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trackside.events import ConfigError, clock
from trackside.instruments._section_times import CHUNK, SectionTimes

if TYPE_CHECKING:
    from typing_extensions import Self

F = TypeVar("F", bound=Callable[..., Any])

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
    thread that enters it; another thread asks `section` for its own. While no handler wants `SectionWindow` nothing is
    timed.
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
        """Let the time of an entry begin now."""
        self._start_ns = _now_ns()

    def _push(self) -> None:
        if self._outer is None:
            self._outer = []
        self._outer.append(self._start_ns)

    @property
    def name(self) -> str:
        """What it is called."""
        return self._times.name

    def __call__(self, function: F) -> F:
        """
        Return *function* with each call timed; of a coroutine function, each run.

        Raises:
            ConfigError: for a generator function: the call only makes the generator, its work comes later.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError("section", function, "put the loop over a generator in a with block")
        fresh = self._fresh
        if inspect.iscoroutinefunction(function):

            async def in_coroutine(*args: Any, **kwargs: Any) -> Any:
                with fresh():
                    return await function(*args, **kwargs)

            return functools.wraps(function)(in_coroutine)  # type: ignore[return-value]

        def in_section(*args: Any, **kwargs: Any) -> Any:
            with fresh():
                return function(*args, **kwargs)

        return functools.wraps(function)(in_section)  # type: ignore[return-value]

    def _fresh(self) -> Section:
        """Return another one like this, for one call of a decorated function."""
        return Section(self._times)

    def __repr__(self) -> str:
        return f"<Section {self.name!r}>"
