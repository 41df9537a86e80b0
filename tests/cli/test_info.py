"""``trackside info``."""

from __future__ import annotations

import json
import os
import re

FROM = "2023-11-14 22:13:20.000Z"


class TestText:
    def test_whole(self, command, tmp_path, write_log):
        """
        The report names the writer, the times, the number of events by type, the losses and the state of the files.
        """
        path = write_log(tmp_path, steps=3)
        size = path.stat().st_size
        out = re.sub(r"\d+ frames", "N frames", command("info", tmp_path).out)

        assert out.splitlines() == [
            "run run-1: 1 source(s), 5 events, 2 s",
            f"   rank attempt  role      host                  pid      events  {'from':<24}        for  state",
            f"      0       0  main      node-1                100           5  {FROM}        2 s  ended: closed",
            "",
            "events by type",
            "             3  test.cli.stepped",
            "             1  trackside.source.started",
            "             1  trackside.source.ended",
            "",
            "losses",
            "  none",
            "",
            "files",
            f"  {path}: {size:,} bytes, N frames, finished",
        ]

    def test_several_runs(self, command, tmp_path, write_log):
        """Each run has a part of its own, with its ranks in order."""
        for rank in (1, 0):
            write_log(tmp_path, rank=rank, steps=1)
        write_log(tmp_path, rank=2, steps=1, run_id="run-0")
        lines = command("info", tmp_path).lines

        assert [line for line in lines if line.startswith("run ")] == [
            "run run-0: 1 source(s), 3 events, 0 s",
            "run run-1: 2 source(s), 6 events, 0 s",
        ]
        assert [line.split()[0] for line in lines[2:3] + lines[5:7]] == ["2", "0", "1"]

    def test_collector(self, command, tmp_path, write_log):
        """A run lasts as long as its ranks: a collector that goes on for a minute does not make it longer."""
        write_log(tmp_path, steps=3)
        write_log(tmp_path, rank=1, steps=61, role="collector")
        assert command("info", tmp_path).lines[0] == "run run-1: 2 source(s), 68 events, 2 s"

    def test_killed(self, command, tmp_path, write_log):
        """A log whose writer died says that it has no end."""
        path = write_log(tmp_path, steps=3)
        os.truncate(path, path.stat().st_size - 1)
        out = command("info", tmp_path).out

        assert "not finished" in out
        assert "    bytes " in out

    def test_missing_part(self, command, tmp_path, write_log, write_frames):
        """Numbers that are in no file are named."""
        row = [0, 0, 10**18, 0, -1]
        frames = ([2, "0" * 16, first, first, {}, [[0, "acme.seen", 1, []]], [row]] for first in (0, 5, 6, 9))
        write_frames(tmp_path, *frames)

        assert command("info", tmp_path).lines[-5:-2] == [
            "  rank 0 (00000000): 6 missing, numbers 1-4, 7-8",
            "  rank 0 (00000000): no end record: if it died, its last second may be in no log",
            "",
        ]

    def test_dropped(self, command, tmp_path, write_frames):
        """Events that had no room in the queue are counted by type; the last frame knows of them all."""
        row = [0, 0, 10**18, 0, -1]
        drops = ({"acme.a": 5}, {"acme.a": 1000, "acme.b": 234})
        frames = (
            [2, "0" * 16, seq, seq, dropped, [[0, "acme.seen", 1, []]], [row]] for seq, dropped in enumerate(drops)
        )
        write_frames(tmp_path, *frames)

        assert (
            "  rank 0 (00000000): 1,234 dropped for lack of room before they had a number: 1,000 acme.a, 234 acme.b"
            in command("info", tmp_path).lines
        )

    def test_hostile(self, command, tmp_path, write_frames):
        """No text in a log's header can steer a terminal."""
        row = [0, 0, 10**18, 0, -1, "\x1b[2J"]
        frame = [2, "0" * 16, 0, 0, {"dropped.\x1b[2J": 3}, [[0, "acme.\x1b[2J", 1, ["text"]]], [row]]
        write_frames(tmp_path, frame, host="node\x1b[2J", run_id="run\x1b[2J\n")
        outcome = command("info", tmp_path)

        assert outcome.code == 0
        assert "\x1b" not in outcome.out
        assert r"run run\x1b[2J\n: 1 source(s), 1 events" in outcome.out


class TestJson:
    def test_whole(self, command, tmp_path, write_log):
        """As JSON the report is one object with all its facts."""
        path = write_log(tmp_path, steps=3)
        outcome = command("info", tmp_path, "--json")
        report = json.loads(outcome.out)
        source = report["sources"][0]
        identity = source.pop("identity")

        assert (outcome.code, outcome.err) == (0, "")
        assert (identity["id"], identity["run_id"], identity["pid"]) == ("0" * 16, "run-1", 100)
        assert source == {
            "events": 5,
            "by_type": {"trackside.source.started": 1, "test.cli.stepped": 3, "trackside.source.ended": 1},
            "first_seq": 0,
            "last_seq": 4,
            "first_ns": 1_700_000_000 * 10**9,
            "last_ns": 1_700_000_002 * 10**9,
            "missing": 0,
            "missing_ranges": [],
            "repeated": 0,
            "dropped": {},
            "losses": [],
            "ended": "closed",
            "unwritten_steps": 0,
        }
        assert report["files"][0].pop("frames") > 0
        assert report["files"] == [
            {
                "path": str(path),
                "size_bytes": path.stat().st_size,
                "source_id": "0" * 16,
                "finished": True,
                "damaged_bytes": 0,
                "damage": [],
            }
        ]
        assert report["problems"] == []


class TestUnreadable:
    def test_missing(self, command, tmp_path):
        """A path that does not exist is exit code 2 and one line."""
        outcome = command("info", tmp_path / "nowhere")

        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)

    def test_one_of_two(self, command, tmp_path, write_log, unreadable):
        """Readable files are reported, and each unreadable one is a line; the exit code is 2."""
        write_log(tmp_path / "runs")
        text = command("info", unreadable, tmp_path / "runs")
        data = command("info", unreadable, tmp_path / "runs", "--json")

        assert text.code == data.code == 2
        assert "             3  test.cli.stepped" in text.lines
        assert f"trackside info: {unreadable}: is no event log;" in text.err
        assert len(json.loads(data.out)["problems"]) == 1

    def test_of_no_permission(self, command, tmp_path, write_log, monkeypatch):
        """A file that may not be read is a line and exit code 2."""
        locked = write_log(tmp_path / "runs", rank=1)
        write_log(tmp_path / "runs", rank=0)
        real_open = os.open

        def refuse(path, *arguments, **options):
            if str(path) == str(locked):
                raise PermissionError(13, "Permission denied")
            return real_open(path, *arguments, **options)

        monkeypatch.setattr(os, "open", refuse)
        outcome = command("info", tmp_path / "runs")

        assert outcome.code == 2
        assert f"trackside info: {locked}: Permission denied; see that it can be read\n" in outcome.err
        assert "             3  test.cli.stepped" in outcome.lines
