"""Goodput in Google Cloud Monitoring, under the names that ml-goodput-measurement writes."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from trackside.events import ConfigError, Event, GoodputUpdated, RunsOn
from trackside.events._errors import needing_extra
from trackside.events._settings import suggests_settings
from trackside.handlers.export import BatchExporter, Exporting, RefusedError, flat_badput
from trackside.handlers.models.goodput import PEER_NAMES

with needing_extra("Google Cloud Monitoring", "google-cloud-monitoring"):
    from google.api_core import exceptions
    from google.cloud import monitoring_v3

PREFIX: Final = "compute.googleapis.com/workload/"
RESOURCE: Final = "compute.googleapis.com/Workload"

SERIES: Final = ("goodput", "step_deviation", "windows")
"""The groups of series that a sink can send."""

_VALIDATION: Final = "VALIDATION"
_MAX_SERIES: Final = 200
"""The most that the service accepts in one request."""
_INT64_MAX: Final = (1 << 63) - 1
"""The largest step that the service knows; a step of an event may be twice as large."""
_FINAL_ERRORS: Final = (
    exceptions.InvalidArgument,
    exceptions.NotFound,
    exceptions.AlreadyExists,
    exceptions.FailedPrecondition,
    exceptions.OutOfRange,
    exceptions.MethodNotImplemented,
)
"""Answers after which a retry is pointless."""


class _SeriesValue(NamedTuple):
    """One value of one series."""

    metric: str
    value: float | int
    labels: dict[str, str]


@suggests_settings()
class GoogleCloudMonitoringSink(Exporting):
    """
    Write every `GoodputUpdated` with the metrics, labels and resource of ml-goodput-measurement.

    Subscribe it where the whole job is known, on a collector for example, or on one rank. An update that comes within
    *export_interval_s* of the last one that was sent waits, and is replaced by the next one. The service has neither
    NaN nor infinities: such a value is left out and counted in `not_finite`.

    Args:
        project: The project's id.
        location: The zone or region that the job runs in.
        workload_id: The job's name; by default the session's.
        replica_id: The id of this one of several replicas of the job.
        accelerator_type: For example ``NVIDIA-H100``.
        cluster_name: Set on every series if it is given.
        export_interval_s: The least time between two requests, in seconds; the service accepts a point every 5 s.
        timeout_s: The timeout of each request, in seconds.
        only: Which of the series to send: ``goodput``, ``step_deviation``, ``windows``.
        client: The client; by default one that the machine's environment configures.

    Raises:
        ConfigError: there are no credentials for a client, or *only* names an unknown group.
    """

    runs_on = RunsOn.WORKER

    def __init__(
        self,
        project: str,
        location: str,
        *,
        workload_id: str | None = None,
        replica_id: str = "0",
        accelerator_type: str = "UNKNOWN",
        cluster_name: str | None = None,
        export_interval_s: float = 30.0,
        timeout_s: float = 10.0,
        only: Collection[str] = SERIES,
        client: monitoring_v3.MetricServiceClient | None = None,
    ) -> None:
        if not set(only) <= set(SERIES):
            raise ConfigError("only", only, f"give some of {', '.join(SERIES)}")
        self._only = frozenset(only)
        self._name = f"projects/{project}"
        self._resource = {"location": location, "replica_id": replica_id}
        self._workload_id = workload_id
        self._labels = {"accelerator_type": accelerator_type}
        self._cluster = {"cluster_name": cluster_name} if cluster_name else {}
        self._export_interval_s = export_interval_s
        self._timeout_s = timeout_s
        self._client = client if client is not None else _client()
        self._waiting: dict[str, GoodputUpdated] = {}
        self._sent_s: dict[str, float] = {}
        self.not_finite: int = 0
        """Values that were left out because they were NaN or infinite."""
        self._exporter: BatchExporter[GoodputUpdated] = BatchExporter(
            self._deliver, name="google-cloud-monitoring", max_events=1_000, max_batch_items=1
        )

    def __call__(self, event: Event) -> None:
        """Accept *event* if it is an update of goodput; called on the sink worker's thread."""
        if isinstance(event, GoodputUpdated) and next(self._values(event), None) is not None:
            self._waiting[event.session] = event
            if time.monotonic() - self._sent_s.get(event.session, float("-inf")) >= self._export_interval_s:
                self._send(event.session)

    def flush(self, timeout_s: float) -> bool:
        """Send the latest updates, without waiting for the interval; False if one did not arrive in time."""
        self._send(*self._waiting)
        return self._exporter.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Send the latest updates and stop; False if anything was lost, now or before."""
        self._send(*self._waiting)
        done = self._exporter.close(timeout_s)
        with contextlib.suppress(Exception):
            self._client.transport.close()
        return done

    def _send(self, *sessions: str) -> None:
        for session in sessions:
            update = self._waiting.pop(session)
            self._sent_s[session] = time.monotonic()
            self.not_finite += sum(not math.isfinite(value.value) for value in self._values(update))
            self._exporter.put_or_drop(update, size_bytes=10_000)

    def _deliver(self, updates: list[GoodputUpdated]) -> None:
        for update in updates:
            series = [self._series(update, value) for value in self._values(update) if math.isfinite(value.value)]
            for start in range(0, len(series), _MAX_SERIES):
                batch = series[start : start + _MAX_SERIES]
                try:
                    self._client.create_time_series(name=self._name, time_series=batch, timeout=self._timeout_s)
                except _FINAL_ERRORS as error:
                    raise RefusedError(f"{type(error).__name__}: {error.message}"[:200]) from error

    def _series(self, update: GoodputUpdated, value: _SeriesValue) -> monitoring_v3.TimeSeries:
        seconds, nanos = divmod(update.at_ns, 10**9)
        kind = "int64_value" if isinstance(value.value, int) else "double_value"
        return monitoring_v3.TimeSeries(
            metric={"type": PREFIX + value.metric, "labels": value.labels},
            resource={
                "type": RESOURCE,
                "labels": {**self._resource, "workload_id": self._workload_id or update.session},
            },
            points=[
                monitoring_v3.Point(
                    interval=monitoring_v3.TimeInterval(end_time={"seconds": seconds, "nanos": nanos}),
                    value=monitoring_v3.TypedValue({kind: value.value}),
                )
            ],
        )

    def _values(self, update: GoodputUpdated) -> Iterator[_SeriesValue]:
        labels = {**self._labels, **self._cluster}
        cumulative = {**labels, "window_type": "cumulative"}
        if "goodput" in self._only and update.goodput is not None:
            yield _SeriesValue("goodput_time", float(update.productive_s), {**labels, "goodput_source": "TOTAL"})
            for source, spent in badput_sources(update.badput_s):
                yield _SeriesValue("badput_time", float(spent), {**labels, "badput_source": source})
            yield _SeriesValue("disruptions", int(update.disruptions), cumulative)
            yield _SeriesValue("total_elapsed_time", float(update.elapsed_s), cumulative)
            if update.last_step is not None:
                yield _SeriesValue("max_productive_steps", min(int(update.last_step), _INT64_MAX), labels)
        if "step_deviation" in self._only:
            if update.step_time.get("deviation_s") is not None:
                yield _SeriesValue("step_time_deviation", float(update.step_time["deviation_s"]), labels)
            if update.step_time.get("ideal_s") is not None:
                # ml-goodput-measurement sends no labels with it either.
                yield _SeriesValue("performance", float(update.step_time["ideal_s"]), {})
        for kind in ("stepping", "available"):
            if "goodput" in self._only and kind in update.slice_efficiency:
                window = {**labels, "window_type": "CUMULATIVE", "rolling_window_size": "0"}
                yield _SeriesValue(f"{kind}_slice_efficiency", float(update.slice_efficiency[kind]), window)
        if "windows" in self._only:
            yield from _of_windows(update.windows, labels)


def badput_sources(badput_s: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield ml-goodput's sources of badput and their seconds; a bucket that it does not have is custom badput."""
    for bucket, spent_s in flat_badput(badput_s):
        yield (
            (f"CUSTOM_BADPUT_EVENTS.{_VALIDATION}" if bucket == _VALIDATION else PEER_NAMES.get(bucket, bucket)),
            spent_s,
        )


def _of_windows(windows: Mapping[str, list[Any]], labels: Mapping[str, str]) -> Iterator[_SeriesValue]:
    """Yield the values of the rolling windows, in percent."""
    columns = [windows.get(name, []) for name in ("length_s", "elapsed_s", "productive_s", "badput_s")]
    for length_s, elapsed_s, productive_s, badput_s in zip(*columns, strict=False):
        if not elapsed_s:
            continue
        sized = {**labels, "rolling_window_size": str(int(length_s))}
        yield _SeriesValue("interval_goodput", 100 * (productive_s / elapsed_s), {**sized, "goodput_source": "TOTAL"})
        for source, spent in badput_sources(badput_s):
            yield _SeriesValue("interval_badput", 100 * (spent / elapsed_s), {**sized, "badput_source": source})


def _client() -> monitoring_v3.MetricServiceClient:
    try:
        return monitoring_v3.MetricServiceClient()
    except Exception as error:  # the library raises errors of several kinds
        raise ConfigError(
            "credentials", str(error), "run `gcloud auth application-default login`, or give a client"
        ) from error
