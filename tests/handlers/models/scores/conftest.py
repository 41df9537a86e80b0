"""Fixtures: windows as ranks publish them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from trackside.events import Source
from trackside.testing import recorded
from windows import Taken, kernel_window, section_window

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trackside.events import KernelWindow, SectionWindow

STEPS = 100


@functools.cache
def make_source(rank: int, world: int = 4, **given: Any) -> Source:
    given = {"id": f"{given.get('attempt', 0)}-{rank}", "host": f"node{rank // 2}", **given}
    return Source(rank=rank, world_size=world, **given)


def make_section_window(
    source: Source, window: int, medians: Mapping[str, float], *, entries: int = STEPS, **given: Any
) -> SectionWindow:
    made = section_window(medians, window=window, steps=STEPS, count=entries, **given)
    return recorded(made, source=source)


def make_kernel_window(source: Source, window: int, kernels: Mapping[str, Any], **given: Any) -> KernelWindow:
    """Build one from ``{name: (median, mean, count)}``; a bare median is also the mean, of 10 launches."""
    rows = {name: Taken(*value) if isinstance(value, tuple) else value for name, value in kernels.items()}
    return recorded(kernel_window(rows, window=window, steps=STEPS, count=10, **given), source=source)


@pytest.fixture
def source() -> Callable[..., Source]:
    return make_source


@pytest.fixture(name="section_window")
def _section_window() -> Callable[..., SectionWindow]:
    return make_section_window


@pytest.fixture(name="kernel_window")
def _kernel_window() -> Callable[..., KernelWindow]:
    return make_kernel_window
