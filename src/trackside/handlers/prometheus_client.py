"""The current metrics of a job, on a page for Prometheus to scrape."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs

from trackside.events import ConfigError, Event, RunsOn
from trackside.events._errors import needing_extra
from trackside.events._settings import suggests_settings
from trackside.handlers.export import BUCKETS_S, Family, Histogram, JobMetrics, Series
from trackside.wire._values import mended_list

with needing_extra("Prometheus", "prometheus-client"):
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
        SummaryMetricFamily,
    )
    from prometheus_client.registry import Collector

_RETRY_INTERVAL_S: Final = 5.0
_REPORT_INTERVAL_S: Final = 60.0

_logger = logging.getLogger("trackside")


@suggests_settings()
class PrometheusSink:
    """
    Serve the current metrics over HTTP.

    In a job it shows this process. If it gets the events of a whole job (from a collector, a stream or a log that is
    followed), it shows the job. It listens from the first event on. A port that is in use is retried every 5 s, as
    events come.

    Args:
        port: The port to listen on; None to serve no page, if *registry* is served already.
        address: The address to listen on. Only this machine can reach the default one.
        per_rank: Whether each rank has series of its own, too. At a thousand ranks that is 640 KiB a scrape.
        buckets_s: The upper bounds of the buckets of iterations' durations, rising, in seconds.
        stats: ``trackside.stats`` in a job, for losses by handler; by default losses are those of the heartbeats.
        registry: The registry to register with; a new one by default.
        options: Arguments of ``prometheus_client.start_http_server``: ``certfile``, ``keyfile``, …

    Raises:
        ConfigError: *buckets_s* do not rise.
    """

    runs_on = RunsOn.WORKER

    def __init__(
        self,
        port: int | None = 9464,
        *,
        address: str = "127.0.0.1",
        per_rank: bool = False,
        buckets_s: Sequence[float] = BUCKETS_S,
        stats: Callable[[], Any] | None = None,
        registry: CollectorRegistry | None = None,
        **options: Any,
    ) -> None:
        if not buckets_s or any(low >= high for low, high in itertools.pairwise(buckets_s)):
            raise ConfigError("buckets_s", buckets_s, "give upper bounds in seconds, each above the one before")
        self._metrics = JobMetrics(per_rank=per_rank, buckets_s=buckets_s, stats=stats)
        self.registry = registry if registry is not None else CollectorRegistry()
        self._collector = _Collector(self._metrics)
        self.registry.register(self._collector)
        self._port = port
        self._address = address
        self._options = options
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._attempted_s = self._reported_s = float("-inf")
        self._is_closed = False

    @property
    def is_served(self) -> bool:
        """Whether the page is served on the given port."""
        return self._server is not None

    def __call__(self, event: Event) -> None:
        """Update the metrics that *event* changes; called on the sink worker's thread."""
        self._metrics.add(event)
        if self._server is None:
            self._serve()

    def close(self, timeout_s: float) -> bool:
        """Stop serving; False if events came and were never served, because the port was in use."""
        self._is_closed = True
        server, self._server = self._server, None
        was_refused = self._thread is None and self._attempted_s > float("-inf")
        if server is not None:
            server.shutdown()
            server.server_close()
        if self._thread is not None:
            self._thread.join(timeout_s)
        with contextlib.suppress(KeyError):
            self.registry.unregister(self._collector)
        return not was_refused

    def _serve(self) -> None:
        now_s = time.monotonic()
        if self._port is None or self._is_closed or now_s - self._attempted_s < _RETRY_INTERVAL_S:
            return
        self._attempted_s = now_s
        try:
            self._server, self._thread = start_http_server(
                self._port, addr=self._address, registry=self.registry, **self._options
            )
        except OSError as error:  # the port may belong to a predecessor that is still shutting down
            if now_s - self._reported_s >= _REPORT_INTERVAL_S:
                self._reported_s = now_s
                _logger.warning("Prometheus cannot scrape %s:%d yet: %s", self._address, self._port, error)


class _Collector(Collector):  # type: ignore[misc]
    """Convert the families of a job's metrics to those of the library, at each scrape."""

    def __init__(self, metrics: JobMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield the current families."""
        for family in self._metrics.families():
            # One label that is not UTF-8 would make the whole page fail.
            series = [Series(tuple(mended_list(labels)[0]), value) for labels, value in family.series]
            yield self._converted(attrs.evolve(family, series=series))

    def describe(self) -> list[Metric]:
        """Return no families, so that registering reads none."""
        return []

    def _converted(self, family: Family) -> Metric:
        if family.kind == "histogram":
            histogram = HistogramMetricFamily(family.name, family.description, labels=family.labels)
            bounds = [*map(str, self._metrics.buckets_s), "+Inf"]
            for labels, value in family.series:
                assert isinstance(value, Histogram)
                counts = list(zip(bounds, map(float, itertools.accumulate(value.counts)), strict=True))
                histogram.add_metric(labels, counts, value.total)
            return histogram
        if family.kind == "summary":
            summary = SummaryMetricFamily(family.name, family.description, labels=family.labels)
            for labels, value in family.series:
                assert isinstance(value, Histogram)
                summary.add_metric(labels, count_value=sum(value.counts), sum_value=value.total)
            return summary
        create = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        simple = create(family.name, family.description, labels=family.labels)
        for labels, value in family.series:
            assert not isinstance(value, Histogram)
            simple.add_metric(labels, value)
        return simple
