"""
How child processes of multiprocessing find their parent's telemetry.

A forked child has its parent's bus. A spawned one starts from nothing: `start` leaves a note in the environment, and
importing trackside in such a child subscribes an event log of its own, which opens no file until something is logged.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

import attrs

from trackside.bus import Subscription, default_bus
from trackside.events import Parent, Source, ambient, follow_process_source, set_process_source
from trackside.handlers import EventLog

VARIABLE: Final = "TRACKSIDE_JOB"

# One variable of 128 KiB, and no command can be started any more.
_MAX_NOTE_BYTES: Final = 16 << 10


_announced: Path | None = None


def announce(directory: Path, source: Source) -> None:
    """Leave word for spawned children."""
    global _announced  # noqa: PLW0603  as the environment is the process's
    _announced = directory
    span_id, _ = ambient.get()
    note = _note(directory, source, span_id)
    if len(note) > _MAX_NOTE_BYTES:
        note = _note(directory, attrs.evolve(source, metadata={}, perf_tags=()), span_id)
    os.environ[VARIABLE] = note


def _note(directory: Path, source: Source, span_id: int) -> str:
    return json.dumps({"directory": str(directory), "source": source.to_wire(), "span_id": span_id})


def withdraw() -> None:
    """Take the word back."""
    global _announced  # noqa: PLW0603
    _announced = None
    os.environ.pop(VARIABLE, None)


def _announce_again(source: Source) -> None:
    if _announced is not None:
        announce(_announced, source)


follow_process_source(_announce_again)


def join_parent() -> bool:
    """Join the parent's job if this is a child that multiprocessing started afresh; return whether it is."""
    global _inherited  # noqa: PLW0603  a process inherits once
    note = os.environ.get(VARIABLE)
    if note is None or not _is_started_afresh() or not default_bus.is_idle:
        return False
    try:
        told = json.loads(note)
        parent = Source.from_wire(told["source"])
        log = EventLog(told["directory"])
        child = attrs.evolve(parent.child(), parent=Parent(parent.id, int(told.get("span_id", 0))))
    except Exception:  # a note that somebody garbled must not keep a worker from starting
        return False
    set_process_source(child)
    _inherited = default_bus.subscribe(log)
    return True


def leave_parent() -> None:
    """Leave the parent's job, to start one's own."""
    global _inherited  # noqa: PLW0603
    if _inherited is not None:
        _inherited.close()
        _inherited = None


_inherited: Subscription | None = None


def _is_started_afresh() -> bool:
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # While a spawned child imports the modules it needs it does not know of its parent yet, only that it inherits.
    return process.parent_process() is not None or getattr(process.current_process(), "_inheriting", False)
