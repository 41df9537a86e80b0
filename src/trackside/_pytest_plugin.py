"""The pytest plugin: its entry point gives every project that installed trackside the fixture ``trackside_bus``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trackside.bus import Bus
from trackside.testing import isolated_bus


@pytest.fixture
def trackside_bus() -> Iterator[Bus]:
    """Give the test a strict bus of its own, and close it afterwards."""
    with isolated_bus() as bus:
        yield bus
