"""The page that leads to an engine on NATS, typed as it stands against real servers, and what the workers say there."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ports import free_port

pytest.importorskip("nats")

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "nats-quickstart.md").read_text(encoding="utf-8")
PORT = re.compile(r"\b[46]22\d\b")


@pytest.fixture
def typing(tmp_path):
    """
    Return a function that types lines of shell where trackside is installed, and returns the exit status and what was
    printed. All that they started is ended after that; the lines have eight minutes.
    """
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, arguments in {"trackside": "-m trackside", "python": ""}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (tools / name).chmod(0o755)
    printed = tmp_path / "printed.txt"

    def run(script):
        # A file, for a pipe has no end while anything that was left running holds it.
        with printed.open("wb") as output:
            shell = subprocess.Popen(
                ["bash", "-e", "-c", script],
                cwd=tmp_path,
                env={**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            status = shell.wait(480)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and all of its group
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        return status, printed.read_text()

    return run


def sections(printed):
    """Return what was printed in each section of the page, by the section's title."""
    found = collections.defaultdict(str)
    title = ""
    for line in printed.splitlines(keepends=True):
        if line.startswith("## "):
            title = line[3:].strip()
        else:
            found[title] += line
    return found


@pytest.mark.hang_guard(600)
class TestPage:
    def test_typed(self, typing, tmp_path):
        """
        The page's commands end well, from the server to a cluster that loses a node. The scores, and the silence
        that the worker which went on found, are in what `tail -f` and `report` print.
        """
        if shutil.which("nats-server") is None:
            pytest.skip("nats-server is not installed here; as root, python tools/servers.py nats-server installs it")
        install, *_ = re.findall(r"```shell\n(.*?)```", PAGE, re.DOTALL)
        assert install.startswith("pip install")
        (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        (tmp_path / "train.py").write_text(code)
        script = ""
        for part in PAGE.split("\n## ")[2:]:  # the first is the head, the second the installation
            title = part.partition("\n")[0]
            script += f"echo '## {title}'\n" + "".join(re.findall(r"```shell\n(.*?)```", part, re.DOTALL))
        ports = {port: str(free_port()) for port in sorted(set(PORT.findall(script)))}
        assert len(ports) == 7
        status, printed = typing(PORT.sub(lambda port: ports[port[0]], script))
        assert status == 0, printed
        found = sections(printed)
        assert "run monday" in found["Watch"]
        assert " straggler.report " in found["Watch"]
        assert re.search(r" rank 0/collector .* rank\.silent  rank=1 ", found["Lose a machine"])
        assert "session monday: goodput" in found["Ask"]
        report = " ".join(found["Ask"].split())
        assert re.search(r"Rank 1 died after step \d+[^:]*, then rank 0: their logs have no end", report)
        assert "[straggler] Rank 1 is slow in forward" in report
        assert "run tuesday" in found["Three nodes"]
        assert re.search(r" rank 0/collector .* rank\.silent  rank=1 ", found["Three nodes"])
        assert "checkpoints" in (tmp_path / "workers.txt").read_text()
