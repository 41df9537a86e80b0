from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import trackside
from trackside._platform import ExitWatch
from trackside.cli._run import _Exits
from trackside.events import IterationEnded, Source
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
        """A job that logs into the collector's directory too is recorded there in its own file alone."""
        job[-1] = tmp_path / "logs"
        subprocess.run([*command, *job, "0"], check=True, capture_output=True, timeout=60)
        steps = [event.step for event in trackside.replay(tmp_path / "logs") if isinstance(event, IterationEnded)]
        (main,) = (one for one in trackside.check_logs(tmp_path / "logs").sources if one.source.role == "main")
        assert steps == list(range(20))
        assert (main.by_type["trackside.iteration.ended"], main.missing, main.repeated) == (20, 0, 0)
        assert (
            len([file for file in trackside.check_logs(tmp_path / "logs").files if file.source_id == main.source.id])
            == 1
        )

    def test_earlier_job(self, command, job):
        """A job that records nothing is said to have sent nothing, though the directory has logs of an earlier one."""
        command = [word for word in command if word != "--no-report"]
        subprocess.run([*command, *job, "0"], check=True, capture_output=True, timeout=60)
        line = [*command, sys.executable, "-c", "pass"]
        done = subprocess.run(line, check=True, capture_output=True, text=True, timeout=60)
        assert "run: 0 events came from 0 process(es)" in done.stderr
        assert done.stdout == ""

    def test_clock_of_earlier_job(self, command, job, write_log, tmp_path):
        """The report at the end is on the job, though the directory has logs dated by a clock that was ahead."""
        write_log(tmp_path / "logs", offset_ns=100 * 365 * 86_400 * 10**9)
        command = [word for word in command if word != "--no-report"]
        done = subprocess.run([*command, *job, "0"], check=True, capture_output=True, text=True, timeout=60)
        assert "--session shows others: run-1" in done.stdout

    @pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system does not show how other processes exit")
    def test_exit_of_earlier_job(self):
        """A process that has the process id of an earlier job is not watched."""
        source = Source(id=f"{0:016x}", host=platform.node(), pid=os.getpid())
        states = {source.id: SimpleNamespace(source=source)}
        registry = SimpleNamespace(streams=SimpleNamespace(registry=SimpleNamespace(states=states)))
        exits = _Exits(registry, frozenset(states))
        exits.close()
        assert exits._by_handle == {}

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
            import os, pathlib, signal, sys, time, trackside
            trackside.start(sys.argv[1], report=False)
            has_begun = pathlib.Path(sys.argv[2])
            for step in range(2_000):
                with trackside.training_iteration(step=step):
                    time.sleep(0.01)
                if step == 50 and os.environ["RANK"] == "0":
                    trackside.flush()
                    has_begun.touch()
                if step >= 50 and os.environ["RANK"] == "1" and has_begun.exists():
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
        rank_line = [tmp_path / "rank.py", tmp_path / "own", tmp_path / "has_begun"]
        line = [*command, sys.executable, tmp_path / "launcher.py", *rank_line]
        subprocess.run(line, check=False, capture_output=True, timeout=60)
        (found,) = (one for one in read_report(tmp_path / "logs").verdict.findings if one.kind == "died")
        assert (found.rank, found.ranks) == (1, (0, 1))

    @pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system does not show how other processes exit")
    def test_order_of_exits(self):
        """Processes are said to have exited in the order in which they did, though all is asked at once, and late."""
        watch = ExitWatch()
        children = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(4)]
        try:
            handles = [watch.add(child.pid) for child in children]
            order = (2, 0, 3, 1)
            for place in order:
                children[place].kill()
                children[place].wait()
            assert watch.wait(10.0) == [handles[place] for place in order]
        finally:
            watch.close()
            for child in children:
                child.kill()
                child.communicate()

    @pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system does not show how other processes exit")
    @pytest.mark.parametrize("ranks", [1, 3])
    def test_exited_before_it_was_watched(self, ranks):
        """Of several that had exited before anybody looked none is said to be the first; one alone is recorded."""
        children = [subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) for _ in range(ranks)]
        for child in children:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        states = {
            f"source {place}": SimpleNamespace(source=Source(id=f"{place:016x}", host=platform.node(), pid=child.pid))
            for place, child in enumerate(children)
        }
        exits = _Exits(SimpleNamespace(streams=SimpleNamespace(registry=SimpleNamespace(states=states))), frozenset())
        exits.close()
        for child in children:
            child.wait()
        assert [(one.source_id, one.exit_status) for one in exits.seen] == [(f"{0:016x}", 3)][: ranks == 1]

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
        (said,) = done.stderr.splitlines()
        assert "no-such-program: cannot be run: No such file or directory; install it or give its path" in said

    def test_nothing(self, command):
        """Without a command there is nothing to run: one line, exit code 2."""
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.count("trackside run") == 1
