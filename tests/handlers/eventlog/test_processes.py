"""Writers that are killed, and writers that fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import trackside.events
from trackside.events import IterationEnded
from trackside.handlers.eventlog import check_logs, replay

HERE = Path(__file__).parent
PACKAGE = Path(trackside.events.__file__).parents[2]
SUPPORT = HERE.parents[1] / "support"


def run_script(name, *arguments, timeout_s):
    """Run a script that lies beside this file; return its lines of JSON."""
    done = subprocess.run(
        [sys.executable, str(HERE / name), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (PACKAGE, SUPPORT)))},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class TestKilled:
    @pytest.mark.hang_guard(120)
    def test_any_moment(self, tmp_path, seed, scaled):
        """
        A log that was killed at any moment holds all flushed events and some others, without a hole; the only damage is
        a torn tail.
        """
        rounds = run_script("killed_writer.py", tmp_path, scaled(300), seed, timeout_s=300)
        assert len(rounds) == scaled(300)
        for one in rounds:
            if not list(Path(one["directory"]).rglob("*.tslog")):
                assert one["safe"] == 0
                continue
            events = replay(one["directory"])
            numbers = [(event.seq, event.duration_ns) for event in events]
            assert numbers == [(n, n) for n in range(len(numbers))]
            assert len(numbers) >= one["safe"]
            assert len(numbers) % one["batch"] == 0
            damage = [damage.reason for file in check_logs(one["directory"]).files for damage in file.damage]
            assert damage in ([], ["torn tail"])
        if len(rounds) >= 30:  # of a few, all may have been killed before their first flush
            assert any(one["safe"] for one in rounds)


class TestForked:
    @pytest.mark.hang_guard(120)
    def test_any_moment(self, tmp_path, scaled):
        """
        Whichever lock the log's threads hold at that moment, a forked child writes to a file of its own and does not
        hang, and the parent's file has each of the parent's events once.
        """
        (recorded,) = run_script("forking_writer.py", tmp_path, scaled(600), timeout_s=300)
        assert set(recorded["children"].values()) == {0}
        assert recorded["closed"]
        found = defaultdict(list)
        events = replay(tmp_path)
        for event in events:
            found[event.source.id].append((event.seq, event.duration_ns))
        expected = {child: [(n, n) for n in range(100)] for child in recorded["children"]}
        expected[recorded["parent"]] = [(n, n) for n in range(recorded["events"])]
        assert found == expected
        assert (events.repeated, events.missing, events.damaged_bytes) == (0, 0, 0)
        assert all(file.is_finished for file in check_logs(tmp_path).files)


class TestOneSource:
    def test_two_processes(self, tmp_path):
        """
        Of two processes that are given one source, and of two children each that take one of their parent's, ten events
        each: all sixty are read, and none is repeated.
        """
        for _ in range(2):
            run_script("same_source.py", tmp_path, timeout_s=60)
        events = replay(tmp_path, to=IterationEnded)
        assert Counter(event.source.id for event in events) == Counter(dict.fromkeys(events.trackers, 10))
        assert len(events.trackers) == 6
        assert (events.repeated, events.missing) == (0, 0)
