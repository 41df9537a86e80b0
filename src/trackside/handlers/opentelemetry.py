"""Spans, figures and all other events over OTLP/HTTP, for whatever collector or back end a site runs."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from trackside.events import (
    SIDING,
    ConfigError,
    Event,
    IterationEnded,
    Source,
    SourceEnded,
    __version__,
    wire_name_of,
)
from trackside.events.trace import global_id, parent_id, trace_of
from trackside.handlers import _assembly, _figures
from trackside.handlers._assembly import SpanAssembly, WholeSpan
from trackside.handlers._courier import NO_ROOM, Courier, RefusedError
from trackside.handlers._figures import Figure, Figures
from trackside.handlers._opentelemetry_settings import check_protocol, is_on, milliseconds, whole
from trackside.handlers._opentelemetry_words import (
    failure_of,
    happenings_of,
    log_attributes,
    resource_attributes,
    severity_of,
    span_attributes,
)
from trackside.handlers._plain import attributes_of

try:
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
except ImportError as error:
    raise ConfigError("OpenTelemetry needs its SDK", str(error), "install trackside[opentelemetry]") from error

_SCOPE: Final = InstrumentationScope("trackside", __version__)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_TRY_AGAIN: Final = frozenset((408, 429, 502, 503, 504))
"""Answers after which OTLP says to try again."""
_SPAN_BYTES: Final = 1_000
_SPANS: Final = _assembly.TELLS[:-1]
"""Events that are told of by spans; the end of a process is told of by itself too."""


class OpenTelemetrySink:
    """
    Sends traces, metrics and logs to an OpenTelemetry collector.

    Every process is a resource of its own and its spans a trace, unless it was started within another one. What is
    told of neither by spans nor by metrics is a log record. The ``OTEL_*`` variables are honoured, and what is given
    here goes before them. What could not be delivered waits, up to 16,384 events of each signal, and is tried again.

    Args:
        endpoint: The collector's base URL, ``http://localhost:4318`` for example.
        headers: Sent with each request.
        timeout_s: For each request, its own repetitions included; in seconds.
        traces: Whether to send spans; by default unless ``OTEL_TRACES_EXPORTER`` is ``none``. Likewise the others.
        metrics: Whether to send figures.
        logs: Whether to send all other events.

    Raises:
        ConfigError: a variable asks for what there is not, or is malformed.
    """

    runs_on = SIDING

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
        asked = {"traces": traces, "metrics": metrics, "logs": logs}
        self._mails: dict[str, _Mail] = {}
        for signal in _MAKERS:
            if is_on(signal, given=asked[signal]):
                check_protocol(signal)
                self._mails[signal] = _Mail(signal, endpoint, headers, timeout_s)
        self._every_s = milliseconds("OTEL_METRIC_EXPORT_INTERVAL", 60_000)
        self._collected_s = time.monotonic()
        self._streams: dict[str, _Stream] = {}
        self._known: dict[str, Source] = {}
        self._forgotten = 0

    @property
    def lost(self) -> int:
        """Events that were taken and did not arrive."""
        return sum(self.losses().values())

    def losses(self) -> dict[str, int]:
        """Return how many events did not arrive, by signal and reason."""
        lost = {
            f"{signal}: {why}": n for signal, mail in self._mails.items() for why, n in mail.courier.losses().items()
        }
        forgotten = self._forgotten + sum(stream.assembly.forgotten for stream in list(self._streams.values()))
        return {**lost, "traces: too many open": forgotten} if forgotten else lost

    def __call__(self, event: Event) -> None:
        """Take *event*; on the siding's thread."""
        if not self._mails:
            return
        source = event.source
        stream = self._streams.get(source.id)
        if stream is None:
            self._known[source.id] = source
            stream = self._streams[source.id] = _Stream(source, self._known, self._mails)
        stream.read(event)
        if isinstance(event, SourceEnded):
            stream.collect()
            self._forgotten += stream.assembly.forgotten
            del self._streams[source.id]
        elif time.monotonic() - self._collected_s >= self._every_s:
            self._collect()

    def flush(self, timeout_s: float) -> bool:
        """Send what waits, the figures as they stand included; False if something did not arrive in time."""
        self._collect()
        done = [mail.courier.flush(share_s) for mail, share_s in self._in_turn(timeout_s)]
        return all(done)

    def close(self, timeout_s: float) -> bool:
        """Send what waits and stop; False if anything was lost, now or before."""
        self._collect()
        done = [mail.close(share_s) for mail, share_s in self._in_turn(timeout_s)]
        return all(done) and not self.lost

    def _in_turn(self, timeout_s: float) -> Iterator[tuple[_Mail, float]]:
        """Yield each mail with its share of the time that is left."""
        deadline_s = time.monotonic() + timeout_s
        for place, mail in enumerate(self._mails.values()):
            yield mail, max(0.0, deadline_s - time.monotonic()) / (len(self._mails) - place)

    def _collect(self) -> None:
        self._collected_s = time.monotonic()
        for stream in self._streams.values():
            stream.collect()


class _Session(requests.Session):  # type: ignore[misc]
    """Remembers how the latest request was answered, which the exporters keep to themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        self.has_asked = False
        self.status: int | None = None
        self.content = b""

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        self.has_asked = True
        self.status = None
        response = super().request(*arguments, **options)
        self.status, self.content = response.status_code, response.content
        return response


class _Mail:
    """One signal's exporter, and the courier that feeds it."""

    def __init__(
        self, signal: str, endpoint: str | None, headers: Mapping[str, str] | None, timeout_s: float | None
    ) -> None:
        url = f"{endpoint.rstrip('/')}/v1/{signal}" if endpoint is not None else None
        self._session = _Session()
        try:
            SpanLimits(), LogRecordLimits()  # of the environment, which is looked at again for each process
            self.exporter = _MAKERS[signal](
                endpoint=url, headers=dict(headers) if headers else None, timeout=timeout_s, session=self._session
            )
        except ValueError as error:
            raise ConfigError("OTEL_* or an argument", str(error), "see docs/opentelemetry.md") from error
        self._where = url or str(getattr(self.exporter, "_endpoint", "the collector"))
        family = {"traces": "BSP", "logs": "BLRP"}.get(signal, "")
        self.courier: Courier[Any] = Courier(
            self._deliver,
            name=f"opentelemetry-{signal}",
            most_events=whole(f"OTEL_{family}_MAX_QUEUE_SIZE", 16_384),
            batch_items=whole(f"OTEL_{family}_MAX_EXPORT_BATCH_SIZE", 512),
            every_s=milliseconds(f"OTEL_{family}_SCHEDULE_DELAY", 1_000),
        )
        # Its log would say again, for each request, what the courier says once a minute and with counts.
        logging.getLogger(type(self.exporter).__module__).addFilter(_is_not_ours)

    def put(self, item: Any, *, events: int, size_bytes: int) -> None:
        """Send *item*, or count its events as lost."""
        if not self.courier.put(item, events=events, size_bytes=size_bytes):
            self.courier.give_up(events, NO_ROOM)

    def close(self, timeout_s: float) -> bool:
        """Send what waits and stop."""
        done = self.courier.close(timeout_s)
        with contextlib.suppress(Exception):
            self.exporter.shutdown()
        return done

    def _deliver(self, batch: list[Any]) -> None:
        self._session.begin()
        given: Any = batch
        if isinstance(batch[0], MetricsData):
            given = MetricsData([resource for data in batch for resource in data.resource_metrics])
        with _unseen():
            result = self.exporter.export(given)
        status = self._session.status
        if result.name == "SUCCESS":
            self._read_answer(self._session.content)
        elif not self._session.has_asked:
            raise RefusedError("could not be encoded")
        elif status is None or status in _TRY_AGAIN:
            raise ConnectionError(f"{self._where} answered {status or 'nothing'}")
        else:
            raise RefusedError(f"{self._where} answered {status}")

    def _read_answer(self, content: bytes) -> None:
        """Count what the collector says that it rejected of a request that it accepted."""
        with contextlib.suppress(Exception):  # not every server that accepts a request answers in protobuf
            # The three signals' answers differ in the name of one field, and not on the wire.
            rejected = ExportTraceServiceResponse.FromString(content).partial_success.rejected_spans
            if rejected > 0:
                self.courier.give_up(rejected, f"rejected by {self._where}")


class _Stream:
    """One process on its way into the three signals, under one resource."""

    def __init__(self, source: Source, known: Mapping[str, Source], mails: Mapping[str, _Mail]) -> None:
        self._source = source
        self._trace_id = int(trace_of(source, known), 16)
        self._root_parent = parent_id(source, known)
        self._mails = mails
        self.assembly = SpanAssembly()
        self._figures = Figures()
        self._instruments: dict[tuple[str, str], Any] = {}
        self._uncollected = 0
        described = Resource.create(attributes_of(resource_attributes(source)))
        resource = described.merge(OTELResourceDetector().detect())  # what the variables say goes before
        self._ids = _Ids(self._trace_id)
        if "traces" in mails:
            provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
            self._tracer = provider.get_tracer("trackside", __version__)
        if "metrics" in mails:
            exporter = mails["metrics"].exporter
            # What OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE and _DEFAULT_HISTOGRAM_AGGREGATION say.
            self._reader = InMemoryMetricReader(exporter._preferred_temporality, exporter._preferred_aggregation)  # noqa: SLF001
            meters = MeterProvider([self._reader], resource=resource, shutdown_on_exit=False)
            self._meter = meters.get_meter("trackside", __version__)
        self._resource, self._log_limits = resource, LogRecordLimits()

    def read(self, event: Event) -> None:
        """Hand *event* on as what it is."""
        if "traces" in self._mails and isinstance(event, _assembly.TELLS):
            for span in self.assembly.read(event):
                self._tell_span(span)
        if isinstance(event, _figures.TELLS):
            if "metrics" in self._mails:
                for figure in self._figures.read(event):
                    self._tell_figure(figure)
                is_span = isinstance(event, IterationEnded) and event.id and "traces" in self._mails
                self._uncollected += not is_span
        elif "logs" in self._mails and not isinstance(event, _SPANS):
            self._tell_log(event)

    def collect(self) -> None:
        """Send the figures as they stand."""
        if "metrics" not in self._mails:
            return
        data = self._reader.get_metrics_data()
        if data is not None and data.resource_metrics:
            events, self._uncollected = self._uncollected, 0
            count = sum(len(scope.metrics) for one in data.resource_metrics for scope in one.scope_metrics)
            self._mails["metrics"].put(data, events=events, size_bytes=_SPAN_BYTES * count)

    # --- spans -------------------------------------------------------------------------------------------------

    def _context(self, span_id: int) -> Context:
        """Return what says that something belongs to span *span_id*, by its id in the trace."""
        around = SpanContext(self._trace_id, span_id, is_remote=True, trace_flags=_SAMPLED)
        return set_span_in_context(NonRecordingSpan(around), Context())

    def _tell_span(self, span: WholeSpan) -> None:
        self._ids.span_id = global_id(self._source, span.id)
        parent = global_id(self._source, span.parent_id) if span.parent_id else self._root_parent
        told = self._tracer.start_span(
            span.name,
            context=self._context(parent) if parent else Context(),
            attributes=attributes_of(span_attributes(span)),
            start_time=span.start_ns,
        )
        for name, attributes, at_ns in happenings_of(span):
            told.add_event(name, attributes_of(attributes), at_ns)
        if span.failed:
            told.set_status(StatusCode.ERROR, failure_of(span))
        told.end(span.end_ns)
        if isinstance(told, ReadableSpan):  # or else the sampler does not want it
            length = _length(told.attributes) + sum(_length(event.attributes) for event in told.events)
            self._mails["traces"].put(told, events=span.events, size_bytes=_SPAN_BYTES + length)

    # --- figures -----------------------------------------------------------------------------------------------

    def _tell_figure(self, figure: Figure) -> None:
        instrument = self._instruments.get((figure.name, figure.kind))
        if instrument is None:
            make = getattr(self._meter, _INSTRUMENTS[figure.kind])
            instrument = self._instruments[figure.name, figure.kind] = make(figure.name, unit=figure.unit)
        take = {"gauge": "set", "histogram": "record"}.get(figure.kind, "add")
        getattr(instrument, take)(figure.value, figure.attributes)

    # --- logs --------------------------------------------------------------------------------------------------

    def _tell_log(self, event: Event) -> None:
        name, severity, attributes = wire_name_of(event), severity_of(event), attributes_of(log_attributes(event))
        record = LogRecord(
            timestamp=event.at_ns,
            context=self._context(global_id(self._source, event.span_id) if event.span_id else 0),
            severity_number=SeverityNumber[severity],
            severity_text=severity,
            body=name,
            event_name=name,
            attributes=attributes,
        )
        told = ReadWriteLogRecord(record, self._resource, _SCOPE, self._log_limits)
        self._mails["logs"].put(told, events=1, size_bytes=_SPAN_BYTES + _length(attributes))


class _Ids(IdGenerator):  # type: ignore[misc]
    """Gives a span the ids that it has already."""

    def __init__(self, trace_id: int) -> None:
        self.trace_id = trace_id
        self.span_id = 0

    def generate_span_id(self) -> int:
        return self.span_id

    def generate_trace_id(self) -> int:
        return self.trace_id


_MAKERS: Final[dict[str, Callable[..., Any]]] = {
    "traces": OTLPSpanExporter,
    "metrics": OTLPMetricExporter,
    "logs": OTLPLogExporter,
}
_INSTRUMENTS: Final = {
    "gauge": "create_gauge",
    "histogram": "create_histogram",
    "count": "create_counter",
    "change": "create_up_down_counter",
}


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """Keep what is done here out of the site's own instrumentation, which would export our exports."""
    around = set_value(_SUPPRESS_HTTP_INSTRUMENTATION_KEY, value=True)
    token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, value=True, context=around))
    try:
        yield
    finally:
        detach(token)


def _length(attributes: Mapping[str, Any] | None) -> int:
    return sum(len(value) for value in (attributes or {}).values() if isinstance(value, str))


def _is_not_ours(record: logging.LogRecord) -> bool:
    return not str(record.threadName).startswith("trackside-opentelemetry")
