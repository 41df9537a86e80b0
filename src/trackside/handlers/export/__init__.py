"""The parts that sinks share: the batch exporter, the metric catalogue, the span assembler and the curves."""

from trackside.handlers.export._batch_exporter import CLOSED, QUEUE_FULL, BatchExporter, Exporting, RefusedError
from trackside.handlers.export._job_metrics import BUCKETS_S, Family, Histogram, JobMetrics, Series
from trackside.handlers.export._metric_catalogue import (
    CATALOGUE,
    METRIC_EVENTS,
    Metric,
    MetricPoint,
    MetricReader,
    flat_badput,
)
from trackside.handlers.export._span_assembler import SPAN_EVENTS, CompletedSpan, SpanAssembler
from trackside.handlers.export._stream_cursor import SourcedDecoder, StreamCursor, encoded_source
from trackside.handlers.export._tracker import CurvePoint, CurveReader, RunUpdate, TrackerSink, run_identity, run_name

__all__ = [
    "BUCKETS_S",
    "CATALOGUE",
    "CLOSED",
    "METRIC_EVENTS",
    "QUEUE_FULL",
    "SPAN_EVENTS",
    "BatchExporter",
    "CompletedSpan",
    "CurvePoint",
    "CurveReader",
    "Exporting",
    "Family",
    "Histogram",
    "JobMetrics",
    "Metric",
    "MetricPoint",
    "MetricReader",
    "RefusedError",
    "RunUpdate",
    "Series",
    "SourcedDecoder",
    "SpanAssembler",
    "StreamCursor",
    "TrackerSink",
    "encoded_source",
    "flat_badput",
    "run_identity",
    "run_name",
]
