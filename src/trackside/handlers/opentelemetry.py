"""Traces, metrics and logs over OTLP/HTTP, for the collector or back end of a site."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from trackside.core import RateLimitedLog
from trackside.events import (
    LIFECYCLE,
    ConfigError,
    Event,
    IterationEnded,
    RunsOn,
    Source,
    SourceEnded,
    __version__,
    span_names,
)
from trackside.events._errors import needing_extra
from trackside.events._settings import suggests_settings
from trackside.events.trace_ids import global_id, parent_id, trace_of
from trackside.handlers.export import (
    METRIC_EVENTS,
    SPAN_EVENTS,
    BatchExporter,
    CompletedSpan,
    MetricPoint,
    MetricReader,
    RefusedError,
    SpanAssembler,
)
from trackside.wire import fields_of, value_to_json, wire_name_of
from trackside.wire._values import mended

with needing_extra("OpenTelemetry", "opentelemetry"):
    import requests
    from opentelemetry._logs import LogRecord, SeverityNumber
    from opentelemetry.context import (
        _SUPPRESS_HTTP_INSTRUMENTATION_KEY,
        _SUPPRESS_INSTRUMENTATION_KEY,
        Context,
        attach,
        detach,
        set_value,
    )
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
    from opentelemetry.sdk._logs import LogRecordLimits, ReadWriteLogRecord
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, TraceFlags, set_span_in_context

_SCOPE: Final = InstrumentationScope("trackside", __version__)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_RETRIABLE: Final = frozenset((408, 429, 502, 503, 504))
"""The statuses after which OTLP clients retry."""
_ITEM_BYTES: Final = 1_000
_MAX_METADATA: Final = 64
_ONLY_SPANS: Final = tuple(cls for cls in SPAN_EVENTS if cls is not SourceEnded)
"""Events that are exported only as spans; the end of a process is a log record, too."""


@suggests_settings()
class OpenTelemetrySink:
    """
    Export traces, metrics and logs to an OpenTelemetry collector.

    Each process is a resource, and its spans are a trace unless it was started within another one. Events that are
    neither spans nor metrics are log records. The ``OTEL_*`` variables are honoured; arguments take precedence. Events
    that could not be delivered wait, up to 16,384 of each signal, and are retried.

    Args:
        endpoint: The collector's base URL, for example ``http://localhost:4318``.
        headers: Sent with each request.
        timeout_s: The timeout of each request with the retries of the OTLP exporter, in seconds.
        traces: Whether to export spans; by default unless ``OTEL_TRACES_EXPORTER`` is ``none``.
        metrics: Whether to export metrics; by default likewise.
        logs: Whether to export all other events; by default likewise.

    Raises:
        ConfigError: a variable is malformed, or asks for a protocol other than ``http/protobuf``.
    """

    runs_on = RunsOn.WORKER

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        traces: bool | None = None,
        metrics: bool | None = None,
        logs: bool | None = None,
    ) -> None:
        wanted = {"traces": traces, "metrics": metrics, "logs": logs}
        self._signals: dict[str, _Signal] = {}
        for name in _EXPORTERS:
            if _is_enabled(name, wanted[name]):
                _check_protocol(name)
                self._signals[name] = _Signal(name, endpoint, headers, timeout_s)
        self._metric_interval_s = _environ_seconds("OTEL_METRIC_EXPORT_INTERVAL", 60_000)
        self._collected_s = time.monotonic()
        self._processes: dict[str, _ProcessTelemetry] = {}
        self._sources: dict[str, Source] = {}
        self._dropped_by_ended = 0
        self._not_finite_by_ended = 0

    @property
    def not_finite(self) -> int:
        """
        Values that were left out because OpenTelemetry's SDK does not record them.

        These are NaN and infinities, and negative values in counters and histograms.
        """
        return self._not_finite_by_ended + sum(process.not_finite for process in list(self._processes.values()))

    @property
    def lost(self) -> int:
        """Events that were accepted and did not arrive."""
        return sum(self.losses().values())

    def losses(self) -> dict[str, int]:
        """Return the number of events that did not arrive, by signal and reason."""
        lost = {
            f"{name}: {reason}": events
            for name, signal in self._signals.items()
            for reason, events in signal.exporter.losses().items()
        }
        dropped = self._dropped_by_ended + sum(process.spans.dropped for process in list(self._processes.values()))
        return {**lost, "traces: too many open spans": dropped} if dropped else lost

    def __call__(self, event: Event) -> None:
        """Accept *event*; called on the sink worker's thread."""
        if not self._signals:
            return
        source = event.source
        process = self._processes.get(source.id)
        if process is None:
            self._sources[source.id] = source
            process = self._processes[source.id] = _ProcessTelemetry(source, self._sources, self._signals)
        process.export(event)
        if isinstance(event, SourceEnded):
            process.collect()
            self._dropped_by_ended += process.spans.dropped
            self._not_finite_by_ended += process.not_finite
            del self._processes[source.id]
        elif time.monotonic() - self._collected_s >= self._metric_interval_s:
            self._collect()

    def flush(self, timeout_s: float) -> bool:
        """Send the waiting events and the current metrics; False if anything did not arrive in time."""
        self._collect()
        done = [signal.exporter.flush(share_s) for signal, share_s in self._shares(timeout_s)]
        return all(done)

    def close(self, timeout_s: float) -> bool:
        """Send the waiting events and stop; False if any event was lost, now or before."""
        self._collect()
        done = [signal.close(share_s) for signal, share_s in self._shares(timeout_s)]
        return all(done) and not self.lost

    def _shares(self, timeout_s: float) -> Iterator[tuple[_Signal, float]]:
        """Yield each signal with its share of the time that is left."""
        deadline_s = time.monotonic() + timeout_s
        for index, signal in enumerate(self._signals.values()):
            yield signal, max(0.0, deadline_s - time.monotonic()) / (len(self._signals) - index)

    def _collect(self) -> None:
        self._collected_s = time.monotonic()
        for process in self._processes.values():
            process.collect()


class _Session(requests.Session):  # type: ignore[misc]
    """An HTTP session that keeps the latest answer, which OpenTelemetry's exporters do not return."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        self.has_sent = False
        self.status: int | None = None
        self.content = b""

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        self.has_sent = True
        self.status = None
        response = super().request(*arguments, **options)
        self.status, self.content = response.status_code, response.content
        return response


class _Signal:
    """One signal: OpenTelemetry's exporter of it, fed by a batch exporter."""

    def __init__(
        self, name: str, endpoint: str | None, headers: Mapping[str, str] | None, timeout_s: float | None
    ) -> None:
        url = f"{endpoint.rstrip('/')}/v1/{name}" if endpoint is not None else None
        self._session = _Session()
        try:
            SpanLimits(), LogRecordLimits()  # raise here for a malformed environment, not for each process
            self.client = _EXPORTERS[name](
                endpoint=url, headers=dict(headers) if headers else None, timeout=timeout_s, session=self._session
            )
        except ValueError as error:
            raise ConfigError("OTEL_* or an argument", str(error), "see docs/opentelemetry.md") from error
        self._url = url or str(getattr(self.client, "_endpoint", "the collector"))
        family = {"traces": "BSP", "logs": "BLRP"}.get(name, "")
        self.exporter: BatchExporter[Any] = BatchExporter(
            self._deliver,
            name=f"opentelemetry-{name}",
            max_events=_environ_int(f"OTEL_{family}_MAX_QUEUE_SIZE", 16_384),
            max_batch_items=_environ_int(f"OTEL_{family}_MAX_EXPORT_BATCH_SIZE", 512),
            export_interval_s=_environ_seconds(f"OTEL_{family}_SCHEDULE_DELAY", 1_000),
        )
        # The client would log each failed request; the batch exporter reports them once a minute, with counts.
        logging.getLogger(type(self.client).__module__).addFilter(_is_from_elsewhere)

    def close(self, timeout_s: float) -> bool:
        done = self.exporter.close(timeout_s)
        with contextlib.suppress(Exception):
            self.client.shutdown()
        return done

    def _deliver(self, batch: list[Any]) -> None:
        self._session.clear()
        request: Any = batch
        if isinstance(batch[0], MetricsData):
            request = MetricsData([resource for data in batch for resource in data.resource_metrics])
        with _uninstrumented():
            result = self.client.export(request)
        status = self._session.status
        if result.name == "SUCCESS":
            self._count_rejected(self._session.content)
        elif not self._session.has_sent:
            raise RefusedError("could not be encoded")
        elif status is None or status in _RETRIABLE:
            raise ConnectionError(f"{self._url} answered {status or 'nothing'}")
        else:
            raise RefusedError(f"{self._url} answered {status}")

    def _count_rejected(self, content: bytes) -> None:
        """Count the items that the collector rejected from a request that it accepted."""
        with contextlib.suppress(Exception):  # not every server that accepts a request answers in protobuf
            # The answers of the three signals differ only in the name of one field, which is not on the wire.
            rejected = ExportTraceServiceResponse.FromString(content).partial_success.rejected_spans
            if rejected > 0:
                self.exporter.drop(rejected, f"rejected by {self._url}")


class _ProcessTelemetry:
    """One process: its resource, and its events as spans, metrics and log records."""

    def __init__(self, source: Source, sources: Mapping[str, Source], signals: Mapping[str, _Signal]) -> None:
        self._source = source
        self._trace_id = int(trace_of(source, sources), 16)
        self._root_parent_id = parent_id(source, sources)
        self._exporters = {name: signal.exporter for name, signal in signals.items()}
        self.spans = SpanAssembler()
        self._metrics = MetricReader()
        self._instruments: dict[tuple[str, str], Any] = {}
        self._totals: dict[tuple[str, ...], float] = {}
        self._sums: dict[tuple[str, ...], int] = {}
        """The total of each sum of integers so far: the SDK adds it up without a bound."""
        self._uncollected_events = 0
        self.not_finite = 0
        resource = Resource.create(attributes_of(_resource_attributes(source)))
        resource = resource.merge(OTELResourceDetector().detect())  # the environment takes precedence over the source
        self._span_ids = _FixedIds(self._trace_id)
        if "traces" in signals:
            provider = TracerProvider(resource=resource, id_generator=self._span_ids, shutdown_on_exit=False)
            self._tracer = provider.get_tracer("trackside", __version__)
        if "metrics" in signals:
            client = signals["metrics"].client
            # From OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE and _DEFAULT_HISTOGRAM_AGGREGATION.
            self._reader = InMemoryMetricReader(client._preferred_temporality, client._preferred_aggregation)  # noqa: SLF001
            meters = MeterProvider([self._reader], resource=resource, shutdown_on_exit=False)
            self._meter = meters.get_meter("trackside", __version__)
        self._resource, self._log_limits = resource, LogRecordLimits()

    def export(self, event: Event) -> None:
        """Export *event* as a span, as metrics or as a log record."""
        if "traces" in self._exporters and isinstance(event, SPAN_EVENTS):
            for span in self.spans.add(event):
                self._export_span(span)
        if isinstance(event, METRIC_EVENTS):
            if "metrics" in self._exporters:
                for point in self._metrics.read(event):
                    self._record(point)
                is_span = isinstance(event, IterationEnded) and event.span_id and "traces" in self._exporters
                self._uncollected_events += not is_span
        elif "logs" in self._exporters and not isinstance(event, _ONLY_SPANS):
            self._export_log(event)

    def collect(self) -> None:
        """Export the current metrics."""
        if "metrics" not in self._exporters:
            return
        data = self._reader.get_metrics_data()
        if data is not None and data.resource_metrics:
            events, self._uncollected_events = self._uncollected_events, 0
            count = sum(len(scope.metrics) for one in data.resource_metrics for scope in one.scope_metrics)
            self._exporters["metrics"].put_or_drop(data, events=events, size_bytes=_ITEM_BYTES * count)

    def _context(self, span_id: int) -> Context:
        """Return a context in which the span with this id in the trace is the current one."""
        current = SpanContext(self._trace_id, span_id, is_remote=True, trace_flags=_SAMPLED)
        return set_span_in_context(NonRecordingSpan(current), Context())

    def _export_span(self, span: CompletedSpan) -> None:
        self._span_ids.span_id = global_id(self._source, span.id)
        parent = global_id(self._source, span.parent_id) if span.parent_id else self._root_parent_id
        exported = self._tracer.start_span(
            mended(span.name)[0],
            context=self._context(parent) if parent else Context(),
            attributes=attributes_of(_span_attributes(span)),
            start_time=_held_time(span.start_ns),
        )
        for name, attributes, at_ns in _span_events(span):
            exported.add_event(mended(name)[0], attributes_of(attributes), _held_time(at_ns))
        if span.failed:
            error = span.error or {}
            description = ": ".join(filter(None, (error.get("type"), error.get("message")))) or None
            exported.set_status(StatusCode.ERROR, mended(description)[0])
        exported.end(_held_time(span.end_ns))
        if isinstance(exported, ReadableSpan):  # otherwise the sampler dropped it
            length = _length(exported.attributes) + sum(_length(event.attributes) for event in exported.events)
            self._exporters["traces"].put_or_drop(exported, events=span.event_count, size_bytes=_ITEM_BYTES + length)

    def _record(self, point: MetricPoint) -> None:
        metric = point.metric
        if not metric.name:
            return
        value = self._increase(point) if metric.is_cumulative else point.value
        if not math.isfinite(value) or (value < 0 and metric.kind in {"counter", "histogram"}):
            self.not_finite += 1
            return
        if type(value) is int:
            value = self._held(point, value)
        instrument = self._instruments.get((metric.name, metric.kind))
        if instrument is None:
            create = getattr(self._meter, f"create_{metric.kind}")
            instrument = create(metric.name, unit=metric.unit, description=metric.description)
            self._instruments[metric.name, metric.kind] = instrument
        attributes = attributes_of({f"trackside.{name}": label for name, label in point.labels.items()})
        if metric.kind == "gauge":
            instrument.set(value, attributes)
        elif metric.kind == "histogram":
            instrument.record(value, attributes)
        else:
            instrument.add(value, attributes)

    def _held(self, point: MetricPoint, value: int) -> int:
        """Return *value* limited to what OTLP's 64-bit integers hold: a larger one would make a whole request fail."""
        metric = point.metric
        is_sum = metric.kind in {"counter", "up_down_counter"}
        key = (metric.name, *map(str, point.labels.values()))
        before = self._sums.get(key, 0) if is_sum else 0
        held = max(-_INT64_BOUND, min(before + value, _INT64_BOUND - 1)) - before
        if is_sum:
            self._sums[key] = before + held
        if held != value:
            _log_of_sums.complain("%s is larger than 64 bits hold; the largest number is sent", metric.name)
        return held

    def _increase(self, point: MetricPoint) -> float:
        """Return the increase of a total since it was last read; 0 for a count that fell, as in an older event."""
        metric, total = point.metric, point.value
        key = (metric.name, *map(str, point.labels.values()))
        previous = self._totals.get(key, 0)
        if metric.kind == "counter" and total < previous:
            return 0
        if math.isfinite(total):
            self._totals[key] = total
        return total - previous

    def _export_log(self, event: Event) -> None:
        name, severity = wire_name_of(event), _severity_of(event)
        attributes = attributes_of({**fields_of(event), "trackside.step": event.step if event.step >= 0 else None})
        record = LogRecord(
            timestamp=_held_time(event.at_ns),
            context=self._context(global_id(self._source, event.span_id) if event.span_id else 0),
            severity_number=SeverityNumber[severity],
            severity_text=severity,
            body=name,
            event_name=name,
            attributes=attributes,
        )
        exported = ReadWriteLogRecord(record, self._resource, _SCOPE, self._log_limits)
        self._exporters["logs"].put_or_drop(exported, size_bytes=_ITEM_BYTES + _length(attributes))


class _FixedIds(IdGenerator):  # type: ignore[misc]
    """Generates the ids that a span already has."""

    def __init__(self, trace_id: int) -> None:
        self.trace_id = trace_id
        self.span_id = 0

    def generate_span_id(self) -> int:
        return self.span_id

    def generate_trace_id(self) -> int:
        return self.trace_id


_EXPORTERS: Final[dict[str, Callable[..., Any]]] = {
    "traces": OTLPSpanExporter,
    "metrics": OTLPMetricExporter,
    "logs": OTLPLogExporter,
}


def _held_time(at_ns: int) -> int:
    """Return *at_ns* limited to OTLP's range: one time before 1970 would make a whole request fail."""
    return min(max(at_ns, 0), _UINT64_MAX)


@contextlib.contextmanager
def _uninstrumented() -> Iterator[None]:
    """Hide our requests from the site's own instrumentation, which would export the exports."""
    suppressed = set_value(_SUPPRESS_HTTP_INSTRUMENTATION_KEY, value=True)
    token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, value=True, context=suppressed))
    try:
        yield
    finally:
        detach(token)


def _is_from_elsewhere(record: logging.LogRecord) -> bool:
    return not str(record.threadName).startswith("trackside-opentelemetry")


# --- names and attributes --------------------------------------------------------------------------------------

Attribute: TypeAlias = "str | bool | int | float | list[str] | list[bool] | list[int] | list[float]"

_SCALARS: Final = (bool, int, float, str)
_INT64_BOUND: Final = 1 << 63
_UINT64_MAX: Final = (1 << 64) - 1
_log_of_sums: Final = RateLimitedLog()
_WARNINGS: Final = (
    "trackside.checkpoint.failed",
    "trackside.events.lost",
    "trackside.events.dropped",
    "trackside.gpu_timing.unavailable",
    "trackside.handler.suspended",
    "trackside.peer.cut",
    "trackside.rank.silent",
    "trackside.span.out_of_order",
)
_ERRORS: Final = ("trackside.exception.raised", "trackside.one_logger.telemetry_data_error")
_EXCEPTION_ATTRIBUTES: Final = {
    span_names.EXCEPTION_TYPE: "exception.type",
    span_names.EXCEPTION_MESSAGE: "exception.message",
    span_names.EXCEPTION_TRACEBACK: "exception.stacktrace",
}
"""By One Logger's name, the name in OpenTelemetry's conventions."""
_SOURCE_ATTRIBUTES: Final = (
    "run_id",
    "session_tag",
    "perf_tags",
    "baseline",
    "attempt",
    "role",
    "rank",
    "local_rank",
    "world_size",
)


def _severity_of(event: Event) -> str:
    name = wire_name_of(event)
    if name in _ERRORS:
        return "ERROR"
    if name in _WARNINGS:
        return "WARN"
    return "INFO" if event.priority == LIFECYCLE else "DEBUG"


def _resource_attributes(source: Source) -> dict[str, Any]:
    """Describe *source*, with the names of the conventions where there are any; unknown values are left out."""
    attributes = {
        "service.name": source.application or "trackside",
        "service.instance.id": source.id,
        "host.name": source.host,
        "process.pid": source.pid,
        "process.runtime.version": source.versions.get("python", ""),
        **{f"trackside.{name}": getattr(source, name) for name in _SOURCE_ATTRIBUTES},
        **{f"trackside.metadata.{key}": value for key, value in list(source.metadata.items())[:_MAX_METADATA]},
    }
    return {
        name: list(value) if type(value) is tuple else value
        for name, value in attributes.items()
        if value not in ("", ())
    }


def _span_attributes(span: CompletedSpan) -> dict[str, Any]:
    attributes = dict(span.attributes)
    if span_names.THREAD in attributes:
        attributes["thread.name"] = attributes.pop(span_names.THREAD)
    if span.step >= 0:
        attributes["trackside.step"] = span.step
    if span.error is not None:
        attributes["error.type"] = span.error.get("type")
    if not span.is_finished:
        attributes["trackside.unfinished"] = True
    return attributes


def _span_events(span: CompletedSpan) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """Yield name, attributes and time of the events of *span*, last the exception that ended it."""
    for span_event in span.span_events:
        if span_event.name == span_names.ERROR:
            attributes = {_EXCEPTION_ATTRIBUTES.get(name, name): value for name, value in span_event.attributes.items()}
            yield "exception", attributes, span_event.at_ns
        else:
            yield span_event.name, span_event.attributes, span_event.at_ns
    error = span.error or {}
    if "traceback" in error:
        attributes = {
            "exception.type": error.get("type"),
            "exception.message": error.get("message"),
            "exception.stacktrace": error["traceback"],
        }
        yield "exception", attributes, span.end_ns


def attributes_of(values: Mapping[str, Any]) -> dict[str, Attribute]:
    """Return *values* as OpenTelemetry attributes: scalars, lists of one kind of scalar, and JSON for the rest."""
    attributes: dict[str, Attribute] = {}
    for name, value in values.items():
        if value is not None:
            attributes[mended(str(name))[0]] = value if type(value) in (bool, float) else _attribute(value)
    return attributes


def _attribute(value: Any) -> Attribute:
    try:
        plain = mended(value)[0]
    except (TypeError, ValueError):
        return str(value)
    if isinstance(plain, int):
        return plain if -_INT64_BOUND <= plain < _INT64_BOUND else str(plain)
    if (
        isinstance(plain, list)
        and plain
        and type(plain[0]) in _SCALARS
        and {type(one) for one in plain} == {type(plain[0])}
    ):
        is_int = type(plain[0]) is int
        return (
            plain if not is_int or all(-_INT64_BOUND <= one < _INT64_BOUND for one in plain) else value_to_json(plain)
        )
    if isinstance(plain, (list, dict)):
        return value_to_json(plain)
    return plain if type(plain) in _SCALARS else str(plain)


def _length(attributes: Mapping[str, Any] | None) -> int:
    return sum(len(value) for value in (attributes or {}).values() if isinstance(value, str))


# --- the OTEL_* variables that the exporters do not read themselves --------------------------------------------


def _is_enabled(signal: str, wanted: bool | None) -> bool:  # noqa: FBT001
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return wanted if wanted is not None else os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip() != "none"


def _check_protocol(signal: str) -> None:
    for name in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(name, "").strip()
        if protocol and protocol != "http/protobuf":
            raise ConfigError(
                name, protocol, "set http/protobuf, and the endpoint to the collector's HTTP port, mostly 4318"
            )
        if protocol:
            return


def _environ_int(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not int(text):
        raise ConfigError(name, text, "give a whole number of at least 1")
    return int(text)


def _environ_seconds(name: str, default_ms: int) -> float:
    """Return a variable that is in milliseconds, in seconds."""
    return _environ_int(name, default_ms) / 1000
