"""Goodput in Google Cloud Monitoring, under the names that ml-goodput-measurement gives it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from trackside.events import SIDING, ConfigError, Event, GoodputUpdated
from trackside.handlers._courier import NO_ROOM, Courier, RefusedError
from trackside.handlers._figures import flat_badput

try:
    from google.api_core import exceptions
    from google.cloud import monitoring_v3
except ImportError as error:
    raise ConfigError(
        "Google Cloud Monitoring needs its client", str(error), "install trackside[google-cloud-monitoring]"
    ) from error

PREFIX: Final = "compute.googleapis.com/workload/"
RESOURCE: Final = "compute.googleapis.com/Workload"

_VALIDATION: Final = "VALIDATION"
_MOST_SERIES: Final = 200
"""Of one request, by the service's rules."""
_NEVER: Final = (
    exceptions.InvalidArgument,
    exceptions.NotFound,
    exceptions.AlreadyExists,
    exceptions.FailedPrecondition,
    exceptions.OutOfRange,
    exceptions.MethodNotImplemented,
)
"""What the service says of points that it will not take, however often it is asked."""


class Point(NamedTuple):
    """One value of one series."""

    metric: str
    value: float | int
    labels: dict[str, str]


class GoogleCloudMonitoringSink:
    """
    Writes every `GoodputUpdated` as ml-goodput-measurement would: its metrics, labels and resource.

    Subscribe it where the whole job is known, on a collector for example, or on one rank. An update that comes sooner
    than *every_s* after the last one that was sent waits, and the next one takes its place.

    Args:
        project: The project's id.
        location: The zone or region that the job runs in.
        workload_id: The job's name; by default the session's.
        replica_id: Which of several replicas of the job.
        accelerator_type: ``NVIDIA-H100`` for example.
        cluster_name: Set on every series if it is given.
        every_s: Between two requests at least, in seconds; the service takes a point every 5 s at most.
        timeout_s: For each request, in seconds.
        client: One that is configured otherwise than by the machine's surroundings.

    Raises:
        ConfigError: no client can be made: there are no credentials.
    """

    runs_on = SIDING

    def __init__(
        self,
        project: str,
        location: str,
        *,
        workload_id: str | None = None,
        replica_id: str = "0",
        accelerator_type: str = "UNKNOWN",
        cluster_name: str | None = None,
        every_s: float = 30.0,
        timeout_s: float = 10.0,
        client: monitoring_v3.MetricServiceClient | None = None,
    ) -> None:
        self._name = f"projects/{project}"
        self._resource = {"location": location, "replica_id": replica_id}
        self._workload_id = workload_id
        self._labels = {"accelerator_type": accelerator_type}
        self._cluster = {"cluster_name": cluster_name} if cluster_name else {}
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._client = client if client is not None else _client()
        self._waiting: dict[str, GoodputUpdated] = {}
        self._sent_s: dict[str, float] = {}
        self._courier: Courier[GoodputUpdated] = Courier(
            self._deliver, name="google-cloud-monitoring", most_events=1_000, batch_items=1
        )

    @property
    def lost(self) -> int:
        """Updates that were to be sent and did not arrive."""
        return self._courier.lost

    def losses(self) -> dict[str, int]:
        """Return how many updates did not arrive, by reason."""
        return self._courier.losses()

    def __call__(self, event: Event) -> None:
        """Take *event* if it is an update of goodput; on the siding's thread."""
        if isinstance(event, GoodputUpdated):
            self._waiting[event.session] = event
            if time.monotonic() - self._sent_s.get(event.session, float("-inf")) >= self._every_s:
                self._send(event.session)

    def flush(self, timeout_s: float) -> bool:
        """Send the latest updates, also those that came early; False if one did not arrive in time."""
        self._send(*self._waiting)
        return self._courier.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Send the latest updates and stop; False if anything was lost, now or before."""
        self._send(*self._waiting)
        done = self._courier.close(timeout_s)
        with contextlib.suppress(Exception):
            self._client.transport.close()
        return done

    def _send(self, *sessions: str) -> None:
        for session in sessions:
            update = self._waiting.pop(session)
            self._sent_s[session] = time.monotonic()
            if not self._courier.put(update, size_bytes=10_000):
                self._courier.give_up(1, NO_ROOM)

    def _deliver(self, updates: list[GoodputUpdated]) -> None:
        for update in updates:
            series = [self._series(update, point) for point in self._points(update)]
            for start in range(0, len(series), _MOST_SERIES):
                batch = series[start : start + _MOST_SERIES]
                try:
                    self._client.create_time_series(name=self._name, time_series=batch, timeout=self._timeout_s)
                except _NEVER as error:
                    raise RefusedError(f"{type(error).__name__}: {error.message}"[:200]) from error

    def _series(self, update: GoodputUpdated, point: Point) -> monitoring_v3.TimeSeries:
        seconds, nanos = divmod(update.at_ns, 10**9)
        kind = "int64_value" if isinstance(point.value, int) else "double_value"
        return monitoring_v3.TimeSeries(
            metric={"type": PREFIX + point.metric, "labels": point.labels},
            resource={
                "type": RESOURCE,
                "labels": {**self._resource, "workload_id": self._workload_id or update.session},
            },
            points=[
                monitoring_v3.Point(
                    interval=monitoring_v3.TimeInterval(end_time={"seconds": seconds, "nanos": nanos}),
                    value=monitoring_v3.TypedValue({kind: point.value}),
                )
            ],
        )

    def _points(self, update: GoodputUpdated) -> Iterator[Point]:
        labels = {**self._labels, **self._cluster}
        cumulative = {**labels, "window_type": "cumulative"}
        yield Point("goodput_time", float(update.productive_s), {**labels, "goodput_source": "TOTAL"})
        for source, spent in badput_sources(update.badput_s):
            yield Point("badput_time", float(spent), {**labels, "badput_source": source})
        yield Point("disruptions", int(update.disruptions), cumulative)
        yield Point("total_elapsed_time", float(update.elapsed_s), cumulative)
        if update.last_step is not None:
            yield Point("max_productive_steps", int(update.last_step), labels)
        if update.step_time.get("deviation_s") is not None:
            yield Point("step_time_deviation", float(update.step_time["deviation_s"]), labels)
        if update.step_time.get("ideal_s") is not None:
            yield Point("performance", float(update.step_time["ideal_s"]), {})  # there it has no labels either
        for which in ("stepping", "available"):
            if which in update.slice_efficiency:
                whole = {**labels, "window_type": "CUMULATIVE", "rolling_window_size": "0"}
                yield Point(f"{which}_slice_efficiency", float(update.slice_efficiency[which]), whole)
        yield from _of_windows(update.windows, labels)


def badput_sources(badput_s: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the sources of badput and their seconds; what ml-goodput has no name for as custom badput."""
    for source, spent in flat_badput(dict(badput_s)):
        yield (f"CUSTOM_BADPUT_EVENTS.{_VALIDATION}" if source == _VALIDATION else source), spent


def _of_windows(windows: Mapping[str, list[Any]], labels: Mapping[str, str]) -> Iterator[Point]:
    """Yield the rolling windows; there, they are told of in percent."""
    columns = [windows.get(name, []) for name in ("length_s", "elapsed_s", "productive_s", "badput_s")]
    for length_s, elapsed_s, productive_s, badput_s in zip(*columns, strict=False):
        if not elapsed_s:
            continue
        sized = {**labels, "rolling_window_size": str(int(length_s))}
        goodput = Point("interval_goodput", 100 * productive_s / elapsed_s, {**sized, "goodput_source": "TOTAL"})
        yield goodput
        for source, spent in badput_sources(badput_s):
            yield Point("interval_badput", 100 * spent / elapsed_s, {**sized, "badput_source": source})


def _client() -> monitoring_v3.MetricServiceClient:
    try:
        return monitoring_v3.MetricServiceClient()
    except Exception as error:  # the library has errors of several kinds for it
        raise ConfigError(
            "credentials", str(error), "run `gcloud auth application-default login`, or give a client"
        ) from error
