"""The translation of trackside's events to the calls of an exporter."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from trackside.compat.one_logger import _training_attributes as known
from trackside.compat.one_logger._enums import StrEnum
from trackside.compat.one_logger._training_attributes import StandardTrainingJobEventName as Name
from trackside.compat.one_logger.core.attributes import Attributes
from trackside.compat.one_logger.core.event import ErrorEvent, Event, StandardEventName, TelemetryDataError
from trackside.compat.one_logger.core.span import Span
from trackside.compat.one_logger.core.time import TracingTimestamp
from trackside.compat.one_logger.exporter.base_json_exporter import BaseJsonExporter
from trackside.compat.one_logger.exporter.exporter import Exporter
from trackside.events import (
    LIFECYCLE,
    CheckpointMetricsUpdated,
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    EventsDropped,
    IterationEnded,
    JobConfigured,
    ProductiveWorkSaved,
    RunsOn,
    SpanEnded,
    SpanEventAdded,
    SpanOutOfOrder,
    SpanStarted,
    TestingMetricsUpdated,
    TrainingConfigured,
    TrainingFigures,
    TrainingMetricsUpdated,
    TrainingWindowUpdated,
    ValidationMetricsUpdated,
    event,
    own_fields,
    span_names,
)
from trackside.events import Event as OurEvent
from trackside.handlers.models import TrainingMetrics


@event("trackside.one_logger.telemetry_data_error", priority=LIFECYCLE)
class TelemetryFoundLacking(OurEvent):
    """The job reports that its telemetry is incomplete; published by a recorder's `telemetry_data_error`."""

    message: str
    attributes: dict[str, Any] = attrs.field(factory=dict)


READS: Final = (
    SpanStarted,
    SpanEnded,
    IterationEnded,
    SpanEventAdded,
    JobConfigured,
    TrainingConfigured,
    CheckpointSaveSucceeded,
    CheckpointSaveFailed,
    SpanOutOfOrder,
    EventsDropped,
    TelemetryFoundLacking,
)
"""The types of events that an `ExportHandler` is subscribed to."""

EVENTS: Final[dict[type[OurEvent], tuple[StrEnum, type[Attributes]]]] = {
    JobConfigured: (Name.ONE_LOGGER_INITIALIZATION, known.OneLoggerInitializationAttributes),
    TrainingConfigured: (Name.UPDATE_TRAINING_TELEMETRY_CONFIG, known.TrainingTelemetryAttributes),
    TrainingMetricsUpdated: (Name.TRAINING_METRICS_UPDATE, known.TrainingMetricsUpdateAttributes),
    ValidationMetricsUpdated: (Name.VALIDATION_METRICS_UPDATE, known.ValidationMetricsUpdateAttributes),
    TestingMetricsUpdated: (Name.TESTING_METRICS_UPDATE, known.TestingMetricsUpdateAttributes),
    ProductiveWorkSaved: (Name.SAVE_CHECKPOINT_SUCCESS, known.SaveCheckpointSuccessEventAttributes),
    CheckpointMetricsUpdated: (Name.SYNC_CHECKPOINT_METRICS_UPDATE, known.SyncCheckpointMetricsUpdateAttributes),
}
"""One Logger's name of an event and the class of its attributes, by trackside's class."""

_ITERATIONS: Final = {**span_names.OF_ITERATION, "testing": span_names.TESTING_ITERATION_ALIAS}
_THROUGHPUT: Final = frozenset(
    {
        "completed_floating_point_operations_overall",
        "productive_train_tflops",
        "total_flops",
        "train_throughput_per_gpu",
        "train_throughput_per_gpu_max",
        "train_throughput_per_gpu_min",
    }
)
_WHOLE: Final = frozenset({"avg_batch_size", "completed_floating_point_operations_overall", "total_flops"})
_MOST_OPEN: Final = 4_096
_MOST_EARLY: Final = 64


def span_uuid(source_id: str, span_id: int) -> uuid.UUID:
    """Return the globally unique id of the span *span_id* of a source."""
    try:
        high = int(source_id, 16)
    except ValueError:
        return uuid.uuid5(uuid.NAMESPACE_OID, f"{source_id}:{span_id}")
    return uuid.UUID(int=(high & (1 << 64) - 1) << 64 | span_id & (1 << 64) - 1)


class ExportHandler:
    """
    Feeds one exporter, on a thread of its own, from the events of this process or from recorded ones.

    The metric updates come from a model of its own, so that each comes before the end of its span.

    Args:
        exporter: The exporter to feed; it must be initialized.
        is_exported: Returns whether spans of a name are exported, with their events.
    """

    runs_on = RunsOn.WORKER

    def __init__(self, exporter: Exporter, is_exported: Callable[[str], bool] = lambda _: True) -> None:
        self.exporter = exporter
        self._is_exported = is_exported
        self._window: TrainingWindowUpdated | None = None
        self._metrics = TrainingMetrics(publish=self._export_update)
        self._open: dict[int, Span] = {}
        self._early: dict[int, list[Event]] = {}
        """The events, by span id, of spans that are published only when they end."""
        self._application: Span | None = None
        self._unattached: list[OurEvent] = []
        """The events of the application that came before its span."""
        self._is_throughput_wanted = True
        """True unless the training's configuration says otherwise."""
        self._latest_ns = 0
        self._source_id = ""
        self._has_exported = False
        self._has_complained = False
        self._failure: Exception | None = None

    def __call__(self, event: OurEvent) -> None:
        """
        Make the exporter's calls for *event*.

        Raises:
            Exception: the first exception of the exporter, after every call was made.
        """
        self._latest_ns = event.at_ns
        self._source_id = event.source.id
        self._failure = None
        self._metrics(event)
        self._read(event)
        if self._failure is not None:
            raise self._failure

    def _read(self, event: OurEvent) -> None:
        if isinstance(event, SpanStarted):
            self._start(event)
        elif isinstance(event, SpanEnded):
            self._end(event)
        elif isinstance(event, IterationEnded):
            self._iterate(event)
        elif isinstance(event, SpanEventAdded):
            self._add(event)
        elif isinstance(event, (JobConfigured, TrainingConfigured)):
            self._configure(event)
        elif isinstance(event, SpanOutOfOrder):
            self._complain(f"span {event.name!r} {event.problem}")
        elif isinstance(event, EventsDropped):
            self._complain(f"events were lost: {event.by_type}")
        elif isinstance(event, TelemetryFoundLacking):
            self._complain(event.message, event.attributes)

    def close(self, timeout_s: float) -> bool:  # noqa: ARG002  an exporter has no time limit
        """Stop the open spans, the innermost first, and close the exporter."""
        for span in reversed(list(self._open.values())):
            self._stop(span, self._latest_ns)
        self._open.clear()
        self.exporter.close()
        return True

    # --- spans -------------------------------------------------------------------------------------------------

    def _start(self, event: SpanStarted) -> None:
        span = self._span(event.span_id, event.name, event.at_ns, event.parent_span_id, event.attributes)
        self._open[event.span_id] = span
        if len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]
        if self._is_exported(event.name):
            self._export(self.exporter.export_start, span)
        if event.name == span_names.APPLICATION:
            self._application = span
            waiting, self._unattached = self._unattached, []
            for early in waiting:
                self._export_known(early, span, event.at_ns)

    def _end(self, event: SpanEnded) -> None:
        span = self._open.pop(event.span_id, None)
        if span is None:
            began_ns = event.at_ns - event.duration_ns
            span = self._span(event.span_id, event.name, began_ns, event.parent_span_id, event.attributes)
            self._whole(span, event.at_ns, event.span_id, event.error)
            return
        before = span.attributes.to_json()
        changed = {name: value for name, value in event.attributes.items() if before.get(name) != value}
        span.add_attributes(Attributes(changed))
        if event.error is not None:
            self._export_event(_error(event.error, event.at_ns), span)
        self._stop(span, event.at_ns)

    def _iterate(self, event: IterationEnded) -> None:
        name = _ITERATIONS.get(event.kind, event.kind)
        if event.span_id and self._is_exported(name):
            figures = {"samples": event.samples, "tokens": event.tokens, "flops": event.flops, "loss": event.loss}
            figures = {"step": event.step, **figures, "failed": event.failed or None}
            attributes = {key: _number(value) for key, value in figures.items() if value is not None}
            span = self._span(event.span_id, name, event.at_ns - event.duration_ns, event.parent_span_id, attributes)
            self._whole(span, event.at_ns, event.span_id, None)
        else:
            self._early.pop(event.span_id, None)

    def _whole(self, span: Span, at_ns: int, span_id: int, error: dict[str, str] | None) -> None:
        """Export a span that became known only at its end, with its events."""
        events = self._early.pop(span_id, [])
        if error is not None:
            events.append(_error(error, at_ns))
        if not events and isinstance(self.exporter, BaseJsonExporter) and self._is_exported(span.name_str):
            span.stop(stop_time=TracingTimestamp.of_ns(at_ns))
            self._export(self.exporter.export_complete, span)
            return
        if self._is_exported(span.name_str):
            self._export(self.exporter.export_start, span)
        for exported in events:
            self._export_event(exported, span)
        self._stop(span, at_ns)

    def _stop(self, span: Span, at_ns: int) -> None:
        span.stop(stop_time=TracingTimestamp.of_ns(at_ns))
        if self._is_exported(span.name_str):
            self._export(self.exporter.export_stop, span)

    def _span(self, span_id: int, name: str, at_ns: int, parent_id: int, attributes: dict[str, Any]) -> Span:
        begin = Event(StandardEventName.SPAN_START, TracingTimestamp.of_ns(at_ns))
        parent = self._open.get(parent_id)
        given = {field: _as_theirs(field, value) for field, value in attributes.items()}
        span = Span(span_uuid(self._source_id, span_id), name, begin, parent, Attributes(given))
        if parent_id:
            span.parent_id = span_uuid(self._source_id, parent_id)
        return span

    # --- events ------------------------------------------------------------------------------------------------

    def _add(self, event: SpanEventAdded) -> None:
        exported: Event
        if event.name == span_names.ERROR:
            exported = _error_event(event.attributes, event.at_ns)
        else:
            exported = Event(event.name, TracingTimestamp.of_ns(event.at_ns), Attributes(event.attributes))
        span = self._open.get(event.span_id)
        if span is not None:
            self._export_event(exported, span)
        elif event.span_id:
            early = self._early.setdefault(event.span_id, [])
            if len(early) < _MOST_EARLY:
                early.append(exported)
            if len(self._early) > _MOST_EARLY:
                del self._early[next(iter(self._early))]
        else:
            self._export_event(exported, self._root())

    def _configure(self, event: JobConfigured | TrainingConfigured) -> None:
        if isinstance(event, TrainingConfigured):
            self._is_throughput_wanted = event.is_log_throughput_enabled
        if self._application is None:
            self._unattached.append(event)
        else:
            self._export_known(event, self._application, event.at_ns)

    def _export_update(self, event: OurEvent) -> None:
        if isinstance(event, TrainingWindowUpdated):
            self._window = event  # the job's update comes next; both are exported as one event
            return
        span = self._open.get(event.span_id)
        if isinstance(event, ProductiveWorkSaved) and event.checkpoint_strategy == "async":
            span = None  # the span of the save is over, or should be
        self._export_known(event, self._root() if span is None else span, event.at_ns)

    def _root(self) -> Span:
        """Return the span of the application, also after its end; if there was none, a stand-in."""
        if self._application is None:
            self._application = self._span(0, span_names.APPLICATION, self._latest_ns, 0, {})
        return self._application

    def _export_known(self, event: OurEvent, span: Span, at_ns: int) -> None:
        name, cls = EVENTS[type(event)]
        fields = set(own_fields(type(event)))
        if not self._is_throughput_wanted:
            fields -= _THROUGHPUT
        exported = {field: getattr(event, field) for field in own_fields(type(event)) if field in fields}
        if isinstance(event, TrainingMetricsUpdated) and self._window is not None:
            exported |= {f"window_{field}": getattr(self._window, field) for field in own_fields(TrainingFigures)}
        attributes = cls.from_json(
            {field: _as_theirs(field, value) for field, value in exported.items() if _is_set(value)}
        )
        self._export_event(Event(name, TracingTimestamp.of_ns(at_ns), attributes), span)

    def _export_event(self, event: Event, span: Span) -> None:
        if not self._is_exported(span.name_str):
            return
        if span.active:  # events of the application may come after its end
            span.add_event(event)
        if isinstance(event, ErrorEvent):
            self._export(self.exporter.export_error, event, span)
        else:
            self._export(self.exporter.export_event, event, span)

    # --- what may fail -----------------------------------------------------------------------------------------

    def _export(self, method: Callable[..., None], *given: Any) -> None:
        try:
            method(*given)
        except Exception as error:
            self._failure = self._failure or error
            with contextlib.suppress(Exception):
                self._complain(f"{type(self.exporter).__name__} failed: {error}")
        else:
            self._has_exported = True

    def _complain(self, message: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Report to the exporter, once, that the telemetry is incomplete."""
        if self._has_complained:
            return
        self._has_complained = True
        kinds = TelemetryDataError.ErrorType
        kind = kinds.INCOMPLETE_TELEMETRY_DATA if self._has_exported else kinds.NO_TELEMETRY_DATA
        at = TracingTimestamp.of_ns(self._latest_ns)
        self.exporter.export_telemetry_data_error(TelemetryDataError(at, kind, message, Attributes(attributes)))


def _is_set(value: Any) -> bool:
    return value is not None and value != []


def _as_theirs(field: str, value: Any) -> Any:
    """
    Return *value* with One Logger's type: a single tag is a text; a batch size and a count of operations are ints.
    """
    if field == "perf_tag" and isinstance(value, (list, tuple)) and len(value) == 1:
        return value[0]
    if field in _WHOLE and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _number(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float)) else float(value)


def _error(error: dict[str, str], at_ns: int) -> ErrorEvent:
    kind, message = error.get("type", ""), error.get("message", "")
    exported = {
        span_names.ERROR_MESSAGE: f"{kind}: {message}",
        span_names.EXCEPTION_TYPE: kind,
        span_names.EXCEPTION_MESSAGE: message,
        span_names.EXCEPTION_TRACEBACK: error.get("traceback", ""),
    }
    return _error_event(exported, at_ns)


def _error_event(attributes: dict[str, Any], at_ns: int) -> ErrorEvent:
    names = (
        span_names.ERROR_MESSAGE,
        span_names.EXCEPTION_TYPE,
        span_names.EXCEPTION_MESSAGE,
        span_names.EXCEPTION_TRACEBACK,
    )
    rest = {name: value for name, value in attributes.items() if name not in names}
    message, kind, said, trace = (attributes.get(name) for name in names)
    return ErrorEvent(TracingTimestamp.of_ns(at_ns), message or "", kind, said, trace, Attributes(rest))
