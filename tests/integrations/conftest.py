"""Sections forgotten between the tests: they listen to every iteration of the process."""

from __future__ import annotations

import pytest

from trackside.instruments import sections


@pytest.fixture(autouse=True)
def no_sections():
    """Forget the sections: those that other tests left, and those of this one."""
    sections._sections.close()
    yield
    sections._sections.close()
