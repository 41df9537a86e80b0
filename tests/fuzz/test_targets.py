"""The fuzz targets, for a moment each; ``make fuzz`` runs them for a minute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trackside import implementation

RUN = Path(__file__).with_name("run.py")
TARGETS = ["decoder", "scanner", "rules", "ml-goodput", "torchtitan", "kineto", "protocol"]
TARGETS += ["compiled"] if implementation == "compiled" else []


@pytest.mark.parametrize("target", TARGETS)
def test_holds(target, seed):
    """All properties hold, and a part of the inputs is accepted: they are no mere noise."""
    command = [sys.executable, RUN, "--seconds", "1", "--seed", str(seed), target]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert ", 0 accepted" not in done.stdout
