"""Appending to files on disks that fail."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from trackside.handlers.eventlog import Appender, Vanished, WriteOutcome
from trackside.handlers.eventlog._appender import create_file, make_directory


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def make(tmp_path, disk, fake_clock):
    """Give a function that makes an appender to ``logs/0``, ``logs/1``, … on a disk that the test sets to fail."""

    def appender(**options):
        return Appender(tmp_path / "logs", str, **{"create": disk.create, **options})

    return appender


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"


class TestCreateFile:
    @pytest.fixture(autouse=True)
    def open_umask(self):
        """Set the umask to 0, so that modes are the requested ones."""
        before = os.umask(0)
        yield
        os.umask(before)

    def test_modes(self, tmp_path):
        """Files are 0600 in directories that are 0700, all the way down."""
        os.close(create_file(tmp_path / "a" / "b", "c/d"))
        made = [tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c", tmp_path / "a/b/c/d"]
        assert [mode_of(path) for path in made] == [0o700, 0o700, 0o700, 0o600]

    def test_present_directory(self, tmp_path):
        """A directory that is there keeps its mode."""
        (tmp_path / "a").mkdir(mode=0o755)
        os.close(create_file(tmp_path / "a", "b"))
        assert mode_of(tmp_path / "a") == 0o755

    def test_link_to_file(self, tmp_path):
        """A symbolic link in the file's place is not followed, whether it leads anywhere or not."""
        (tmp_path / "link").symlink_to(tmp_path / "victim")
        with pytest.raises(FileExistsError):
            create_file(tmp_path, "link")
        assert not (tmp_path / "victim").exists()

    def test_link_to_directory(self, tmp_path):
        """Nor is one in the place of a directory that the name leads through."""
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OSError, match="run"):
            create_file(tmp_path, "run/file")
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_given_directory_may_be_link(self, tmp_path):
        """The requested directory may be a link: the user chose it."""
        (tmp_path / "scratch").mkdir()
        (tmp_path / "runs").symlink_to(tmp_path / "scratch")
        os.close(create_file(tmp_path / "runs", "file"))
        assert (tmp_path / "scratch" / "file").exists()

    def test_present_file(self, tmp_path):
        """A file that is there is not opened."""
        (tmp_path / "file").write_bytes(b"old")
        with pytest.raises(FileExistsError):
            create_file(tmp_path, "file")

    def test_not_inherited(self, tmp_path):
        """The descriptor is closed when another program is run."""
        fd = create_file(tmp_path, "file")
        assert not os.get_inheritable(fd)
        os.close(fd)

    def test_no_descriptor_left(self, tmp_path):
        """Failures leave no descriptor open."""
        (tmp_path / "file").write_bytes(b"")
        before = descriptors()
        for name in ("file", "file/below"):
            with pytest.raises(OSError):
                create_file(tmp_path, name)
        assert descriptors() == before


class TestMakeDirectory:
    def test_again(self, tmp_path):
        """Making a directory that exists does nothing."""
        make_directory(tmp_path / "a")
        make_directory(tmp_path / "a")
        assert list((tmp_path / "a").iterdir()) == []


class TestWrite:
    def test_nothing_before(self, make, logs):
        """No file is made before the first write."""
        make()
        assert not logs.exists()

    def test_written(self, make, logs):
        """Written bytes are in the file at once."""
        appender = make()
        assert appender.write(b"one ")
        assert appender.write(b"two")
        assert (logs / "0").read_bytes() == b"one two"

    def test_taken_name(self, make, logs):
        """A part whose name is taken is skipped."""
        logs.mkdir()
        (logs / "0").write_bytes(b"somebody's")
        (logs / "1").symlink_to(logs / "nowhere")
        make().write(b"mine")
        assert (logs / "0").read_bytes() == b"somebody's"
        assert (logs / "2").read_bytes() == b"mine"

    def test_short_write(self, make, logs, disk, monkeypatch):
        """A write that comes back short is completed."""
        whole = disk.write
        monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, data[:3]))
        assert make().write(b"all of this")
        assert (logs / "0").read_bytes() == b"all of this"

    def test_paths(self, make, logs):
        """The appender knows which files it made."""
        appender = make(rotate_bytes=3)
        appender.write(b"one")
        appender.write(b"two")
        assert appender.paths == [logs / "0", logs / "1"]


class TestFailure:
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE, errno.EROFS, errno.EACCES, errno.EDQUOT])
    def test_returned(self, make, logs, disk, number):
        """An error of the disk is returned, not raised; nothing is written, and the same bytes can be tried again."""
        appender = make()
        appender.write(b"before ")
        disk.errors = [OSError(number, os.strerror(number))]

        outcome = appender.write(b"during ")

        assert not outcome
        assert outcome.error.errno == number
        assert appender.write(b"after", insist=True)
        assert (logs / "0").read_bytes() == b"before after"

    def test_cut_back(self, make, logs, disk):
        """If only a part of a write fits, that part is removed again."""
        appender = make()
        appender.write(b"before ")
        disk.room_bytes = 4

        assert not appender.write(b"during ")

        assert (logs / "0").read_bytes() == b"before "

    def test_not_cut_back(self, make, logs, disk, monkeypatch):
        """If it cannot be removed the file ends torn there, and another is begun."""
        appender = make()
        appender.write(b"before ")
        disk.room_bytes = 4
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", explode)
            appender.write(b"during ")
        disk.room_bytes = None
        appender.write(b"after", insist=True)
        assert [path.read_bytes() for path in appender.paths] == [b"before duri", b"after"]

    def test_directory_below_file(self, tmp_path, logs):
        """A directory that cannot be made is an error like any other."""
        logs.write_bytes(b"")
        appender = Appender(logs, str)
        assert appender.write(b"x").error.errno in {errno.ENOTDIR, errno.EEXIST}

    def test_dev_full(self, make):
        """A device that is full is one too."""
        appender = make(create=lambda directory, name: os.open("/dev/full", os.O_WRONLY))
        assert appender.write(b"x").error.errno == errno.ENOSPC
        appender.finish()

    def test_counted(self, make, disk):
        """Errors are counted and the last is kept."""
        appender = make()
        disk.errors = [OSError(5, "first"), OSError(5, "second")]
        appender.write(b"x", insist=True)
        appender.write(b"x", insist=True)
        assert (appender.errors, appender.last_error.strerror) == (2, "second")

    def test_close(self, make, monkeypatch):
        """An error on closing is counted."""
        appender = make()
        appender.write(b"x")
        close = os.close

        def fail(fd):
            close(fd)
            raise OSError(5, "late")

        with monkeypatch.context() as patch:
            patch.setattr(os, "close", fail)
            appender.finish()
        assert appender.last_error.strerror == "late"


class TestFileLimit:
    def test_first_file(self, make, logs, file_limit):
        """Six writes of 300 under a limit of 1000: three in a file, the rest in the next ones; none in part."""
        appender = make()
        with file_limit(1000):
            for _ in range(6):
                while not appender.write(b"x" * 300):
                    pass
        assert [path.stat().st_size for path in appender.paths] == [900, 900]

    def test_too_small_for_anything(self, make, logs, file_limit):
        """If a new file cannot hold the chunk either, it is refused and no further file is made."""
        appender = make()
        with file_limit(100):
            outcomes = [appender.write(b"x" * 300, insist=True) for _ in range(5)]
        assert [outcome.error.errno for outcome in outcomes] == [errno.EFBIG] * 5
        assert [path.stat().st_size for path in logs.iterdir()] == [0]

    def test_raised(self, make, logs, file_limit):
        """After the limit was raised, writing goes on from the same place."""
        appender = make()
        with file_limit(100):
            appender.write(b"x" * 300)
        appender.write(b"y" * 300, insist=True)
        assert (logs / "0").read_bytes() == b"y" * 300


class TestPauses:
    def rests_s(self, appender, clock, count):
        """Fail at each time a try is allowed, *count* times; return the length of each pause."""
        pauses = []
        for _ in range(count):
            appender.write(b"x")
            pauses.append(appender.rest_ns / 1e9)
            clock.advance(pauses[-1])
        return pauses

    def test_doubling(self, make, disk, fake_clock):
        """After a failure the disk is not tried for 0.25 s, then twice as long each time, at most 30 s."""
        disk.room_bytes = 0
        assert self.rests_s(make(), fake_clock, 9) == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]

    def test_untouched(self, make, disk, logs):
        """During the pause, the disk is not tried and the reason is repeated."""
        appender = make()
        disk.errors = [OSError(28, "full")]
        appender.write(b"x")
        assert appender.write(b"x").error.strerror == "full"
        assert appender.errors == 1

    def test_success(self, make, disk, fake_clock):
        """A success ends the pauses: the next failure counts as the first."""
        appender = make()
        disk.room_bytes = 0
        self.rests_s(appender, fake_clock, 3)
        disk.room_bytes = None
        assert appender.write(b"x")
        disk.room_bytes = 0
        assert self.rests_s(appender, fake_clock, 1) == [0.25]


class TestVanished:
    def test_removed_file(self, make, logs):
        """A file that was removed is noticed before the next write, with the bytes it held; then another is begun."""
        appender = make()
        appender.write(b"12345", events=2)
        appender.write(b"678", events=1)
        (logs / "0").unlink()

        assert appender.write(b"next") == WriteOutcome(vanished=Vanished(logs / "0", 3, 8))
        assert appender.write(b"next")
        assert (logs / "1").read_bytes() == b"next"

    def test_removed_directory(self, make, logs):
        """If its directory is gone as well, it is made again."""
        appender = make()
        appender.write(b"12345")
        (logs / "0").unlink()
        logs.rmdir()

        assert appender.write(b"next").vanished.size_bytes == 5
        assert appender.write(b"next")
        assert (logs / "1").read_bytes() == b"next"

    def test_renamed_directory(self, make, logs, tmp_path):
        """A directory that was renamed has not vanished: the file is written on, wherever it is."""
        appender = make()
        appender.write(b"before ")
        logs.rename(tmp_path / "moved")
        assert appender.write(b"after")
        assert (tmp_path / "moved" / "0").read_bytes() == b"before after"

    def test_emptied(self, make, logs):
        """A file that was emptied in place has lost its content."""
        appender = make()
        appender.write(b"12345")
        os.truncate(logs / "0", 0)
        assert appender.check() == Vanished(logs / "0", 1, 5)

    def test_stale_handle(self, make, logs, monkeypatch):
        """A handle that went stale is a file that vanished."""
        appender = make()
        appender.write(b"12345")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", lambda fd: explode(errno.ESTALE))
            assert appender.check() == Vanished(logs / "0", 1, 5)
        assert appender.last_error.errno == errno.ESTALE

    def test_still_there(self, make):
        """A file that is there has not vanished."""
        appender = make()
        appender.write(b"12345")
        assert appender.check() is None

    def test_before_a_byte(self, make, logs, disk):
        """Nothing is lost with a file that vanished while it was empty."""
        appender = make()
        disk.room_bytes = 0
        appender.write(b"x")
        (logs / "0").unlink()
        disk.room_bytes = None
        assert appender.write(b"next", insist=True)
        assert (logs / "1").read_bytes() == b"next"


class TestRotation:
    def test_by_size(self, make, logs):
        """A part that has reached the size is finished before the next write."""
        appender = make(rotate_bytes=8)
        for _ in range(5):
            appender.write(b"1234")
        assert [path.read_bytes() for path in appender.paths] == [b"12341234", b"12341234", b"1234"]

    def test_is_full(self, make):
        """`is_full` says when a part is full, for a writer that ends it with a last record."""
        appender = make(rotate_bytes=8)
        appender.write(b"1234")
        assert not appender.is_full
        appender.write(b"1234")
        assert appender.is_full

    def test_last_word(self, make):
        """A last record goes to the end of its own part, however full that is."""
        appender = make(rotate_bytes=8)
        appender.write(b"12345678")
        assert appender.finish(b" end")
        appender.write(b"next")
        assert [path.read_bytes() for path in appender.paths] == [b"12345678 end", b"next"]

    def test_last_word_refused(self, make, disk):
        """If the last record is refused, the part ends without it."""
        appender = make()
        appender.write(b"12345678")
        disk.room_bytes = 2
        assert not appender.finish(b" end")
        assert [path.read_bytes() for path in appender.paths] == [b"12345678"]

    def test_failure(self, make, logs, disk):
        """If the next part cannot be opened the write is refused, and tried again later."""
        appender = make(rotate_bytes=4)
        appender.write(b"1234")
        logs.rename(logs.with_name("away"))
        logs.write_bytes(b"in the way")
        assert not appender.write(b"5678")
        logs.unlink()
        assert appender.write(b"5678", insist=True)
        assert (logs / "1").read_bytes() == b"5678"


class TestFsync:
    def test_never(self, make, disk, fake_clock):
        """None leaves the forcing to the kernel."""
        appender = make(fsync_s=None)
        appender.write(b"x")
        fake_clock.advance(1000)
        appender.sync_if_due()
        appender.finish()
        assert disk.fsyncs == 0

    def test_each_write(self, make, disk):
        """0 forces every write to the device; the first time with the names of the file and its new directory."""
        appender = make(fsync_s=0.0)
        for _ in range(3):
            appender.write(b"x")
        assert disk.fsyncs == 3 + 2

    def test_by_time(self, make, disk, fake_clock):
        """Seconds force it once that much time has passed, and only if there is something new."""
        appender = make(fsync_s=5.0)
        forced = []
        for write in (True, True, False, False):
            if write:
                appender.write(b"x")
            fake_clock.advance(3)
            appender.sync_if_due()
            forced.append(disk.fsyncs)
        assert forced == [0, 3, 3, 3]

    def test_on_finish(self, make, disk):
        """A part is forced to the device before it is left."""
        appender = make(fsync_s=5.0)
        appender.write(b"x")
        appender.finish()
        assert disk.fsyncs == 3

    def test_failure(self, make, monkeypatch):
        """A failure is counted; the write itself stands."""
        appender = make(fsync_s=0.0)
        monkeypatch.setattr(os, "fsync", explode)
        assert appender.write(b"x")
        assert appender.errors == 1


class TestAbandon:
    def test_closes_nothing_else(self, make, logs):
        """An abandoned file is as it was, and the descriptor is closed."""
        appender = make()
        appender.write(b"x")
        before = descriptors()
        appender.abandon()
        appender.abandon()
        assert descriptors() == before - 1
        assert (logs / "0").read_bytes() == b"x"


def explode(number=errno.EIO, *_):
    raise OSError(number if number in errno.errorcode else errno.EIO, "on demand")
