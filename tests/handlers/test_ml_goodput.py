"""ml-goodput-measurement's records in files."""

from __future__ import annotations

import json

import pytest

from trackside.handlers import feed
from trackside.handlers.ml_goodput import RecordFiles, holds_records
from trackside.handlers.models.goodput import GoodputAccumulator

START_S = 1_704_070_800.0


def records(*points, name="job"):
    """Return lines of records: a key, a time in seconds after the start, and other keys."""
    return [json.dumps({"job_name": name, key: START_S + at, **more}) for key, at, more in points]


def steps(*pairs):
    """Return the starts of steps."""
    return [("step_start_time", at, {"step_count": step}) for step, at in pairs]


WHOLE = records(("job_start_time", 0, {}), *steps((0, 1), (1, 3), (2, 5), (3, 7)), ("job_end_time", 9, {}))
"""Four steps of 2 s, after 1 s."""


@pytest.fixture
def write(tmp_path):
    """Give a function that writes lines to a file and returns its path."""

    def write(name, lines):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


def result(*paths):
    """Return the account of the only session in *paths*, which hold nothing else."""
    files = RecordFiles(paths)
    (model,) = feed(files, GoodputAccumulator())
    assert files.problems == []
    (session,) = model.sessions()
    return model.result(session=session)


class TestRecordFiles:
    def test_payloads(self, write):
        """A payload a line is read."""
        found = result(write("a.jsonl", WHOLE))
        assert (found.session, found.productive_s, found.elapsed_s) == ("job", 8.0, 9.0)

    def test_entries(self, write):
        """Entries of a log export have the payload in a field."""
        entries = [json.dumps({"insertId": "x", "timestamp": "…", "jsonPayload": json.loads(line)}) for line in WHOLE]
        assert result(write("a.jsonl", entries)).productive_s == 8.0

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_order(self, write, order):
        """The order in which files are given, and their names, do not matter."""
        parts = [write("z.jsonl", WHOLE[:3]), write("a.jsonl", WHOLE[3:])]
        found = result(*(parts[index] for index in order))
        assert (found.productive_s, found.attempts, found.problems) == (8.0, 1, {})

    def test_twice(self, write):
        """A file that is given twice is read once."""
        path = write("records/a.jsonl", WHOLE)
        assert result(path, path.parent).problems == {}

    def test_checkpoints(self, write):
        """Orbax's records, which name no job, are those of the job they stand among."""
        save = {"event_type": "save", "step": 1, "directory": "/x", "checkpointer_blocking_duration_secs": 0.5}
        save["checkpointer_blocking_start_time"] = START_S + 5
        lines = [*WHOLE[:4], json.dumps(save), *WHOLE[4:]]
        assert result(write("a.jsonl", lines)).badput_s["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] == 0.5

    def test_elastic(self, write):
        """Waits for slices are read, by their type."""
        waits = [("elastic_wait_start_time", 9, "scale_up"), ("elastic_wait_end_time", 12, "scale_up")]
        lines = WHOLE[:-1] + records(*((key, at, {"elastic_wait_event_type": kind}) for key, at, kind in waits))
        assert result(write("a.jsonl", lines)).badput_s["ELASTIC_SCALE_UP"] == 3.0

    def test_no_step_ends(self, write):
        """A step lasts until the next one begins: of a log torn at the third, two are known."""
        found = result(write("a.jsonl", WHOLE[:4]))
        assert (found.productive_s, found.last_step, found.has_ended) == (4.0, 1, False)


class TestBadLines:
    @pytest.mark.parametrize("line", ["{", "[1]", "null", "7", '"text"', "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
    def test_line(self, write, line):
        """A line that holds no object is named, counted and skipped."""
        path = write("a.jsonl", [*WHOLE[:2], line, *WHOLE[2:]])
        files = RecordFiles([path])
        (model,) = feed(files, GoodputAccumulator())

        assert model.result().productive_s == 8.0
        assert (files.records, files.bad_lines) == (6, 1)
        (problem,) = files.problems
        assert str(problem) == f"{path}: 1 of 7 line(s) hold no JSON object: line 3; all others were read"

    @pytest.mark.parametrize("step", [2**62, 10**400], ids=["62 bits", "400 digits"])
    def test_step_beyond_all_counts(self, write, step):
        """A step number that no event can hold is no step; all others are read."""
        line = json.dumps({"job_name": "job", "step_count": step, "step_start_time": START_S + 8})
        (model,) = feed(RecordFiles([write("a.jsonl", [*WHOLE[:-1], line, WHOLE[-1]])]), GoodputAccumulator())

        found = model.result()
        assert (found.last_step, found.productive_s) == (3, 8.0)
        assert found.problems == {"a step record without a whole number": 1}

    def test_time_beyond_all_clocks(self, write):
        """A time of 400 digits at the beginning of a file is no time; all others are read."""
        line = json.dumps({"job_name": "job", "tpu_init_end_time": 10**400})
        (model,) = feed(RecordFiles([write("a.jsonl", [line, *WHOLE])]), GoodputAccumulator())
        assert model.result().productive_s == 8.0

    def test_texts_that_have_no_utf8(self, write):
        """A lone surrogate, which JSON can write, is read as an escape; a pair is the character that it stands for."""
        lines = [line.replace('"job"', r'"job \ud800 \ud83d\ude00"') for line in WHOLE]
        (model,) = feed(RecordFiles([write("a.jsonl", lines)]), GoodputAccumulator())
        assert model.sessions() == ["job \\ud800 \N{GRINNING FACE}"]

    def test_bytes(self, tmp_path):
        """So is a line of bytes that are no text."""
        path = tmp_path / "a.jsonl"
        path.write_bytes(b'{"job_name": "\xff\xfe"}\n' + "\n".join(WHOLE).encode())
        files = RecordFiles([path])
        assert len(list(files)) == 6  # the start of the source, four steps, its end, and none of the bad line
        assert files.bad_lines == 1

    def test_long(self, write):
        """A line of more than 1 MiB is one bad line, and is never in memory as a whole."""
        files = RecordFiles([write("a.jsonl", ['{"a": "' + "x" * (3 << 20) + '"}', *WHOLE])])
        (model,) = feed(files, GoodputAccumulator())
        assert (model.result().productive_s, files.records, files.bad_lines) == (8.0, 6, 1)

    def test_many(self, write):
        """Of many, the first ten are named."""
        files = RecordFiles([write("a.jsonl", [*WHOLE, *["x"] * 30])])
        list(files)
        assert files.problems[0].what == (
            "30 of 36 line(s) hold no JSON object: line 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, …"
        )

    def test_empty_lines(self, write):
        """Empty lines are skipped."""
        assert result(write("a.jsonl", ["", *WHOLE, "  ", ""])).productive_s == 8.0


class TestProblems:
    def test_strangers(self, write):
        """A file of other objects is reported as such; other files are read."""
        stranger = write("b.jsonl", ['{"source": "x", "time_ns": 5}'])
        files = RecordFiles([stranger, write("a.jsonl", WHOLE)])
        (model,) = feed(files, GoodputAccumulator())

        assert model.result().productive_s == 8.0
        assert [(one.where, one.what) for one in files.problems] == [
            (str(stranger), "holds no record of ml-goodput-measurement")
        ]

    def test_missing(self, tmp_path):
        """A missing path, and a directory without such files, are reported."""
        files = RecordFiles([tmp_path / "nowhere", tmp_path])
        assert list(files) == []
        assert [one.what for one in files.problems] == ["does not exist", "holds no .jsonl or .json file"]


class TestHoldsRecords:
    @pytest.mark.parametrize(
        ("content", "expected"),
        [(b'{"job_name": 1}', True), (b'\xef\xbb\xbf\n {"a"', True), (b"[{", True), (b"TSLG\x01", False), (b"", False)],
    )
    def test_content(self, tmp_path, content, expected):
        """A file that begins like JSON counts as records, whatever its name is."""
        path = tmp_path / "export.tslog"
        path.write_bytes(content)
        assert holds_records(path) is expected

    def test_directory(self, tmp_path, write):
        """A directory counts as records if it has JSON lines and no event log."""
        write("a.jsonl", WHOLE)
        assert holds_records(tmp_path) is True
        write("run/rank-0.tslog", ["x"])
        assert holds_records(tmp_path) is False

    def test_nothing(self, tmp_path):
        """Neither a missing path nor an empty directory does."""
        assert holds_records(tmp_path / "nowhere") is False
        assert holds_records(tmp_path) is False
