"""What a job looks like now, for Prometheus to scrape."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from trackside.events import SIDING, ConfigError, Event
from trackside.handlers._board import BUCKETS_S, Board, Family, Histogram

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
        SummaryMetricFamily,
    )
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ConfigError("Prometheus needs its client", str(error), "install trackside[prometheus-client]") from error

_TRY_AGAIN_S: Final = 5.0
_COMPLAIN_EVERY_S: Final = 60.0

_logger = logging.getLogger("trackside")


class PrometheusSink:
    """
    Serves what it was told of, as text on HTTP.

    In a job it shows this process; fed with the events of a whole job (of a collector, a stream, a log that is
    followed) it shows the job. It listens from the first event on; if the port is taken it is tried again, every 5 s as
    events come.

    Args:
        port: Where to listen; None for nowhere, if the *registry* is served already.
        address: On which of this machine's addresses. Only this machine can reach the default one.
        per_rank: Whether every rank has series of its own, too. At a thousand ranks that is 640 KiB a scrape.
        buckets_s: The upper bounds of the buckets of step durations, in seconds.
        stats: ``trackside.stats`` in a job, to tell losses by handler; otherwise they are those of the heartbeats.
        registry: What to register with; one of its own by default.
        options: For ``prometheus_client.start_http_server``: ``certfile``, ``keyfile``, …

    Raises:
        ConfigError: *buckets_s* do not rise.
    """

    runs_on = SIDING

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
        self.board = Board(per_rank=per_rank, buckets_s=buckets_s, stats=stats)
        self.registry = registry if registry is not None else CollectorRegistry()
        self._collector = _Collector(self.board)
        self.registry.register(self._collector)
        self._port = port
        self._address = address
        self._options = options
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._tried_s = self._complained_s = float("-inf")
        self._is_closed = False

    @property
    def is_served(self) -> bool:
        """Whether somebody can scrape it by the port that was given."""
        return self._server is not None

    def __call__(self, event: Event) -> None:
        """Take note of *event*; on the siding's thread."""
        self.board.read(event)
        if self._server is None:
            self._serve()

    def close(self, timeout_s: float) -> bool:
        """Stop serving."""
        self._is_closed = True
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        if self._thread is not None:
            self._thread.join(timeout_s)
        with contextlib.suppress(KeyError):
            self.registry.unregister(self._collector)
        return True

    def _serve(self) -> None:
        now_s = time.monotonic()
        if self._port is None or self._is_closed or now_s - self._tried_s < _TRY_AGAIN_S:
            return
        self._tried_s = now_s
        try:
            self._server, self._thread = start_http_server(
                self._port, addr=self._address, registry=self.registry, **self._options
            )
        except OSError as error:  # of a process before us that is still ending, perhaps
            if now_s - self._complained_s >= _COMPLAIN_EVERY_S:
                self._complained_s = now_s
                _logger.warning("Prometheus cannot scrape %s:%d yet: %s", self._address, self._port, error)


class _Collector(Collector):  # type: ignore[misc]
    """Makes a board's families those of the library, at each scrape."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        """Yield the families as they stand."""
        for family in self._board.families():
            yield self._made(family)

    def describe(self) -> list[Metric]:
        """Name nothing beforehand."""
        return []

    def _made(self, family: Family) -> Metric:
        if family.kind == "histogram":
            made = HistogramMetricFamily(family.name, family.help, labels=family.labels)
            bounds = [*map(str, self._board.buckets_s), "+Inf"]
            for labels, value in family.series:
                assert isinstance(value, Histogram)
                counts = list(zip(bounds, map(float, itertools.accumulate(value.counts)), strict=True))
                made.add_metric(labels, counts, value.total)
            return made
        if family.kind == "summary":
            summary = SummaryMetricFamily(family.name, family.help, labels=family.labels)
            for labels, value in family.series:
                assert isinstance(value, Histogram)
                summary.add_metric(labels, count_value=sum(value.counts), sum_value=value.total)
            return summary
        make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        plain = make(family.name, family.help, labels=family.labels)
        for labels, value in family.series:
            assert not isinstance(value, Histogram)
            plain.add_metric(labels, value)
        return plain
