"""
The common part of sinks that draw: curves over the training step, and experiment trackers.

A tracker gets the curves, the configuration and the outcome of a run, in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import attrs

from trackside.events import (
    Event,
    GoodputUpdated,
    JobConfigured,
    RunsOn,
    Source,
    SourceEnded,
    TrainingConfigured,
    span_names,
)
from trackside.handlers.export._batch_exporter import BatchExporter, Exporting, RefusedError
from trackside.handlers.export._metric_catalogue import NOT_IN_NAMES, MetricPoint, MetricReader, is_number
from trackside.handlers.models.goodput import PEER_NAMES
from trackside.wire import fields_of
from trackside.wire._values import mended_map

_LONGEST_TAG: Final = 200
_MAX_STEP: Final = (1 << 63) - 1
"""The largest integer in TensorBoard's files and MLflow's tables."""


class CurvePoint(NamedTuple):
    """A value at a step, on the curve called *tag*."""

    tag: str
    value: float
    step: int


class CurveReader:
    """
    Read the curve points of events, of any number of processes.

    The tags are in the metric catalogue. Those of goodput are ml-goodput-measurement's: ``goodput/goodput``,
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
            return int(last_step)
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
    return CurvePoint(NOT_IN_NAMES.sub("_", tag)[:_LONGEST_TAG], float(value), min(max(step, 0), _MAX_STEP))


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


_REASONS_OF_SUCCESS: Final = frozenset(("closed", "exit", ""))
_POINT_BYTES: Final = 200
_MAX_RUNS: Final = 64


@attrs.frozen
class RunUpdate:
    """The changes that one event makes to a tracker's run."""

    kind: Literal["points", "config", "end"]
    source: Source
    at_ns: int
    points: Sequence[CurvePoint] = ()
    config: dict[str, Any] = attrs.field(factory=dict)
    failed: bool = False


class TrackerSink(Exporting, ABC):
    """
    Export to an experiment tracker through its own client, on a thread of its own; each process is a run.

    Updates that the tracker does not accept wait and are retried, in order; see `BatchExporter`. Events that are not
    delivered in the end are counted in `lost`.

    Args:
        name: The name in the thread's name and in warnings.
        max_batch_items: The most events that are sent together.
    """

    runs_on = RunsOn.WORKER

    def __init__(self, name: str, *, max_batch_items: int = 512) -> None:
        self._curves = CurveReader()
        self._runs: dict[str, Any] = {}
        self._latest: dict[str, RunUpdate] = {}
        """By source id, the latest update of each process that has not ended."""
        self._sent = 0
        """The number of items of a failed batch that were delivered and need no retry."""
        self._exporter: BatchExporter[RunUpdate] = BatchExporter(
            self._deliver, name=name, max_batch_items=max_batch_items
        )

    def __call__(self, event: Event) -> None:
        """Accept *event*; called on the sink worker's thread."""
        points = self._curves.read(event)
        source = event.source
        if points:
            update = RunUpdate("points", source, event.at_ns, points)
        elif isinstance(event, (JobConfigured, TrainingConfigured)):
            update = RunUpdate("config", source, event.at_ns, config=mended_map(fields_of(event))[0])
        elif isinstance(event, SourceEnded):
            update = RunUpdate("end", source, event.at_ns, failed=event.reason not in _REASONS_OF_SUCCESS)
        elif source.id not in self._latest:
            update = RunUpdate("config", source, event.at_ns)  # opens the run early, since this may take a while
        else:
            return
        if update.kind == "end":
            self._latest.pop(source.id, None)
        else:
            self._latest[source.id] = update
        self._exporter.put_or_drop(update, size_bytes=_POINT_BYTES * len(points))

    def flush(self, timeout_s: float) -> bool:
        """Send the waiting updates; False if the tracker did not accept them in time."""
        return self._exporter.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Send the waiting updates and end the runs; False if any event was lost."""
        for update in self._latest.values():
            self._exporter.put(attrs.evolve(update, kind="end", points=(), config={}), events=0)
        self._latest.clear()
        return self._exporter.close(timeout_s)

    # --- on the exporter's thread ------------------------------------------------------------------------------

    def _deliver(self, batch: list[RunUpdate]) -> None:
        while self._sent < len(batch):
            group = self._next_group(batch)
            try:
                self._apply(group)
            except RefusedError as error:
                self._exporter.drop(len(group), error.reason)
            self._sent += len(group)
        self._confirm()
        self._sent = 0

    def _next_group(self, batch: Sequence[RunUpdate]) -> list[RunUpdate]:
        """Return the updates to send next: a single one, or the points of several events of one process."""
        first, *rest = batch[self._sent :]
        group = [first]
        for update in rest if first.kind == "points" else ():
            if update.kind != "points" or update.source.id != first.source.id or not self._fits(update, group):
                break
            group.append(update)
        return group

    def _apply(self, group: Sequence[RunUpdate]) -> None:
        first = group[0]
        source = first.source
        if first.kind == "end":
            if source.id in self._runs:
                self._end_run(self._runs[source.id], failed=first.failed)
                del self._runs[source.id]
            return
        if source.id not in self._runs:
            if len(self._runs) >= _MAX_RUNS:
                raise RefusedError(f"more than {_MAX_RUNS} processes at a time")
            self._runs[source.id] = self._open_run(source)
        run = self._runs[source.id]
        if first.kind == "config" and first.config:
            self._set_config(run, first.config)
        elif first.points:
            self._log_points(run, group)

    @abstractmethod
    def _fits(self, update: RunUpdate, group: Sequence[RunUpdate]) -> bool:
        """Return whether the points of *update* are sent together with those of *group*."""

    @abstractmethod
    def _open_run(self, source: Source) -> Any:
        """Return a run for *source*."""

    @abstractmethod
    def _set_config(self, run: Any, config: dict[str, Any]) -> None:
        """Add *config* to the configuration of *run*."""

    @abstractmethod
    def _log_points(self, run: Any, group: Sequence[RunUpdate]) -> None:
        """Send the points of *group*."""

    def _confirm(self) -> None:
        """Raise unless the server has what the client accepted; most clients return only when it has."""

    @abstractmethod
    def _end_run(self, run: Any, *, failed: bool) -> None:
        """End *run*."""


def run_name(source: Source) -> str:
    """Return the name of a process's run."""
    name = f"{source.run_id} rank {source.rank} attempt {source.attempt}".strip()
    return name if source.role == "main" else f"{name} {source.role} {source.pid}"


def run_identity(source: Source) -> dict[str, Any]:
    """Return the searchable facts about *source*, by name."""
    facts = {
        "source": source.id,
        "run_id": source.run_id,
        "session_tag": source.session_tag,
        "perf_tags": ", ".join(source.perf_tags),
        "baseline": source.baseline,
        "attempt": source.attempt,
        "rank": source.rank,
        "local_rank": source.local_rank,
        "world_size": source.world_size,
        "role": source.role,
        "host": source.host,
        "application": source.application,
        **{f"metadata.{key}": value for key, value in source.metadata.items()},
    }
    return {f"trackside.{name}": value for name, value in facts.items()}
