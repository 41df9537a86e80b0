"""Events as points of curves, for systems that draw a value over the training step: TensorBoard, W&B, MLflow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trackside.events import (
    CheckpointMetricsUpdated,
    CounterWindow,
    Event,
    GoodputUpdated,
    IterationEnded,
    ProductiveWorkSaved,
    SourceEnded,
    SpanEnded,
    StragglerReport,
    TestingMetricsUpdated,
    TrainingMetricsUpdated,
    ValidationMetricsUpdated,
    fields_of,
    span_names,
)
from trackside.handlers._scoreboard import Scoreboard

_UPDATES: Final[dict[type[Event], str]] = {
    TrainingMetricsUpdated: "training",
    ValidationMetricsUpdated: "validation",
    TestingMetricsUpdated: "testing",
    CheckpointMetricsUpdated: "checkpoint",
    ProductiveWorkSaved: "saved_work",
}
_OF_ITERATION: Final = ("loss", "samples", "tokens", "flops")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_.\-/]")
_LONGEST_TAG: Final = 200


class Point(NamedTuple):
    """A value at a step, on the curve called *tag*."""

    tag: str
    value: float
    step: int


class Scalars:
    """
    Reads events of any number of processes, and says what they are in points.

    Goodput has the tags of ml-goodput-measurement's monitor: ``goodput/goodput``, ``badput/TYPE`` and
    ``badput/custom_badput_events/TYPE`` in lower case, in percent of the elapsed time, at the last productive step; and
    ``step_deviation``, in seconds, at each step. The rest is ``duration_s/SPAN``, ``SPAN/loss`` and the like of
    iterations, ``training/FIELD`` and so on of metric updates, ``counter/NAME/AGGREGATION`` and
    ``score/KIND/SECTION/STAT``. What tells of no step of its own stands at its process's latest.
    """

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        """By source id, the latest step."""
        self._scores = Scoreboard()
        self._told: dict[str, Point] = {}
        """The latest point of each curve of the goodput: an update that says nothing new is no point."""

    def points(self, event: Event) -> list[Point]:
        """Return the points of *event*; none for most types."""
        source_id = event.source.id
        if event.step > self._steps.get(source_id, 0):
            self._steps[source_id] = event.step
        found: Iterator[tuple[str, Any, int | None]]
        if isinstance(event, IterationEnded):
            found = _of_iteration(event)
        elif isinstance(event, SpanEnded):
            found = iter([(f"duration_s/{event.name}", event.duration_ns / 1e9, None)])
        elif isinstance(event, CounterWindow):
            found = _of_counter(event)
        elif isinstance(event, GoodputUpdated):
            return self._news(_of_goodput(event), self._steps.get(source_id, 0))
        elif isinstance(event, StragglerReport):
            found = self._of_scores(event)
        elif type(event) in _UPDATES:
            prefix = _UPDATES[type(event)]
            found = ((f"{prefix}/{name}", value, None) for name, value in fields_of(event).items())
        else:
            if isinstance(event, SourceEnded):
                self._steps.pop(source_id, None)
            return []
        step = event.step if event.step >= 0 else self._steps.get(source_id, 0)
        return [_point(tag, value, step if at is None else at) for tag, value, at in found if _is_number(value)]

    def _of_scores(self, report: StragglerReport) -> Iterator[tuple[str, Any, int | None]]:
        if self._scores.read(report):
            step = max(report.last_step, 0)
            for kind, section, stat, score in self._scores.stats():
                yield f"score/{kind}/{section}/{stat}", score, step

    def _news(self, found: Iterator[tuple[str, Any, int | None]], step: int) -> list[Point]:
        points = [_point(tag, value, step if at is None else at) for tag, value, at in found if _is_number(value)]
        news = [point for point in points if self._told.get(point.tag) != point]
        self._told.update((point.tag, point) for point in news if point.tag != "step_deviation")
        return news


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _point(tag: str, value: float, step: int) -> Point:
    return Point(_UNFIT.sub("_", tag)[:_LONGEST_TAG], float(value), step)


def _of_iteration(event: IterationEnded) -> Iterator[tuple[str, Any, int | None]]:
    name = span_names.OF_ITERATION.get(event.kind, event.kind)
    yield f"duration_s/{name}", event.duration_ns / 1e9, None
    for what in _OF_ITERATION:
        yield f"{name}/{what}", getattr(event, what), None


def _of_counter(event: CounterWindow) -> Iterator[tuple[str, Any, int | None]]:
    for aggregation, value in event.values.items():
        yield f"counter/{event.name}/{aggregation}", value, None
    yield f"counter/{event.name}/total_count", event.total_count, None
    yield f"counter/{event.name}/total_sum", event.total_sum, None


def _of_goodput(event: GoodputUpdated) -> Iterator[tuple[str, Any, int | None]]:
    at = event.last_step
    if event.goodput is not None:
        yield "goodput/goodput", 100.0 * event.goodput, at
        for tag, spent_s in _flat({**event.badput_s, **event.informational_s}):
            yield f"badput/{tag}", 100.0 * spent_s / event.elapsed_s if event.elapsed_s > 0 else 0.0, at
    if event.effective_goodput is not None:
        yield "goodput/effective_goodput", 100.0 * event.effective_goodput, at
    for name in ("elapsed_s", "attempts", "disruptions"):
        yield f"goodput/{name}", getattr(event, name), at
    for name, value in event.step_time.items():
        yield f"step_time/{name}", value, at
    lengths, goodputs = event.windows.get("length_s", ()), event.windows.get("goodput", ())
    for length_s, goodput in zip(lengths, goodputs, strict=False):
        if goodput is not None:
            yield f"goodput/window_{length_s:g}_s", 100.0 * goodput, at
    for step, deviation_s in zip(event.steps.get("step", ()), event.steps.get("deviation_s", ()), strict=False):
        yield "step_deviation", deviation_s, step


def _flat(badput_s: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for bucket, spent in badput_s.items():
        for kind, seconds in spent.items() if isinstance(spent, dict) else ((None, spent),):
            yield (bucket if kind is None else f"{bucket}/{kind}").lower(), seconds
