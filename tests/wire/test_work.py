"""The work that a byte of a frame can cause, in instructions: they are the same on a busy machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trackside import implementation

SCRIPT = Path(__file__).with_name("expensive.py")
WORST = "trackside.metrics.logged"
MOST_PER_BYTE = 10_300
"""The counts reached on CPython 3.11, and a tenth more; docs/security.md names them."""


def instructions(times, directory):
    """Return the instructions of a process that decodes the frame so often, and the frame's size."""
    out = directory / f"out-{times}"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", sys.executable, SCRIPT, WORST, str(times)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=400)
    return int(re.search(r"^totals: (\d+)", out.read_text(), re.MULTILINE)[1]), int(done.stdout)


@pytest.mark.once
@pytest.mark.hang_guard(900)
@pytest.mark.skipif(implementation != "compiled", reason="the compiled decoder")
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="there is no valgrind here to count instructions with")
def test_per_byte(tmp_path):
    """The most expensive rows for their size take no more instructions a byte than the page on security says."""
    (once, size_bytes), (thrice, _) = (instructions(times, tmp_path) for times in (1, 3))
    assert 1000 < (thrice - once) / 2 / size_bytes <= MOST_PER_BYTE
