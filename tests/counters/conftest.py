"""Fixtures: a registry without a thread, whose clock the test moves."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from trackside.counters import CounterRegistry
from trackside.events import CounterWindow, Event
from trackside.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.counters import Stat

SECOND = 10**9


class Station:
    """A registry with the functions that a test needs."""

    def __init__(self, fake_clock: FakeClock, **options: Any) -> None:
        self.clock = fake_clock
        self.published: list[Any] = []
        self.wanted = True
        self.registry = CounterRegistry(publish=self.publish, wants=self.wants, threaded=False, **options)
        self.counter = self.registry.counter
        self.stat = self.registry.stat
        self.collect = self.registry.collect
        self.gauge = self.registry.gauge

    def publish(self, event: Event) -> None:
        """Keep *event*."""
        self.published.append(event)

    def wants(self, cls: type[Event]) -> bool:
        """Return whether windows are wanted, as a test sets it."""
        return self.wanted and issubclass(cls, CounterWindow)

    def tick(self, seconds: float = 1.0) -> None:
        """Let *seconds* pass, and run the sampler."""
        self.clock.advance(seconds)
        self.registry.tick()

    def add(self, name: str, *values: float) -> Stat:
        """Add *values* to the counter called *name*, and return it."""
        counter = self.stat(name)
        for value in values:
            counter.record(value)
        return counter

    def windows(self, name: str = "x") -> list[CounterWindow]:
        """Return the published windows of the counter called *name*."""
        return [window for window in self.published if window.name == name]

    def counts(self, name: str = "x") -> list[int]:
        """Return how many samples each of the windows has."""
        return [window.count for window in self.windows(name)]

    def values(self, name: str = "x") -> list[Any]:
        """Return the values of each of the windows."""
        return [window.values for window in self.windows(name)]


@pytest.fixture
def make_station(fake_clock: FakeClock) -> Callable[..., Station]:
    """Give a function that makes one registry after another."""
    return functools.partial(Station, fake_clock)


@pytest.fixture
def station(make_station: Callable[..., Station]) -> Station:
    """Give the test a registry of its own."""
    return make_station()


@pytest.fixture
def strict_station(make_station: Callable[..., Station]) -> Station:
    """Give the test a strict registry of its own."""
    return make_station(strict=True)
