"""Reading events while they are recorded."""

from __future__ import annotations

import shutil
import signal
import threading
from pathlib import Path

import pytest

from trackside.events import IterationEnded, Source, UnreadableError
from trackside.handlers.eventlog import EventLog, follow
from trackside.rules import every

DATA = Path(__file__).parents[2] / "data"


class Reader:
    """Follows *paths* one look at a time."""

    def __init__(self, *paths, **options):
        self.stop = threading.Event()
        self.paths, self.options = paths, options
        self.events = follow(*paths, stop=self.stop, poll_interval_s=0.001, **options)

    def next(self, count):
        """Return the texts of the next events."""
        return [next(self.events).text for _ in range(count)]

    def remaining(self):
        """Return the texts of all remaining events, after the request to stop."""
        self.stop.set()
        return [event.text for event in self.events]


@pytest.fixture
def log(tmp_path, source):
    log = EventLog(tmp_path)
    log.open(source)
    yield log
    log.close()


@pytest.fixture
def say(log, source, framed, noted):
    """Give a function that records a text and flushes."""
    seqs = iter(range(10**6))

    def record(text):
        log.accept(framed(source, next(seqs), [noted(text=text)]), events=1)
        assert log.flush(60)

    return record


class TestFollow:
    def test_other_version(self, say, tmp_path, caplog):
        """A log of another version is passed over with one warning, which names it and the version."""
        shutil.copy(DATA / "eventlog-v1.tslog", tmp_path)
        say("before")
        reader = Reader(tmp_path)
        assert reader.next(1) == ["before"]
        say("after")
        assert reader.next(1) == ["after"]

        (warning,) = caplog.messages
        assert warning.startswith(f"not read: {tmp_path / 'eventlog-v1.tslog'}: is an event log of version 1; ")

    def test_as_written(self, say, tmp_path):
        """Events in the file come first, then later ones as they are written."""
        say("before")
        reader = Reader(tmp_path)
        assert reader.next(1) == ["before"]
        say("during")
        say("still")
        assert reader.next(2) == ["during", "still"]

    def test_stop(self, say, tmp_path):
        """It ends once *stop* is set and all events written by then were read."""
        say("one")
        reader = Reader(tmp_path)
        assert reader.next(1) == ["one"]
        say("two")
        assert reader.remaining() == ["two"]

    def test_waits(self, say, tmp_path):
        """If nothing is written yet it waits, also in an empty directory."""
        reader = Reader(tmp_path)
        got = []
        thread = threading.Thread(target=lambda: got.extend(reader.next(1)))
        thread.start()
        say("at last")
        thread.join(20)
        assert got == ["at last"]

    def test_half_written(self, say, log, tmp_path):
        """A half-written record is waited for, and read once it is whole."""
        say("one")
        say("two")
        data = log.paths[0].read_bytes()
        copy = tmp_path / "copy" / "log.tslog"
        copy.parent.mkdir()
        copy.write_bytes(data[:-10])
        reader = Reader(copy)
        assert reader.next(1) == ["one"]
        copy.write_bytes(data)
        assert reader.remaining() == ["two"]

    def test_half_written_header(self, say, log, tmp_path):
        """So is a file whose first record is half-written."""
        say("one")
        data = log.paths[0].read_bytes()
        (tmp_path / "copy").mkdir()
        copy = tmp_path / "copy" / "log.tslog"
        copy.write_bytes(data[:30])
        reader = Reader(copy)
        thread = threading.Timer(0.05, copy.write_bytes, [data])
        thread.start()
        assert reader.next(1) == ["one"]

    def test_new_parts(self, tmp_path, record, source):
        """New parts join in their order."""
        reader = Reader(tmp_path)
        groups = [[(n, f"{n}" + "x" * 40_000) for _ in range(15)] for n in range(6)]
        record(tmp_path, source, *groups[:1], rotate_bytes=1 << 20)
        first = reader.next(15)
        log = EventLog(tmp_path)
        log.close()
        record(tmp_path, source, *groups[1:], first_seq=15, rotate_bytes=1 << 20)
        assert [text[0] for text in first + reader.remaining()] == [str(n) for n in range(6) for _ in range(15)]

    def test_new_sources(self, tmp_path, record):
        """New sources join, merged by time with the others."""
        record(tmp_path, Source(rank=0), [(10, "a")])
        reader = Reader(tmp_path)
        assert reader.next(1) == ["a"]
        record(tmp_path, Source(rank=1), [(30, "c"), (50, "e")])
        record(tmp_path, Source(rank=2), [(20, "b"), (40, "d")])
        assert reader.remaining() == ["b", "c", "d", "e"]

    def test_vanished(self, say, log, tmp_path):
        """A removed file does not end it."""
        say("one")
        reader = Reader(tmp_path)
        assert reader.next(1) == ["one"]
        log.paths[0].unlink()
        log.flush()
        say("two")
        assert reader.remaining() == ["two"]

    def test_stranger(self, say, tmp_path):
        """Nor does a file that is no log."""
        (tmp_path / "other.tslog").write_bytes(b"something else")
        say("one")
        reader = Reader(tmp_path)
        assert reader.next(1) == ["one"]
        assert reader.remaining() == []

    def test_to(self, say, tmp_path, noted):
        """Only the event types that are asked for come."""
        say("one")
        assert Reader(tmp_path, to=IterationEnded).remaining() == []
        assert Reader(tmp_path, to=noted).remaining() == ["one"]

    def test_keep(self, say, tmp_path):
        """Only the events that the rule keeps come, over all looks at the files."""
        say("one")
        reader = Reader(tmp_path, keep=every(2))
        assert reader.next(1) == ["one"]
        say("two")
        say("three")
        assert reader.remaining() == ["three"]

    def test_missing(self, tmp_path):
        """A path that does not exist is an error at once."""
        with pytest.raises(UnreadableError, match="does not exist"):
            follow(tmp_path / "nowhere")

    def test_kept_up(self, say, tmp_path):
        """Following for long gives each event once."""
        reader = Reader(tmp_path)
        for n in range(300):
            say(str(n))
            if n % 7 == 0:
                assert reader.next(1 if n == 0 else 7)[-1] == str(n)
        assert reader.remaining() == [str(n) for n in range(295, 300)]


class TestSources:
    def test_only_these(self, say, tmp_path, framed, noted):
        """Only the sources that are asked for are yielded, the later ones too."""
        say("not this")
        reader = Reader(tmp_path, sources=lambda source: source.rank == 7)
        other = EventLog(tmp_path)
        asked_for = Source(id="asked", rank=7)
        other.open(asked_for)
        other.accept(framed(asked_for, 0, [noted(text="this")]), events=1)
        other.close()
        say("nor this")
        assert reader.remaining() == ["this"]


class _InterruptedEvent(threading.Event):
    """An event whose `wait` is interrupted by a signal while it has the lock that `set` takes."""

    def wait(self, timeout=None):
        with self._cond:
            signal.raise_signal(signal.SIGALRM)
        return super().wait(timeout)


class TestStop:
    @pytest.mark.hang_guard(30)
    def test_set_by_a_signal_handler(self, say, tmp_path):
        """A handler of the thread that follows may set *stop* at any moment."""
        say("before")
        stop = _InterruptedEvent()
        before = signal.signal(signal.SIGALRM, lambda *_: stop.set())
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            assert [event.text for event in follow(tmp_path, stop=stop)] == ["before"]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
