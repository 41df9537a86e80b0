"""The quickstart, the tutorial, and the code of the pages on reports and comparisons, do as they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page, language):
    """Return the blocks of code on a page."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def shell(script, directory):
    """Run a script as a user with trackside installed would."""
    tools = directory / "bin"
    tools.mkdir(exist_ok=True)
    program = "import sys; from trackside.cli import main; sys.exit(main())"
    for name, line in {"trackside": f"-c '{program}'", "python": ""}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {line} "$@"\n')
        (tools / name).chmod(0o755)
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=directory,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Follow the tutorial, except for the installation; give the directory, and the output."""
    pytest.importorskip("rich", reason="rich is not installed in this environment")
    directory = tmp_path_factory.mktemp("tutorial")
    (program,) = blocks("tutorial.md", "python")
    (directory / "train.py").write_text(program)
    install, *scripts = blocks("tutorial.md", "shell")
    assert install.startswith("pip install")
    child = shell("\n".join(scripts).replace("wait\n", "wait || true\n"), directory)
    assert child.returncode == 0, child.stderr
    return directory, child.stdout


@pytest.mark.hang_guard(300)
class TestTutorial:
    def test_watching(self, followed):
        """While the job runs, top shows its step."""
        assert re.search(r"tutorial: step \d+, [\d.]+ steps/s, goodput [\d.]+ %, 2 of 2 ranks alive", followed[1])

    def test_report(self, followed):
        """The report names the restart, the slow rank and since when it is slow."""
        recorded = " ".join(followed[1].replace("│", " ").split())
        assert "[restarts] 1 restart cost" in recorded
        assert re.search(r"\[straggler\] Rank 1 is slow in forward since (about )?step \d+", recorded)
        assert "Rank 0 is slow" not in recorded

    def test_files(self, followed):
        """The page and the trace are there."""
        assert (followed[0] / "report.html").stat().st_size > 10_000
        assert (followed[0] / "trace.json").stat().st_size > 10_000

    def test_runs(self, followed):
        """Both attempts are listed, with their outcomes."""
        assert "attempt 0" in followed[1]
        assert "attempt 1" in followed[1]
        assert "died: no end record, and its rank was launched again" in followed[1]


@pytest.mark.hang_guard(300)
class TestQuickstart:
    def test_verdict(self, tmp_path):
        """The code of the page ends in the verdict that the page shows: rank 1 is slow in forward."""
        (program,) = blocks("quickstart.md", "python")
        (tmp_path / "train.py").write_text(program)
        install, *scripts = blocks("quickstart.md", "shell")
        assert install.startswith("pip install")
        child = shell("\n".join(scripts), tmp_path)
        assert child.returncode == 0, child.stderr
        assert "[straggler] Rank 1 is slow in forward since step 0: " in child.stdout


@pytest.mark.hang_guard(300)
class TestPages:
    def test_report(self, followed):
        """The call on the page of reports prints the headline and the findings."""
        (program,) = blocks("report.md", "python")
        child = subprocess.run(
            [sys.executable, "-c", program], cwd=followed[0], capture_output=True, text=True, timeout=120, check=False
        )
        assert (child.returncode, child.stderr) == (0, "")
        assert re.search(r"^restarts \d+ ", child.stdout, re.MULTILINE)

    def test_compare(self, followed, tmp_path):
        """The call on the page of comparisons prints the verdict and its parts."""
        (program,) = blocks("compare.md", "python")
        (tmp_path / "runs").mkdir()
        for day in ("monday", "tuesday"):
            (tmp_path / "runs" / day).symlink_to(followed[0] / "runs")
        child = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert (child.returncode, child.stderr) == (0, "")
        assert child.stdout.startswith("no difference shown\nstep time, typical 0.0 ")
