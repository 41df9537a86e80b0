"""The event log as a frame sink, on disks that fail."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from trackside.bus import Bus
from trackside.events import ConfigError, Source
from trackside.handlers.eventlog import EventLog, Loss
from trackside.handlers.eventlog._format import (
    MAX_PAYLOAD_BYTES,
    Ending,
    Kind,
    decode_ending,
    decode_header,
    decode_loss,
)
from waiting import until

MIB = 1 << 20
DEADLINE_S = 20.0


@pytest.fixture
def opened(tmp_path, source):
    """Give a function that opens a log in ``logs``; all are closed in the end."""
    logs = []

    def make(create=None, **options):
        log = EventLog(tmp_path / "logs", **options)
        logs.append(log)
        log.open(source)
        if create is not None:
            log._appender._create = create
        return log

    yield make
    for log in logs:
        log.close(0.1)


@pytest.fixture
def frames_in(contents):
    """Give a function that returns the frames of a file."""
    return lambda path: [record.payload for record in contents(path) if record.kind == Kind.FRAME]


@pytest.fixture
def gaps_in(contents):
    """Give a function that returns the gap records of a file, without their times."""

    def read(path):
        losses = [decode_loss(record.payload) for record in contents(path) if record.kind == Kind.GAP]
        return [(loss.events, loss.size_bytes, loss.reason) for loss in losses]

    return read


class Pipe:
    """A disk that accepts 64 KiB and then nothing, until it is read."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        self.data = b""

    def create(self, directory, name):
        """Open the pipe for a file."""
        return os.dup(self.writer)

    def drain(self, log):
        """Read all bytes that *log* has to write, until it closes its end; return the result of its close."""
        pieces = []
        thread = threading.Thread(target=lambda: pieces.extend(iter(lambda: os.read(self.reader, MIB), b"")))
        thread.start()
        closed = log.close(DEADLINE_S)
        os.close(self.writer)
        thread.join(DEADLINE_S)
        self.data = b"".join(pieces)
        return closed

    def close(self):
        """Close the reading end."""
        os.close(self.reader)


@pytest.fixture
def pipe():
    pipe = Pipe()
    yield pipe
    pipe.close()


class TestConfiguration:
    def test_frame_sink(self, tmp_path):
        """The bus recognises the log as a frame sink."""
        assert Bus().subscribe(EventLog(tmp_path)).stats().runs_on == "frames"

    @pytest.mark.parametrize("below", ["", "/deep/er"])
    def test_file_for_directory(self, tmp_path, below):
        """A directory that is a file, or lies below one, is refused at once, with the file's name and a remedy."""
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(ConfigError, match=r"directory: .*/file.* is no directory; name another"):
            EventLog(f"{tmp_path}/file{below}")

    @pytest.mark.parametrize(
        "options",
        [{"fsync_s": -1.0}, {"rotate_bytes": 1000}, {"buffer_bytes": MIB - 1}, {"flush_s": 0.0}],
        ids=lambda options: next(iter(options)),
    )
    def test_range(self, tmp_path, options):
        """A number out of range is refused with the setting's name."""
        with pytest.raises(ConfigError, match=next(iter(options))):
            EventLog(tmp_path, **options)

    def test_unwritable_source(self, tmp_path):
        """A source that cannot be written is refused when the log is opened."""
        with pytest.raises(ConfigError):
            EventLog(tmp_path).open(Source(metadata={"x": object()}))

    def test_relative_directory(self, tmp_path, monkeypatch):
        """A relative directory is resolved when the log is made, not when it is opened."""
        monkeypatch.chdir(tmp_path)
        log = EventLog("logs")
        monkeypatch.chdir("/")
        assert log.directory == tmp_path / "logs"


class TestLaziness:
    def test_no_frame(self, opened, tmp_path):
        """A log that gets no frame starts no thread and makes no file."""
        threads = set(threading.enumerate())
        log = opened()
        assert log.flush(60)
        assert set(threading.enumerate()) <= threads
        assert log.close(60)
        assert list(tmp_path.iterdir()) == []


class TestFiles:
    def test_name(self, opened, tmp_path, source):
        """A directory per run; rank, attempt, process and part in the name."""
        log = opened()
        log.accept(b"frame", events=1)
        log.flush()
        expected = tmp_path / "logs" / "run-1" / f"rank-00003.attempt-0.{source.id[:8]}.0000.tslog"
        assert log.paths == [expected]
        assert expected.exists()

    @pytest.mark.parametrize(
        ("run_id", "directory"),
        [
            ("../../etc", "etc"),
            ("a/b c", "a-b-c"),
            ("", "run"),
            ("..", "run"),
            ("é" * 300, "run"),
            ("x" * 300, "x" * 100),
        ],
    )
    def test_hostile_run(self, tmp_path, run_id, directory):
        """For any run id, the directory lies below the log's."""
        log = EventLog(tmp_path)
        log.open(Source(run_id=run_id))
        log.accept(b"frame", events=1)
        log.close()
        assert [path.parent for path in log.paths] == [tmp_path / directory]

    def test_modes(self, opened, tmp_path):
        """Files are for this user alone, and so are the directories that were made."""
        before = os.umask(0)
        try:
            log = opened()
            log.accept(b"frame", events=1)
            log.flush()
        finally:
            os.umask(before)
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "logs", log.paths[0].parent, log.paths[0])]
        assert modes == [0o700, 0o700, 0o600]

    def test_same_name(self, tmp_path, source, contents, frames_in):
        """A second log of the same source does not touch the first one's file; it is another part."""
        paths = []
        for frame in (b"first", b"second"):
            log = EventLog(tmp_path)
            log.open(source)
            log.accept(frame, events=1)
            log.close()
            paths += log.paths
        assert [frames_in(path) for path in paths] == [[b"first"], [b"second"]]
        assert [decode_header(contents(path)[0].payload).part for path in paths] == [0, 1]

    def test_begins_and_ends(self, opened, contents, source):
        """
        A file begins with the source and ends with an end; in between are the frames, in the order of their acceptance.
        """
        log = opened()
        for n in range(3):
            log.accept(b"frame %d" % n, events=1)
        log.close()
        header, *frames, end = contents(log.paths[0])
        assert decode_header(header.payload).source == source
        assert [frame.payload for frame in frames] == [b"frame 0", b"frame 1", b"frame 2"]
        assert decode_ending(end.payload) == Ending(is_continued=False)

    def test_numbers(self, opened, contents):
        """Records are numbered from 0 without holes."""
        log = opened()
        for n in range(20):
            log.accept(b"%d" % n, events=1)
            if n % 3 == 0:
                log.flush()
        log.close()
        assert [record.sequence for record in contents(log.paths[0])] == list(range(22))

    def test_header_again(self, opened, contents):
        """The header comes again after every 8 MiB, so that each piece of a file names its source."""
        log = opened()
        for _ in range(40):
            while not log.accept(bytes(MIB), events=1):
                log.flush()
        log.close(DEADLINE_S)
        headers = [record.offset for record in contents(log.paths[0]) if record.kind == Kind.HEADER]
        gaps = [after - before for before, after in pairwise(headers)]
        assert len(headers) == 5
        assert all(8 * MIB <= gap <= 9 * MIB + 4096 for gap in gaps)


class TestRotation:
    def test_parts(self, opened, contents, source):
        """A file that is large enough is ended, and the next part begins like a first one and counts on."""
        log = opened(rotate_bytes=2 * MIB)
        for _ in range(5):
            log.accept(bytes(MIB), events=1)
            log.flush()
        log.close()
        parts = [contents(path) for path in log.paths]
        assert [[record.kind for record in part] for part in parts] == [[1, 2, 2, 4], [1, 2, 2, 4], [1, 2, 4]]
        assert [record.sequence for part in parts for record in part] == list(range(11))
        assert [decode_header(part[0].payload).part for part in parts] == [0, 1, 2]
        assert [decode_ending(part[-1].payload).is_continued for part in parts] == [True, True, False]

    def test_names(self, opened):
        """The part is the last number of the name."""
        log = opened(rotate_bytes=MIB)
        for _ in range(2):
            log.accept(bytes(MIB), events=1)
            log.flush()
        assert [path.name.split(".")[-2] for path in log.paths] == ["0000", "0001"]


class TestTake:
    def test_too_large(self, opened, gaps_in):
        """A frame above 1 MiB is refused and named as a loss."""
        log = opened()
        assert not log.accept(bytes(MAX_PAYLOAD_BYTES + 1), events=9)
        assert log.accept(b"next", events=1)
        log.close()
        assert gaps_in(log.paths[0]) == [(9, MAX_PAYLOAD_BYTES + 1, "a frame of 1048577 bytes")]

    def test_after_close(self, opened):
        """A closed log refuses frames, and counts them."""
        log = opened()
        log.close()
        assert not log.accept(b"late", events=2)
        assert log.losses() == {"refused": 2, "vanished": 0, "unwritten": 0}

    def test_before_open(self, tmp_path):
        """A log that was not opened does not know the frames' source, and refuses them."""
        assert not EventLog(tmp_path).accept(b"early", events=1)


class TestFlush:
    def test_true(self, opened, frames_in):
        """After flush returns True, all accepted frames are in the file."""
        log = opened()
        for n in range(100):
            log.accept(b"%d" % n, events=1)
        assert log.flush(60)
        assert frames_in(log.paths[0]) == [b"%d" % n for n in range(100)]

    def test_by_itself(self, opened, frames_in):
        """Without a flush a frame is written after flush_s."""
        log = opened(flush_s=0.02)
        log.accept(b"frame", events=1)
        until(lambda: log.stats()["records"] == 2)
        assert frames_in(log.paths[0]) == [b"frame"]

    def test_much_waits(self, opened, frames_in):
        """Nor does a megabyte wait for it."""
        log = opened(flush_s=1000.0)
        log.accept(b"frame", events=1)
        log.accept(bytes(MIB), events=1)
        until(lambda: log.stats()["waiting_bytes"] == 0)
        assert frames_in(log.paths[0]) == [b"frame", bytes(MIB)]

    def test_refusing_disk(self, opened, disk):
        """With a disk that refuses, flush says False at once; it does not use up its time."""
        log = opened(create=disk.create)
        disk.room_bytes = 0
        log.accept(b"frame", events=1)
        start = time.monotonic()
        assert not log.flush(DEADLINE_S)
        assert time.monotonic() - start < DEADLINE_S / 2

    def test_from_many_threads(self, opened, frames_in):
        """Any thread may flush at any time."""
        log = opened()
        log.accept(b"frame", events=1)
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(log.flush(DEADLINE_S))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [True] * 8
        assert frames_in(log.paths[0]) == [b"frame"]

    def test_without_threads(self, opened, monkeypatch, frames_in):
        """If no thread can be started any more, flush and close write themselves."""
        monkeypatch.setattr(threading.Thread, "start", refuse_thread)
        log = opened()
        assert log.accept(b"one", events=1)
        assert log.flush(60)
        assert log.accept(b"two", events=1)
        assert log.close(60)
        assert frames_in(log.paths[0]) == [b"one", b"two"]


class TestClose:
    def test_twice(self, opened):
        """A log may be closed twice; the answer is the same."""
        log = opened()
        log.accept(b"frame", events=1)
        assert log.close(60)
        assert log.close(60)

    def test_thread_ends(self, opened):
        """The thread ends, and the file is closed."""
        before = threading.active_count(), descriptors()
        log = opened()
        log.accept(b"frame", events=1)
        log.close()
        until(lambda: threading.active_count() <= before[0])  # fewer, if one of an earlier test was still ending
        assert descriptors() <= before[1]

    def test_unwritten(self, opened, disk, caplog):
        """Frames that a disk refused to the end are counted and reported."""
        log = opened(create=disk.create)
        disk.room_bytes = 0
        log.accept(b"frame", events=7)
        assert not log.close()
        assert log.losses() == {"refused": 0, "vanished": 0, "unwritten": 7}
        assert "7 events wait" in caplog.messages[-1]


class TestStalledDisk:
    """A disk that blocks."""

    def test_close_in_time(self, opened, pipe):
        """It blocks neither accept, nor flush, nor close."""
        log = opened(create=pipe.create)
        start = time.monotonic()
        for _ in range(100):
            log.accept(bytes(100_000), events=1)
        assert not log.flush(0.1)
        assert not log.close(0.1)
        assert time.monotonic() - start < 5.0
        pipe.drain(log)

    def test_not_written_by_then(self, opened, pipe):
        """Frames that wait when the time to close is over count as lost, until the disk returns after all."""
        log = opened(create=pipe.create)
        log.accept(bytes(100_000), events=5)
        assert log.lost == 0
        assert not log.close(0.1)
        assert (log.lost, log.losses()["unwritten"]) == (5, 5)
        pipe.drain(log)
        assert log.lost == 0

    def test_bounded(self, opened, pipe):
        """The number of waiting bytes is bounded; further frames are refused."""
        log = opened(create=pipe.create, buffer_bytes=MIB)
        accepted = [log.accept(bytes(100_000), events=1) for _ in range(20)]
        assert accepted == [True] * 10 + [False] * 10
        assert log.stats()["waiting_bytes"] <= MIB
        pipe.drain(log)

    def test_resumption(self, opened, pipe, frames_in, gaps_in):
        """Once the disk accepts again, all accepted frames are written, and a gap stands in place of the refused."""
        log = opened(create=pipe.create, buffer_bytes=MIB)
        taken = [n for n in range(20) if log.accept(b"%02d" % n * 50_000, events=3)]
        assert taken == list(range(10))
        assert pipe.drain(log)
        assert [int(frame[:2]) for frame in frames_in(pipe.data)] == taken
        assert gaps_in(pipe.data) == [(30, 1_000_000, "the disk is slower than the stream")]


class TestFullDisk:
    def test_limit_raised(self, opened, file_limit, frames_in, gaps_in):
        """
        At the process's file size limit writes are refused; the waiting frames are written when it is raised, and
        nothing is lost.
        """
        log = opened()
        with file_limit(200):
            for n in range(10):
                assert log.accept(b"frame %d" % n, events=1)
            assert not log.flush()
        assert log.flush(60)
        assert frames_in(log.paths[-1]) == [b"frame %d" % n for n in range(10)]
        assert gaps_in(log.paths[-1]) == []

    def test_file_limit(self, opened, file_limit, frames_in):
        """A limit on one file is met by beginning the next; a flush goes on until all is written."""
        log = opened()
        log.accept(b"x" * 500, events=1)
        log.flush()
        with file_limit(log.paths[0].stat().st_size + 100):
            log.accept(b"y" * 500, events=1)
            assert log.flush(60)
        assert [frames_in(path) for path in log.paths] == [[b"x" * 500], [b"y" * 500]]

    def test_gap(self, opened, disk, frames_in, gaps_in):
        """If the buffer overflowed meanwhile, the file says how many events and bytes are missing there, and why."""
        log = opened(create=disk.create, buffer_bytes=MIB)
        log.accept(b"before", events=1)
        log.flush()
        disk.room_bytes = 0
        log.accept(b"waits", events=1)
        log.flush()
        taken = [log.accept(b"%02d" % n * 50_000, events=3) for n in range(20)]
        disk.room_bytes = None
        assert log.flush(60)
        log.accept(b"after", events=1)
        assert log.close(60)
        assert taken == [True] * 10 + [False] * 10
        frames = frames_in(log.paths[0])
        assert [frame[:6] for frame in frames] == [b"before", b"waits", *(b"%02d" % n * 3 for n in range(10)), b"after"]
        assert gaps_in(log.paths[0]) == [(30, 1_000_000, "[Errno 28] No space left on device")]
        assert log.losses() == {"refused": 30, "vanished": 0, "unwritten": 0}

    def test_in_the_middle(self, opened, disk, frames_in):
        """A frame that the disk took half of is in the file once, whole."""
        log = opened(create=disk.create)
        log.accept(b"before", events=1)
        log.flush()
        disk.room_bytes = 30
        log.accept(b"x" * 1000, events=1)
        assert not log.flush()
        disk.room_bytes = None
        assert log.flush(60)
        assert frames_in(log.paths[0]) == [b"before", b"x" * 1000]

    def test_dev_full(self, opened):
        """A full device is refused and tried again, and the errors are counted."""
        log = opened(create=lambda directory, name: os.open("/dev/full", os.O_WRONLY))
        log.accept(b"frame", events=1)
        assert not log.flush()
        assert not log.flush()
        stats = log.stats()
        assert (stats["write_errors"], stats["waiting_events"]) == (2, 1)
        assert stats["last_error"] == "[Errno 28] No space left on device"

    @pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EROFS, errno.ENOSPC, errno.EACCES, errno.EDQUOT])
    def test_passing_error(self, opened, disk, frames_in, number):
        """An error that passes costs nothing."""
        log = opened(create=disk.create, flush_s=0.05)
        disk.errors = [OSError(number, os.strerror(number))] * 2
        log.accept(b"frame", events=1)
        until(lambda: log.stats()["waiting_events"] == 0)
        log.close()
        assert frames_in(log.paths[0]) == [b"frame"]
        assert log.stats()["write_errors"] == 2


class TestVanished:
    def test_directory(self, opened, frames_in, gaps_in, tmp_path):
        """If the log's directory is removed, a new one records how many events and bytes were lost with it."""
        log = opened()
        log.accept(b"one", events=2)
        log.accept(b"two", events=3)
        log.flush()
        lost = log.paths[0]
        size_bytes = lost.stat().st_size
        lost.unlink()
        lost.parent.rmdir()
        (tmp_path / "logs").rmdir()

        log.accept(b"three", events=1)
        log.flush()
        log.close()

        assert frames_in(log.paths[1]) == [b"three"]
        assert gaps_in(log.paths[1]) == [(5, size_bytes, f"{lost.name} vanished")]
        assert log.losses() == {"refused": 0, "vanished": 5, "unwritten": 0}
        assert log.stats()["vanished_bytes"] == size_bytes

    def test_flush(self, opened):
        """A flush that finds its file removed returns False; the next one True."""
        log = opened()
        log.accept(b"one", events=1)
        assert log.flush(60)
        log.paths[0].unlink()
        log.accept(b"two", events=1)
        assert not log.flush()
        assert log.flush(60)

    def test_close(self, opened, gaps_in):
        """A file that was removed is noticed at the end, too."""
        log = opened()
        log.accept(b"one", events=4)
        log.flush()
        log.paths[0].unlink()
        assert not log.close()
        assert [events for events, _, _ in gaps_in(log.paths[1])] == [4]

    def test_renamed(self, opened, tmp_path, frames_in):
        """A directory that was renamed takes its file along, and nothing is lost."""
        log = opened()
        log.accept(b"one", events=1)
        log.flush()
        name = log.paths[0].relative_to(tmp_path / "logs")
        (tmp_path / "logs").rename(tmp_path / "moved")
        log.accept(b"two", events=1)
        assert log.close(60)
        assert frames_in(tmp_path / "moved" / name) == [b"one", b"two"]

    def test_blocked_rotation(self, opened, tmp_path, frames_in):
        """If the next part cannot be made, the waiting frames are kept until it can."""
        log = opened(rotate_bytes=MIB)
        log.accept(bytes(MIB), events=1)
        log.flush()
        (tmp_path / "logs").rename(tmp_path / "moved")
        (tmp_path / "logs").write_bytes(b"in the way")
        log.accept(b"next", events=1)
        assert not log.flush()
        (tmp_path / "logs").unlink()
        assert log.flush(60)
        assert frames_in(log.paths[1]) == [b"next"]


class TestReports:
    def test_once_a_minute(self, opened, disk, caplog, fake_clock):
        """A failing disk is reported once a minute, with the reason and the number of waiting events."""
        log = opened(create=disk.create)
        disk.room_bytes = 0
        log.accept(b"frame", events=3)
        for _ in range(10):
            log.flush()
        assert len(caplog.records) == 1
        assert re.search(r"logs: \[Errno 28\] No space left on device; 3 events wait, 0 are lost", caplog.messages[0])
        fake_clock.advance(60)
        log.flush()
        assert len(caplog.records) == 2

    @pytest.mark.parametrize("act", ["flush", "close"])
    def test_logging_that_flushes(self, opened, disk, monkeypatch, act):
        """A logging handler that flushes or closes the log from its warning does not wait for itself."""
        log = opened(create=disk.create)
        answers = []
        monkeypatch.setattr(
            logging.getLogger("trackside"), "warning", lambda *_, **__: answers.append(getattr(log, act)(DEADLINE_S))
        )
        disk.errors = [OSError(5, "once")]
        log.accept(b"frame", events=1)
        start = time.monotonic()
        log.flush(DEADLINE_S)
        assert answers == [False]
        assert time.monotonic() - start < DEADLINE_S / 2

    def test_hostile_logging(self, opened, disk, frames_in, monkeypatch):
        """A logging filter that raises does not stop the log."""
        monkeypatch.setattr(logging.getLogger("trackside"), "warning", explode)
        log = opened(create=disk.create)
        disk.errors = [OSError(5, "once")]
        log.accept(b"frame", events=1)
        log.flush()
        assert log.close(60)
        assert frames_in(log.paths[0]) == [b"frame"]

    def test_own_mistake(self, opened, frames_in, monkeypatch):
        """After any exception on the thread, it lives, and writes once it can."""
        log = opened()
        with monkeypatch.context() as patch:
            patch.setattr(log._series, "write", explode)
            log.accept(b"frame", events=1)
            assert not log.flush()
        assert log.flush(60)
        assert frames_in(log.paths[0]) == [b"frame"]
        assert log.stats()["write_errors"] == 1


class TestFsync:
    def test_each_batch(self, opened, disk):
        """With 0, flushed frames are on the device."""
        log = opened(create=disk.create, fsync_s=0.0)
        log.accept(b"frame", events=1)
        log.flush()
        assert disk.fsyncs > 0

    def test_off(self, opened, disk):
        """With None nothing is ever forced."""
        log = opened(create=disk.create, fsync_s=None)
        log.accept(b"frame", events=1)
        log.close()
        assert disk.fsyncs == 0


class TestStats:
    def test_written(self, opened):
        """Bytes, records and files are those on the disk."""
        log = opened()
        log.accept(b"frame", events=1)
        log.close()
        stats = log.stats()
        assert (stats["bytes"], stats["records"], stats["files"]) == (log.paths[0].stat().st_size, 3, 1)

    def test_loss_is_exported(self):
        """A gap record's content is public."""
        assert Loss(1, 2, "reason", 3).events == 1


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def refuse_thread(_):
    raise RuntimeError("can't create new thread at interpreter shutdown")


def explode(*_, **__):
    raise ZeroDivisionError("on demand")
