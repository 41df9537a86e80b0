"""Curves over the training step, from metric points: for TensorBoard, W&B and MLflow."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from trackside.events import Event, GoodputUpdated, SourceEnded, span_names
from trackside.handlers.export._metric_catalogue import MetricPoint, MetricReader, is_number
from trackside.handlers.models.goodput import PEER_NAMES

_NOT_IN_TAGS: Final = re.compile(r"[^A-Za-z0-9_.\-/]")
_LONGEST_TAG: Final = 200


class CurvePoint(NamedTuple):
    """A value at a step, on the curve called *tag*."""

    tag: str
    value: float
    step: int


class CurveReader:
    """
    Read the curve points of events, of any number of processes.

    The tags stand in the metric catalogue. Those of goodput are ml-goodput-measurement's: ``goodput/goodput``,
    ``badput/TYPE`` and ``badput/custom_badput_events/TYPE`` in lower case, in percent of the elapsed time, at the last
    productive step; and ``step_deviation``, in seconds, at each step. An event without a step of its own is drawn at
    the latest step of its process.
    """

    def __init__(self) -> None:
        self._metrics = MetricReader()
        self._steps: dict[str, int] = {}
        """By source id, the latest step."""
        self._latest: dict[str, CurvePoint] = {}
        """The latest point of each curve of goodput: an update that changes nothing adds no point."""

    def read(self, event: Event) -> list[CurvePoint]:
        """Return the points of *event*; none for most types."""
        source_id = event.source.id
        if event.step > self._steps.get(source_id, 0):
            self._steps[source_id] = event.step
        if isinstance(event, SourceEnded):
            self._steps.pop(source_id, None)
            self._metrics.forget(source_id)
            return []
        step = self._step_of(event)
        points = [
            _point(_tag(point), value, step)
            for point in self._metrics.read(event)
            if point.metric.curve and (value := _curve_value(point, event)) is not None
        ]
        return self._changed(points, event) if isinstance(event, GoodputUpdated) else points

    def _step_of(self, event: Event) -> int:
        last_step = getattr(event, "last_step", None)
        if last_step is not None:
            return max(int(last_step), 0)
        return event.step if event.step >= 0 else self._steps.get(event.source.id, 0)

    def _changed(self, points: list[CurvePoint], event: GoodputUpdated) -> list[CurvePoint]:
        changed = [point for point in points if self._latest.get(point.tag) != point]
        self._latest.update((point.tag, point) for point in changed)
        steps, deviations = event.steps.get("step", ()), event.steps.get("deviation_s", ())
        for step, deviation_s in zip(steps, deviations, strict=False):
            if is_number(deviation_s):
                changed.append(_point("step_deviation", deviation_s, step))
        return changed


def _point(tag: str, value: float, step: int) -> CurvePoint:
    return CurvePoint(_NOT_IN_TAGS.sub("_", tag)[:_LONGEST_TAG], float(value), step)


def _tag(point: MetricPoint) -> str:
    labels = dict(point.labels)
    if "loop" in labels:
        labels["span"] = span_names.OF_ITERATION.get(str(labels["loop"]), labels["loop"])
    if "bucket" in labels:
        bucket = PEER_NAMES.get(str(labels["bucket"]), str(labels["bucket"]))
        labels["bucket"] = bucket.replace(".", "/", 1).lower()
    return point.metric.curve.format(**labels)


def _curve_value(point: MetricPoint, event: Event) -> float | None:
    metric = point.metric
    value = point.value if metric.curve_scale == 1 else metric.curve_scale * point.value
    if not metric.curve_relative_to:
        return value
    whole = getattr(event, metric.curve_relative_to)
    return value / whole if whole > 0 else None
