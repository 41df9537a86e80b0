from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import trackside
from trackside.events import IterationEnded
from trackside.report import read_report

pytestmark = pytest.mark.once

JOB = """
    import sys, trackside

    with trackside.start(sys.argv[1], report=False), trackside.training_loop(0):
        for _ in range(20):
            with trackside.training_iteration():
                pass
    sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def command(tmp_path):
    """Return the beginning of a command line that keeps the logs in ``logs``."""
    return [Path(sys.executable).with_name("trackside"), "run", "--log", tmp_path / "logs", "--no-report", "--"]


@pytest.fixture
def job(tmp_path):
    """Return the command line of a small job."""
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(JOB))
    return [sys.executable, script, tmp_path / "own"]


class TestRun:
    def test_collects(self, command, job, tmp_path):
        """The job finds the collector by itself: its events are in the collector's log."""
        subprocess.run([*command, *job, "0"], check=True, capture_output=True, timeout=60)
        steps = [event.step for event in trackside.replay(tmp_path / "logs") if isinstance(event, IterationEnded)]
        assert steps == list(range(20))

    def test_same_directory(self, command, job, tmp_path):
        """A job that logs into the collector's directory too is recorded in two files there, and read once."""
        job[-1] = tmp_path / "logs"
        subprocess.run([*command, *job, "0"], check=True, capture_output=True, timeout=60)
        steps = [event.step for event in trackside.replay(tmp_path / "logs") if isinstance(event, IterationEnded)]
        (main,) = (one for one in trackside.check_logs(tmp_path / "logs").sources if one.source.role == "main")
        assert steps == list(range(20))
        assert (main.by_type["trackside.iteration.ended"], main.missing, main.repeated) == (20, 0, main.events)

    def test_exit_code(self, command, job):
        """The exit code is the job's."""
        assert subprocess.run([*command, *job, "3"], check=False, capture_output=True, timeout=60).returncode == 3

    def test_says_where(self, command, job):
        """The command prints how to watch the job."""
        printed = subprocess.run([*command, *job, "0"], check=True, capture_output=True, text=True, timeout=60).stderr
        assert printed.startswith("watch it: trackside attach ipc://")

    def test_killed_job(self, command):
        """A job that a signal ended gives the exit code that a shell would give."""
        kill = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
        assert subprocess.run([*command, *kill], check=False, capture_output=True, timeout=60).returncode == 137

    @pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system does not show how other processes exit")
    def test_exits(self, command, tmp_path):
        """Of two ranks the one that was killed is named, though the launcher kills the other one at once."""
        rank = """
            import os, signal, sys, time, trackside
            trackside.start(sys.argv[1], report=False)
            for step in range(2_000):
                with trackside.training_iteration(step=step):
                    time.sleep(0.01)
                if step == 50 and os.environ["RANK"] == "1":
                    os.kill(os.getpid(), signal.SIGKILL)
        """
        launcher = """
            import os, subprocess, sys
            ranks = [
                subprocess.Popen([sys.executable, *sys.argv[1:]], env={**os.environ, "RANK": rank, "WORLD_SIZE": "2"})
                for rank in "01"
            ]
            os.waitid(os.P_PID, ranks[1].pid, os.WEXITED | os.WNOWAIT)
            ranks[0].terminate()
            ranks[0].wait()
            sys.exit(1)
        """
        for name, text in (("rank.py", rank), ("launcher.py", launcher)):
            (tmp_path / name).write_text(textwrap.dedent(text))
        line = [*command, sys.executable, tmp_path / "launcher.py", tmp_path / "rank.py", tmp_path / "own"]
        subprocess.run(line, check=False, capture_output=True, timeout=60)
        (found,) = (one for one in read_report(tmp_path / "logs").verdict.findings if one.kind == "died")
        assert (found.rank, found.ranks) == (1, (0, 1))

    @pytest.mark.hang_guard(60)
    def test_terminated(self, command, tmp_path):
        """SIGTERM is passed on to the job, and the command waits for its end."""
        wait = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(50)"
        ready = tmp_path / "ready"
        process = subprocess.Popen([*command, sys.executable, "-c", wait, ready], stderr=subprocess.DEVNULL)
        try:
            while not ready.exists():
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 143
        finally:
            process.kill()
            process.wait()

    def test_no_program(self, command):
        """A program that does not exist is one line, with exit code 2."""
        done = subprocess.run([*command, "no-such-program"], check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        said = done.stderr.splitlines()[-1]
        assert "no-such-program: cannot be run: No such file or directory; install it or give its path" in said

    def test_nothing(self, command):
        """Without a command there is nothing to run: one line, exit code 2."""
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
