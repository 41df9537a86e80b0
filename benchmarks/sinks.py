"""Sinks of systems behind a network: the cost of one event on the sink's own thread, before it is sent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import prometheus_client
from opentelemetry.sdk.trace import TracerProvider

from benchmarks.measure import Row, compared, interleaved
from trackside.events import IterationEnded, ProfileSpanEnded, Source
from trackside.handlers.opentelemetry import OpenTelemetrySink
from trackside.handlers.prometheus_client import PrometheusSink

_SOURCE = Source(rank=1, run_id="benchmark")
_NOTHING_IS_SENT = {
    "OTEL_BSP_MAX_QUEUE_SIZE": "1",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1000000000",
    "OTEL_BSP_SCHEDULE_DELAY": "1000000000",
}


def _each(make: Callable[[int], Any], consume: Callable[[Any], object]) -> Callable[[int], None]:
    """Return a run that makes events and passes them to a sink."""

    def run(loops: int) -> None:
        for number in range(2, loops + 2):
            consume(make(number))

    return run


def _span(number: int) -> ProfileSpanEnded:
    event = ProfileSpanEnded(span_id=number, parent_span_id=1, name="model_forward", duration_ns=500, step=number)
    event._source = _SOURCE  # noqa: SLF001  as the dispatcher does
    return event


def _iteration(number: int) -> IterationEnded:
    event = IterationEnded(span_id=number, parent_span_id=1, step=number, duration_ns=10**8, samples=8, tokens=64)
    event._source = _SOURCE  # noqa: SLF001  as above
    return event


def rows() -> list[Row]:
    """Measure, and return the rows."""
    os.environ.update(_NOTHING_IS_SENT)
    sink = OpenTelemetrySink("http://127.0.0.1:9", metrics=False, logs=False)
    for name in _NOTHING_IS_SENT:
        del os.environ[name]
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("benchmark")

    def record(event: ProfileSpanEnded) -> None:
        started = event.at_ns - event.duration_ns
        tracer.start_span(event.name, start_time=started, attributes={"step": event.step}).end(time.time_ns())

    spans = interleaved({"trackside": _each(_span, sink), "opentelemetry": _each(_span, record)}, loops=5_000)

    registry = prometheus_client.CollectorRegistry()
    durations = prometheus_client.Histogram("duration", "a benchmark", ["loop"], registry=registry)
    step = prometheus_client.Gauge("step", "a benchmark", registry=registry)
    samples = prometheus_client.Counter("samples", "a benchmark", registry=registry)
    tokens = prometheus_client.Counter("tokens", "a benchmark", registry=registry)

    def observe(event: IterationEnded) -> None:
        durations.labels(event.kind).observe(event.duration_ns / 1e9)
        step.set(event.step)
        samples.inc(event.samples or 0)
        tokens.inc(event.tokens or 0)

    page = PrometheusSink(None)
    runs = {"trackside": _each(_iteration, page), "prometheus_client": _each(_iteration, observe)}
    pages = interleaved(runs, loops=20_000)
    page.close(1)
    return [
        compared("span into OpenTelemetrySink", spans, "trackside", "opentelemetry", 3.0),
        compared("iteration into PrometheusSink", pages, "trackside", "prometheus_client", 1.5),
    ]
