"""A job's records in local files, in place of the peer's log in the cloud."""

from __future__ import annotations

import datetime
import json
import os
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from trackside.bus import Bus
from trackside.events import ITERATION, Event, Handler, RunsOn, event
from trackside.handlers.eventlog import Appender

VARIABLE: Final = "TRACKSIDE_GOODPUT_DIR"
_DEFAULT: Final = "goodput"
_SUFFIX: Final = ".jsonl"
_MOST_LINES: Final = 1_000
_MOST_BYTES: Final = 8 << 20
_FLUSH_S: Final = 10.0

Payload = dict[str, Any]


class Log(Protocol):
    """The log that the recorder writes to and the calculator reads from."""

    def write_cloud_logging_entry(self, entry: Payload) -> None:
        """Append a record."""

    def flush(self) -> None:
        """Return once all appended records can be read."""


@event("trackside.compat.goodput.recorded", priority=ITERATION)
class Recorded(Event):
    """A record was made; only the sink that writes the records gets it."""

    payload: dict[str, Any]


class _Lines:
    """Writes records as lines, on a thread of its own."""

    runs_on = RunsOn.WORKER

    def __init__(self, directory: Path, name: str) -> None:
        stem = f"{name}-{os.getpid()}-{secrets.token_hex(4)}"
        self._appender = Appender(directory, lambda part: f"{stem}.{part}{_SUFFIX}")
        self._lines: list[bytes] = []
        self._size_bytes = 0
        self.lost = 0

    def __call__(self, event: Recorded) -> None:
        line = json.dumps(event.payload, separators=(",", ":"), default=str).encode() + b"\n"
        if self._size_bytes + len(line) > _MOST_BYTES:  # this much waits because the disk refuses it
            self.lost += 1
            return
        self._lines.append(line)
        self._size_bytes += len(line)
        if len(self._lines) >= _MOST_LINES:
            self._write()

    def idle(self) -> None:
        self._write()

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002  writing to a file cannot be cut short
        return self._write(insist=True) and not self.lost

    def close(self, timeout_s: float) -> bool:
        done = self.flush(timeout_s)
        self._appender.finish()
        return done

    def _write(self, *, insist: bool = False) -> bool:
        if self._lines and self._appender.write(b"".join(self._lines), events=len(self._lines), insist=insist):
            self._lines.clear()
            self._size_bytes = 0
        return not self._lines


class WrittenLog(ABC):
    """
    A log that writes records on a thread of its own, so that a call takes no longer than publishing an event.

    Args:
        job_name: The job; records of another job are dropped, as the peer does.
    """

    def __init__(self, job_name: str) -> None:
        self.job_name = job_name
        self._bus: Bus | None = None

    @abstractmethod
    def _sink(self) -> Handler:
        """Return the sink of the records; called at the first one."""

    def write_cloud_logging_entry(self, entry: Payload) -> None:
        """Append a record."""
        if entry is None or entry.get("job_name") != self.job_name:
            return
        if self._bus is None:
            self._bus = Bus()
            self._bus.subscribe(self._sink(), to=Recorded)
        self._bus.log(Recorded(payload=entry))

    def flush(self) -> None:
        """Return once all appended records are written, or after 10 s."""
        if self._bus is not None:
            self._bus.flush(_FLUSH_S)

    def close(self) -> None:
        """Write the remaining records and stop; the end of the process does so, too."""
        if self._bus is not None:
            self._bus.close(_FLUSH_S)
            self._bus = None


class LocalLog(WrittenLog):
    """
    The records of one job, below a directory of its own: each process that writes has a file, and all are read.

    Args:
        job_name: Names the directory.
        logger_name: Names the files.
        directory: The directory of the job's directory; by default that in ``TRACKSIDE_GOODPUT_DIR``, else ``goodput``.
    """

    begins_again: bool = False
    """Always False: lines are in the order in which they were written."""

    def __init__(self, job_name: str, logger_name: str, directory: str | os.PathLike[str] | None = None) -> None:
        super().__init__(job_name)
        above = Path(directory or os.environ.get(VARIABLE) or _DEFAULT).absolute()
        self.directory = above / _safe(job_name)
        self._name = _safe(logger_name)
        self._read_bytes: dict[Path, int] = {}
        self._first_s: dict[Path, float] = {}

    def _sink(self) -> Handler:
        return _Lines(self.directory, self._name)

    def read_new(self) -> Iterator[Payload]:
        """Yield the records since the last call: file by file, in the order of their first times."""
        fresh = {path: self._fresh(path) for path in sorted(self.directory.glob(f"*{_SUFFIX}"))}
        for path, payloads in fresh.items():
            if payloads and path not in self._first_s:
                self._first_s[path] = _time(payloads[0])
        for path in sorted((path for path in fresh if fresh[path]), key=lambda path: self._first_s[path]):
            yield from (payload for payload in fresh[path] if payload.get("job_name", self.job_name) == self.job_name)

    def _fresh(self, path: Path) -> list[Payload]:
        start = self._read_bytes.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(start)
                text = file.read()
        except OSError:  # the next call tries again
            return []
        whole = text[: text.rfind(b"\n") + 1]  # an unfinished line is read by a later call
        self._read_bytes[path] = start + len(whole)
        return [payload for line in whole.splitlines() if (payload := _payload(line)) is not None]


class ForeignLog:
    """Reads from a stand-in for the peer's log client, such as the peer's tests pass."""

    begins_again: bool = False

    def __init__(self, client: Any) -> None:
        self._client = client
        self._count = 0

    def read_new(self) -> Iterator[Payload]:
        """Yield the records since the last call."""
        payloads, _ = self._client.read_cloud_logging_entries()
        fresh, self._count = payloads[self._count :], len(payloads)
        yield from fresh


def reader_of(client: Any) -> Any:
    """Return a reader of new records from *client*: the client itself, if it has ``read_new``."""
    return client if hasattr(client, "read_new") else ForeignLog(client)


def _payload(line: bytes) -> Payload | None:
    try:
        payload = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return payload if isinstance(payload, dict) else None


def _time(payload: Payload) -> float:
    times = [value for key, value in payload.items() if key.endswith(("_time", "_timestamp"))]
    return next((value for value in times if isinstance(value, (int, float))), time.time())


def _safe(name: str) -> str:
    """Return *name* as a file name."""
    return re.sub(r"[^\w.-]", "_", name).lstrip(".") or "_"


Time = datetime.datetime | None


class GoodputRecorder:
    """
    Records when a job, its phases and its steps began and ended.

    Args:
        job_name: The job; a name that was used before continues that job.
        logger_name: Names the files.
        logging_enabled: Whether this process records; exactly one process of a job may.
        cloud_logger: Stores the records, in place of files.
        background_grace_period_s: Accepted for compatibility, and ignored.
        background_batch_size: Accepted for compatibility, and ignored.
        background_max_latency_s: Accepted for compatibility, and ignored: records are in the file within 50 ms.
        directory: The directory of the records; the one in ``TRACKSIDE_GOODPUT_DIR`` unless given.
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
        """Return once all records can be read."""
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
        """Record that the initialization of the accelerators begins."""
        self._record("tpu_init_start_time", start_time)

    def record_tpu_init_end_time(self, end_time: Time = None) -> None:
        """Record that the accelerators are initialized."""
        self._record("tpu_init_end_time", end_time)

    def record_training_preparation_start_time(self, start_time: Time = None) -> None:
        """Record that the preparation of the training begins."""
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
        """Record that an event of the user's own begins to delay training."""
        self._record("custom_badput_event_start_time", start_time, custom_badput_event_type=custom_badput_event_type)

    def record_custom_badput_event_end_time(
        self, end_time: Time = None, custom_badput_event_type: str = "unknown"
    ) -> None:
        """Record the end of an event that `record_custom_badput_event_start_time` began."""
        self._record("custom_badput_event_end_time", end_time, custom_badput_event_type=custom_badput_event_type)

    def _record(self, key: str, at: Time, **more: object) -> None:
        if self._log is None:
            return
        at = datetime.datetime.now(datetime.timezone.utc) if at is None else at
        self._log.write_cloud_logging_entry({"job_name": self.job_name, **more, key: at.timestamp()})


class ElasticGoodputRecorder(GoodputRecorder):
    """Records of an elastic job, which continues with fewer slices."""

    def record_elastic_slice_counts(
        self, active_slices: int, total_slices: int, available_slices: int, timestamp: Time = None
    ) -> None:
        """Record how many slices train, how many belong to the job, and how many could train."""
        self._record(
            "elastic_slice_counts_timestamp",
            timestamp,
            active_slices=int(active_slices),
            total_slices=int(total_slices),
            available_slices=int(available_slices),
        )

    def record_elastic_wait_start_time(self, event_type: str, start_time: Time = None) -> None:
        """Record that the job begins to wait for slices; *event_type* contains ``scale_up``, else slices are down."""
        self._record("elastic_wait_start_time", start_time, elastic_wait_event_type=event_type)

    def record_elastic_wait_end_time(self, event_type: str, end_time: Time = None) -> None:
        """Record that the wait is over."""
        self._record("elastic_wait_end_time", end_time, elastic_wait_event_type=event_type)

    def record_elastic_reinit_start_time(self, start_time: Time = None) -> None:
        """Record that the reinitialization for another number of slices begins."""
        self._record("elastic_reinit_start_time", start_time)

    def record_elastic_reinit_end_time(self, end_time: Time = None) -> None:
        """Record that the reinitialization for the new number of slices is over."""
        self._record("elastic_reinit_end_time", end_time)
