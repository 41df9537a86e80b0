"""Fixtures: a listener on the default bus, and a clock that a test sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trackside.bus import default_bus
from trackside.events import NOWHERE, ambient, clock
from trackside.handlers import Capture
from trackside.instruments import TrainingDefaults, section_windows, set_training_defaults
from trackside.instruments._moments import end_all
from trackside.instruments._span import forget_opened, opened
from trackside.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def no_sections() -> Iterator[None]:
    """Remove the sections, which listen to iterations: before, as other tests may leave some, and after."""
    section_windows._sections.close()
    yield
    section_windows._sections.close()


@pytest.fixture
def captured() -> Iterator[Capture]:
    """Give the events published on the default bus, in order."""
    found = Capture()
    with default_bus.subscribe(found):
        yield found


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the default bus strict."""
    monkeypatch.setattr(default_bus, "strict", True)


@pytest.fixture
def ticking() -> Iterator[FakeClock]:
    """Give a monotonic clock that stands still until a test moves it; the wall clock is 10 s ahead of it."""
    fake = FakeClock(10**9)
    with clock.installed(fake, lambda: fake.now_ns + 10 * 10**9):
        yield fake


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    """Check that every span is closed when the test is over, and that no step is set."""
    yield
    end_all("the test was over", None)
    set_training_defaults(TrainingDefaults())
    left, around = dict(opened()), ambient.get()
    forget_opened()
    ambient.set(NOWHERE)
    assert (left, around) == ({}, NOWHERE)
