"""
The archive of a stream: its events as Parquet files, run by run and period by period.

The position in the stream up to which a run is archived is stored in the run's part of the table of sources, which is
written after all other files of a batch. A batch begins at that position, and its files are named after it. However a
worker ended, the next one writes the same files again, so each event is in the tables exactly once.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Any, Final

import attrs

from trackside.core import Closing, RateLimitedLog, StopEvent, described
from trackside.events import ConfigError, UnreadableError
from trackside.handlers.export import StreamCursor
from trackside.handlers.nats._stream import StreamAddress, StreamConnection, StreamMessages, messages_by_run, user_of
from trackside.handlers.parquet import ParquetFiles, ParquetStore, SourceTable, outlines_in

PERIOD_S: Final = 3_600.0
_CURSOR: Final = "trackside.cursor"
_GRACE_S: Final = 2.0
"""The time after the end of a period in which messages may come that the server stored within it."""
_REQUEST_S: Final = 10.0
_LEAST_LOOK_S: Final = 1.0
_LOOKS: Final = 10
"""The number of checks in a period."""


class NatsArchive(Closing):
    """
    A worker that writes the events of a stream as Parquet, to a directory or an object store.

    ::

        with NatsArchive("nats://stream.example:4222/acme", "s3://telemetry/acme") as archive:
            archive.serve()

    The tables are those of `ParquetFiles`. A run's events appear in them within a period after they were published.
    However a worker ended, another one that is started continues where the tables end. Two workers at the same time do
    the same work twice, without harm.

    Args:
        address: ``nats://HOST:PORT/STREAM``; if ``/RUN`` or ``/RUN/RANK`` follows, only that part of the stream.
        where: A directory, or a URL such as ``s3://BUCKET/PATH``: see `ParquetStore`.
        period_s: The time that each batch of a run covers, in seconds; longer periods make fewer and larger files.
        options: Arguments of ``nats.connect``.

    Raises:
        ConfigError: *address* or *where* is not valid, or *period_s* is not positive.
    """

    def __init__(self, address: str, where: str, *, period_s: float = PERIOD_S, **options: Any) -> None:
        if not period_s > 0:
            raise ConfigError("period_s", period_s, "give a positive number of seconds")
        self.address: StreamAddress = StreamAddress.parse(address)
        self.store: ParquetStore = ParquetStore(where)
        self.period_s = period_s
        self.counts: Counter[str] = Counter(dict.fromkeys(("batches", "events", "missing", "unreadable", "failed"), 0))
        """
        ``batches`` and ``events`` written; events ``missing`` from the stream; messages that were ``unreadable``;
        times that a run ``failed``.
        """
        user_of(self.address.servers, options)
        self._connection = StreamConnection(self.address.servers, options)
        self._archived: dict[str, int] = {}
        """By run, the number of its messages in the stream when all of them were archived."""
        self._due_s: dict[str, float] = {}
        """By run, the time when its next period can be archived, in seconds since the epoch."""
        self._stop = StopEvent()
        self._trouble = RateLimitedLog()

    def serve(self) -> None:
        """Work until `stop` is called; wait for a server or a store that is away."""
        pause_s = max(_LEAST_LOOK_S, self.period_s / _LOOKS)
        while not self._stop.is_set():
            try:
                self.turn(time.time())
            except Exception as error:  # whatever the libraries raise, the next turn begins from what is stored
                self._trouble.complain("%s: tried again: %s", self.address, described(error))
            finally:
                self._connection.close()
            self._stop.wait(pause_s)

    def stop(self) -> None:
        """Make `serve` return without finishing its batch; may be called on any thread, and by a signal handler."""
        self._stop.set()

    def close(self) -> None:
        """Stop, and disconnect."""
        self.stop()
        self._connection.close()

    def turn(self, now_s: float) -> None:
        """
        Archive the periods that are over at *now_s*, in seconds since the epoch.

        A run that cannot be archived is reported in the log, counted as ``failed``, and tried again by the next turn.

        Raises:
            Exception: An error of the NATS client, if it could not list the runs of the stream.
        """
        amounts = self._connection.call(self._amounts, timeout_s=_REQUEST_S)
        for run, amount in amounts.items():
            try:
                self._write_batches(run, amount, now_s)
            except Exception as error:  # whatever the libraries raise; other runs may succeed
                self.counts["failed"] += 1
                self._trouble.complain("%s: run %s is tried again: %s", self.address, run, described(error))
        for known in (self._archived, self._due_s):
            for run in known.keys() - amounts.keys():
                del known[run]

    def _write_batches(self, run: str, amount: int, now_s: float) -> None:
        """Archive the periods that are over for *run*, which has *amount* messages."""
        while not self._stop.is_set() and self._archived.get(run) != amount and now_s >= self._due_s.get(run, 0.0):
            if not self._write_batch(run, now_s):
                self._archived[run] = amount

    async def _amounts(self, stream: Any) -> Counter[str]:
        """Return the number of messages of each run."""
        info = await stream.stream_info(self.address.stream, subjects_filter=self.address.subject)
        return messages_by_run(info.state.subjects)

    def _write_batch(self, run: str, now_s: float) -> bool:
        """Archive the next period of a run if it is over; return whether the run may have more messages to archive."""
        name = f"{self.address.stream}.{run}"
        known = self.store.read_sources(name)
        cursor = StreamCursor(None if known is None else _cursor(known.schema.metadata, self.store.where))
        subject = attrs.evolve(self.address, run=run).subject
        reader = StreamMessages(self._connection, self.address.stream, subject, follow=False, stop=self._stop)
        with contextlib.closing(reader):  # else the server would keep the consumer for a minute
            messages = reader.read_from(cursor.sequence, cursor.created)
            first = next(messages, None)
            if first is None:
                return False
            end_s = (first.stored_s // self.period_s + 1) * self.period_s
            if now_s < end_s + _GRACE_S:
                self._due_s[run] = end_s + _GRACE_S
                return True
            # Microseconds, because a stream that is created anew begins at the same number, perhaps in the same second.
            stored = datetime.fromtimestamp(first.stored_s, timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
            batch = f"{name}.{stored}.{first.sequence}"
            with self.store.scratch() as directory:
                sources = SourceTable(() if known is None else outlines_in(known))
                files = ParquetFiles(directory, batch=batch, sources=sources)
                cursor.created = reader.created
                for message in chain((first,), messages):
                    if message.stored_s >= end_s:
                        break
                    events = list(cursor.read(message.sequence, message.frame, message.source_json))
                    if events:
                        files.add(events)
                if self._stop.is_set():
                    return False  # the next worker begins with this batch
                files.close_tables()
                sources.write(Path(directory), name, {_CURSOR: json.dumps(cursor.cursor)})
                self.store.publish(Path(directory))
        self.counts.update(batches=1, events=files.events, missing=cursor.missing, unreadable=cursor.unreadable)
        return True


def _cursor(metadata: Mapping[bytes, bytes] | None, where: str) -> Any:
    try:
        return json.loads((metadata or {})[_CURSOR.encode()])
    except (KeyError, ValueError) as error:
        what = "has tables that no archive of a stream wrote"
        raise UnreadableError(where, what, "give another directory") from error
