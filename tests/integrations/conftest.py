"""Fixture: the process's sections, which listen to every iteration, are removed between tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trackside.instruments import section_windows

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def no_sections() -> Iterator[None]:
    """Remove the sections: those that other tests left, and those of this one."""
    section_windows._sections.close()
    yield
    section_windows._sections.close()
