"""Fixtures: a registry without a thread, whose clock the test moves."""

from __future__ import annotations

import pytest

from trackside.counters import CounterRegistry
from trackside.events import CounterWindow, Event
from trackside.testing import FakeClock

SECOND = 10**9


class Station:
    """A registry with the functions that a test needs."""

    def __init__(self, **options):
        self.clock = FakeClock()
        self.published = []
        self.wanted = True
        self.registry = CounterRegistry(
            publish=self.publish, wants=self.wants, now_ns=self.clock, threaded=False, **options
        )
        self.counter = self.registry.counter
        self.stat = self.registry.stat
        self.collect = self.registry.collect
        self.gauge = self.registry.gauge

    def publish(self, event: Event):
        """Keep *event*."""
        self.published.append(event)

    def wants(self, cls):
        """Return whether windows are wanted, as a test sets it."""
        return self.wanted and issubclass(cls, CounterWindow)

    def tick(self, seconds=1.0):
        """Let *seconds* pass, and run the sampler."""
        self.clock.advance(seconds)
        self.registry.tick()

    def add(self, name, *values):
        """Add *values* to the counter called *name*, and return it."""
        counter = self.stat(name)
        for value in values:
            counter.record(value)
        return counter

    def windows(self, name="x"):
        """Return the published windows of the counter called *name*."""
        return [window for window in self.published if window.name == name]

    def counts(self, name="x"):
        """Return how many samples each of the windows has."""
        return [window.count for window in self.windows(name)]

    def values(self, name="x"):
        """Return the values of each of the windows."""
        return [window.values for window in self.windows(name)]


@pytest.fixture
def make_station():
    """Give a function that makes one registry after another."""
    return Station


@pytest.fixture
def station():
    """Give the test a registry of its own."""
    return Station()


@pytest.fixture
def strict_station():
    """Give the test a strict registry of its own."""
    return Station(strict=True)
