"""A listener on the default bus, and a clock that a test sets."""

from __future__ import annotations

import pytest

from trackside.bus import default_bus
from trackside.events import NOWHERE, ambient, clock
from trackside.handlers import Capture
from trackside.instruments import TrainingDefaults, sections, set_training_defaults
from trackside.instruments._moments import end_all
from trackside.instruments._span import open_by_id


@pytest.fixture(autouse=True)
def no_sections():
    """Have the sections, which listen to iterations, forgotten: before, as others may leave some, and after."""
    sections._sections.close()
    yield
    sections._sections.close()


@pytest.fixture
def captured():
    """Give what is published on the default bus, in order."""
    found = Capture()
    with default_bus.subscribe(found):
        yield found


@pytest.fixture
def strict(monkeypatch):
    """Let the default bus raise what is wrong."""
    monkeypatch.setattr(default_bus, "strict", True)


class FakeClock:
    """A monotonic clock that a test sets; the wall clock is 10 s ahead of it."""

    def __init__(self):
        self.now_ns = 1_000_000_000

    def __call__(self):
        """Return the time, in ns."""
        return self.now_ns

    def wall(self):
        """Return the wall clock's time, in ns."""
        return self.now_ns + 10_000_000_000

    def pass_ns(self, ns):
        """Let so much time pass."""
        self.now_ns += ns


@pytest.fixture
def ticking():
    """Give a clock that stands still until it is told."""
    fake = FakeClock()
    with clock.installed(fake, fake.wall):
        yield fake


@pytest.fixture(autouse=True)
def nothing_left_open():
    """See that every span is closed and nothing surrounds the test when it is over."""
    yield
    end_all("the test was over", None)
    set_training_defaults(TrainingDefaults())
    left, around = dict(open_by_id), ambient.get()
    open_by_id.clear()
    ambient.set(NOWHERE)
    assert (left, around) == ({}, NOWHERE)
