"""The cost of a recorded step to the training thread, in instructions: they are the same on a busy machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.once
@pytest.mark.hang_guard(1000)
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="there is no valgrind here to count instructions with")
def test_step():
    """A step with an iteration, 4 spans and 15 counters takes no more instructions than its limit."""
    command = [sys.executable, "-m", "benchmarks.instructions", "--check"]
    try:
        done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=900)
    except subprocess.TimeoutExpired:
        pytest.skip("this machine has no time to count instructions: valgrind did not end within a quarter of an hour")
    assert done.returncode == 0, done.stdout + done.stderr
