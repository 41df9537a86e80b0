"""
Tools for tests of code that uses trackside: a clock that the test advances, a bus for one test, events with a source.

With pytest, the fixture ``trackside_bus`` gives a test a bus of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from trackside.bus import Bus
from trackside.events import Event, Source, clock
from trackside.handlers import Capture

__all__ = ["Capture", "FakeClock", "isolated_bus", "recorded"]

E = TypeVar("E", bound=Event)

SOURCE: Final = Source(id="0123456789abcdef", run_id="test", host="localhost", pid=1)
"""The default of *source* in `recorded`."""


class FakeClock:
    """
    A clock in ns that only the test advances.

    ::

        with FakeClock().installed() as clock:
            first = BatchSkipped(reason="loss is nan")
            clock.advance(2.5)
            assert BatchSkipped(reason="again").at_ns - first.at_ns == 2_500_000_000

    Args:
        now_ns: The first reading.
    """

    def __init__(self, now_ns: int = 10**12) -> None:
        self.now_ns: int = now_ns

    def __call__(self) -> int:
        """Return the time."""
        return self.now_ns

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass."""
        self.now_ns += round(seconds * 1e9)

    @contextlib.contextmanager
    def installed(self) -> Iterator[FakeClock]:
        """Let events, spans and windows read this clock in the block; an event's ``at_ns`` is then its reading."""
        with clock.installed(self, self):
            yield self


@contextlib.contextmanager
def isolated_bus(**options: Any) -> Iterator[Bus]:
    """
    Yield a new bus, and close it afterwards.

    Args:
        options: The arguments of `Bus`. *strict* is True unless given, so that a handler that raises fails the test.
    """
    with Bus(**{"strict": True, **options}) as bus:
        yield bus


def recorded(event: E, *, source: Source = SOURCE, seq: int = 0) -> E:
    """Give *event* the number *seq* of *source*, and return it, for tests of models and readers."""
    event._source, event._seq = source, seq  # noqa: SLF001  these slots are set once, when an event is numbered
    return event
