"""The peer's calculators over trackside's model."""

from __future__ import annotations

import datetime
import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from trackside.compat.goodput._records import LocalLog, reader_of
from trackside.compat.goodput.exclusion_utils import Interval, normalize_intervals
from trackside.compat.goodput.goodput_utils import (
    BadputType,
    GoodputType,
    IntervalWorkloadMetricDetails,
    WorkloadMetricDetails,
)
from trackside.events import GoodputUpdated
from trackside.handlers.models.goodput import PEER_NAMES, GoodputAccumulator, GoodputResult, PayloadReader, update_of

logger = logging.getLogger(__name__)

Shares: TypeAlias = "dict[BadputType, Any]"
"""Shares by type; that of CUSTOM_BADPUT_EVENTS is a dictionary by the user's type, in capitals."""

_BUCKETS: Final = {BadputType[name]: bucket for bucket, name in PEER_NAMES.items()}
"""Buckets by the peer's type, if its name is not that of the bucket."""


class GoodputCalculator:
    """
    Computes what a job's time was spent on.

    The figures come from trackside's model: they add up, and differ from the peer's figures where those are wrong. A
    call reads the records since the last call. Any thread may call the methods.

    Args:
        job_name: The job.
        logger_name: Ignored: all files of the job are read.
        cloud_logger: Stores the records, in place of files.
        using_pathways: Accepted, and not used.
        max_logs_retention_period: Accepted, and not used: all records count.
        gcs_path: Accepted, and not used.
        cache_dir: Accepted, and not used: there is no cache.
        directory: The directory of the records; the one in ``TRACKSIDE_GOODPUT_DIR`` unless given.
    """

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        cloud_logger: Any = None,
        using_pathways: bool = False,
        max_logs_retention_period: datetime.timedelta | None = None,  # noqa: ARG002  the peer's
        gcs_path: str | None = None,  # noqa: ARG002
        cache_dir: str = "",  # noqa: ARG002
        *,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self.job_name = job_name
        self.using_pathways = using_pathways
        self._log = LocalLog(job_name, logger_name, directory) if cloud_logger is None else reader_of(cloud_logger)
        self._reader = PayloadReader()
        self._model = GoodputAccumulator()
        self._latest: GoodputResult | None = None
        self._latest_ns = 0
        self._deviations: dict[int, float] = {}
        self._lock = threading.Lock()

    def sync_to_gcs(self) -> None:
        """Do nothing: there is no cache to copy."""

    def get_job_goodput(
        self, include_badput_breakdown: bool = False, configured_ideal_step_time: float | None = None
    ) -> tuple[float, Shares, int]:
        """
        Return the goodput in percent, the badput in percent if asked for, and the last productive step.

        Raises:
            ValueError: if no time of the job is known.
        """
        result = self._answer(ideal_s=configured_ideal_step_time)
        return _percent(result), self._breakdown(result) if include_badput_breakdown else {}, result.last_step or 0

    def get_job_goodput_interval(
        self, interval_start: datetime.datetime, interval_end: datetime.datetime
    ) -> tuple[float, Shares, int, float, int]:
        """
        Return the result of `get_job_goodput` for an interval, with its length in seconds and its disruptions.

        The length covers only the part in which there was a job.

        Raises:
            ValueError: if there is no such part.
        """
        result = self._answer(start=interval_start, end=interval_end)
        return (
            _percent(result),
            self._breakdown(result),
            result.last_step or 0,
            result.elapsed_s,
            result.disruptions,
        )

    def get_interval_metric_details(
        self, interval_start: datetime.datetime, interval_end: datetime.datetime
    ) -> IntervalWorkloadMetricDetails:
        """Return an interval's figures as a dictionary; its tables are empty if there was no job in the interval."""
        details = IntervalWorkloadMetricDetails(
            interval_goodput={}, interval_badput={}, interval_size=int((interval_end - interval_start).total_seconds())
        )
        try:
            share, badput, *_ = self.get_job_goodput_interval(interval_start, interval_end)
        except ValueError as error:
            logger.warning("no goodput of the interval: %s", error)
        else:
            details["interval_goodput"] = {GoodputType.TOTAL: share}
            details["interval_badput"] = badput
        return details

    def get_job_goodput_with_exclusions(
        self,
        exclusion_intervals: Iterable[Interval],
        include_badput_breakdown: bool = False,
        configured_ideal_step_time: float | None = None,
    ) -> tuple[float, Shares, int, float]:
        """
        Return the result of `get_job_goodput` without the time in *exclusion_intervals*, and the excluded seconds.

        Intervals that are not in UTC or do not end after they begin are ignored, with a warning.
        """
        exclude = [
            (round(start * 1e6) * 1000, round(end * 1e6) * 1000)
            for start, end in normalize_intervals(exclusion_intervals)
        ]
        result = self._answer(ideal_s=configured_ideal_step_time, exclude=exclude)
        badput = self._breakdown(result) if include_badput_breakdown and result.elapsed_s else {}
        return _percent(result), badput, result.last_step or 0, result.excluded_s

    def get_step_deviation(self, configured_ideal_step_time: float | None = None) -> dict[int, float]:
        """
        Return the deviation of each step's own time from the ideal, in seconds.

        Raises:
            ValueError: if no step is known.
        """
        self._answer(ideal_s=configured_ideal_step_time)
        if not self._deviations:
            raise ValueError("no step times are known")
        return dict(self._deviations)

    def get_job_goodput_details(self) -> WorkloadMetricDetails:
        """Return the latest figures in seconds; empty tables and zeros if none were requested yet."""
        with self._lock:
            result, deviations = self._latest, dict(self._deviations)
        if result is None:
            logger.warning("nothing is known yet: ask for the goodput first")
        badput = {} if result is None else self._by_type(result)
        return WorkloadMetricDetails(
            goodput_time={} if result is None else {GoodputType.TOTAL: result.productive_s},
            badput_time=badput,
            max_productive_step=0 if result is None else result.last_step or 0,
            total_elapsed_time=0.0 if result is None else result.elapsed_s,
            disruption_count=0 if result is None else result.disruptions,
            step_time_deviation=deviations,
            ideal_step_time=0.0 if result is None else result.step_time.ideal_s or 0.0,
            total_excluded_time=0.0 if result is None else result.excluded_s,
        )

    def update(
        self, *, ideal_s: float | None = None, windows_s: Sequence[float] = (), since_ns: int | None = None
    ) -> GoodputUpdated:
        """
        Return the present figures as trackside's event.

        Args:
            ideal_s: The ideal step time, in seconds.
            windows_s: The lengths of rolling windows, in seconds.
            since_ns: Include the steps that ended since then; none unless given.

        Raises:
            ValueError: if no time of the job is known.
        """
        result = self._answer(ideal_s=ideal_s)
        with self._lock:
            since_ns = result.end_ns if since_ns is None else since_ns
            return update_of(self._model, result, at_ns=result.end_ns, windows_s=windows_s, since_ns=since_ns)

    # --- asking the model --------------------------------------------------------------------------------------

    def _answer(
        self,
        *,
        start: datetime.datetime | None = None,
        end: datetime.datetime | None = None,
        ideal_s: float | None = None,
        exclude: Iterable[tuple[int, int]] = (),
    ) -> GoodputResult:
        with self._lock:
            payloads = self._log.read_new()
            if self._log.begins_again:
                self._reader, self._model, self._latest_ns = PayloadReader(), GoodputAccumulator(), 0
            for event in self._reader.read(payloads):
                self._model(event)
                self._latest_ns = max(self._latest_ns, event.at_ns)
            if self.job_name not in self._model.sessions():
                raise ValueError(f"there is no record of the job {self.job_name!r}")
            # Records may be ahead of this machine's clock.
            now_ns = max(time.time_ns(), self._latest_ns)
            result = self._model.result(
                session=self.job_name,
                start_ns=None if start is None else _ns(start),
                end_ns=now_ns if end is None else _ns(end),
                exclude=exclude,
                ideal_step_time_s=ideal_s,
            )
            if not result.elapsed_s and not result.excluded_s:
                raise ValueError(f"no time of the job {self.job_name!r} is known there")
            if start is None:
                self._keep(result)
            return result

    def _keep(self, result: GoodputResult) -> None:
        self._latest = result
        ideal_s = result.step_time.ideal_s
        if ideal_s is not None:
            steps = self._model.step_times(session=self.job_name)
            self._deviations = {step.number: abs(step.net / 1e9 - ideal_s) for step in steps if step.is_sample}

    def _breakdown(self, result: GoodputResult) -> Shares:
        def percent(seconds: float) -> float:
            return 100 * (seconds / result.elapsed_s) if result.elapsed_s else 0.0  # never above 100

        return {
            kind: {name: percent(part) for name, part in found.items()} if isinstance(found, dict) else percent(found)
            for kind, found in self._by_type(result).items()
        }

    def _by_type(self, result: GoodputResult) -> Shares:
        found: Shares = {}
        for kind in BadputType:
            name = _BUCKETS.get(kind, kind.name)
            if kind is BadputType.CUSTOM_BADPUT_EVENTS:
                customs: dict[str, float] = {}
                for custom, seconds in result.badput_s[name].items():
                    customs[custom.upper()] = customs.get(custom.upper(), 0.0) + seconds
                found[kind] = customs
            elif kind is BadputType.DATA_LOADING_ASYNC:
                found[kind] = result.informational_s[name]
            else:
                found[kind] = result.badput_s[name]
        return found


class ElasticGoodputCalculator(GoodputCalculator):
    """A calculator that also knows how many slices trained and how many could."""

    def get_job_goodput_details(self) -> WorkloadMetricDetails:
        """Return the latest figures, with ``stepping_slice_efficiency`` and ``available_slice_efficiency``."""
        details: dict[str, Any] = {**super().get_job_goodput_details()}
        efficiency = self._latest.slice_efficiency if self._latest is not None else None
        if efficiency is not None:
            details["stepping_slice_efficiency"] = efficiency.stepping
            details["available_slice_efficiency"] = efficiency.available
        return details  # type: ignore[return-value]  # the peer's two further keys


def _percent(result: GoodputResult) -> float:
    return 100 * (result.goodput or 0.0)


def _ns(when: datetime.datetime) -> int:
    """Return *when* in ns since the epoch; a time without a zone is in UTC, as the peer requires."""
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.timezone.utc)
    return round(when.timestamp() * 1e6) * 1000
