"""The traffic of many ranks through three real NATS servers: the recipe of benchmarks/cluster.py, smaller."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nats")

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.hang_guard(300)
def test_all_is_read(scaled):
    """Each frame of all ranks is acknowledged, stored and read by the workers once, and no rank is called silent."""
    ranks = max(scaled(16_384), 256)
    line = [sys.executable, "-m", "benchmarks.cluster", "--ranks", str(ranks), "--jobs", "2", "--rate", "200"]
    ended = subprocess.run([*line, "--seconds", "3", "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    if "nats-server is not installed" in ended.stderr:
        pytest.skip("nats-server is not installed here")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    assert found["frames"] == max(ranks, 600)
