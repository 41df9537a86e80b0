"""``trackside tail``."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest

from trackside.bus import Bus
from trackside.events import ITERATION, Event, Source, event
from trackside.handlers import EventLog

pytestmark = pytest.mark.once


@event("test.tail.seen", priority=ITERATION)
class Seen(Event):
    """An event with a text."""

    number: int


class TestText:
    def test_lines(self, command, tmp_path, write_log):
        """An event is a line: time, rank, step, type and fields; a field with its default value is left out."""
        write_log(tmp_path, steps=2)

        outcome = command("tail", tmp_path, "--type", "test.*")

        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.lines == [
            "22:13:20.000Z  rank 0  step 0     test.cli.stepped  text=rank 0",
            "22:13:21.000Z  rank 0  step 1     test.cli.stepped  text=rank 0",
        ]

    def test_verbose(self, command, tmp_path, write_log):
        """With -v a line has the number, the whole type and every field."""
        write_log(tmp_path, steps=1)

        assert command("tail", tmp_path, "-v", "-t", "test.*").lines == [
            "22:13:20.000Z  rank 0               1  step 0      test.cli.stepped  text=rank 0 loss=0.5"
        ]

    def test_ranks(self, command, tmp_path, write_log):
        """With --ranks there are lines of these alone; if there is none, it is said, with exit code 1."""
        for rank in range(3):
            write_log(tmp_path, rank=rank, steps=1)
        lines = command("tail", tmp_path, "-t", "test.*", "--ranks", "0,2").lines
        none = command("tail", tmp_path, "--ranks", "7")

        assert [line.split()[2] for line in lines] == ["0", "2"]
        assert (none.code, none.err) == (1, "trackside tail: no event of these ranks\n")

    def test_last_of_any_number(self, command, tmp_path, write_log):
        """-n takes a number of any size."""
        write_log(tmp_path)

        assert command("tail", tmp_path, "-n", "9" * 30).lines == command("tail", tmp_path).lines

    @pytest.mark.parametrize("columns", [30, 40, 80, 160])
    def test_width(self, command, tmp_path, write_log, monkeypatch, columns):
        """No line is wider than COLUMNS; a narrow terminal gets the seconds and the rank's number alone."""
        monkeypatch.setenv("COLUMNS", str(columns))
        write_log(tmp_path, steps=1, texts=["x" * 5000])
        (line,) = command("tail", tmp_path, "-t", "test.*").lines

        assert len(line) == columns
        assert line.startswith("22:13:20 0 test." if columns < 60 else "22:13:20.000Z  rank 0  step 0     test.")
        assert line.endswith("…")

    def test_all_types(self, command, tmp_path, write_log):
        """By default all events are shown, from the stream's first to its last."""
        write_log(tmp_path, steps=1)
        types = [line.split()[3 + 2 * ("step" in line.split())] for line in command("tail", tmp_path).lines]

        assert types == ["source.started", "test.cli.stepped", "source.ended"]

    def test_recorded_late(self, command, tmp_path):
        """An event that a source records after others of a later time stands where its time is."""
        with Bus(source=Source(id="of-tail")) as bus:
            bus.subscribe(EventLog(tmp_path))
            for number, at_ns in enumerate((10, 30, 20)):
                bus.log(Seen(at_ns=at_ns, span_id=0, step=-1, number=number))
        shown = [json.loads(line) for line in command("tail", tmp_path, "--json", "-t", "*.seen").lines]

        assert [one["fields"]["number"] for one in shown] == [0, 2, 1]

    def test_merged_by_time(self, command, tmp_path, write_log):
        """Ranks are merged by time."""
        write_log(tmp_path, rank=0, steps=2)
        write_log(tmp_path, rank=1, steps=2, offset_ns=500_000_000)
        lines = command("tail", tmp_path, "-t", "test.*").lines

        assert [line.split()[2] for line in lines] == ["0", "1", "0", "1"]

    def test_worker(self, command, tmp_path, write_log):
        """A worker's events say that they are a worker's."""
        write_log(tmp_path, rank=1, steps=1, role="worker")

        assert "  rank 1/worker " in command("tail", tmp_path, "-t", "test.*").out


class TestOptions:
    def test_json(self, command, tmp_path, write_log):
        """As JSON, an event is an object a line."""
        write_log(tmp_path, steps=1)
        lines = [json.loads(line) for line in command("tail", tmp_path, "--json", "-t", "test.*").lines]

        assert lines == [
            {
                "source": "0000000000000000",
                "rank": 0,
                "seq": 1,
                "time_ns": 1_700_000_000 * 10**9,
                "span_id": 0,
                "step": 0,
                "type": "test.cli.stepped",
                "fields": {"text": "rank 0", "loss": 0.5},
            }
        ]

    @pytest.mark.parametrize(
        ("globs", "expected"),
        [(["*.started"], 1), (["test.cli.*"], 3), (["test.*", "*.ended"], 4), (["TEST.*"], 0), (["nothing"], 0)],
    )
    def test_type(self, command, tmp_path, write_log, globs, expected):
        """A type is chosen by a pattern for its wire name; several patterns choose what any of them does."""
        write_log(tmp_path)
        options = [option for glob in globs for option in ("--type", glob)]
        outcome = command("tail", tmp_path, *options)

        assert (outcome.code, len(outcome.lines)) == (0 if expected else 1, expected)

    def test_nothing(self, command, tmp_path, write_log):
        """If no event is of the type, stderr names the types that there are, and the exit code is 1."""
        write_log(tmp_path)
        outcome = command("tail", tmp_path, "-t", "source")

        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err == (
            "trackside tail: no event of type source; there are trackside.source.ended, trackside.source.started, "
            "test.cli.stepped\n"
        )

    def test_short_name(self, command, tmp_path, write_log):
        """A type can be given as it is shown, without trackside's own prefix."""
        write_log(tmp_path)

        assert len(command("tail", tmp_path, "-t", "source.started").lines) == 1

    @pytest.mark.parametrize(("last", "expected"), [(0, []), (2, ["3", "4"]), (99, ["0", "1", "2", "3", "4"])])
    def test_last(self, command, tmp_path, write_log, last, expected):
        """With a number, only the last so many of the selected events are shown."""
        write_log(tmp_path, steps=5)
        lines = command("tail", tmp_path, "-n", last, "-t", "test.*").lines

        assert [line.partition("step ")[2][0] for line in lines] == expected

    @pytest.mark.parametrize("last", ["-1", "x", "1.5"])
    def test_last_that_is_no_number(self, command, tmp_path, last, capsys):
        """A value that is no whole number from 0 is refused, and named."""
        with pytest.raises(SystemExit) as caught:
            command("tail", tmp_path, f"--last={last}")

        assert caught.value.code == 2
        assert f"'{last}' is no whole number from 0" in capsys.readouterr().err

    def test_several_paths(self, command, tmp_path, write_log):
        """Files and directories can be given together; one that is given twice is read once."""
        first = write_log(tmp_path / "a", rank=0, steps=1)
        write_log(tmp_path / "b", rank=1, steps=1)
        outcome = command("tail", first, tmp_path / "b", first, "-t", "test.*")

        assert (outcome.code, len(outcome.lines)) == (0, 2)


class TestUnreadable:
    @pytest.mark.parametrize("options", [[], ["--json"], ["-n", "1"]])
    def test_missing(self, command, tmp_path, options):
        """A path that does not exist is exit code 2 and one line."""
        outcome = command("tail", tmp_path / "nowhere", *options)

        assert outcome == (
            2,
            "",
            f"trackside tail: {tmp_path}/nowhere: does not exist; give a .tslog file or a directory\n",
        )

    @pytest.mark.parametrize("options", [[], ["-n", "1"], ["--follow"]])
    def test_no_log(self, command, unreadable, options):
        """A file that is no log is exit code 2 and one line, without waiting for it to become one."""
        outcome = command("tail", unreadable, *options)

        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.count("\n") == 1
        assert f"trackside tail: {unreadable}: is no event log;" in outcome.err

    def test_empty_directory(self, command, tmp_path):
        """A directory without logs is exit code 2 and one line."""
        outcome = command("tail", tmp_path)

        assert (outcome.code, outcome.err) == (
            2,
            f"trackside tail: {tmp_path}: holds no .tslog file; give a directory of event logs\n",
        )

    @pytest.mark.parametrize(("options", "shown"), [([], 3), (["-n", "2"], 2), (["--json"], 3)])
    def test_one_of_two(self, command, readable, unreadable, options, shown):
        """Everything readable is shown before the unreadable is reported."""
        outcome = command("tail", unreadable, readable, "-t", "test.*", *options)

        assert (outcome.code, len(outcome.lines)) == (2, shown)
        assert outcome.err.count("\n") == 1

    def test_each_is_reported(self, command, tmp_path, readable, unreadable):
        """Each of several unreadable files has its line."""
        outcome = command("tail", unreadable, tmp_path / "nowhere", readable)

        assert (outcome.code, outcome.err.count("\n")) == (2, 2)


class TestLosses:
    def test_damage(self, command, damaged):
        """Damaged and missing parts are reported on stderr; the rest is shown."""
        outcome = command("tail", damaged)

        assert outcome.code == 0
        assert "damaged byte(s) were passed over; see trackside info" in outcome.err

    def test_torn_end(self, command, tmp_path, write_log):
        """A log cut short is shown as far as it goes."""
        path = write_log(tmp_path, steps=3)
        os.truncate(path, path.stat().st_size - 10)
        outcome = command("tail", tmp_path, "-t", "test.*")

        assert (outcome.code, len(outcome.lines)) == (0, 3)
        assert "damaged byte(s)" in outcome.err


class TestHostile:
    def test_control_characters(self, command, tmp_path, write_log):
        """Control characters in a log are shown as escapes, on one line."""
        write_log(tmp_path, steps=1, texts=["\x1b[2J\x1b]0;owned\x07 two\nlines \u202egnp.exe"])
        line = command("tail", tmp_path, "-t", "test.*").out

        assert r"text=\x1b[2J\x1b]0;owned\x07 two\nlines \u202egnp.exe" in line
        assert line.count("\n") == 1

    @pytest.mark.parametrize("options", [[], ["--json"]])
    def test_names(self, command, tmp_path, write_frames, options):
        """Nor can names of types and fields."""
        row = [0, 0, 10**18, 0, -1, {"\x1b[31m": 1}]
        write_frames(tmp_path, [2, "0" * 16, 0, 0, {}, [[0, "acme.\x1b[2J", 1, ["a\x1b[8m"]]], [row]])
        outcome = command("tail", tmp_path, *options)

        assert outcome.code == 0
        assert "\x1b" not in outcome.out + outcome.err
        assert "acme." in outcome.out

    @pytest.mark.parametrize("key", [b"bytes", 7, 1.5, None, True])
    @pytest.mark.parametrize("options", [[], ["--json"]])
    def test_odd_keys(self, command, tmp_path, write_frames, options, key):
        """A table whose keys are no text is shown, or passed over as damage; it ends nothing."""
        row = [0, 0, 10**18, 0, -1, {key: 1}]
        write_frames(tmp_path, [2, "0" * 16, 0, 0, {}, [[0, "acme.odd", 1, ["table"]]], [row]])
        outcome = command("tail", tmp_path, *options)
        is_shown = "acme.odd" in outcome.out

        assert outcome.code == (0 if is_shown else 1)
        assert is_shown or "damaged" in outcome.err

    def test_times_beyond_the_calendar(self, command, tmp_path, write_frames):
        """A time that no calendar has is shown as the number that it is."""
        row = [0, 0, 2**63, 0, -1]
        write_frames(tmp_path, [2, "0" * 16, 0, 0, {}, [[0, "acme.late", 1, []]], [row]])
        outcome = command("tail", tmp_path)

        assert outcome.code == 0
        assert "acme.late" in outcome.out

    def test_long_values(self, command, tmp_path, write_log):
        """A line is cut at 200 characters where there is no terminal; with -v, and as JSON, it is whole."""
        write_log(tmp_path, steps=1, texts=["x" * 1000])

        assert max(map(len, command("tail", tmp_path).lines)) == 200
        assert f"text={'x' * 1000} loss" in command("tail", "-v", tmp_path).out
        assert "x" * 1000 in command("tail", tmp_path, "--json").out


class TestFollow:
    def test_growing_log(self, start, tmp_path):
        """Events that are written while the command watches are shown at once, until it is interrupted."""
        with Bus() as bus:
            bus.subscribe(EventLog(tmp_path), to=Seen)
            bus.log(Seen(number=0))
            bus.flush()
            child = start("tail", "--follow", "--json", tmp_path, "-t", "test.*")
            shown = [json.loads(child.stdout.readline())["fields"]["number"]]
            for number in (1, 2):
                bus.log(Seen(number=number))
                bus.flush()
                shown.append(json.loads(child.stdout.readline())["fields"]["number"])
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)

        assert (shown, child.returncode, err) == ([0, 1, 2], 130, "")

    def test_log_that_comes_later(self, start, tmp_path, write_log):
        """A log that is begun below the directory later is shown too."""
        write_log(tmp_path / "runs", rank=0, steps=1)
        write_log(tmp_path / "elsewhere", rank=1, steps=1)
        child = start("tail", "--follow", tmp_path / "runs", "-t", "test.*")
        first = child.stdout.readline()
        shutil.copytree(tmp_path / "elsewhere", tmp_path / "runs" / "more")
        second = child.stdout.readline()

        assert ("rank 0" in first, "rank 1" in second) == (True, True)

    def test_last(self, start, tmp_path, write_log):
        """With -n, of what is there only the last events are shown, and of what is written then all."""
        write_log(tmp_path / "runs", rank=0, steps=5)
        write_log(tmp_path / "elsewhere", rank=1, steps=3)
        child = start("tail", "--follow", "-n", "2", "--json", tmp_path / "runs", "-t", "test.*")
        there = [json.loads(child.stdout.readline())["step"] for _ in range(2)]
        shutil.copytree(tmp_path / "elsewhere", tmp_path / "runs" / "more")
        later = [json.loads(child.stdout.readline())["step"] for _ in range(3)]

        assert (there, later) == ([3, 4], [0, 1, 2])

    def test_empty_directory(self, start, tmp_path, write_log):
        """A directory without files can be watched."""
        child = start("tail", "--follow", tmp_path, "-t", "test.*")
        write_log(tmp_path, steps=1)

        assert "test.cli.stepped" in child.stdout.readline()

    def test_directory_that_comes_later(self, start, tmp_path, write_log):
        """
        A directory that does not exist yet can be watched: one line says that it is waited for, and earlier files are
        shown.
        """
        write_log(tmp_path / "there", rank=0, steps=1)
        child = start("tail", "--follow", tmp_path / "later", tmp_path / "there", "-t", "test.*")
        first = child.stdout.readline()
        write_log(tmp_path / "later", rank=1, steps=1)
        second = child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)

        assert ("rank 0" in first, "rank 1" in second) == (True, True)
        assert err == f"trackside tail: waiting for {tmp_path}/later, which does not exist yet\n"
