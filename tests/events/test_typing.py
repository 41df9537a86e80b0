"""To a type checker, events are frozen and their constructors have typed parameters."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TYPED = Path(__file__).parents[1] / "typing" / "events_api.py"
EXPECTED = re.compile(r"# E: ([\w, -]+)$")
FOUND = re.compile(r":(\d+): error: .*\[([\w-]+)\]$")


class TestMypy:
    def test_api(self, tmp_path):
        """Assigning to a field is an error, and so is a missing, misnamed, mistyped or positional argument."""
        pytest.importorskip("mypy")
        lines = TYPED.read_text().splitlines()
        expected = {
            (number, code)
            for number, line in enumerate(lines, 1)
            if (match := EXPECTED.search(line))
            for code in match[1].split(", ")
        }
        options = ["--strict", "--config-file=", f"--cache-dir={tmp_path}", "--no-pretty"]
        done = subprocess.run(
            [sys.executable, "-m", "mypy", *options, TYPED], capture_output=True, text=True, check=False
        )
        found = {(int(match[1]), match[2]) for line in done.stdout.splitlines() if (match := FOUND.search(line))}
        assert found == expected, done.stdout + done.stderr
