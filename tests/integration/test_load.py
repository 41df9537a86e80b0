"""The load that collectors handle: the recipes of benchmarks/load.py at a tenth of their size, in full with --full."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]


def load(*arguments):
    """Run the benchmark; return its exit code and its figures."""
    line = [sys.executable, "-m", "benchmarks.load", *map(str, arguments), "--json"]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


class TestLoad:
    @pytest.mark.hang_guard(300)
    def test_fan_in(self, scaled, scale):
        """
        Each rank over a connection of its own: nothing is lost, and a collector's memory stays within 300 MiB (E11).
        """
        connections = max(scaled(4096), 410)
        code, found = load(
            *("fan-in", "--connections", connections, "--rate", 10 * connections),
            *("--seconds", max(5.0, 60 * scale), "--processes", 2),
        )

        assert (code, found["lost"], found["sent"]) == (0, 0, found["arrived"])
        assert found["collector_peak_mib"] <= 300

    @pytest.mark.hang_guard(300)
    def test_tree(self, scaled):
        """
        Ranks behind forwarders: the totals at the root are exact (E12).
        """
        forwarders = 2 * max(scaled(32), 3)
        code, found = load("tree", "--ranks", 512 * forwarders, "--forwarders", forwarders, "--processes", 2)

        assert (code, found["lost"], found["sent"]) == (0, 0, found["arrived"])
