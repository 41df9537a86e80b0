"""
Inheritance: child processes of multiprocessing log to their parent's job.

A forked child has its parent's bus. A spawned child has not: `start` leaves a note in the environment, and importing
trackside in such a child subscribes an event log of its own, which opens no file until something is logged. The
metadata may hold secrets, and others may read a child's environment, so it is in a file that only this user can read.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import attrs

from trackside._platform import NO_LINK, READ, lock_file, user_id
from trackside.bus import Subscription, default_bus
from trackside.counters import CounterCollector
from trackside.events import Parent, Source, ambient, follow_process_source, set_process_source
from trackside.handlers import EventLog

VARIABLE: Final = "TRACKSIDE_JOB"

# Linux starts no command whose environment has a variable of 128 KiB.
_MAX_NOTE_BYTES: Final = 16 << 10
_MAX_PRIVATE_CHARACTERS: Final = 1 << 20
_PRIVATE_MODE: Final = 0o600


_announced: Path | None = None
_private: tuple[int, Path, int] | None = None
"""The id of the process that wrote the file of metadata, the file, and the descriptor by which it is locked."""

_PREFIX: Final = "trackside-"
_SUFFIX: Final = ".json"
_MOST_LOOKED_AT: Final = 4096
"""The most entries of the temporary directory that are searched for files of killed processes."""
_NEW_S: Final = 60.0
"""The age in seconds up to which the process that made a file may not have locked it yet."""


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
        _remove_left_behind(Path(tempfile.gettempdir()))
        descriptor, path = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX)  # of mode 0600
        _private = os.getpid(), Path(path), descriptor
        lock_file(descriptor)
        with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
            json.dump(metadata, file)
    except OSError:  # children start without the metadata
        return ""
    return path


def _remove_left_behind(directory: Path) -> None:
    """Remove the files of this user's killed processes: no process locks them any more."""
    with os.scandir(directory) as entries:
        for entry in itertools.islice(entries, _MOST_LOOKED_AT):
            if not (entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX)):
                continue
            with contextlib.suppress(OSError):
                descriptor = os.open(entry.path, READ | NO_LINK)
                try:
                    found = os.fstat(descriptor)
                    is_old = time.time() - found.st_mtime > _NEW_S
                    is_ours = found.st_uid == user_id() and stat.S_IMODE(found.st_mode) == _PRIVATE_MODE
                    if is_ours and is_old and stat.S_ISREG(found.st_mode) and lock_file(descriptor):
                        os.unlink(entry.path)  # noqa: PTH108  an entry has no path object
                finally:
                    os.close(descriptor)


def _remove_private() -> None:
    global _private  # noqa: PLW0603
    if _private is not None and _private[0] == os.getpid():
        with contextlib.suppress(OSError):
            os.close(_private[2])  # before, because Windows removes no file that is open
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


def withdraw(directory: Path) -> None:
    """Remove the note for spawned children, if it is of the job that logs to *directory*."""
    global _announced  # noqa: PLW0603
    if _announced != directory:
        return
    _remove_private()
    os.environ.pop(VARIABLE, None)
    _announced = None  # last: a call that an exception interrupted can be repeated


def _announce_again(source: Source) -> None:
    if _announced is not None:
        announce(_announced, source)


follow_process_source(_announce_again)


def join_parent() -> bool:
    """Join the parent's job if multiprocessing started this process without a fork; return whether it joined."""
    global _inherited, _collector  # noqa: PLW0603  a process inherits once
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
    _collector = default_bus.registry.collect_as_child()
    return True


def leave_parent() -> None:
    """Leave the parent's job, so that this process can start its own."""
    global _inherited, _collector  # noqa: PLW0603
    if _collector is not None:
        default_bus.registry.end_job()
        _collector.close()
        _collector = None
    if _inherited is not None:
        _inherited.close()
        _inherited = None


_inherited: Subscription | None = None
_collector: CounterCollector | None = None


def _is_started_afresh() -> bool:
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # While a spawned child imports its modules, `parent_process` still returns None, but `_inheriting` is set.
    return process.parent_process() is not None or getattr(process.current_process(), "_inheriting", False)
