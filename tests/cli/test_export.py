"""``trackside export``."""

from __future__ import annotations

import json
import os
import stat
import sys

import pytest

pytestmark = pytest.mark.once


@pytest.fixture
def logs(tmp_path, write_log):
    """Give a directory with the logs of two ranks."""
    write_log(tmp_path / "runs", rank=0, steps=2)
    write_log(tmp_path / "runs", rank=1, steps=2, offset_ns=500_000_000)
    return tmp_path / "runs"


def steps_in(path):
    """Return rank and step of each step in *path*."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["rank"], line["step"]) for line in lines if line["type"] == "test.cli.stepped"]


def names_in(directory):
    """Return the names of the files in *directory*."""
    return sorted(path.name for path in directory.iterdir())


class TestExport:
    def test_file(self, command, tmp_path, logs):
        """All events of all sources are in the file, merged by time, one object a line."""
        outcome = command("export", logs, "--jsonl", tmp_path / "events.jsonl")

        assert outcome == (0, f"8 events to {tmp_path}/events.jsonl\n", "")
        assert steps_in(tmp_path / "events.jsonl") == [(0, 0), (1, 0), (0, 1), (1, 1)]

    def test_stdout(self, command, logs):
        """A dash writes to standard output, and nothing but events."""
        outcome = command("export", logs, "--jsonl", "-")

        assert (outcome.code, len([json.loads(line) for line in outcome.lines])) == (0, 8)

    def test_mode(self, command, tmp_path, logs):
        """The file is for this user alone, and no other file is left next to it."""
        command("export", logs, "--jsonl", tmp_path / "out.jsonl")

        assert stat.S_IMODE((tmp_path / "out.jsonl").stat().st_mode) == 0o600
        assert names_in(tmp_path) == ["out.jsonl", "runs"]


class TestFormats:
    @pytest.mark.parametrize("formats", [[], ["--jsonl", "x", "--parquet", "y"]])
    def test_exactly_one(self, command, logs, capsys, formats):
        """One format must be asked for, and no more than one can be."""
        with pytest.raises(SystemExit) as ended:
            command("export", logs, *formats)

        assert ended.value.code == 2
        assert "--parquet" in capsys.readouterr().err

    def test_without_pyarrow(self, command, tmp_path, logs, monkeypatch):
        """Without the library for Parquet, a line says what to install, and no file is made."""
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        monkeypatch.delitem(sys.modules, "trackside.handlers.parquet", raising=False)
        outcome = command("export", logs, "--parquet", tmp_path / "parquet")

        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert "pip install 'trackside[parquet]'" in outcome.err
        assert names_in(tmp_path) == ["runs"]


class TestTarget:
    def test_exists(self, command, tmp_path, logs):
        """A file that exists stays as it is, with exit code 2 and a line that says how to replace it."""
        target = tmp_path / "events.jsonl"
        target.write_text("mine\n")
        outcome = command("export", logs, "--jsonl", target)

        assert outcome == (2, "", f"trackside export: {target}: exists; give another name, or --force\n")
        assert target.read_text() == "mine\n"

    def test_forced(self, command, tmp_path, logs):
        """With --force, it is replaced."""
        target = tmp_path / "events.jsonl"
        target.write_text("mine\n")
        outcome = command("export", logs, "--jsonl", target, "--force")

        assert (outcome.code, len(steps_in(target))) == (0, 4)

    def test_link(self, command, tmp_path, logs):
        """A symbolic link that leads nowhere counts as existing; with --force it is replaced and not followed."""
        target = tmp_path / "events.jsonl"
        target.symlink_to(tmp_path / "elsewhere")
        refused = command("export", logs, "--jsonl", target)
        forced = command("export", logs, "--jsonl", target, "--force")

        assert (refused.code, forced.code) == (2, 0)
        assert not (tmp_path / "elsewhere").exists()

    def test_of_a_sink_that_writes(self, command, tmp_path, logs):
        """The unfinished file of a sink with the same name is not touched."""
        (tmp_path / "events.jsonl.part").write_text("somebody writes this")
        outcome = command("export", logs, "--jsonl", tmp_path / "events.jsonl")

        assert outcome.code == 0
        assert (tmp_path / "events.jsonl.part").read_text() == "somebody writes this"

    def test_no_directory(self, command, tmp_path, logs):
        """A directory that is not there is exit code 2 and one line."""
        target = tmp_path / "nowhere" / "events.jsonl"
        outcome = command("export", logs, "--jsonl", target)

        assert outcome == (
            2,
            "",
            f"trackside export: {target}: cannot be written: No such file or directory; give another place\n",
        )

    def test_disk_full(self, command, tmp_path, logs, monkeypatch):
        """A full disk leaves nothing behind: no file, and no half of one."""

        def refuse(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("trackside.cli._export._write", refuse)
        outcome = command("export", logs, "--jsonl", tmp_path / "events.jsonl")

        assert outcome.code == 2
        assert "cannot be written: No space left on device" in outcome.err
        assert names_in(tmp_path) == ["runs"]

    def test_interrupted(self, command, tmp_path, logs, monkeypatch):
        """An interrupt leaves no file behind either."""

        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr("trackside.cli._export._write", interrupt)
        outcome = command("export", logs, "--jsonl", tmp_path / "events.jsonl")

        assert outcome.code == 130
        assert names_in(tmp_path) == ["runs"]


class TestUnreadable:
    def test_missing(self, command, tmp_path):
        """A path that does not exist is exit code 2 and one line, and no file is made."""
        outcome = command("export", tmp_path / "nowhere", "--jsonl", tmp_path / "events.jsonl")

        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert names_in(tmp_path) == []

    def test_nothing_readable(self, command, tmp_path, unreadable):
        """If nothing can be read no file is made."""
        outcome = command("export", unreadable, "--jsonl", tmp_path / "events.jsonl")

        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert not (tmp_path / "events.jsonl").exists()

    @pytest.mark.parametrize("target", ["events.jsonl", "-"])
    def test_one_of_two(self, command, tmp_path, logs, unreadable, target):
        """Readable files are exported whole, and each unreadable one is a line; the exit code is 2."""
        path = "-" if target == "-" else tmp_path / target
        outcome = command("export", unreadable, logs, "--jsonl", path)
        written = outcome.out if target == "-" else path.read_text()

        assert (outcome.code, written.count("test.cli.stepped")) == (2, 4)
        assert outcome.err.count("\n") == 1

    def test_damage(self, command, tmp_path, logs):
        """Damaged and torn parts are reported; the rest is written."""
        path = min(logs.rglob("*.tslog"))
        os.truncate(path, path.stat().st_size - 1)
        outcome = command("export", logs, "--jsonl", tmp_path / "events.jsonl")

        assert outcome.code == 0
        assert "damaged byte(s) were passed over; see trackside info" in outcome.err
        assert len(steps_in(tmp_path / "events.jsonl")) == 4
