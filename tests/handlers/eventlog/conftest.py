"""Fixtures: disks that fail on demand, a clock that stands still, and frames of real events."""

from __future__ import annotations

import contextlib
import os
import resource

import pytest

from framing import frame_of
from trackside.events import ITERATION, Event, Source, event
from trackside.handlers.eventlog import EventLog
from trackside.handlers.eventlog._appender import create_file
from trackside.handlers.eventlog._format import Record
from trackside.handlers.eventlog._scanner import Damage, Scanner
from trackside.testing import FakeClock


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

    def __init__(self, monkeypatch):
        self.fds = set()
        self.errors = []
        self.room_bytes = None
        self.no_room = OSError(28, "No space left on device")
        self.fsyncs = 0
        self._write, self._fsync = os.write, os.fsync
        monkeypatch.setattr(os, "write", self.write)
        monkeypatch.setattr(os, "fsync", self.fsync)

    def create(self, directory, name):
        """Create a file on this disk."""
        fd = create_file(directory, name)
        self.fds.add(fd)
        return fd

    def write(self, fd, data):
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

    def fsync(self, fd):
        """Stand in for `os.fsync`."""
        self.fsyncs += 1
        self._fsync(fd)


@pytest.fixture
def fake_clock():
    with FakeClock(10**9).installed() as fake:
        yield fake


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


@pytest.fixture
def file_limit():
    """Give a context manager that limits how large files of this process can grow."""

    @contextlib.contextmanager
    def limited(size_bytes):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture
def noted():
    """Give the class of the events in `framed`."""
    return Noted


@pytest.fixture
def framed():
    """Give a function that makes a frame: of a source, its first number, and events."""

    def make(source, first_seq, events, *, last_seq=None, dropped=()):
        return frame_of(source.id, events, first_seq=first_seq, last_seq=last_seq, dropped=dict(dropped))

    return make


@pytest.fixture
def source():
    return Source(run_id="run-1", rank=3, world_size=4, host="host", pid=1)


@pytest.fixture
def contents():
    """Give a function that returns the records of a file, and one after damage fails."""

    def read(path):
        data = path.read_bytes() if hasattr(path, "read_bytes") else bytes(path)
        scanner = Scanner(lambda offset, size: data[offset : offset + size])
        found = [*scanner.scan(), *scanner.finish()]
        assert [item for item in found if isinstance(item, Damage)] == []
        return [item for item in found if isinstance(item, Record)]

    return read


@pytest.fixture
def record(framed, noted):
    """
    Give a function that writes a log of `Noted` events and returns its paths.

    *groups* become a frame each; an event is given as (time, text).
    """

    def write(directory, source, *groups, first_seq=0, end=True, **options):
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
