"""
Events from which the goodput of a job is computed, besides spans and iterations, and the event with the result.

A span's time is charged by its name, or by its attribute ``badput_type`` (`span_names.BADPUT_TYPE`). This may also be
the name of a bucket: ``ELASTIC_SLICE_DOWN``, ``ELASTIC_SCALE_UP`` and ``ELASTIC_REINITIALIZATION`` have no spans of
their own.
"""

from __future__ import annotations

from typing import Any

import attrs

from trackside.events._event import ITERATION, LIFECYCLE, Event, event


@event("trackside.step.started", priority=ITERATION)
class StepStarted(Event):
    """
    A training step began; it lasts until the next one begins, or until the process ends in good order.

    Published by readers of records that have only the starts of steps; if the ends are known, `IterationEnded` has
    more. The step's number is the envelope's ``step``.
    """


@event("trackside.slices.counted", priority=LIFECYCLE)
class SlicesCounted(Event):
    """The number of slices changed in an elastic job. Published by the code that resizes the job, at once."""

    active: int
    """Slices that train."""
    total: int
    """Slices that the job was given."""
    available: int
    """Slices that could train."""


@event("trackside.record.faulted", priority=ITERATION)
class RecordFaulted(Event):
    """
    A record of another tool is faulty, and all or part of it may be unusable.

    Published by the reader of such records, in place of the record.
    """

    problem: str
    """The fault, in words that are the same for every such record."""
    record: str = ""
    """The record, or as much of it as identifies it."""


@event("trackside.goodput.updated", priority=LIFECYCLE, derived=True)
class GoodputUpdated(Event):
    """A session's time until now, by use. Published by the goodput monitor, on an interval and at the end."""

    session: str
    elapsed_s: float
    productive_s: float
    goodput: float | None
    """The productive share of the time, 0 to 1; None while no time has passed."""
    effective_goodput: float | None = None
    """The share if each step counts for at most the ideal step time."""
    degraded_s: float = 0.0
    """Productive time beyond the ideal step time."""
    badput_s: dict[str, Any] = attrs.field(factory=dict)
    """By bucket; ``CUSTOM_BADPUT_EVENTS`` by type."""
    informational_s: dict[str, float] = attrs.field(factory=dict)
    excluded_s: float = 0.0
    attempts: int = 0
    disruptions: int = 0
    last_step: int | None = None
    """The last step that was completed and not lost."""
    step_time: dict[str, Any] = attrs.field(factory=dict)
    ranks: dict[str, list[Any]] = attrs.field(factory=dict)
    """Columnar: ``rank``, ``productive_s``, ``goodput``, …; a value for each rank."""
    slowest: dict[str, Any] | None = None
    """``rank``, ``bucket`` and ``cost_s`` of the largest cause of waiting; None with one rank."""
    slice_efficiency: dict[str, float] = attrs.field(factory=dict)
    """``stepping`` and ``available``, 0 to 1; empty if slices were never counted."""
    windows: dict[str, list[Any]] = attrs.field(factory=dict)
    """
    The rolling windows, which all end now.

    Columnar: ``length_s``, ``elapsed_s`` (less if the session is younger), ``productive_s``, ``goodput``,
    ``badput_s`` and ``disruptions``; a value for each window.
    """
    steps: dict[str, list[Any]] = attrs.field(factory=dict)
    """
    Steps that ended since the last update, the latest 1,000 of them, each reported once.

    Columnar: ``step``, ``duration_s`` (its own time) and ``deviation_s``, its distance from the ideal step time.
    """
    problems: dict[str, int] = attrs.field(factory=dict)
    """The faults of the input, and how often each occurred."""
