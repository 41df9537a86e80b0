"""The commands that show a session's logs: report, trace, compare and top."""

from __future__ import annotations

import json
import os
import stat
import sys

import pytest

pytestmark = pytest.mark.once

HEADLINE = "Nothing says what 2 s, 100.0 % of the time, was spent on."
"""Of a job whose only events are of its own kind."""


class TestReport:
    @pytest.fixture
    def job(self, write_log, tmp_path):
        """Give the logs of a job of two ranks."""
        for rank in (0, 1):
            write_log(tmp_path / "runs", rank=rank)
        return tmp_path / "runs"

    def test_page(self, job, command, tmp_path):
        """The page is written, and a line gives the main finding and the path of the page."""
        outcome = command("report", job, "--html", tmp_path / "report.html")
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out == f"{HEADLINE} {tmp_path / 'report.html'} says more.\n"
        assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")

    @pytest.mark.parametrize(("columns", "is_whole"), [("60", False), ("0", True), ("wide", True)])
    @pytest.mark.parametrize("is_coloured", [False, True])
    def test_columns(self, job, command, monkeypatch, columns, *, is_whole, is_coloured):
        """In a pipe, lines are as wide as COLUMNS says, with the library rich and without."""
        monkeypatch.setenv("COLUMNS", columns)
        if is_coloured:
            pytest.importorskip("rich")
        else:
            for name in [name for name in sys.modules if name.startswith(("rich", "trackside.report.rich"))]:
                monkeypatch.delitem(sys.modules, name)
            monkeypatch.setitem(sys.modules, "rich", None)
        (line,) = (line for line in command("report", job).lines if line.startswith("1. "))
        assert line.endswith("was spent on.") == is_whole

    def test_page_to_stdout(self, job, command):
        """A hyphen writes the page to standard output, and nothing else."""
        assert command("report", job, "--html", "-").out.startswith("<!DOCTYPE html>")

    def test_json(self, job, command):
        """The JSON object holds the verdict."""
        outcome = command("report", job, "--json")
        assert json.loads(outcome.out)["verdict"]["headline"] == HEADLINE

    def test_text(self, job, command):
        """Without options the report is printed."""
        pytest.importorskip("rich", reason="rich is not installed in this environment")
        outcome = command("report", job)
        assert (outcome.code, "What is missing" in outcome.out) == (0, True)

    def test_without_rich(self, job, command, monkeypatch):
        """Without rich the same text is printed, without colours."""
        for name in [name for name in sys.modules if name.startswith(("rich", "trackside.report.rich"))]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "rich", None)
        outcome = command("report", job)
        assert (outcome.code, outcome.err, "\x1b" in outcome.out) == (0, "", False)
        assert "What is missing" in outcome.out

    def test_explain(self, job, command):
        """--explain says of each rule why it found something or nothing."""
        lines = command("report", job, "--explain").lines
        ruled = (["nothing"], ["found"])
        rules = {line.split()[0] for line in lines if line[:2] == "  " and line.split()[1:2] in ruled}
        assert {"raised", "died", "not-finite", "stragglers", "slowdown", "unaccounted"} <= rules

    def test_private(self, job, command, tmp_path):
        """The page can be read by this user alone: the texts of a log are in it."""
        page = tmp_path / "report.html"
        command("report", job, "--html", page)
        assert stat.S_IMODE(page.stat().st_mode) == 0o600

    def test_unreadable(self, job, command, unreadable):
        """An unreadable file is a line, after everything else was read, and exit code 2."""
        outcome = command("report", job, unreadable, "--json")
        assert (outcome.code, json.loads(outcome.out)["ranks_total"]) == (2, 2)
        assert len(outcome.err.splitlines()) == 1

    @pytest.mark.parametrize("options", [["--session", "x"], ["--html", "/nowhere/at/all.html"]])
    def test_refusals(self, job, command, options):
        """An unknown session, and a path that cannot be written, are one line and exit code 2."""
        outcome = command("report", job, "--json", *options)
        assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)

    def test_html_without_name(self, readable, command, capsys):
        """An empty name of the page is refused."""
        with pytest.raises(SystemExit):
            command("report", readable, "--html", "")
        assert "argument --html: an empty name" in capsys.readouterr().err


class TestTrace:
    def test_writes(self, readable, command, tmp_path):
        """The trace is written whole, and a line names a program that opens it."""
        outcome = command("trace", readable, "-o", tmp_path / "t.json")
        assert (outcome.code, "ui.perfetto.dev" in outcome.out) == (0, True)
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["t.json"]
        json.loads((tmp_path / "t.json").read_text())

    def test_unaligned(self, readable, command, tmp_path):
        """Ranks whose clock could not be aligned are named on stderr."""
        assert "rank(s) 0 could not be aligned" in command("trace", readable, "-o", tmp_path / "t.json").err

    def test_json(self, readable, command, tmp_path):
        """With --json the command prints the written path as an object."""
        printed = json.loads(command("trace", readable, "-o", tmp_path / "t.json", "--json").out)
        assert (printed["ranks"], printed["unaligned"], printed["file"]) == (1, [0], str(tmp_path / "t.json"))

    @pytest.mark.parametrize(
        "options", [["--steps", "9-3"], ["--steps", "x"], ["--ranks", "0,,1"], ["--merge", "/nowhere.json"]]
    )
    def test_refusals(self, readable, command, tmp_path, options):
        """An invalid option is one line and exit code 2, and no file is left."""
        outcome = command("trace", readable, "-o", tmp_path / "t.json", *options)
        assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
        assert not list(tmp_path.glob("t.json*"))

    @pytest.mark.parametrize("name", [".", "/", "pipe", "-"])
    def test_no_file(self, readable, command, tmp_path, monkeypatch, name):
        """A directory, a pipe or a hyphen is not replaced by a trace: one line, exit code 2."""
        monkeypatch.chdir(tmp_path)
        os.mkfifo("pipe")
        before = sorted(tmp_path.iterdir())
        outcome = command("trace", readable, "-o", name)
        assert outcome.code == 2
        assert outcome.err == f"trackside trace: {name}: is no regular file; give another -o FILE\n"
        assert sorted(tmp_path.iterdir()) == before

    def test_damaged(self, damaged, command, tmp_path):
        """Damaged and missing parts are reported on stderr."""
        outcome = command("trace", damaged, "-o", tmp_path / "t.json")
        assert outcome.code == 0
        assert "damaged byte(s) were passed over" in outcome.err

    def test_nothing(self, readable, command, tmp_path):
        """Named ranks without any events are one line on stderr and exit code 1."""
        outcome = command("trace", readable, "-o", tmp_path / "t.json", "--ranks", "9")
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err == f"trackside trace: no event of these ranks and steps; {tmp_path / 't.json'} is empty\n"


class TestCompare:
    def test_damaged(self, readable, damaged, command):
        """Damaged and missing parts are reported on stderr."""
        outcome = command("compare", readable, damaged)
        assert outcome.code == 0
        assert "damaged byte(s) were passed over" in outcome.err

    def test_words(self, readable, command):
        """Buckets have their standard names, as in the report, and those that are empty on both sides are left out."""
        rows = (
            command("compare", readable, readable).out.partition("\nbuckets")[2].partition("\n\n")[0].splitlines()[1:]
        )
        names = {row.strip().partition("  ")[0] for row in rows}
        assert "unaccounted" in names
        assert all(name == name.lower() for name in names)
        assert not [row for row in rows if row[44:68].split() == ["0.0", "%", "0.0", "%"]]

    def test_same(self, readable, command):
        """A run compared with itself shows no difference, and exit code 0."""
        outcome = command("compare", readable, readable)
        assert (outcome.code, "no difference shown" in outcome.out) == (0, True)

    def test_by_name(self, write_log, command, tmp_path):
        """Runs, sessions and perf tags are found by their names."""
        for rank, printed in enumerate([{"run_id": "a"}, {"session_tag": "s"}, {"perf_tags": ("p",)}]):
            write_log(tmp_path, rank=rank, **printed)
        for name in ("a", "s", "p"):
            outcome = command("compare", name, name, "--in", tmp_path, "--json")
            assert len(json.loads(outcome.out)["before"]["runs"]) == 1

    def test_baseline(self, write_log, command, tmp_path):
        """The baseline is the runs that are marked so and have the same tags."""
        write_log(tmp_path, rank=0, run_id="old", perf_tags=("p",), baseline=True)
        write_log(tmp_path, rank=1, run_id="other", perf_tags=("q",), baseline=True)
        write_log(tmp_path, rank=2, run_id="new", perf_tags=("p",))
        printed = json.loads(command("compare", "--baseline", "new", "--in", tmp_path, "--json").out)
        assert (printed["before"]["runs"], printed["after"]["runs"]) == (["old"], ["new"])

    def test_baseline_beside_it(self, write_log, command, tmp_path):
        """A baseline in the directory of the run itself is found too, and is then left out of the compared side."""
        write_log(tmp_path / "runs", rank=0, run_id="old", perf_tags=("p",), baseline=True)
        write_log(tmp_path / "runs", rank=1, run_id="other", perf_tags=("q",), baseline=True)
        write_log(tmp_path / "runs", rank=2, run_id="new", perf_tags=("p",))
        printed = json.loads(command("compare", "--baseline", tmp_path / "runs", "--json").out)
        assert (printed["before"]["runs"], printed["after"]["runs"]) == (["old"], ["new"])
        again = json.loads(command("compare", "--baseline", tmp_path / "runs", "--in", tmp_path, "--json").out)
        assert (again["before"]["runs"], again["after"]["runs"]) == (["old"], ["new"])

    def test_baseline_elsewhere(self, write_log, command, tmp_path):
        """A run that is given by its path is compared with the runs marked as baseline below --in."""
        write_log(tmp_path / "a", rank=0, run_id="old", perf_tags=("p",), baseline=True)
        write_log(tmp_path / "b", rank=2, run_id="new", perf_tags=("p",))
        printed = json.loads(command("compare", "--baseline", tmp_path / "b", "--in", tmp_path, "--json").out)
        assert (printed["before"]["runs"], printed["after"]["runs"]) == (["old"], ["new"])

    @pytest.mark.parametrize(
        "arguments",
        [["a"], ["a", "b", "c"], ["nowhere", "nowhere"], ["--baseline", "a", "b"], ["--least", "0", "a", "b"]],
    )
    def test_refusals(self, command, arguments):
        """A comparison that is impossible is one line and exit code 2."""
        outcome = command("compare", *arguments)
        assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)


class TestTop:
    def test_once(self, readable, command):
        """Without a terminal, top prints a line."""
        outcome = command("top", "--once", readable.parent)
        assert (outcome.code, len(outcome.lines)) == (0, 1)
        assert "run-1: no step yet, " in outcome.out

    def test_json(self, readable, command):
        """With --json, top prints an object."""
        assert json.loads(command("top", "--once", "--json", readable).out)["session"] == "run-1"

    def test_follows(self, start, tmp_path, write_log):
        """The picture of a directory without logs goes on with the logs that are written there later."""
        directory = tmp_path / "runs"
        directory.mkdir()
        child = start("top", directory, "--json", "--interval", "0.1")
        assert json.loads(child.stdout.readline())["session"] == ""
        write_log(directory)
        assert any(json.loads(line)["session"] == "run-1" for line in child.stdout)

    @pytest.mark.parametrize("arguments", [["ipc://x", "/nowhere"], ["/nowhere", "--interval", "0"]])
    def test_refusals(self, command, arguments):
        """A target that cannot be watched is one line and exit code 2."""
        outcome = command("top", *arguments)
        assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
