"""``trackside top`` in a terminal of 80 × 24, and attached late to a job that runs."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time

import pytest

pytestmark = pytest.mark.integration

TOP = "import sys; from trackside.cli import main; sys.exit(main(['top', *sys.argv[1:]]))"
JOB = textwrap.dedent(
    """
    import sys, time
    import trackside
    from trackside.job import JobConfig

    job = JobConfig(application_name="late", run_id="late", session_tag="late-run")
    remote = trackside.Remote(publish=sys.argv[2] if len(sys.argv) > 2 else False)
    options = {"report": False, "remote": remote, "collect_interval_s": 0.2}
    with trackside.start(sys.argv[1], job=job, **options), trackside.application():
        with trackside.training_loop():
            for step in range(100_000):
                with trackside.training_iteration(step=step):
                    time.sleep(0.01)
                trackside.counter("late.counter").add(1)
                if step == 100:
                    print("warm", flush=True)
    """
)
"""A job with the models of an ordinary job."""


@pytest.fixture
def job(tmp_path):
    """Give a function that starts a job and returns once it has made fifty steps."""
    children = []

    def start(*publish):
        child = subprocess.Popen(
            [sys.executable, "-c", JOB, str(tmp_path / "runs"), *publish], stdout=subprocess.PIPE, text=True
        )
        children.append(child)
        assert child.stdout.readline() == "warm\n"
        return tmp_path / "runs"

    yield start
    for child in children:
        child.kill()
        child.stdout.close()
        child.wait()


@pytest.mark.hang_guard(120)
class TestTop:
    @pytest.mark.parametrize("late", [False, True], ids=["log", "endpoint"])
    def test_terminal(self, job, tmp_path, late):
        """
        In a terminal it uses the screen, fits into it, and restores it at Ctrl-C; a viewer that comes late sees
        everything.
        """
        where = f"ipc://{tmp_path}/late.sock" if late else str(tmp_path / "runs")
        job(*[where] * late)
        child, terminal = pty.fork()
        if not child:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.update(TERM="xterm-256color")
            os.execv(sys.executable, [sys.executable, "-c", TOP, where])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        try:
            lines = self._whole_screen(terminal)
            os.kill(child, signal.SIGINT)
            left = self._read(terminal, lambda shown: "\x1b[?1049l" in shown)
        finally:
            os.kill(child, signal.SIGKILL)
            os.close(terminal)
            os.waitpid(child, 0)

        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
        assert "since attached" not in "\n".join(lines)
        assert "\x1b[?1049l" in left

    EVERYTHING = (
        r"late-run .* 1 of 1 rank alive",
        r"step \d{3,} +[\d.]+ steps/s +[\d.]+ ms a step",
        r"goodput [\d.]+ % of ",
        r"rank 0 +training_(loop|single_iteration)",
        r"late\.counter +total \d\d",
        r"lost 0",
    )

    def _whole_screen(self, terminal):
        """Return the lines of the first complete screen."""
        found = []

        def is_whole(shown):
            for screen in re.split(r"\x1b\[H", shown)[:-1]:  # the last one may be half drawn
                text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
                if all(re.search(pattern, text) for pattern in self.EVERYTHING):
                    found[:] = [line.rstrip() for line in text.splitlines()]
            return bool(found)

        assert "\x1b[?1049h" in self._read(terminal, is_whole)
        return found

    @staticmethod
    def _read(terminal, is_enough, within_s=60.0):
        """Return the output until it is enough."""
        shown, deadline = "", time.monotonic() + within_s
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character
        while not is_enough(shown):
            assert time.monotonic() < deadline, f"never saw it in {shown[-2_000:]!r}"
            if select.select([terminal], [], [], 0.2)[0]:
                try:
                    shown += decoder.decode(os.read(terminal, 1 << 16))
                except OSError:  # it has gone
                    return shown
        return shown

    def test_late(self, job, tmp_path):
        """The first view of a late viewer is whole: without a terminal, nothing is printed before."""
        endpoint = f"ipc://{tmp_path}/late.sock"
        job(endpoint)
        child = subprocess.Popen(
            [sys.executable, "-c", TOP, endpoint, "--json", "--once"], stdout=subprocess.PIPE, text=True
        )
        try:
            view = json.loads(child.stdout.readline())
        finally:
            child.kill()
            child.stdout.close()
            child.wait()

        assert view["partial"] == []
        assert (view["session"], view["step"] >= 100, view["alive"]) == ("late-run", True, 1)
        assert len(view["lengths_ns"]) == 50
        assert view["steps_per_s"] > 1
        assert view["goodput"] > 0.1
        assert view["elapsed_s"] > 1.0
        assert [one["name"] for one in view["open"]][:1] in (["training_loop"], ["training_single_iteration"])
        assert view["counters"][0]["total"] > 10
        assert view["lost"] == 0
