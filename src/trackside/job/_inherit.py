"""
Inheritance: child processes of multiprocessing log to their parent's job.

A forked child has its parent's bus. A spawned one starts from nothing: `start` leaves a note in the environment, and
importing trackside in such a child subscribes an event log of its own, which opens no file until something is logged.
The metadata may hold secrets, and others may read a child's environment, so it goes into a file of this user alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import attrs

from trackside._platform import NO_LINK, READ, user_id
from trackside.bus import Subscription, default_bus
from trackside.events import Parent, Source, ambient, follow_process_source, set_process_source
from trackside.handlers import EventLog

VARIABLE: Final = "TRACKSIDE_JOB"

# With one variable of 128 KiB no command can be started any more.
_MAX_NOTE_BYTES: Final = 16 << 10
_MAX_PRIVATE_CHARACTERS: Final = 1 << 20


_announced: Path | None = None
_private: tuple[int, Path] | None = None
"""The id of the process that wrote the file of metadata, and the file."""


def announce(directory: Path, source: Source) -> None:
    """Leave a note for spawned children."""
    global _announced  # noqa: PLW0603  as the environment is the process's
    _announced = directory
    note = _note(directory, source)
    if len(note) > _MAX_NOTE_BYTES:
        note = _note(directory, attrs.evolve(source, perf_tags=()))
    os.environ[VARIABLE] = note


def _note(directory: Path, source: Source) -> str:
    note = {
        "directory": str(directory),
        "source": attrs.evolve(source, metadata={}).to_wire(),
        "span_id": ambient.get()[0],
        "metadata": _write_private(source.metadata),
    }
    return json.dumps(note)


def _write_private(metadata: dict[str, str]) -> str:
    """Write *metadata* to a file that only this user can read; return its path, empty if there is no file."""
    global _private  # noqa: PLW0603
    _remove_private()
    if not metadata:
        return ""
    try:
        descriptor, path = tempfile.mkstemp(prefix="trackside-", suffix=".json")  # of mode 0600
        _private = os.getpid(), Path(path)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(metadata, file)
    except OSError:  # children start without the metadata
        return ""
    return path


def _remove_private() -> None:
    global _private  # noqa: PLW0603
    if _private is not None and _private[0] == os.getpid():
        with contextlib.suppress(OSError):
            _private[1].unlink()
    _private = None


def _read_private(path: str) -> dict[str, str]:
    """Return the metadata in the file at *path*; empty if the file is another user's or cannot be read."""
    if not path:
        return {}
    try:
        with open(os.open(path, READ | NO_LINK), encoding="utf-8") as file:  # noqa: PTH123  no link
            if user_id() in (None, os.fstat(file.fileno()).st_uid):
                metadata: dict[str, str] = json.loads(file.read(_MAX_PRIVATE_CHARACTERS))
                return metadata
    except (OSError, ValueError):  # the child starts without the metadata
        pass
    return {}


def withdraw() -> None:
    """Remove the note for spawned children."""
    global _announced  # noqa: PLW0603
    _announced = None
    _remove_private()
    os.environ.pop(VARIABLE, None)


def _announce_again(source: Source) -> None:
    if _announced is not None:
        announce(_announced, source)


follow_process_source(_announce_again)


def join_parent() -> bool:
    """Join the parent's job if multiprocessing started this process without a fork; return whether it joined."""
    global _inherited  # noqa: PLW0603  a process inherits once
    note = os.environ.get(VARIABLE)
    if note is None or not _is_started_afresh() or not default_bus.is_idle:
        return False
    try:
        described = json.loads(note)
        parent = Source.from_wire(described["source"])
        log = EventLog(described["directory"])
        child = attrs.evolve(
            parent.child(),
            parent=Parent(parent.id, int(described.get("span_id", 0))),
            metadata=_read_private(described.get("metadata", "")),
        )
    except Exception:  # a garbled note must not keep a worker from starting
        return False
    set_process_source(child)
    _inherited = default_bus.subscribe(log)
    return True


def leave_parent() -> None:
    """Leave the parent's job, so that this process can start its own."""
    global _inherited  # noqa: PLW0603
    if _inherited is not None:
        _inherited.close()
        _inherited = None


_inherited: Subscription | None = None


def _is_started_afresh() -> bool:
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # While a spawned child imports its modules, `parent_process` still returns None, but `_inheriting` is set.
    return process.parent_process() is not None or getattr(process.current_process(), "_inheriting", False)
