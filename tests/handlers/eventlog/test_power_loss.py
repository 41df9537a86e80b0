"""
The event log on a disk that loses its power.

All operations of a log on its files are recorded, and each moment of them is a power loss: bytes that were forced to
the device are there; of the rest any sectors are there, as they were at any time since, and any are zeros; the file has
any length that it had; and a file or directory whose name was not forced may be missing. The tests do the same with a
disk that fills up in the middle of a write, whose first half is then cut away, and with logs of several parts.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from trackside import _platform
from trackside.events import Source, UnreadableError
from trackside.handlers.eventlog import EventLog, _appender, replay

SECTOR_BYTES = 512
SOURCE = Source(id="0123456789abcdef", run_id="run-1")


class RecordedDisk:
    """Stands in for the module `os` in the appender, and records the operations on files."""

    def __init__(self, root, *, full_every=0):
        self.root = root
        self.operations = []
        """``(what, path, bytes)`` in order."""
        self._full_every = full_every
        self._writes = 0

    def __getattr__(self, name):
        return getattr(os, name)

    def _path(self, fd):
        return Path(f"/proc/self/fd/{fd}").readlink().relative_to(self.root)

    def mkdir(self, path, mode=0o777, *, dir_fd=None):
        """Make a directory, whose name is not on the disk yet."""
        os.mkdir(path, mode, dir_fd=dir_fd)

    def open(self, path, flags, mode=0o777, *, dir_fd=None):
        """Open a file; a new one has no name on the disk yet."""
        fd = os.open(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT:
            self.operations.append(("create", self._path(fd), b""))
        return fd

    def write(self, fd, data):
        """Write *data*, at most 700 bytes of it; now and then there is no room."""
        self._writes += 1
        if self._full_every and self._writes % self._full_every == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = os.write(fd, data[:700])
        self.operations.append(("write", self._path(fd), bytes(data[:count])))
        return count

    def ftruncate(self, fd, length):
        """Cut a file off."""
        os.ftruncate(fd, length)
        self.operations.append(("cut", self._path(fd), str(length).encode()))

    def fsync(self, fd):
        """Force a file's bytes, or a directory's names, to the disk."""
        self.operations.append(("sync", self._path(fd), b""))


class Disk:
    """The bytes on the disk, and those that are only in the kernel."""

    def __init__(self):
        self.forced, self.written = {}, {}
        self.since = {}
        """The contents of each file since it was forced, at every moment."""
        self.names = set()
        """Of files and directories that were forced."""

    def apply(self, what, path, data):
        """Do one operation."""
        if what == "create":
            self.forced[path] = self.written[path] = b""
            self.since[path] = [b""]
        elif what == "write":
            self.written[path] += data
            self.since[path].append(self.written[path])
        elif what == "cut":
            self.written[path] = self.written[path][: int(data)]
            self.since[path].append(self.written[path])
        elif what == "sync" and path in self.written:
            self.forced[path] = self.written[path]
            self.since[path] = [self.written[path]]
        elif what == "sync":
            below = {known for file in self.written for known in (file, *file.parents)}
            self.names |= {known for known in below if known != Path() and known.parent == path}

    def after_power_loss(self, rng):
        """Return a legal state: the bytes of each file that exists. Without *rng*, only those that were forced."""
        state = {}
        lost = set()
        for path in self.written:
            for known in reversed([path, *path.parents][:-1]):
                if known not in self.names and (rng is None or rng.random() < 0.3):
                    lost.add(known)
            if lost.isdisjoint((path, *path.parents)):
                forced = self.forced[path]
                state[path] = forced if rng is None else forced + self._torn(forced, self.since[path], rng)
        return state

    def _torn(self, forced, since, rng):
        """Return a possible content of a file of which *forced* was forced and *since* was the content since."""
        end = rng.randint(len(forced), max(map(len, since)))
        tail = bytearray(end - len(forced))
        kept = rng.random()
        for at in range(0, len(tail), SECTOR_BYTES):
            if rng.random() <= kept:
                length = min(SECTOR_BYTES, len(tail) - at)
                sector = rng.choice(since)[len(forced) + at :][:length]
                tail[at : at + length] = sector.ljust(length, b"\0")
        return bytes(tail)


@pytest.fixture
def recorded(tmp_path, monkeypatch, framed, noted):
    """Give a function that records events with a log and returns the operations, flushes among them."""

    def run(*, fsync_s, frames=12, full_every=0, rotate_bytes=1 << 20):
        # The directory's own directories are made by the log too.
        root = tmp_path / "disk"
        root.mkdir()
        disk = RecordedDisk(root, full_every=full_every)
        monkeypatch.setattr(_appender, "os", disk)
        monkeypatch.setattr(_platform, "os", disk)
        log = EventLog(root / "jobs" / "runs", fsync_s=fsync_s)
        log._rotate_bytes = rotate_bytes  # less than one may ask for
        log.open(SOURCE)
        for number in range(frames):
            events = [noted(text=f"{seq} {'x' * 50}") for seq in range(3 * number, 3 * number + 3)]
            assert log.accept(framed(SOURCE, 3 * number, events), events=3)
            assert any(log.flush(60) for _ in range(3))  # a full disk is tried again at once
            disk.operations.append(("flushed", Path(), str(3 * number + 3).encode()))
        assert log.close(60)
        monkeypatch.undo()
        return disk.operations

    return run


@pytest.fixture
def replayed(tmp_path):
    """Give a function that replays a state of the disk and returns the events read, and how many are missing."""

    def read(state):
        directory = tmp_path / "after"
        shutil.rmtree(directory, ignore_errors=True)
        for path, data in state.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(data)
        found = []
        try:
            events = replay(directory)
            found.extend(events)
        except UnreadableError as problem:  # no file; or, after all the others, one of zeros
            if not state:
                return [], 0
            if "zeros" not in str(problem):
                raise
        assert all(event.text == f"{event.seq} {'x' * 50}" for event in found)
        return [event.seq for event in found], events.missing

    return read


class TestPowerLoss:
    @pytest.mark.parametrize("kind", [{}, {"rotate_bytes": 1500}, {"rotate_bytes": 1500, "full_every": 5}], ids=str)
    @pytest.mark.parametrize("fsync_s", [0, 1000.0, None], ids=str)
    def test_every_legal_state(self, recorded, replayed, fsync_s, kind, seed):
        """
        The remaining events are read, each once, in order, unchanged; the missing ones before the last are counted.
        """
        rng = random.Random(seed)
        disk, read = Disk(), set()
        for operation in recorded(fsync_s=fsync_s, **kind):
            disk.apply(*operation)
            kept, _ = replayed(disk.after_power_loss(None))
            for _ in range(12):
                numbers, missing = replayed(disk.after_power_loss(rng))
                assert numbers == sorted(set(numbers))
                assert set(kept) <= set(numbers)
                assert missing == (numbers[-1] + 1 - len(numbers) if numbers else 0)
                read.update(numbers)
        assert len(read) > 3  # of twelve frames of three events more than the first was read

    @pytest.mark.parametrize("rotate_bytes", [1 << 20, 1500])
    def test_flushed_and_forced(self, recorded, replayed, rotate_bytes):
        """With fsync_s=0 all flushed events are there after any power loss, from the first event on."""
        disk, counts = Disk(), []
        for what, path, data in recorded(fsync_s=0, rotate_bytes=rotate_bytes):
            disk.apply(what, path, data)
            if what == "flushed":
                numbers, _ = replayed(disk.after_power_loss(None))
                assert numbers == list(range(int(data)))
                counts.append(len(numbers))
        assert counts == list(range(3, 37, 3))
