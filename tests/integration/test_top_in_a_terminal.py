"""``trackside top`` in a terminal of 80 × 24, and attached late to a job that runs."""

from __future__ import annotations

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
    from trackside.handlers.models import CounterBoard, SpanBuilder
    from trackside.handlers.models.goodput import GoodputAccumulator
    from trackside.job import JobConfig

    job = JobConfig(application_name="late", run_id="late", session_tag="late-run")
    publish = sys.argv[2] if len(sys.argv) > 2 else False
    models = [GoodputAccumulator(), SpanBuilder(), CounterBoard()]
    told = {"report": False, "publish": publish, "heartbeat_s": 0.2, "handlers": models}
    with trackside.start(sys.argv[1], job=job, **told), trackside.application():
        with trackside.training_loop():
            for step in range(100_000):
                with trackside.training_iteration(step=step):
                    time.sleep(0.01)
                trackside.counter("late.counter").add(1)
                if step == 50:
                    print("warm", flush=True)
    """
)


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
    def test_terminal(self, job):
        """On a terminal it takes the screen, fills it with the job, fits into it, and gives it back at Ctrl-C."""
        directory = job()
        child, terminal = pty.fork()
        if not child:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.update(TERM="xterm-256color")
            os.execv(sys.executable, [sys.executable, "-c", TOP, str(directory)])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        try:
            shown = self._read(terminal, until="steps/s")
            screen = re.split(r"\x1b\[H", shown)[-1]
            lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in screen.splitlines()]
            os.kill(child, signal.SIGINT)
            left = self._read(terminal, until="\x1b[?1049l")
        finally:
            os.kill(child, signal.SIGKILL)
            os.close(terminal)
            _, status = os.waitpid(child, 0)

        assert "late-run" in shown
        assert "\x1b[?1049h" in shown
        assert "\x1b[?1049l" in left
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
        assert status is not None

    @staticmethod
    def _read(terminal, until, within_s=60.0):
        """Return what is written until *until* and a whole screen more were."""
        shown, deadline = "", time.monotonic() + within_s
        while until not in shown:
            assert time.monotonic() < deadline, f"never saw {until!r} in {shown[-2_000:]!r}"
            if select.select([terminal], [], [], 0.2)[0]:
                try:
                    shown += os.read(terminal, 1 << 16).decode(errors="replace")
                except OSError:  # it has gone
                    return shown
        return shown

    def test_late(self, job, tmp_path):
        """
        Who attaches late to a job that keeps the models sees at once what was before: goodput, open spans, the step.
        """
        endpoint = f"ipc://{tmp_path}/late.sock"
        job(endpoint)
        child = subprocess.Popen(
            [sys.executable, "-c", TOP, endpoint, "--json", "--interval", "0.2"], stdout=subprocess.PIPE, text=True
        )
        try:
            views = (json.loads(line) for line in child.stdout)
            first = next(views)
            view = next(one for one in views if one["step"] >= 0 and one["goodput"] is not None)
        finally:
            child.kill()
            child.stdout.close()
            child.wait()

        assert (view["at_ns"] - first["at_ns"]) / 1e9 < 10  # two seconds where nothing else runs
        assert (view["session"], view["step"] > 50) == ("late-run", True)
        assert view["elapsed_s"] > 0.5
        assert "training_loop" in {one["name"] for one in view["open"]}
