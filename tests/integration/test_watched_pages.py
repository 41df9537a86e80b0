"""The first lines of the pages about the systems that people watch, as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

DOCS = Path(__file__).resolve().parents[2] / "docs"
TRAIN = """
def train():
    with trackside.application(), trackside.training_loop(train_iterations_start=0):
        for step in range(5):
            with trackside.training_iteration(step=step):
                pass
"""


def run(page, directory, here, there):
    """Run a page's first block of Python, with the address that is *there* in place of the one *here*."""
    text = (DOCS / page).read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    assert text.startswith("# ")
    assert here in code
    code = code.replace(here, there).replace("import trackside\n", f"import trackside\n{TRAIN}", 1)
    child = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=directory, capture_output=True, text=True, timeout=100
    )
    assert child.returncode == 0, child.stderr
    assert "lost      nothing" in child.stderr


def test_opentelemetry(collector, tmp_path):
    """The page's lines send a job's spans to a collector."""
    run("opentelemetry.md", tmp_path, "http://localhost:4318", collector.url)
    names = [told.name for _, told in collector.spans()]
    assert sorted(set(names)) == ["application", "training_loop", "training_single_iteration"]
    assert len(names) == 7


def test_prometheus(port, tmp_path):
    """The page's lines serve a job's page and hand the port back."""
    pytest.importorskip("prometheus_client")
    run("prometheus.md", tmp_path, "9464", str(port))


def test_nats(nats_server, tmp_path):
    """The page's lines leave a job's events in the stream."""
    pytest.importorskip("nats")
    from trackside.events import IterationEnded
    from trackside.handlers.nats import NatsReader

    run("nats.md", tmp_path, "nats://stream.example:4222", nats_server.url)
    with NatsReader(nats_server.url, follow=False, types=IterationEnded) as events:
        assert [event.step for event in events] == list(range(5))
