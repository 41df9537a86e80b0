"""The first lines of the pages about the systems that people watch, as the pages have them."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.request
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


def block(page, number):
    """Return a page's block of Python."""
    text = (DOCS / page).read_text(encoding="utf-8")
    assert text.startswith("# ")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)[number]


def run(page, directory, here, there):
    """Run a page's first block of Python, with the address *there* in place of the one *here*."""
    code = block(page, 0)
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
    names = [recorded.name for _, recorded in collector.spans()]
    assert sorted(set(names)) == ["application", "training_loop", "training_single_iteration"]
    assert len(names) == 7


def test_prometheus(port, tmp_path):
    """The page's lines serve a job's page and release the port."""
    pytest.importorskip("prometheus_client")
    run("prometheus.md", tmp_path, "9464", str(port))  # fails unless the job ends well and loses nothing
    with socket.create_server(("127.0.0.1", port)) as server:
        assert server.getsockname()[1] == port


def test_nats(nats_server, tmp_path):
    """The page's lines leave a job's events in the stream."""
    pytest.importorskip("nats")
    from trackside.events import IterationEnded
    from trackside.handlers.nats import NatsReader

    run("nats.md", tmp_path, "nats://stream.example:4222", nats_server.url)
    with NatsReader(nats_server.url, follow=False, to=IterationEnded) as events:
        assert [event.step for event in events] == list(range(5))


def test_nats_reader(nats_server, tmp_path):
    """The page's lines feed a model from the stream, and from an interruption on with the remaining events."""
    pytest.importorskip("nats")
    from trackside.handlers.models.goodput import GoodputAccumulator

    run("nats.md", tmp_path, "nats://stream.example:4222", nats_server.url)
    code = block("nats.md", 1).replace("nats://stream.example:4222", nats_server.url)
    assert code.count("cursor=saved") == 1
    names = {"goodput": GoodputAccumulator(), "saved": None}
    exec(code.replace("cursor=saved", "cursor=saved, follow=False"), names)  # the page's code, once through
    assert names["goodput"].result().last_step == 4
    assert names["saved"] is not None


def test_prometheus_of_a_log(port, tmp_path):
    """The page's lines serve the metrics of a log."""
    pytest.importorskip("prometheus_client")
    import trackside
    from trackside.handlers.prometheus_client import PrometheusSink

    with trackside.Bus() as bus, trackside.start(tmp_path, bus=bus, report=False):
        bus.log(trackside.IterationEnded(step=41, duration_ns=10**9))
    code = block("prometheus.md", 1)
    assert code.count("9464") == code.count('trackside.follow("runs/")') == 1
    code = code.replace("9464", str(port)).replace('trackside.follow("runs/")', f"trackside.replay({str(tmp_path)!r})")
    names = {"trackside": trackside, "PrometheusSink": PrometheusSink}
    exec(code, names)  # the page's code, over a log that has ended
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        recorded = page.read()
    names["sink"].close(10)
    assert re.search(rb"trackside_\S*step\S*\S* 41", recorded), recorded


def test_system(tmp_path):
    """The page's lines read the machine beside a job."""
    pytest.importorskip("psutil")
    child = subprocess.run(
        [sys.executable, "-c", f"import trackside\n{TRAIN}\n{block('system.md', 0)}"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert child.returncode == 0, child.stderr
    assert "process.memory.usage" in child.stderr


def test_google_cloud_monitoring(monitoring, tmp_path, monkeypatch):
    """The page's lines send a job's goodput to the service; on other ranks they make no sink."""
    import trackside
    from trackside.handlers import google_cloud_monitoring

    sink, trained = google_cloud_monitoring.GoogleCloudMonitoringSink, []
    monkeypatch.setattr(
        google_cloud_monitoring,
        "GoogleCloudMonitoringSink",
        lambda *given, **named: sink(*given, **named, client=monitoring.client()),
    )
    monkeypatch.chdir(tmp_path)

    def train():
        with trackside.training_loop(train_iterations_start=0), trackside.training_iteration(step=0):
            trained.append(1)

    exec(block("google-cloud-monitoring.md", 0), {"rank": 0, "train": train})  # the page's code
    assert trained == [1]
    assert monitoring.requests
