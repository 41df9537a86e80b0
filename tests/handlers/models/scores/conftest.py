"""Fixtures: windows as ranks publish them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from trackside.events import Event, KernelWindow, SectionWindow, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

E = TypeVar("E", bound=Event)

STEPS = 100
SECOND = 1_000_000_000


@functools.cache
def make_source(rank: int, world: int = 4, **given: Any) -> Source:
    given = {"id": f"{given.get('attempt', 0)}-{rank}", "host": f"node{rank // 2}", **given}
    return Source(rank=rank, world_size=world, **given)


def stamped(event: E, source: Source, seq: int = 0) -> E:
    event._source = source
    event._seq = seq
    return event


def _envelope(window: int, end_ns: int | None) -> dict[str, Any]:
    at_ns = (window + 1) * SECOND if end_ns is None else end_ns
    return {
        "at_ns": at_ns,
        "span_id": 0,
        "step": (window + 1) * STEPS - 1,
        "window": window,
        "first_step": window * STEPS,
        "last_step": (window + 1) * STEPS - 1,
        "start_ns": window * SECOND,
    }


def make_section_window(
    source: Source,
    window: int,
    medians: Mapping[str, float],
    *,
    entries: int = STEPS,
    end_ns: int | None = None,
    **given: Any,
) -> SectionWindow:
    values = [float(median) for median in medians.values()]
    return stamped(
        SectionWindow(
            **_envelope(window, end_ns),
            names=list(medians),
            counts=[entries] * len(values),
            entries=[entries] * len(values),
            min_ns=values,
            max_ns=values,
            median_ns=values,
            mean_ns=values,
            std_ns=[0.0] * len(values),
            **given,
        ),
        source,
    )


def make_kernel_window(
    source: Source, window: int, kernels: Mapping[str, Any], *, end_ns: int | None = None, **given: Any
) -> KernelWindow:
    """Build one from ``{name: (median, mean, count)}``; a bare median is also the mean, of 10 launches."""
    rows = [value if isinstance(value, tuple) else (value, value, 10) for value in kernels.values()]
    medians = [float(row[0]) for row in rows]
    return stamped(
        KernelWindow(
            **_envelope(window, end_ns),
            names=list(kernels),
            counts=[row[2] for row in rows],
            min_ns=medians,
            max_ns=medians,
            median_ns=medians,
            mean_ns=[float(row[1]) for row in rows],
            std_ns=[0.0] * len(rows),
            **given,
        ),
        source,
    )


@pytest.fixture
def source() -> Callable[..., Source]:
    return make_source


@pytest.fixture
def section_window() -> Callable[..., SectionWindow]:
    return make_section_window


@pytest.fixture
def kernel_window() -> Callable[..., KernelWindow]:
    return make_kernel_window
