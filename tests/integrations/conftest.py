"""Fixture: the process's sections, which listen to every iteration, are removed between tests."""

from __future__ import annotations

import pytest

from trackside.instruments import section_windows


@pytest.fixture(autouse=True)
def no_sections():
    """Remove the sections: those that other tests left, and those of this one."""
    section_windows._sections.close()
    yield
    section_windows._sections.close()
