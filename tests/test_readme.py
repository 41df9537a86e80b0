"""The README's examples do as it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_block_runs(block, tmp_path):
    """A block of Python in the README runs as it is, and nothing is lost."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr


def test_first_lines_are_recorded(tmp_path):
    """The first lines leave a log with their hundred iterations."""
    (block,) = [block for block in BLOCKS if "trackside.start" in block]
    subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, timeout=60, check=True)

    import trackside

    (source,) = trackside.check_logs(tmp_path / "runs").sources
    assert source.by_type["trackside.iteration.ended"] == 100


def test_few_lines():
    """The first lines are at most ten, blank ones not counted."""
    (block,) = [block for block in BLOCKS if "trackside.start" in block]

    assert len([line for line in block.splitlines() if line.strip()]) <= 10
