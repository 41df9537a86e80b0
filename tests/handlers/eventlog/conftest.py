"""Fixtures: disks that fail on demand, a clock that stands still, and frames of real events."""

from __future__ import annotations

import contextlib
import os
import resource
from typing import TYPE_CHECKING, Any

import pytest

from framing import frame_of
from trackside.events import ITERATION, Event, Source, event
from trackside.handlers.eventlog import EventLog
from trackside.handlers.eventlog._appender import create_file
from trackside.handlers.eventlog._format import Record
from trackside.handlers.eventlog._scanner import Damage, Scanner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path


@event("test.eventlog.noted", priority=ITERATION)
class Noted(Event):
    """An event for the log."""

    text: str = ""
    number: int = 0


class Disk:
    """
    A real disk that fails on demand.

    `errors` are raised by the next writes, one each; `room_bytes` is the room until writes get short.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fds: set[int] = set()
        self.errors: list[OSError] = []
        self.room_bytes: int | None = None
        self.no_room = OSError(28, "No space left on device")
        self.fsyncs = 0
        self._write, self._fsync = os.write, os.fsync
        monkeypatch.setattr(os, "write", self.write)
        monkeypatch.setattr(os, "fsync", self.fsync)

    def create(self, directory: Path, name: str) -> int:
        """Create a file on this disk."""
        fd = create_file(directory, name)
        self.fds.add(fd)
        return fd

    def write(self, fd: int, data: bytes) -> int:
        """Stand in for `os.write`."""
        if fd not in self.fds:
            return self._write(fd, data)
        if self.errors:
            raise self.errors.pop(0)
        if self.room_bytes is not None:
            if self.room_bytes == 0:
                raise self.no_room
            data = data[: self.room_bytes]
            self.room_bytes -= len(data)
        return self._write(fd, data)

    def fsync(self, fd: int) -> None:
        """Stand in for `os.fsync`."""
        self.fsyncs += 1
        self._fsync(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def file_limit() -> Callable[[int], AbstractContextManager[None]]:
    """Give a context manager that limits how large files of this process can grow."""

    @contextlib.contextmanager
    def limited(size_bytes: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture
def noted() -> type[Noted]:
    """Give the class of the events in `framed`."""
    return Noted


@pytest.fixture
def framed() -> Callable[..., bytes]:
    """Give a function that makes a frame: of a source, its first number, and events."""

    def make(
        source: Source,
        first_seq: int,
        events: Iterable[Event],
        *,
        last_seq: int | None = None,
        dropped: Mapping[str, int] | Iterable[tuple[str, int]] = (),
    ) -> bytes:
        return frame_of(source.id, events, first_seq=first_seq, last_seq=last_seq, dropped=dict(dropped))

    return make


@pytest.fixture
def source() -> Source:
    return Source(run_id="run-1", rank=3, world_size=4, host="host", pid=1)


@pytest.fixture
def contents() -> Callable[[Any], list[Record]]:
    """Give a function that returns the records of a file, and one after damage fails."""

    def read(path: Any) -> list[Record]:
        data = path.read_bytes() if hasattr(path, "read_bytes") else bytes(path)
        scanner = Scanner(lambda offset, size: data[offset : offset + size])
        found = [*scanner.scan(), *scanner.finish()]
        assert [item for item in found if isinstance(item, Damage)] == []
        return [item for item in found if isinstance(item, Record)]

    return read


@pytest.fixture
def record(framed: Callable[..., bytes], noted: type[Noted]) -> Callable[..., list[Path]]:
    """
    Give a function that writes a log of `Noted` events and returns its paths.

    *groups* become a frame each; an event is given as (time, text).
    """

    def write(
        directory: Path,
        source: Source,
        *groups: Iterable[tuple[int, str]],
        first_seq: int = 0,
        end: bool = True,
        **options: Any,
    ) -> list[Path]:
        log = EventLog(directory, **options)
        log.open(source)
        seq = first_seq
        for group in groups:
            events = [noted(at_ns=at_ns, text=text, span_id=0, step=-1) for at_ns, text in group]
            assert log.accept(framed(source, seq, events), events=len(events))
            assert log.flush(60)
            seq += len(events)
        if end:
            assert log.close(60)
        return log.paths

    return write
