"""Curves for TensorBoard, written with its own event-file writer: neither torch nor TensorFlow is needed."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final, Protocol

import attrs

from trackside.events import ConfigError, Event, RunsOn, Source
from trackside.events._errors import needing_extra
from trackside.events._settings import suggests_settings
from trackside.handlers.export import CurveReader

with needing_extra("TensorBoard", "tensorboard"):
    from tensorboard.compat.proto.event_pb2 import Event as FileEvent
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

_MAX_RUNS: Final = 256
_FLUSH_INTERVAL_S: Final = 1.0


class ScalarWriter(Protocol):
    """The part of a ``SummaryWriter`` that the sink calls; torch's and tensorboardX's both have it."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, walltime: float) -> object:
        """Write a point, at *walltime* in seconds since the epoch."""

    def flush(self) -> object:
        """Bring all points to the file."""

    def close(self) -> object:
        """Flush, and close the file."""


@attrs.define
class _RunWriter:
    writer: ScalarWriter
    unwritten: int = 0
    """Events whose points may not have reached the file."""


@suggests_settings()
class TensorBoardSink:
    """
    Write goodput, badput, step deviations, durations, training metrics, counters and scores as scalars.

    With a directory, each process is a run of its own below it: ``rank-00000.attempt-0``. If a file cannot be written,
    the next event begins another one. With a writer, all points go to the writer, which the sink flushes and does not
    close. The tags are in ``docs/tensorboard.md``; times are those of the events. TensorBoard's scalars are 32-bit
    floats: a value beyond them is an infinity or 0.

    Args:
        destination: A directory for ``tensorboard --logdir``, anywhere that TensorBoard can write to; or a
            ``SummaryWriter`` of torch or tensorboardX.
    """

    runs_on = RunsOn.WORKER

    def __init__(self, destination: str | os.PathLike[str] | ScalarWriter) -> None:
        self._writer: ScalarWriter | None = None
        self._directory = ""
        if isinstance(destination, (str, os.PathLike)):
            self._directory = os.fspath(destination)
        else:
            missing = [name for name in ("add_scalar", "flush") if not hasattr(destination, name)]
            if missing:
                raise ConfigError("destination", destination, "give a directory or a SummaryWriter")
            self._writer = destination
        self.lost: int = 0
        """Events whose points did not reach the file."""
        self._curves = CurveReader()
        self._runs: dict[str, _RunWriter] = {}
        self._flushed_s = 0.0

    def __call__(self, event: Event) -> None:
        """
        Write the points of *event*; called on the sink worker's thread.

        Raises:
            Exception: of the kinds that the writer raises.
        """
        points = self._curves.read(event)
        if not points:
            return
        source = event.source
        run = self._runs.get(source.id) or self._open_run(source)
        try:
            for point in points:
                run.writer.add_scalar(point.tag, point.value, point.step, walltime=event.at_ns / 1e9)
        except Exception:
            self._abandon(source.id)
            raise
        run.unwritten += 1

    def idle(self) -> None:
        """Bring the points to the file, so that they are seen; called when no event waits."""
        if time.monotonic() - self._flushed_s >= _FLUSH_INTERVAL_S:
            self._flush()

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002  writing to a file cannot be cut short
        """Bring all points to the files; an error of the last file that could not be written is raised."""
        lost = self.lost
        self._flush()
        return self.lost == lost

    def close(self, timeout_s: float) -> bool:
        """Flush, and close the files; False if any event was lost."""
        try:
            self.flush(timeout_s)
        finally:
            for source_id in list(self._runs):
                self._close(self._runs.pop(source_id).writer)
        return not self.lost

    def _open_run(self, source: Source) -> _RunWriter:
        if len(self._runs) >= _MAX_RUNS:
            raise ConfigError("TensorBoardSink", f"{len(self._runs) + 1} processes", f"it writes {_MAX_RUNS} at most")
        writer = self._writer
        if writer is None:
            name = f"rank-{source.rank:05d}.attempt-{source.attempt}"
            if source.role != "main":
                name += f".{source.role}-{source.pid}"
            writer = _FileWriter(f"{self._directory.rstrip('/')}/{name}")
        run = self._runs[source.id] = _RunWriter(writer)
        return run

    def _flush(self) -> None:
        self._flushed_s = time.monotonic()
        failure: Exception | None = None
        for source_id, run in list(self._runs.items()):
            try:
                run.writer.flush()
                run.unwritten = 0
            except Exception as error:
                failure = error
                self._abandon(source_id)
        if failure is not None:
            raise failure

    def _abandon(self, source_id: str) -> None:
        """Drop a writer that failed: it never recovers."""
        run = self._runs.pop(source_id)
        self.lost += run.unwritten
        with contextlib.suppress(Exception):
            self._close(run.writer)

    def _close(self, writer: ScalarWriter) -> None:
        if writer is not self._writer:
            writer.close()


class _FileWriter:
    """Scalars in one event file, in the form that torch's ``SummaryWriter`` writes."""

    def __init__(self, directory: str) -> None:
        self._file = EventFileWriter(directory, max_queue_size=100, flush_secs=10)

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, walltime: float) -> None:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=scalar_value)])
        self._file.add_event(FileEvent(wall_time=walltime, step=global_step, summary=summary))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
