"""The activity of one process, as the slices, points and figures of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import attrs

from trackside.events import (
    LIFECYCLE,
    ClockAnchored,
    CounterWindow,
    Event,
    Heartbeat,
    IterationEnded,
    SourceStarted,
    SpanEnded,
    SpanEventAdded,
    SpanStarted,
    span_names,
)
from trackside.report._gather import LEVELS
from trackside.wire import fields_of, wire_name_of

MAIN_THREAD: Final = "main"
_SLACK_NS: Final = 50_000
"""A span and what is inside it read the clock one after the other: so much may they seem to overlap."""
_MOST_FIELDS: Final = 8
_MOST_TEXT: Final = 200
_SILENT: Final = (Heartbeat, ClockAnchored, SourceStarted)


@attrs.define(eq=False)
class Slice:
    """Something that lasted."""

    id: int
    parent_id: int
    name: str
    start_ns: int
    end_ns: int
    thread: str
    step: int
    told: dict[str, Any]


@attrs.define
class Shown:
    """What is shown of one process."""

    slices: list[Slice] = attrs.field(factory=list)
    points: list[tuple[int, str, dict[str, Any]]] = attrs.field(factory=list)
    figures: list[tuple[int, str, str, float]] = attrs.field(factory=list)
    """When, which counter, its unit and where it stood."""


def shown_of(batches: Iterable[Sequence[Event]], steps: range | None) -> Shown:
    """
    Return what to show of a process.

    Args:
        batches: Its events.
        steps: Show these alone, and what was around them; all unless given.
    """
    found = Shown()
    opened: dict[int, SpanStarted] = {}
    last_ns = 0
    for event in (event for batch in batches for event in batch):
        last_ns = max(last_ns, event.at_ns)
        if isinstance(event, SpanStarted):
            opened[event.span_id] = event
            continue
        if isinstance(event, SpanEnded):
            opened.pop(event.span_id, None)
        if steps is not None and event.step >= 0 and event.step not in steps and not _is_long(event):
            continue
        _show(event, found)
    for start in opened.values():
        thread = str(start.attributes.get(span_names.THREAD, MAIN_THREAD))
        told = {"open": "it had not ended when the process was last heard of"}
        found.slices.append(
            Slice(start.span_id, start.parent_span_id, start.name, start.at_ns, last_ns, thread, start.step, told)
        )
    _clamp(found.slices)
    return found if steps is None else _around(found, steps)


def _is_long(event: Event) -> bool:
    return isinstance(event, SpanEnded) and event.name in span_names.LONG


def _show(event: Event, found: Shown) -> None:
    if isinstance(event, IterationEnded):
        told = {"loss": event.loss} if event.loss is not None else {}
        if event.failed:
            told["failed"] = True
        name = span_names.OF_ITERATION.get(event.kind, event.kind)
        start_ns = event.at_ns - event.duration_ns
        found.slices.append(
            Slice(event.span_id, event.parent_span_id, name, start_ns, event.at_ns, MAIN_THREAD, event.step, told)
        )
    elif isinstance(event, SpanEnded):
        told = {name: _plain(value) for name, value in list(event.attributes.items())[:_MOST_FIELDS]}
        thread = str(told.pop(span_names.THREAD, MAIN_THREAD))
        if event.error is not None:
            told["error"] = _plain(f"{event.error.get('type', '')}: {event.error.get('message', '')}")
        start_ns = event.at_ns - event.duration_ns
        found.slices.append(
            Slice(event.span_id, event.parent_span_id, event.name, start_ns, event.at_ns, thread, event.step, told)
        )
    elif isinstance(event, CounterWindow):
        level = next((event.values[name] for name in LEVELS if name in event.values), None)
        if level is not None:
            found.figures.append((event.end_ns, event.name, event.unit or "value", level))
    elif isinstance(event, SpanEventAdded):
        fields = {name: _plain(value) for name, value in event.attributes.items()}
        found.points.append((event.at_ns, event.name, fields))
    elif type(event).priority is LIFECYCLE and not type(event).derived and not isinstance(event, _SILENT):
        fields = {name: _plain(value) for name, value in list(fields_of(event).items())[:_MOST_FIELDS]}
        found.points.append((event.at_ns, wire_name_of(event), fields))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)[:_MOST_TEXT]


def _clamp(slices: Sequence[Slice]) -> None:
    """Put what overlaps its parent's bounds by next to nothing inside them."""
    by_id = {one.id: one for one in slices if one.id}
    for one in slices:
        parent = by_id.get(one.parent_id)
        if parent is None or parent is one:
            continue
        if 0 < parent.start_ns - one.start_ns <= _SLACK_NS:
            one.start_ns = parent.start_ns
        if 0 < one.end_ns - parent.end_ns <= _SLACK_NS:
            one.end_ns = parent.end_ns


def _around(found: Shown, steps: range) -> Shown:
    """Keep what lies within *steps*, and of what is longer the part that does."""
    own = [one for one in found.slices if one.name == span_names.TRAINING_ITERATION and one.step in steps]
    if not own:
        return Shown()
    start_ns, end_ns = min(one.start_ns for one in own), max(one.end_ns for one in own)
    kept = Shown()
    for one in found.slices:
        if one.start_ns < end_ns and one.end_ns > start_ns:
            if one.start_ns < start_ns or one.end_ns > end_ns:
                one.told = {**one.told, "cut": "it is longer than what is shown"}
                one.start_ns, one.end_ns = max(one.start_ns, start_ns), min(one.end_ns, end_ns)
            kept.slices.append(one)
    kept.points = [point for point in found.points if start_ns <= point[0] <= end_ns]
    kept.figures = [figure for figure in found.figures if start_ns <= figure[0] <= end_ns]
    return kept


def lanes(slices: Sequence[Slice]) -> Iterator[tuple[str, int, list[Slice]]]:
    """
    Yield the slices of each thread in lanes within which they nest, those of each lane by time.

    Yields:
        The thread, the number of the lane from 0, and its slices.
    """
    threads: dict[str, list[Slice]] = {}
    for one in sorted(slices, key=lambda one: (one.start_ns, -one.end_ns)):
        threads.setdefault(one.thread, []).append(one)
    for thread in sorted(threads, key=lambda name: (name != MAIN_THREAD, name)):
        left, number = threads[thread], 0
        while left:
            lane, left = _nesting(left)
            yield thread, number, lane
            number += 1


def _nesting(slices: Sequence[Slice]) -> tuple[list[Slice], list[Slice]]:
    lane: list[Slice] = []
    left: list[Slice] = []
    ends: list[int] = []
    for one in slices:
        while ends and ends[-1] <= one.start_ns:
            ends.pop()
        if ends and one.end_ns > ends[-1]:
            left.append(one)
        else:
            ends.append(one.end_ns)
            lane.append(one)
    return lane, left
