"""The peer's monitor: uploads on threads of this process, each on its interval and once more at its end."""

from __future__ import annotations

import datetime
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import attrs

from trackside.bus import Bus, default_bus
from trackside.compat.goodput._calculator import GoodputCalculator
from trackside.compat.goodput.goodput_utils import GCPOptions
from trackside.core import StopEvent
from trackside.events import GoodputUpdated, Handler

logger = logging.getLogger(__name__)

FLUSH_S: Final = 10.0
_UNKNOWN: Final[dict[str, Any]] = {"goodput": None, "effective_goodput": None, "badput_s": {}, "informational_s": {}}
"""The fields that only the goodput uploader reports, with the values that the other uploaders send."""


class _Uploader:
    """Calls *upload* on an interval, on a daemon thread that a job need not wait for."""

    def __init__(self, name: str, interval_s: float, upload: Callable[[], object]) -> None:
        self._name = name
        self._interval_s = interval_s
        self._upload = upload
        self._is_over = StopEvent()
        self._is_final = False
        self._thread = threading.Thread(target=self._run, name=f"trackside-{name}", daemon=True)
        self._thread.start()

    def stop(self, *, is_final: bool, timeout_s: float | None) -> None:
        """End the thread, after one more upload if *is_final*; wait at most *timeout_s*."""
        self._is_final = is_final
        self._is_over.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("%s was not done within %s s; its last figures may be missing", self._name, timeout_s)

    def _run(self) -> None:
        while not self._is_over.wait(self._interval_s):
            self._try()
        if self._is_final:
            self._try()

    def _try(self) -> None:
        try:
            self._upload()
        except Exception as error:  # the job must not be affected, and the next upload may succeed
            logger.warning("%s went wrong this time: %s", self._name, error)


class UploadingMonitor:
    """
    Publishes a job's goodput on an interval, as `GoodputUpdated`: to its sinks, and on trackside's bus.

    Args:
        job_name: The job.
        logger_name: The recorder's logger name.
        tensorboard_dir: The scalars are written to ``goodput`` below it.
        upload_interval: The interval of the uploads, in seconds.
        monitoring_enabled: Whether this process monitors; if not, every method does nothing.
        pathway_enabled: Accepted, and not used.
        include_badput_breakdown: Whether badput is reported by bucket.
        include_step_deviation: Whether the deviation of steps can be reported.
        configured_ideal_step_time: The time that a step should take, in seconds; measured unless given.
        step_deviation_interval_seconds: The interval of the uploads of step deviations, in seconds.
        gcp_options: The metrics to send to Google Cloud Monitoring, and their owner. Missing values are read from the
            machine's metadata, which takes a second if it is not one of Google's.
        skip_final_flush: Whether to stop without reporting the last figures.
        final_flush_timeout_seconds: How long stopping may take, in seconds; None for as long as it takes.
        gcs_sync_interval_seconds: Accepted, and not used.
        cache_dir: Accepted, and not used.
        max_logs_retention_period: Accepted, and not used.
        directory: The directory of the records; the one in ``TRACKSIDE_GOODPUT_DIR`` unless given.
        cloud_logger: Stores the records, in place of files.
    """

    _make_calculator: type[GoodputCalculator] = GoodputCalculator

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        tensorboard_dir: str,
        upload_interval: float,
        monitoring_enabled: bool = False,
        pathway_enabled: bool = False,  # noqa: ARG002  the peer's
        include_badput_breakdown: bool = False,
        include_step_deviation: bool = False,
        configured_ideal_step_time: float | None = None,
        step_deviation_interval_seconds: float = 10,
        gcp_options: GCPOptions | None = None,
        skip_final_flush: bool = False,
        final_flush_timeout_seconds: float | None = FLUSH_S,
        gcs_sync_interval_seconds: int = 3600,  # noqa: ARG002
        cache_dir: str = "",  # noqa: ARG002
        max_logs_retention_period: datetime.timedelta | None = None,  # noqa: ARG002
        *,
        directory: str | os.PathLike[str] | None = None,
        cloud_logger: Any = None,
    ) -> None:
        self._is_on = monitoring_enabled
        if not self._is_on:
            return
        self._calculator = self._make_calculator(job_name, logger_name, cloud_logger, directory=directory)
        self._upload_s = upload_interval
        self._deviation_s = step_deviation_interval_seconds
        self._ideal_s = configured_ideal_step_time
        self._reports_badput = include_badput_breakdown
        self._reports_steps = include_step_deviation
        self._skips = skip_final_flush
        self._timeout_s = final_flush_timeout_seconds
        self._windows_s: tuple[float, ...] = ()
        self._reported_ns = 0
        self._uploaders: dict[str, _Uploader] = {}
        self._bus = Bus()
        directory = os.path.join(tensorboard_dir, "goodput")  # noqa: PTH118  it may be a URL
        options = GCPOptions() if gcp_options is None else gcp_options
        for sink in (*self._sinks(directory), *self._cloud_sinks(job_name, options)):
            self._bus.subscribe(sink, to=GoodputUpdated)

    def _sinks(self, directory: str) -> Sequence[Handler]:  # noqa: ARG002  for those that write there
        """Return the sinks of the updates, besides trackside's bus."""
        return ()

    def _cloud_sinks(self, job_name: str, options: GCPOptions) -> Sequence[Handler]:  # noqa: ARG002
        """Return the sinks that send the updates to Google Cloud Monitoring."""
        return ()

    # --- starting and stopping ---------------------------------------------------------------------------------

    def start_goodput_uploader(self) -> None:
        """Upload the goodput, and the badput if that is wanted, on an interval."""
        if self._is_on:
            self._start("goodput uploader", self._upload_s, self._upload_goodput)

    def stop_goodput_uploader(self, skip_final_flush: bool | None = None) -> None:
        """Upload the last figures and stop."""
        if self._is_on:
            self._stop("goodput uploader", self._upload_goodput, skip_final_flush)

    def start_step_deviation_uploader(self) -> None:
        """Upload, on an interval, the deviations of the steps since the last upload."""
        if self._is_on and self._reports_steps:
            self._start("step deviation uploader", self._deviation_s, self._upload_steps)

    def stop_step_deviation_uploader(self, skip_final_flush: bool | None = None) -> None:
        """Upload the last steps' deviations and stop."""
        if self._is_on:
            self._stop("step deviation uploader", self._upload_steps, skip_final_flush)

    def start_rolling_window_goodput_uploader(self, rolling_windows_seconds: Sequence[float]) -> None:
        """Upload the goodput of rolling windows of these lengths, *rolling_windows_seconds*, on an interval."""
        if self._is_on:
            self._windows_s = tuple(rolling_windows_seconds)
            self._start("rolling window uploader", self._upload_s, self._upload_windows)

    def stop_rolling_window_goodput_uploader(self, skip_final_flush: bool | None = None) -> None:
        """Upload the rolling windows once more and stop."""
        if self._is_on:
            self._stop("rolling window uploader", self._upload_windows, skip_final_flush)

    def start_goodput_interval_uploader(self, window_size_seconds: float) -> None:
        """Start the rolling window uploader with one window, under its name in the peer's earlier releases."""
        self.start_rolling_window_goodput_uploader([window_size_seconds])

    def stop_goodput_interval_uploader(self) -> None:
        """Stop the uploader that `start_goodput_interval_uploader` started."""
        self.stop_rolling_window_goodput_uploader()

    def close(self) -> None:
        """Stop all uploads at once, without last figures; the end of the process does the same."""
        if self._is_on:
            for uploader in self._uploaders.values():
                uploader.stop(is_final=False, timeout_s=self._timeout_s)
            self._uploaders.clear()
            self._bus.close(FLUSH_S if self._timeout_s is None else self._timeout_s)

    def _start(self, name: str, interval_s: float, upload: Callable[[], object]) -> None:
        if name in self._uploaders:
            logger.warning("the %s is running already", name)
        else:
            self._uploaders[name] = _Uploader(name, interval_s, upload)

    def _stop(self, name: str, upload: Callable[[], object], skip: bool | None) -> None:
        is_final = not (self._skips if skip is None else skip)
        uploader = self._uploaders.pop(name, None)
        if uploader is None and is_final:
            uploader = _Uploader(name, threading.TIMEOUT_MAX, upload)
        if uploader is not None:
            uploader.stop(is_final=is_final, timeout_s=self._timeout_s)
            self._bus.flush(threading.TIMEOUT_MAX if self._timeout_s is None else self._timeout_s)

    # --- uploading ---------------------------------------------------------------------------------------------

    def _upload_goodput(self) -> None:
        update = self._calculator.update(ideal_s=self._ideal_s)
        self._publish(update, {} if self._reports_badput else {"badput_s": {}, "informational_s": {}})

    def _upload_steps(self) -> None:
        update = self._calculator.update(ideal_s=self._ideal_s, since_ns=self._reported_ns)
        self._reported_ns = update.at_ns
        self._publish(update, _UNKNOWN)

    def _upload_windows(self) -> None:
        self._publish(self._calculator.update(windows_s=self._windows_s), _UNKNOWN)

    def _publish(self, update: GoodputUpdated, changes: dict[str, Any]) -> None:
        # An event gets its number from one bus, so each bus gets a copy.
        for bus in (self._bus, default_bus):
            changed: GoodputUpdated = attrs.evolve(cast("Any", update), **changes)
            bus.log(changed)
