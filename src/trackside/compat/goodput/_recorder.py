"""The recorders of ml-goodput-measurement: a record for each start and each end."""

from __future__ import annotations

import datetime
import os

from trackside.compat.goodput._records import LocalLog, Log

Time = datetime.datetime | None


class GoodputRecorder:
    """
    Records when a job, its phases and its steps began and ended.

    Args:
        job_name: The job; a name that was used before continues that job.
        logger_name: Names the files.
        logging_enabled: Whether this process records; exactly one process of a job may.
        cloud_logger: Takes the records instead of files.
        background_grace_period_s: Accepted for compatibility, and ignored.
        background_batch_size: Accepted for compatibility, and ignored.
        background_max_latency_s: Accepted for compatibility, and ignored: records are in the file within 50 ms.
        directory: Where the files go; what ``TRACKSIDE_GOODPUT_DIR`` names unless given.
    """

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        logging_enabled: bool = False,
        cloud_logger: Log | None = None,
        *,
        background_grace_period_s: float = 5.0,  # noqa: ARG002  the peer's
        background_batch_size: int = 100,  # noqa: ARG002
        background_max_latency_s: float = 2.0,  # noqa: ARG002
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self.job_name = job_name
        self._log: Log | None = None
        if logging_enabled:
            self._log = LocalLog(job_name, logger_name, directory) if cloud_logger is None else cloud_logger

    def flush(self) -> None:
        """Return when what was recorded can be read."""
        if self._log is not None:
            self._log.flush()

    def record_step_start_time(self, step: int, start_time: Time = None) -> None:
        """Record that *step* begins."""
        self._record("step_start_time", start_time, step_count=int(step))

    def record_checkpoint_progress(self, step: int, checkpoint_start_time: Time) -> None:
        """Do nothing, as the peer does."""

    def record_job_start_time(self, start_time: Time = None) -> None:
        """Record that the job begins, or begins again."""
        self._record("job_start_time", start_time)

    def record_job_end_time(self, end_time: Time = None) -> None:
        """Record that the job came to a good end."""
        self._record("job_end_time", end_time)

    def record_tpu_init_start_time(self, start_time: Time = None) -> None:
        """Record that the accelerators begin to be initialized."""
        self._record("tpu_init_start_time", start_time)

    def record_tpu_init_end_time(self, end_time: Time = None) -> None:
        """Record that the accelerators are initialized."""
        self._record("tpu_init_end_time", end_time)

    def record_training_preparation_start_time(self, start_time: Time = None) -> None:
        """Record that the training begins to be prepared."""
        self._record("training_prep_start_time", start_time)

    def record_training_preparation_end_time(self, end_time: Time = None) -> None:
        """Record that the training is prepared."""
        self._record("training_prep_end_time", end_time)

    def record_data_loading_start_time(self, start_time: Time = None) -> None:
        """Record that the training begins to wait for data."""
        self._record("data_loading_start_time", start_time)

    def record_data_loading_end_time(self, end_time: Time = None) -> None:
        """Record that the data is there."""
        self._record("data_loading_end_time", end_time)

    def record_custom_badput_event_start_time(
        self, start_time: Time = None, custom_badput_event_type: str = "unknown"
    ) -> None:
        """Record that something of the user's own begins to hold up the training."""
        self._record("custom_badput_event_start_time", start_time, custom_badput_event_type=custom_badput_event_type)

    def record_custom_badput_event_end_time(
        self, end_time: Time = None, custom_badput_event_type: str = "unknown"
    ) -> None:
        """Record that what `record_custom_badput_event_start_time` began is over."""
        self._record("custom_badput_event_end_time", end_time, custom_badput_event_type=custom_badput_event_type)

    def _record(self, key: str, at: Time, **more: object) -> None:
        if self._log is None:
            return
        at = datetime.datetime.now(datetime.timezone.utc) if at is None else at
        self._log.write_cloud_logging_entry({"job_name": self.job_name, **more, key: at.timestamp()})


class ElasticGoodputRecorder(GoodputRecorder):
    """Records of a job that goes on with fewer slices, too."""

    def record_elastic_slice_counts(
        self, active_slices: int, total_slices: int, available_slices: int, timestamp: Time = None
    ) -> None:
        """Record how many slices train, belong to the job, and could train."""
        self._record(
            "elastic_slice_counts_timestamp",
            timestamp,
            active_slices=int(active_slices),
            total_slices=int(total_slices),
            available_slices=int(available_slices),
        )

    def record_elastic_wait_start_time(self, event_type: str, start_time: Time = None) -> None:
        """Record that the job begins to wait for slices: *event_type* has ``scale_up`` in it, or means slices down."""
        self._record("elastic_wait_start_time", start_time, elastic_wait_event_type=event_type)

    def record_elastic_wait_end_time(self, event_type: str, end_time: Time = None) -> None:
        """Record that the wait is over."""
        self._record("elastic_wait_end_time", end_time, elastic_wait_event_type=event_type)

    def record_elastic_reinit_start_time(self, start_time: Time = None) -> None:
        """Record that the job begins to set itself up for another number of slices."""
        self._record("elastic_reinit_start_time", start_time)

    def record_elastic_reinit_end_time(self, end_time: Time = None) -> None:
        """Record that the job has set itself up for the new number of slices."""
        self._record("elastic_reinit_end_time", end_time)
