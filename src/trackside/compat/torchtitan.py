"""
torchtitan's structured logger, on trackside's bus.

::

    export TITAN_STRUCT_LOGGER_HANDLERS=trackside.compat.torchtitan.register_trackside_handler

`trackside.handlers.torchtitan` and ``trackside import`` read the JSON lines that it wrote in finished runs.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from typing import Any, Final

from trackside.bus import Bus, default_bus
from trackside.events import TracksideError
from trackside.handlers.torchtitan import TitanReader, TitanRecord
from trackside.instruments import next_id
from trackside.job import start

_logger = logging.getLogger("trackside")

_QUEUE: Final = "torchtitan.observability.structured_logger.structured_logging"
"""The module of torchtitan that queues records for its handlers, in some versions."""
_FLUSH_S: Final = 2.0


def register_trackside_handler(
    *, structured_logger: logging.Logger, rank: int, source: str, output_dir: str, **_others: Any
) -> None:
    """
    Attach a handler that brings torchtitan's records onto the bus; a factory for ``TITAN_STRUCT_LOGGER_HANDLERS``.

    If telemetry is not on yet, it is turned on, with its event log in ``trackside`` below *output_dir*.

    Args:
        structured_logger: torchtitan's logger.
        rank: The rank, as torchtitan sees it; trackside takes its own from the launcher.
        source: The kind of this process.
        output_dir: The directory of the run's files.
    """
    if default_bus.is_idle:
        try:
            start(os.path.join(output_dir, "trackside"))  # noqa: PTH118  whatever kind of path it is
        except TracksideError as error:
            _logger.warning("torchtitan's records of %s rank %d are not recorded: %s", source, rank, error)
            return
    handler = TitanHandler()
    structured_logger.addHandler(handler)
    # Called before the end of telemetry, which was registered earlier; torchtitan and logging end after both.
    atexit.register(_end, handler)


def _end(handler: TitanHandler) -> None:
    """Read the records that torchtitan still queues for its handlers, and end the last iteration."""
    try:
        flush = getattr(sys.modules.get(_QUEUE), "flush_structured_logger", None)
        if flush is not None:
            flush(_FLUSH_S)
        handler.end_iteration()
    except Exception as error:
        _logger.warning("the last of torchtitan's records are not recorded", exc_info=error)


class TitanHandler(logging.Handler):
    """
    Brings torchtitan's records onto a bus.

    Args:
        bus: The bus, if not the default one.
    """

    def __init__(self, bus: Bus = default_bus) -> None:
        super().__init__()
        self._bus = bus
        self._reader = TitanReader(next_id)
        self._last_ns = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Log the events that *record* completes; logging calls this under the handler's lock."""
        try:
            found = _record(record)
            if found is not None:
                self._last_ns = found.at_ns
                for event in self._reader.read(found):
                    self._bus.log(event)
        except Exception:
            self.handleError(record)

    def end_iteration(self) -> None:
        """End the iteration that is open, if one is."""
        with self.lock or contextlib.nullcontext():
            for event in self._reader.finish(self._last_ns):
                self._bus.log(event)

    def close(self) -> None:
        """End the last iteration."""
        self.end_iteration()
        super().close()


def _record(record: logging.LogRecord) -> TitanRecord | None:
    name = getattr(record, "log_type_name", None)
    if not isinstance(name, str):
        return None  # plain text in the structured logger
    # If a thread of torchtitan passed the record on, the record names the thread that logged it, and its step.
    logged_in = getattr(record, "logging_thread_state", None)
    step, value = getattr(record, "step", None), getattr(record, "value", None)
    if step is None:
        step = getattr(logged_in, "step", None)
    return TitanRecord(
        name=name,
        at_ns=round(record.created * 1e9),
        is_span=str(getattr(record, "log_type", "event")) == "event",
        step=step if isinstance(step, int) else -1,
        value=float(value) if isinstance(value, (int, float)) else None,
        metric=str(getattr(record, "event_name", "")) if name == "metric_value" else "",
        track=(str(getattr(record, "task_name", None) or ""), getattr(logged_in, "tid", None) or threading.get_ident()),
        message=record.getMessage()[:1_000],
    )
