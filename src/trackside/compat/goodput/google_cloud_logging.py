"""A job's records in Google Cloud Logging, as ml-goodput-measurement writes and reads them."""

from __future__ import annotations

import datetime
import json
import secrets
from typing import Any, Final

from trackside.compat.goodput._records import Payload, Recorded, WrittenLog
from trackside.events import ConfigError, Handler, RunsOn
from trackside.events._errors import needing_extra
from trackside.handlers.export import BatchExporter, RefusedError

with needing_extra("Google Cloud Logging", "google-cloud-logging"):
    import google.cloud.logging
    from google.api_core import exceptions

RETENTION: Final = datetime.timedelta(days=7)
_OVERLAP: Final = datetime.timedelta(minutes=1)
"""Records that arrived up to this time before the latest one are requested again: one may have been missed."""
_PAGE: Final = 1_000
_BATCH: Final = 500
_FINAL_ERRORS: Final = (exceptions.InvalidArgument, exceptions.NotFound)
"""Answers after which a retry is pointless."""


class GoogleCloudLog(WrittenLog):
    """
    The records of one job in a log of Google Cloud: give it to a recorder, calculator or monitor as ``cloud_logger``.

    Calculators of trackside and of the peer read the records of both recorders.
    Writing takes no longer than publishing an event: a thread sends the records, and repeats those that did not arrive;
    the service keeps each record once. Reading requests the records since the last call, and raises the library's
    errors.

    Args:
        job_name: The job.
        logger_name: The log's id.
        retention: How old a record may be to be read; the peer's seven days unless given.
        client: The client; by default one that the machine's environment configures.

    Raises:
        ConfigError: there are no credentials or no project for a client.
    """

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        *,
        retention: datetime.timedelta = RETENTION,
        client: google.cloud.logging.Client | None = None,
    ) -> None:
        super().__init__(job_name)
        self._logger = (_client() if client is None else client).logger(logger_name)
        self._retention = retention
        self._entries = _Entries(self._logger)
        self.begins_again: bool = False
        """Whether `read_new` last returned all records, because one came that is older than a record read before."""
        self._forget()

    def _forget(self) -> None:
        self._seen: dict[str, datetime.datetime] = {}
        self._arrived: datetime.datetime | None = None
        self._latest: datetime.datetime | None = None

    def _sink(self) -> Handler:
        return self._entries

    @property
    def lost(self) -> int:
        """The number of records that did not arrive."""
        return self._entries.exporter.lost

    def read_new(self) -> list[Payload]:
        """Return the records that came since the last call, in the order of their times; or all, see `begins_again`."""
        found = self._fetch()
        self.begins_again = self._latest is not None and any(entry.timestamp < self._latest for entry in found)
        if self.begins_again:
            self._forget()
            found = self._fetch()
        for entry in found:
            arrived = entry.received_timestamp or entry.timestamp
            self._seen[entry.insert_id] = arrived
            self._arrived = arrived if self._arrived is None else max(arrived, self._arrived)
        if found:
            self._latest = found[-1].timestamp
        if self._arrived is not None:
            oldest = self._arrived - _OVERLAP
            self._seen = {number: arrived for number, arrived in self._seen.items() if arrived >= oldest}
        return [entry.payload for entry in found]

    def _fetch(self) -> list[Any]:
        """Return the entries that were not read yet, in the order of their times."""
        since = datetime.datetime.now(datetime.timezone.utc) - self._retention
        parts = [
            "severity=INFO",
            f"jsonPayload.job_name={json.dumps(self.job_name)}",
            f'timestamp>="{since.isoformat()}"',
        ]
        if self._arrived is not None:
            parts.append(f'receiveTimestamp>="{(self._arrived - _OVERLAP).isoformat()}"')
        answer = self._logger.list_entries(
            filter_=" AND ".join(parts), order_by=google.cloud.logging.ASCENDING, page_size=_PAGE
        )
        return [entry for entry in answer if entry.insert_id not in self._seen and isinstance(entry.payload, dict)]


class _Entries:
    """Sends records to a log, with ids by which the service detects duplicates."""

    runs_on = RunsOn.WORKER

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._prefix = secrets.token_hex(8)
        self._count = 0
        self.exporter: BatchExporter[dict[str, Any]] = BatchExporter(
            self._deliver, name="google-cloud-logging", max_batch_items=_BATCH
        )

    def __call__(self, event: Recorded) -> None:
        text = json.dumps(event.payload, default=str)
        self._count += 1
        entry = {
            "info": json.loads(text),
            "severity": "INFO",
            # The library accepts no nanoseconds.
            "timestamp": datetime.datetime.fromtimestamp(event.at_ns // 1000 / 1e6, datetime.timezone.utc),
            "insert_id": f"{self._prefix}-{self._count:012d}",
        }
        self.exporter.put_or_drop(entry, size_bytes=len(text))

    def flush(self, timeout_s: float) -> bool:
        return self.exporter.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        return self.exporter.close(timeout_s)

    def _deliver(self, entries: list[dict[str, Any]]) -> None:
        batch = self._logger.batch()
        for entry in entries:
            batch.log_struct(**entry)
        try:
            batch.commit()
        except _FINAL_ERRORS as error:
            raise RefusedError(f"{type(error).__name__}: {error.message}"[:200]) from error


def _client() -> google.cloud.logging.Client:
    try:
        return google.cloud.logging.Client()
    except Exception as error:  # the library raises errors of several kinds
        raise ConfigError(
            "credentials", str(error), "run `gcloud auth application-default login`, or give a client"
        ) from error
