"""Spans: opened and closed, and queued for their writer."""

from __future__ import annotations

import math
import pathlib
import tempfile
from collections.abc import Sequence

import nvtx
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.measure import Row, budget, compared, interleaved
from trackside.bus import default_bus
from trackside.handlers import EventLog
from trackside.instruments import span

_LOOPS = 8_000
"""
Half of what the queue holds, so nothing is dropped; enough for one full garbage collection in
each repeat of the peer.
"""


class _Nowhere(SpanExporter):
    """An exporter without a cost, so that the peer's time is the SDK's own."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002  they go nowhere
        """Do nothing."""
        return SpanExportResult.SUCCESS


def rows() -> list[Row]:
    """Measure, and return the rows."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(_Nowhere(), max_queue_size=2 * _LOOPS))
    tracer = provider.get_tracer("benchmark")

    def ours(loops: int) -> None:
        for _ in range(loops):
            with span("step"):
                pass

    def theirs(loops: int) -> None:
        for _ in range(loops):
            with tracer.start_as_current_span("step"):
                pass

    annotation = nvtx.annotate("step")

    def annotated(loops: int) -> None:
        for _ in range(loops):
            with nvtx.annotate("step"):
                pass

    def annotated_again(loops: int) -> None:
        for _ in range(loops):
            with annotation:
                pass

    def settle() -> None:
        default_bus.flush()
        provider.force_flush()

    peers = {"nvtx": annotated, "nvtx, one annotation": annotated_again}
    unheard = interleaved({"trackside": ours, **peers}, loops=_LOOPS)
    with tempfile.TemporaryDirectory() as directory:
        log = EventLog(pathlib.Path(directory) / "ours", fsync_s=None)
        with default_bus.subscribe(log) as subscription:
            runs = {"trackside": ours, "OpenTelemetry": theirs, **peers}
            times = interleaved(runs, loops=_LOOPS, settle=settle)
            if subscription.stats().lost:
                raise RuntimeError("spans were lost: the figures would compare different work")
    provider.shutdown()
    operation = "a span opened and closed, queued to an event log"
    return [
        compared(operation, times, "trackside", "OpenTelemetry", budget(compiled=0.02, pure=0.10)),
        compared(operation, times, "trackside", "nvtx", budget(compiled=1.0)),
        compared(operation, times, "trackside", "nvtx, one annotation", math.inf),
        compared("a span while no handler listens", unheard, "trackside", "nvtx", budget(compiled=0.5)),
        compared("the same", unheard, "trackside", "nvtx, one annotation", math.inf),
    ]
