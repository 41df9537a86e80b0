"""The commands on the page about watching a running job do as the page says."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import trackside

pytestmark = pytest.mark.once

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "watching.md").read_text(encoding="utf-8")
PROGRAMS = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "attach(" in block]
COMMANDS = [line for line in re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE) if line.startswith("trackside attach")]
BUS = "import trackside\nbus = trackside.Bus()\nbus.subscribe(print, to=trackside.IterationEnded)\n"
MAIN = "import sys; from trackside.cli._main import main; sys.exit(main())"
DEADLINE_S = 60.0


def watched(directory, command):
    """Run *command* beside a job that makes three steps as soon as it is watched, and return the output."""
    with (
        trackside.Bus() as bus,
        trackside.start(
            directory / "runs" / "demo", bus=bus, remote=trackside.Remote(publish=True), report=False
        ) as job,
        subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as viewer,
    ):
        until_s = time.monotonic() + DEADLINE_S
        while not job.is_watched and time.monotonic() < until_s and viewer.poll() is None:
            time.sleep(0.01)
        for step in range(3):
            bus.log(trackside.IterationEnded(step=step, duration_ns=1, loss=0.5))
        bus.flush()
        job.close()
        return viewer.communicate(timeout=DEADLINE_S)[0]


class TestPage:
    @pytest.mark.parametrize("number", range(len(PROGRAMS)))
    def test_programs(self, number, socket_directory, tmp_path):
        """Each program runs until the job ends, and shows something of each step."""
        code = textwrap.dedent(PROGRAMS[number])
        if "bus." in code or "import trackside\n" not in code:
            code = BUS + code
        printed = watched(tmp_path, [sys.executable, "-c", code])
        assert len(printed.splitlines()) >= 3, printed
        assert "Traceback" not in printed

    def test_commands(self, socket_directory, tmp_path):
        """Each command runs and shows the steps."""
        for line in COMMANDS:
            arguments = [part.strip("'") for part in line.split()[1:]]
            printed = watched(tmp_path, [sys.executable, "-c", MAIN, *arguments])
            assert printed.count("  iteration.ended  ") >= 2, printed

    def test_all_found(self):
        """The page has programs and commands."""
        assert len(PROGRAMS) == 3
        assert len(COMMANDS) == 2
