"""The search for log files in paths."""

from __future__ import annotations

import os

import pytest

from trackside.events import Source, UnreadableError
from trackside.handlers.eventlog._reader import find_files, identify
from trackside.wire import FrameDecoder


class TestFindFiles:
    def test_below(self, tmp_path):
        """Logs are found at any depth, in order; other files are not."""
        for name in ("b/2.tslog", "b/1.tslog", "a/x/y/3.tslog", "a/notes.txt"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        found, problems = find_files([tmp_path])
        assert [str(path.relative_to(tmp_path)) for path in found] == ["a/x/y/3.tslog", "b/1.tslog", "b/2.tslog"]
        assert problems == []

    def test_order_of_paths(self, tmp_path):
        """Paths keep the order they were given in."""
        for name in ("1", "2"):
            (tmp_path / name).touch()
        assert find_files([tmp_path / "2", tmp_path / "1"])[0] == [tmp_path / "2", tmp_path / "1"]

    def test_loop(self, tmp_path):
        """A link to a directory is not followed, so a loop of them ends."""
        (tmp_path / "loop").symlink_to(tmp_path)
        (tmp_path / "1.tslog").touch()
        assert find_files([tmp_path])[0] == [tmp_path / "1.tslog"]

    def test_unlistable(self, tmp_path, monkeypatch):
        """A directory that cannot be listed is a problem, and the others are searched."""
        closed = tmp_path / "closed"
        closed.mkdir()
        (tmp_path / "1.tslog").touch()
        listed = os.scandir

        def scandir(path):
            if os.fspath(path) == str(closed):
                raise PermissionError(13, "Permission denied", str(closed))
            return listed(path)

        monkeypatch.setattr(os, "scandir", scandir)
        found, (problem,) = find_files([tmp_path])
        assert found == [tmp_path / "1.tslog"]
        assert (problem.where, problem.what) == (str(closed), "Permission denied")

    def test_vanished(self, tmp_path, monkeypatch):
        """A directory that is removed after its name was read is no problem; the path that was given would be one."""
        (tmp_path / "1.tslog").touch()
        (tmp_path / "gone").mkdir()
        listed = os.scandir

        def scandir(path):
            if os.fspath(path) == str(tmp_path / "gone"):
                (tmp_path / "gone").rmdir()
            return listed(path)

        monkeypatch.setattr(os, "scandir", scandir)
        assert find_files([tmp_path]) == ([tmp_path / "1.tslog"], [])
        (tmp_path / "gone").mkdir()
        found, (problem, empty) = find_files([tmp_path / "gone"])
        assert found == []
        assert (problem.where, problem.what) == (str(tmp_path / "gone"), "No such file or directory")
        assert empty.what == "holds no .tslog file"


class TestIdentify:
    def test_header(self, record, tmp_path, source):
        """A log's source is known from its header."""
        (path,) = record(tmp_path, source, [(0, "x")])
        assert identify(path, FrameDecoder()).source == source

    def test_text_that_has_no_utf8(self, record, tmp_path):
        """A lone surrogate in an identity, as an environment variable may have, is written as an escape."""
        (path,) = record(tmp_path, Source.detect({}, run_id="run\udcff"), [(0, "x")])
        assert identify(path, FrameDecoder()).source.run_id == r"run\udcff"

    def test_second_header(self, record, tmp_path, source):
        """If the first header is damaged a later one gives the source, or else a frame gives its id."""
        (path,) = record(tmp_path, source, [(0, "x")])
        data = bytearray(path.read_bytes())
        data[40] ^= 1
        path.write_bytes(data)
        assert identify(path, FrameDecoder()).source == Source.unknown(source.id)
        path.write_bytes(data + record(tmp_path / "other", source, [(1, "y")])[0].read_bytes())
        decoder = FrameDecoder()
        assert identify(path, decoder).source.id == source.id

    def test_torn_header(self, tmp_path, record, source):
        """A file with half a header has no source yet; that is no error."""
        (path,) = record(tmp_path, source, [(0, "x")])
        path.write_bytes(path.read_bytes()[:50])
        assert identify(path, FrameDecoder()).source is None

    def test_gone(self, tmp_path):
        """A file that is gone is unreadable."""
        with pytest.raises(UnreadableError, match="No such file"):
            identify(tmp_path / "gone", FrameDecoder())
