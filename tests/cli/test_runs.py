"""``trackside runs``."""

from __future__ import annotations

import json
import re
import subprocess
import sys

FROM = "2023-11-14 22:13:20.000Z"
UNTIL = "2023-11-14 22:13:22.000Z"


class TestText:
    def test_whole(self, command, tmp_path, write_log):
        """The list gives each run's name, number of ranks, start, duration, last step and end."""
        write_log(tmp_path, session_tag="task", perf_tags=("v1", "h200"), baseline=True)
        outcome = command("runs", tmp_path)

        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.lines == [
            "session task: 1 run(s), 1 attempt(s)",
            "  perf v1, h200",
            f"    run run-1 attempt 0 baseline, 1 of 2 rank(s), from {FROM}, for 2 s, last step 2",
            "      no log of rank(s) 1",
            "      ended: closed",
            f"newest event: {UNTIL}",
        ]

    def test_no_tags(self, command, tmp_path, write_log):
        """A run without tags is listed under its own name."""
        write_log(tmp_path)
        lines = command("runs", tmp_path).lines

        assert lines[:2] == ["session run-1 (no session tag): 1 run(s), 1 attempt(s)", "  perf - (no perf tag)"]

    def test_hostile(self, command, tmp_path, write_log):
        """No text in a log's header can steer a terminal."""
        write_log(tmp_path, session_tag="s\x1b[2J", perf_tags=("p\n",), run_id="r\x1b")
        outcome = command("runs", tmp_path)

        assert outcome.code == 0
        assert "\x1b" not in outcome.out
        assert len(outcome.lines) == 6
        assert outcome.lines[0].startswith(r"session s\x1b[2J: ")


class TestJson:
    def test_whole(self, command, tmp_path, write_log):
        """As JSON the list is one object with all its facts."""
        for rank in (0, 1):
            write_log(tmp_path, rank=rank, session_tag="task", perf_tags=("v1",))
        ranks = [
            {
                "rank": rank,
                "host": "node-1",
                "pid": 100 + rank,
                "state": "ended",
                "reason": "closed",
                "first_ns": 1_700_000_000 * 10**9,
                "last_ns": 1_700_000_002 * 10**9,
                "last_heartbeat_ns": None,
                "last_step": 2,
            }
            for rank in (0, 1)
        ]

        assert json.loads(command("runs", tmp_path, "--json").out) == {
            "sessions": [
                {
                    "session": "task",
                    "tagged": True,
                    "runs": [
                        {
                            "run": "run-1",
                            "perf_tags": ["v1"],
                            "baseline": False,
                            "application": "",
                            "exit_status": None,
                            "attempts": [
                                {
                                    "attempt": 0,
                                    "launch": 0,
                                    "state": "ended",
                                    "states": [{"state": "ended", "reason": "closed", "ranks": [0, 1]}],
                                    "ranks_seen": 2,
                                    "world_size": 2,
                                    "workers": 0,
                                    "first_ns": 1_700_000_000 * 10**9,
                                    "last_ns": 1_700_000_002 * 10**9,
                                    "last_step": 2,
                                    "ranks": ranks,
                                }
                            ],
                        }
                    ],
                }
            ],
            "newest_ns": 1_700_000_002 * 10**9,
            "problems": [],
        }


class TestKilled:
    PROGRAM = """
import os, signal, sys, trackside
from trackside.job import JobConfig
trackside.start(sys.argv[1], job=JobConfig(application_name="a", run_id="run-1", session_tag="task"))
for step in range(7):
    with trackside.training_iteration(step=step):
        pass
trackside.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""

    def test_process_that_is_gone(self, command, tmp_path):
        """A process of this host without an end record that no longer runs has died; its last event's time is named."""
        subprocess.run([sys.executable, "-c", self.PROGRAM, tmp_path], check=False, timeout=60)
        lines = command("runs", tmp_path).lines

        assert lines[2].endswith(", last step 6")
        assert lines[3].startswith("      died: no end record, and its process is gone; last heard of at 20")
        assert lines[3].endswith("Z, 0 s before the newest event")

    def test_launched_again(self, command, tmp_path):
        """Each launch of a rank whose process is gone has died."""
        for _ in range(2):
            subprocess.run([sys.executable, "-c", self.PROGRAM, tmp_path], check=False, timeout=60)
        (session,) = json.loads(command("runs", tmp_path, "--json").out)["sessions"]
        (run,) = session["runs"]

        assert [(attempt["attempt"], attempt["launch"], attempt["state"]) for attempt in run["attempts"]] == [
            (0, 0, "died"),
            (0, 1, "died"),
        ]


class TestHtml:
    def test_whole(self, command, tmp_path, write_log):
        """A row and a page for each run, and a link between them; the baseline is marked, tags are headings."""
        write_log(tmp_path / "runs", run_id="first", perf_tags=("bf16",), baseline=True)
        write_log(tmp_path / "runs", run_id="second", perf_tags=("bf16",), offset_ns=60 * 10**9, rank=1)
        site = tmp_path / "new" / "site"
        outcome = command("runs", tmp_path / "runs", "--html", site)

        assert (outcome.code, outcome.out, outcome.err) == (0, f"2 runs: {site / 'index.html'}\n", "")
        assert sorted(path.name for path in site.iterdir()) == ["first.html", "index.html", "second.html"]
        index = (site / "index.html").read_text()
        assert re.findall(r'<a href="(.*?)">', index) == ["second.html", "first.html"]
        assert re.findall(r"<h2>(.*?)</h2>", index) == ["bf16"]
        assert 'first</a> <span class="tag">baseline</span>' in index
        assert "<h1>first</h1>" in (site / "first.html").read_text()
        assert {oct(path.stat().st_mode & 0o777) for path in site.iterdir()} == {"0o600"}
        assert oct(site.stat().st_mode & 0o777) == "0o700"

    def test_runs_of_a_session(self, command, tmp_path, write_log):
        """The page of a run is about that run alone."""
        write_log(tmp_path / "runs", run_id="first", session_tag="task", steps=3)
        write_log(tmp_path / "runs", run_id="second", session_tag="task", steps=3, rank=1, offset_ns=60 * 10**9)
        command("runs", tmp_path / "runs", "--html", tmp_path)

        assert "of 1 run." in (tmp_path / "first.html").read_text()
        assert "<td>task</td>" in re.sub(' class=".*?"', "", (tmp_path / "index.html").read_text())

    def test_hostile(self, command, tmp_path, write_log):
        """A run's name is no markup, and leads to no other directory; two names that differ have two pages."""
        for rank, name in enumerate(["../../<b>x", "../../.b-x"]):
            write_log(tmp_path / "runs", run_id=name, rank=rank)
        assert command("runs", tmp_path / "runs", "--html", tmp_path / "site").code == 0

        names = {path.name for path in (tmp_path / "site").iterdir()}
        assert names == {"b-x.html", "b-x-2.html", "index.html"}
        assert "<b>x" not in (tmp_path / "site" / "index.html").read_text()

    def test_cannot_be_written(self, command, tmp_path, write_log):
        """A path that is no directory is one line and exit code 2."""
        write_log(tmp_path / "runs")
        (tmp_path / "file").touch()
        outcome = command("runs", tmp_path / "runs", "--html", tmp_path / "file")

        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith(f"trackside runs: {tmp_path / 'file'}: cannot be written")

    def test_name_of_a_file(self, command, tmp_path, write_log):
        """A name that ends as that of a page is refused: there are several pages, and nothing is written."""
        write_log(tmp_path / "runs")
        outcome = command("runs", tmp_path / "runs", "--html", tmp_path / "runs.html")

        assert (outcome.code, (tmp_path / "runs.html").exists()) == (2, False)
        assert "there is a page for each run: name a directory for them, as runs/" in outcome.err


def test_nothing_yet(command, tmp_path):
    """Of a log that holds nothing yet the list says so."""
    (tmp_path / "begun.tslog").touch()
    outcome = command("runs", tmp_path)

    assert (outcome.code, outcome.out, outcome.err) == (0, "no event yet\n", "")


class TestUnreadable:
    def test_in_part(self, command, tmp_path, readable, unreadable):
        """Unreadable files are one line each and exit code 2; the rest is listed."""
        outcome = command("runs", readable, unreadable)

        assert outcome.code == 2
        assert "      ended: closed" in outcome.lines
        assert outcome.err == f"trackside runs: {unreadable}: is no event log; give a .tslog file or a directory\n"

    def test_nothing(self, command, tmp_path):
        """A directory that does not exist is one line and exit code 2."""
        outcome = command("runs", tmp_path / "no")

        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err == f"trackside runs: {tmp_path / 'no'}: does not exist; give a .tslog file or a directory\n"
