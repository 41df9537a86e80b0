"""A passive counter: a callback that the sampler asks."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from trackside.bus._patience import Patience

if TYPE_CHECKING:
    from typing_extensions import Self

    from trackside.bus.counters._counter import Counter


class Observation:
    """
    Adds what its callback returns to a counter, once in each cycle of a collector; made by `observe`.

    A callback that raises is counted and reported, and rests after five failures in a row, as any handler does.

    Attributes:
        counter: Where the values go.
    """

    def __init__(
        self, counter: Counter, callback: Callable[[], float | None], *, on_close: Callable[[Observation], None]
    ) -> None:
        self.counter = counter
        self._callback = callback
        self._on_close = on_close
        self._readings = 0
        self._patience = Patience(f"observe({counter.name!r})")

    def __repr__(self) -> str:
        return f"<Observation {self.counter.name!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ask the callback no more. Closing twice is harmless."""
        self._on_close(self)

    @property
    def failed(self) -> int:
        """How often the callback raised."""
        return self._patience.failed.value

    @property
    def last_error(self) -> str:
        """What it raised last; empty if it never did."""
        return self._patience.last_error

    def read(self) -> None:
        """Ask the callback once; never raises but KeyboardInterrupt."""
        if self._patience.resting_until_ns is not None and self._patience.is_resting():
            return
        try:
            value = self._callback()
            if value is not None:
                self.counter.add(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Also SystemExit: a callback must not end the thread that serves all the others.
            self._patience.fail(error, self._readings)
            return
        self._readings += 1
        self._patience.recover()
