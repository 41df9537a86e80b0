"""Curves for TensorBoard, written by torch's own writer; the one module that needs ``tensorboard``."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Final

import attrs

from trackside.events import SIDING, ConfigError, Event, Source
from trackside.handlers._scalars import Scalars

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    raise ConfigError(
        "TensorBoard needs tensorboard and torch", str(error), "install trackside[tensorboard]"
    ) from error

_MOST_RUNS: Final = 256
_FLUSH_EVERY_S: Final = 1.0


@attrs.define
class _Run:
    writer: Any
    unwritten: int = 0
    """Events whose points may not have reached the file."""


class TensorBoardSink:
    """
    Writes goodput, badput, step deviations, durations, training metrics, counters and scores as scalars.

    Each process is a run of its own below *directory*: ``rank-00000.attempt-0``. The tags are those of
    `trackside.handlers._scalars.Scalars`; times are those of the events. A file that cannot be written is given up and,
    with the next event, another begun.

    Args:
        directory: For ``tensorboard --logdir``. Anything that TensorBoard itself can write to.
    """

    runs_on = SIDING

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = os.fspath(directory)
        self.lost = 0
        """Events whose points did not reach the file."""
        self._scalars = Scalars()
        self._runs: dict[str, _Run] = {}
        self._flushed_s = 0.0

    def __call__(self, event: Event) -> None:
        """
        Write the points of *event*; on the siding's thread.

        Raises:
            Exception: of whatever kind the writer raises.
        """
        points = self._scalars.points(event)
        if not points:
            return
        source = event.source
        run = self._runs.get(source.id) or self._begin(source)
        try:
            for point in points:
                run.writer.add_scalar(point.tag, point.value, point.step, walltime=event.at_ns / 1e9)
        except Exception:
            self._give_up(source.id)
            raise
        run.unwritten += 1

    def idle(self) -> None:
        """Bring what was written to the file, so that it is seen; the siding says so when nothing else is to do."""
        if time.monotonic() - self._flushed_s >= _FLUSH_EVERY_S:
            self._flush()

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002  writing to a file cannot be cut short
        """Bring everything to the files; an error of the last one that refused is raised."""
        lost = self.lost
        self._flush()
        return self.lost == lost

    def close(self, timeout_s: float) -> bool:
        """Flush, and finish the files; False if any event was lost."""
        try:
            self.flush(timeout_s)
        finally:
            for source_id in list(self._runs):
                self._runs.pop(source_id).writer.close()
        return not self.lost

    def _begin(self, source: Source) -> _Run:
        if len(self._runs) >= _MOST_RUNS:
            raise ConfigError("TensorBoardSink", f"{len(self._runs) + 1} processes", f"it draws {_MOST_RUNS} at most")
        name = f"rank-{source.rank:05d}.attempt-{source.attempt}"
        if source.role != "main":
            name += f".{source.role}-{source.pid}"
        writer = SummaryWriter(f"{self.directory.rstrip('/')}/{name}", max_queue=100, flush_secs=10)
        run = self._runs[source.id] = _Run(writer)
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
                self._give_up(source_id)
        if failure is not None:
            raise failure

    def _give_up(self, source_id: str) -> None:
        """Leave a file that cannot be written: its writer never recovers."""
        run = self._runs.pop(source_id)
        self.lost += run.unwritten
        with contextlib.suppress(Exception):
            run.writer.close()
