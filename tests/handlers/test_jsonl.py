"""The sink of JSON lines, on disks that fail."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap

import pytest

from children import printed_by
from trackside.bus import Bus
from trackside.events import ITERATION, ConfigError, Event, RunsOn, event
from trackside.handlers import JsonlSink, jsonl
from trackside.handlers.eventlog import create_file
from trackside.wire import to_json
from waiting import until

KIB = 1 << 10
DEADLINE_S = 30.0
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


@event("test.jsonl.noted", priority=ITERATION)
class Noted(Event):
    """An event for a file."""

    number: int
    text: str = ""


def noted(number, *, length=0):
    """Return an event whose line is about *length* bytes longer than the least."""
    return Noted(number=number, text="x" * length, at_ns=10**18 + number, span_id=0, step=number)


def line_of(an_event):
    """Return the line that *an_event* is written as."""
    return to_json(an_event) + "\n"


def lines_in(path):
    """Return the parsed lines of *path*, whose last must be whole."""
    text = path.read_text(encoding="utf-8")
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def numbers_in(path):
    """Return the numbers of the noted events in *path*."""
    return [line["fields"]["number"] for line in lines_in(path) if line["type"] == "test.jsonl.noted"]


def names_in(directory):
    """Return the names of the files in *directory*."""
    return sorted(path.name for path in directory.iterdir())


def losses_in(path):
    """Return events, bytes and reason of each loss line in *path*."""
    found = [line["fields"] for line in lines_in(path) if line["type"] == "trackside.sink.lost"]
    return [(fields["events"], fields["bytes"], fields["reason"]) for fields in found]


class Disk:
    """A real disk on which no file can be made while `error` is set."""

    def __init__(self):
        self.error = None
        self.tries = 0

    def create(self, directory, name):
        """Create a file, or raise."""
        self.tries += 1
        if self.error is not None:
            raise self.error
        return create_file(directory, name)


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    monkeypatch.setattr(jsonl, "create_file", disk.create)
    return disk


class TestLines:
    def test_content(self, tmp_path):
        """A line names source, rank, number, time, span, step, type and fields."""
        with Bus() as bus:
            bus.subscribe(JsonlSink(tmp_path / "events.jsonl"), to=Noted)
            bus.log(Noted(number=7, text="ü\n", at_ns=123, span_id=4, step=5))
            source = bus._dispatcher.source or bus._identity.find()

        assert lines_in(tmp_path / "events.jsonl") == [
            {
                "source": source.id,
                "rank": 0,
                "seq": 1,  # 0 is SourceStarted
                "time_ns": 123,
                "span_id": 4,
                "step": 5,
                "type": "test.jsonl.noted",
                "fields": {"number": 7, "text": "ü\n"},
            }
        ]

    def test_runs_on_a_sink_worker(self):
        """A sink runs on a sink worker: a disk that stalls delays no other handler."""
        assert JsonlSink.runs_on is RunsOn.WORKER

    def test_written_without_asking(self, tmp_path):
        """Logged events are in the file soon, also without a flush."""
        path = tmp_path / "events.jsonl.part"
        with Bus() as bus:
            bus.subscribe(JsonlSink(tmp_path / "events.jsonl"), to=Noted)
            bus.log(noted(1))
            until(lambda: path.exists() and path.stat().st_size)

            assert numbers_in(path) == [1]


class TestNames:
    def test_part_until_finished(self, tmp_path):
        """A file has the suffix .part while it is written, and loses it when it is finished."""
        sink = JsonlSink(tmp_path / "events.jsonl")
        sink(noted(1))
        sink.flush(1.0)
        during = names_in(tmp_path)
        sink.close(1.0)

        assert (during, names_in(tmp_path)) == (["events.jsonl.part"], ["events.jsonl"])

    def test_paths(self, tmp_path):
        """The sink reports its files by their present names."""
        sink = JsonlSink(tmp_path / "events.jsonl", rotate_bytes=64 * KIB)
        for number in range(3):
            sink(noted(number, length=64 * KIB))
        sink.flush(1.0)

        assert [path.name for path in sink.paths] == ["events.jsonl", "events.0001.jsonl", "events.0002.jsonl.part"]

    def test_no_event_no_file(self, tmp_path):
        """No file is made before the first event."""
        sink = JsonlSink(tmp_path / "logs" / "events.jsonl")
        sink.flush(1.0)
        sink.close(1.0)

        assert names_in(tmp_path) == []

    def test_nothing_is_overwritten(self, tmp_path):
        """An existing file is left alone, finished or not; the next free number is used."""
        (tmp_path / "events.jsonl").write_text("old\n")
        (tmp_path / "events.0001.jsonl.part").write_text("torn")
        sink = JsonlSink(tmp_path / "events.jsonl")
        sink(noted(1))
        sink.close(1.0)

        assert (tmp_path / "events.jsonl").read_text() == "old\n"
        assert (tmp_path / "events.0001.jsonl.part").read_text() == "torn"
        assert numbers_in(tmp_path / "events.0002.jsonl") == [1]

    def test_a_link_that_leads_nowhere(self, tmp_path):
        """A dangling symbolic link counts as taken, and is not written through."""
        (tmp_path / "events.jsonl").symlink_to(tmp_path / "elsewhere")
        sink = JsonlSink(tmp_path / "events.jsonl")
        sink(noted(1))
        sink.close(1.0)

        assert not (tmp_path / "elsewhere").exists()
        assert numbers_in(tmp_path / "events.0001.jsonl") == [1]

    def test_taken_while_it_was_written(self, tmp_path):
        """A file keeps its suffix if its name was taken meanwhile."""
        sink = JsonlSink(tmp_path / "events.jsonl")
        sink(noted(1))
        sink.flush(1.0)
        (tmp_path / "events.jsonl").write_text("somebody else's\n")
        sink.close(1.0)

        assert (tmp_path / "events.jsonl").read_text() == "somebody else's\n"
        assert [path.name for path in sink.paths] == ["events.jsonl.part"]
        assert numbers_in(tmp_path / "events.jsonl.part") == [1]

    def test_finished_by_another_process_just_now(self, tmp_path, monkeypatch):
        """If another process creates a file of the same name at that moment, the sink uses another name."""

        def create(directory, name):
            fd = create_file(directory, name)
            if name == "events.jsonl.part":
                (tmp_path / "events.jsonl").write_text("the other's\n")
            return fd

        monkeypatch.setattr(jsonl, "create_file", create)
        sink = JsonlSink(tmp_path / "events.jsonl")
        sink(noted(1))
        sink.close(1.0)

        assert names_in(tmp_path) == ["events.0001.jsonl", "events.jsonl"]

    def test_two_sinks_of_one_path(self, tmp_path):
        """Two sinks that were given one path write to two files."""
        sinks = [JsonlSink(tmp_path / "events.jsonl") for _ in range(2)]
        for number, sink in enumerate(sinks):
            sink(noted(number))
            sink.flush(1.0)
        for sink in sinks:
            sink.close(1.0)

        assert numbers_in(tmp_path / "events.jsonl") == [0]
        assert numbers_in(tmp_path / "events.0001.jsonl") == [1]

    def test_modes(self, tmp_path):
        """Files, and directories that had to be made, are for this user alone."""
        sink = JsonlSink(tmp_path / "logs" / "events.jsonl")
        sink(noted(1))
        sink.close(1.0)
        modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("logs", "logs/events.jsonl")]

        assert modes == [0o700, 0o600]


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"rotate_bytes": 1000}, "rotate_bytes"),
            ({"buffer_bytes": 0}, "buffer_bytes"),
            ({"fsync_s": -1}, "fsync_s"),
        ],
    )
    def test_out_of_range(self, tmp_path, options, field):
        """A number out of range is refused by name."""
        with pytest.raises(ConfigError) as caught:
            JsonlSink(tmp_path / "events.jsonl", **options)

        assert caught.value.field == field

    def test_directory(self, tmp_path):
        """A directory is no file to write to."""
        with pytest.raises(ConfigError, match="it is a directory; name a file in it"):
            JsonlSink(tmp_path)


class TestRotation:
    def test_each_event_once(self, tmp_path):
        """Parts begin when the one before has reached its size; each event is in one of them, in order."""
        sink = JsonlSink(tmp_path / "events.jsonl", rotate_bytes=64 * KIB)
        for number in range(10):
            sink(noted(number, length=40 * KIB))
            sink.flush(1.0)
        sink.close(1.0)

        assert [numbers_in(path) for path in sink.paths] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]

    def test_earlier_parts_are_finished(self, tmp_path):
        """Only the last part is not finished while the sink goes on."""
        sink = JsonlSink(tmp_path / "events.jsonl", rotate_bytes=64 * KIB)
        for number in range(4):
            sink(noted(number, length=64 * KIB))
        sink.flush(1.0)

        assert names_in(tmp_path) == [
            "events.0001.jsonl",
            "events.0002.jsonl",
            "events.0003.jsonl.part",
            "events.jsonl",
        ]


class TestKilled:
    def test_finished_files_are_whole(self, tmp_path, scaled):
        """After any kill, a finished file ends in a whole line, and only the last line of a .part is torn."""
        program = textwrap.dedent(
            """
            import sys
            from trackside import Bus, Event, JsonlSink, event

            @event("test.jsonl.noted")
            class Noted(Event):
                number: int
                text: str

            bus = Bus()
            bus.subscribe(JsonlSink(sys.argv[1] + "/events.jsonl", rotate_bytes=65536), to=Noted)
            number = 0
            while True:
                bus.log(Noted(number=number, text="x" * (number % 3000)))
                number += 1
                if number % 100 == 0:
                    bus.flush()
            """
        )
        for round_ in range(scaled(20)):
            directory = tmp_path / str(round_)
            directory.mkdir()
            child = subprocess.Popen([sys.executable, "-c", program, str(directory)])
            try:
                until(lambda directory=directory: len(list(directory.iterdir())) >= 5)
            finally:
                child.send_signal(signal.SIGKILL)
                child.wait()
            finished = sorted(path for path in directory.iterdir() if path.suffix == ".jsonl")
            parts = sorted(path for path in directory.iterdir() if path.suffix == ".part")

            assert len(finished) >= 3
            numbers = [number for path in [*finished[-1:], *finished[:-1]] for number in numbers_in(path)]
            assert numbers == list(range(len(numbers)))
            for path in parts:
                whole = path.read_bytes().rpartition(b"\n")[0]
                assert all(json.loads(line) for line in whole.splitlines())


class TestTrouble:
    def test_waits_for_the_disk(self, tmp_path, disk):
        """Lines that the disk refuses wait, and are written when there is room again; nothing is lost."""
        disk.error = NO_SPACE
        sink = JsonlSink(tmp_path / "events.jsonl")
        for number in range(3):
            sink(noted(number))
        refused = sink.flush(1.0)
        disk.error = None
        written = sink.flush(1.0)
        sink.close(1.0)

        assert (refused, written, sink.lost) == (False, True, 0)
        assert numbers_in(tmp_path / "events.jsonl") == [0, 1, 2]
        assert losses_in(tmp_path / "events.jsonl") == []

    def test_loss_line_is_exact(self, tmp_path, disk):
        """Lost events are one line, at their place: how many events, of how many bytes, and why."""
        disk.error = NO_SPACE
        sink = JsonlSink(tmp_path / "events.jsonl", buffer_bytes=64 * KIB)
        events = [noted(number, length=10 * KIB) for number in range(20)]
        for given in events[:15]:
            sink(given)
        disk.error = None
        sink.flush(1.0)
        for given in events[15:]:
            sink(given)
        closed = sink.close(1.0)
        path = tmp_path / "events.jsonl"
        bytes_lost = sum(len(line_of(given)) for given in events[6:15])

        # 6 lines of 10 KiB and a bit fit in 64 KiB.
        assert numbers_in(path) == [0, 1, 2, 3, 4, 5, 15, 16, 17, 18, 19]
        assert losses_in(path) == [(9, bytes_lost, "No space left on device")]
        assert [line["type"] for line in lines_in(path)][6] == "trackside.sink.lost"
        assert (sink.lost, closed) == (9, False)

    def test_tried_again_without_a_pause(self, tmp_path, disk, fake_clock):
        """A disk is tried again after the pause also when events come without a break."""
        disk.error = NO_SPACE
        sink = JsonlSink(tmp_path / "events.jsonl", buffer_bytes=64 * KIB)
        for number in range(10):
            sink(noted(number, length=10 * KIB))
        disk.error = None
        fake_clock.advance(60)
        sink(noted(10, length=10 * KIB))
        sink.close(1.0)

        assert numbers_in(tmp_path / "events.jsonl") == [0, 1, 2, 3, 4, 5, 10]

    def test_full_disk_is_not_asked_for_each_event(self, tmp_path, disk, fake_clock):
        """A full disk is not tried for a while: events take no more time than with an empty one."""
        disk.error = NO_SPACE
        sink = JsonlSink(tmp_path / "events.jsonl", buffer_bytes=64 * KIB)
        for number in range(1000):
            sink(noted(number, length=KIB))

        assert disk.tries == 1

    def test_too_large_for_the_buffer(self, tmp_path):
        """A line larger than the buffer is dropped, with its size as the reason."""
        sink = JsonlSink(tmp_path / "events.jsonl", buffer_bytes=64 * KIB)
        large = noted(0, length=65 * KIB)
        sink(large)
        sink(noted(1))
        sink.close(1.0)
        size = len(line_of(large))

        assert losses_in(tmp_path / "events.jsonl") == [(1, size, f"a line of {size} bytes")]
        assert numbers_in(tmp_path / "events.jsonl") == [1]

    def test_never_room_again(self, tmp_path, disk):
        """Lines that could not be written by the end are counted as lost, and close returns False."""
        disk.error = NO_SPACE
        sink = JsonlSink(tmp_path / "events.jsonl")
        for number in range(3):
            sink(noted(number))

        assert (sink.close(1.0), sink.lost) == (False, 3)
        assert names_in(tmp_path) == []

    def test_short_write(self, tmp_path, monkeypatch):
        """A write that stops half-way leaves nothing of the line: the lines before and after are whole."""
        sink = JsonlSink(tmp_path / "events.jsonl")
        sink(noted(0))
        sink.flush(1.0)
        write, answers = os.write, [lambda fd, data: write(fd, data[:10]), lambda fd, data: _raise(NO_SPACE)]
        monkeypatch.setattr(os, "write", lambda fd, data: (answers.pop(0) if answers else write)(fd, data))
        sink(noted(1))
        refused = sink.flush(1.0)
        between = numbers_in(tmp_path / "events.jsonl.part")
        sink(noted(2))
        sink.close(1.0)

        assert (refused, between) == (False, [0])
        assert numbers_in(tmp_path / "events.jsonl") == [0, 1, 2]

    def test_torn_for_good(self, tmp_path, monkeypatch):
        """A file whose torn end could not be removed keeps its suffix for ever; another one has the line whole."""
        sink = JsonlSink(tmp_path / "events.jsonl")
        sink(noted(0))
        sink.flush(1.0)
        write, answers = os.write, [lambda fd, data: write(fd, data[:10]), lambda fd, data: _raise(NO_SPACE)]
        monkeypatch.setattr(os, "write", lambda fd, data: (answers.pop(0) if answers else write)(fd, data))
        monkeypatch.setattr(os, "ftruncate", lambda fd, size: _raise(OSError(errno.EIO, "Input/output error")))
        sink(noted(1))
        sink.flush(1.0)
        sink.close(1.0)

        assert [path.name for path in sink.paths] == ["events.jsonl.part", "events.0001.jsonl"]
        assert numbers_in(tmp_path / "events.0001.jsonl") == [1]

    def test_vanished_directory(self, tmp_path):
        """A directory that was removed is made anew, and begins with a line that counts the lost events."""
        logs = tmp_path / "logs"
        sink = JsonlSink(logs / "events.jsonl")
        early = [noted(number) for number in range(3)]
        for given in early:
            sink(given)
        sink.flush(1.0)
        shutil.rmtree(logs)
        sink(noted(3))
        flushed = sink.flush(1.0)
        closed = sink.close(1.0)
        size = sum(len(line_of(given)) for given in early)

        assert (flushed, closed, sink.lost) == (False, False, 3)
        assert names_in(logs) == ["events.0001.jsonl"]
        assert losses_in(logs / "events.0001.jsonl") == [(3, size, "events.jsonl.part vanished")]
        assert [line["type"] for line in lines_in(logs / "events.0001.jsonl")] == [
            "trackside.sink.lost",
            "test.jsonl.noted",
        ]

    def test_read_only_directory(self, tmp_path, disk):
        """If files may not be made, events are counted as lost, and nothing is raised."""
        disk.error = PermissionError(errno.EACCES, "Permission denied")
        with Bus() as bus:
            subscription = bus.subscribe(JsonlSink(tmp_path / "events.jsonl"), to=Noted)
            bus.log(noted(0))
            closed = subscription.close()
            stats = subscription.stats()

        assert (closed, stats.logged, stats.handled, stats.dropped, stats.balance) == (False, 1, 0, 1, 0)

    @pytest.mark.unmeasured
    def test_limited_files(self, tmp_path):
        """
        With a limit on the size of files (RLIMIT_FSIZE) the next part gets the lines that do not fit into the last.
        """
        program = textwrap.dedent(
            """
            import resource, signal, sys
            from trackside import Bus, Event, JsonlSink, event

            @event("test.jsonl.noted")
            class Noted(Event):
                number: int
                text: str

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
            bus = Bus()
            bus.subscribe(JsonlSink(sys.argv[1] + "/events.jsonl"), to=Noted)
            for number in range(50):
                bus.log(Noted(number=number, text="x" * 20_000))
            print(bus.close(20.0), bus.stats().lost)
            """
        )
        printed = printed_by(program, tmp_path)
        files = sorted(tmp_path.iterdir())
        ordered = [*files[-1:], *files[:-1]]

        assert printed == "True 0\n"
        assert [number for path in ordered for number in numbers_in(path)] == list(range(50))
        assert max(path.stat().st_size for path in files) <= 200_000


class TestFsync:
    @pytest.mark.parametrize(("fsync_s", "expected"), [(None, [0, 0, 0]), (5.0, [0, 1, 2])])
    def test_when(self, tmp_path, monkeypatch, fake_clock, fsync_s, expected):
        """Written bytes are forced to the device when they are old enough, and at the end; never with None."""
        forced, fsync = [], os.fsync
        monkeypatch.setattr(os, "fsync", lambda fd: (forced.append(stat.S_ISREG(os.fstat(fd).st_mode)), fsync(fd)))
        sink = JsonlSink(tmp_path / "events.jsonl", fsync_s=fsync_s)
        counts = []
        sink(noted(0))
        sink.idle()
        counts.append(sum(forced))
        fake_clock.advance(6)
        sink.idle()
        counts.append(sum(forced))
        sink(noted(1))
        sink.close(1.0)
        counts.append(sum(forced))

        assert counts == expected


class TestClose:
    def test_twice(self, tmp_path):
        """Closing again changes nothing."""
        sink = JsonlSink(tmp_path / "events.jsonl")
        sink(noted(0))

        assert [sink.close(1.0), sink.close(1.0)] == [True, True]
        assert names_in(tmp_path) == ["events.jsonl"]

    def test_subscribed_again(self, tmp_path):
        """A sink that is subscribed again after it was closed goes on in another part, finished in its turn."""
        sink = JsonlSink(tmp_path / "events.jsonl")
        with Bus() as bus:
            for number in range(2):
                with bus.subscribe(sink, to=Noted):
                    bus.log(noted(number))

        assert [numbers_in(path) for path in sink.paths] == [[0], [1]]
        assert names_in(tmp_path) == ["events.0001.jsonl", "events.jsonl"]


def _raise(error):
    raise error
