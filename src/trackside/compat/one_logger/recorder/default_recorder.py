"""The recorder: spans of trackside's, and a handler on the bus for each exporter."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from trackside import instruments
from trackside.bus import Subscription, default_bus
from trackside.compat.one_logger._bridge import READS, ExportHandler, TelemetryFoundLacking
from trackside.compat.one_logger._enums import text_of
from trackside.compat.one_logger._held import HeldSpan
from trackside.compat.one_logger.api.recorder import Recorder
from trackside.compat.one_logger.core.attributes import Attributes
from trackside.compat.one_logger.core.event import ErrorEvent, Event
from trackside.compat.one_logger.core.exceptions import assert_that
from trackside.compat.one_logger.core.span import Span, SpanName
from trackside.compat.one_logger.core.time import TracingTimestamp
from trackside.compat.one_logger.exporter.exporter import Exporter
from trackside.events import LIFECYCLE, span_names

LOGGER = logging.getLogger("trackside")

_MANY = 256

_MAKERS: dict[str, Callable[..., instruments.Span]] = {
    span_names.APPLICATION: instruments.application,
    span_names.DATA_LOADING: instruments.data_loading,
    span_names.MODEL_FORWARD: instruments.model_forward,
    span_names.ZERO_GRAD: instruments.zero_grad,
    span_names.MODEL_BACKWARD: instruments.model_backward,
    span_names.OPTIMIZER_UPDATE: instruments.optimizer_update,
}
_ITERATIONS: dict[str, Callable[[], instruments.Iteration]] = {
    span_names.TRAINING_ITERATION: instruments.training_iteration,
    span_names.VALIDATION_ITERATION: instruments.validation_iteration,
    span_names.TESTING_ITERATION: instruments.testing_iteration,
    span_names.TESTING_ITERATION_ALIAS: instruments.testing_iteration,
}


def span_called(name: SpanName, attributes: dict[str, Any]) -> instruments.Span:
    """Return trackside's span for *name*: of a kind of its own, or else one that is also published at its start."""
    text = text_of(name)
    if text in _ITERATIONS:
        iteration = _ITERATIONS[text]()
        iteration.set(**attributes)
        return iteration
    maker = _MAKERS.get(text)
    return instruments.span(text, priority=LIFECYCLE, **attributes) if maker is None else maker(**attributes)


class ExportCustomizationMode(enum.Enum):
    """The rule for the spans that are exported, with their events."""

    EXPORT_ALL_SPANS = "export_all_spans"
    WHITELIST_SPANS = "whitelist_spans"
    BLACKLIST_SPANS = "blacklist_spans"


def exported(mode: ExportCustomizationMode, names: Iterable[SpanName] | None) -> Callable[[str], bool]:
    """
    Return a function that returns whether spans of a name are exported.

    Raises:
        OneLoggerError: if *names* are given where all are exported, or not given where they are needed.
    """
    listed = frozenset(text_of(name) for name in names or ())
    if mode is ExportCustomizationMode.EXPORT_ALL_SPANS:
        assert_that(not listed, f"all spans are exported; leave out span_name_filter, which is {sorted(listed)}")
        return lambda _: True
    assert_that(listed, f"span_name_filter is empty; {mode.name} needs the names of the spans")
    if mode is ExportCustomizationMode.WHITELIST_SPANS:
        return listed.__contains__
    return lambda name: name not in listed


class DefaultRecorder(Recorder):
    """
    Opens and closes spans, and feeds exporters, each on a thread of its own.

    Args:
        exporters: The exporters to feed.
        export_customization_mode: The rule for the exported spans.
        span_name_filter: The names that the rule uses.

    Raises:
        OneLoggerError: if the filter does not fit the mode.
    """

    def __init__(
        self,
        exporters: Sequence[Exporter],
        export_customization_mode: ExportCustomizationMode = ExportCustomizationMode.EXPORT_ALL_SPANS,
        span_name_filter: Sequence[SpanName] | None = None,
    ) -> None:
        self._exporters = exporters
        self._is_exported = exported(export_customization_mode, span_name_filter)
        self._subscriptions: list[Subscription] | None = None
        self._held: dict[int, HeldSpan] = {}

    def begin(self, *, strict: bool = True) -> None:
        """
        Initialize the exporters and subscribe them; a second call does nothing.

        Args:
            strict: Whether to raise an exporter's exception; otherwise the exporter is left out, and this is logged.
        """
        if self._subscriptions is not None:
            return
        self._subscriptions = []
        for exporter in self._exporters:
            try:
                exporter.initialize()
            except Exception as error:
                if strict:
                    self.close()
                    raise
                LOGGER.error("%s is left out: %s", type(exporter).__name__, error)  # noqa: TRY400  one line is asked for
                continue
            handler = ExportHandler(exporter, self._is_exported)
            self._subscriptions.append(default_bus.subscribe(handler, to=READS))

    def start(
        self,
        span_name: SpanName,
        span_attributes: Attributes | None = None,
        start_event_attributes: Attributes | None = None,
        start_time: TracingTimestamp | None = None,
        parent_span: Span | None = None,
    ) -> HeldSpan:
        """
        Open a span within *parent_span*, or within the innermost open one.

        The attributes of its start become the span's.
        """
        self.begin()
        attributes = Attributes.merge(start_event_attributes, span_attributes).to_json()
        live = span_called(span_name, attributes)
        at_ns = None if start_time is None else start_time.at_ns
        if isinstance(parent_span, HeldSpan) and parent_span.live.id:
            held = HeldSpan(live, parent_span)
            held.open_within(parent_span, at_ns)
        else:
            live.open(at_ns=at_ns)
            held = HeldSpan(live, self._held.get(live.parent_id) if live.id else None)
        if live.id:
            self._held[live.id] = held
        if len(self._held) > _MANY:  # some were closed without `stop`
            self._held = {number: found for number, found in self._held.items() if found.active}
        return held

    def stop(
        self,
        span: Span,
        stop_event_attributes: Attributes | None = None,
        stop_time: TracingTimestamp | None = None,
    ) -> None:
        """Close *span*; the attributes of its end become the span's."""
        if isinstance(span, HeldSpan):
            self._held.pop(span.live.id, None)
        span.stop(stop_event_attributes, stop_time)

    def event(self, span: Span, event: Event) -> Event:
        """Record *event* within *span*."""
        return span.add_event(event)

    def error(self, span: Span, error_message: str, exception: BaseException | None = None) -> ErrorEvent:
        """Record an error within *span*."""
        error = ErrorEvent.create(error_message, exception)
        span.add_event(error)
        return error

    def telemetry_data_error(self, error_message: str, attributes: Attributes | None = None) -> None:
        """Report to the exporters, each once, that the telemetry is incomplete."""
        fields = {} if attributes is None else attributes.to_json()
        default_bus.log(TelemetryFoundLacking(message=error_message, attributes=fields))

    def close(self) -> None:
        """Close the open spans, and every exporter."""
        for held in reversed(list(self._held.values())):
            self.stop(held)
        for subscription in self._subscriptions or ():
            subscription.close()
        self._subscriptions = []

    def get_active_spans_by_name(self, span_name: SpanName) -> list[Span]:
        """Return the open spans of a name that this recorder opened."""
        return [held for held in self._held.values() if held.active and held.name == text_of(span_name)]
