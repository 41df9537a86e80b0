"""Curves in MLflow: in a database, and through a server that comes and goes."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest

from ports import free_port
from trackside.bus import Bus
from trackside.events import (
    GoodputUpdated,
    IterationEnded,
    JobConfigured,
    ProfileSpanEnded,
    Source,
    TrainingConfigured,
)

pytestmark = [
    pytest.mark.integration,
    # MLflow's own: connections that it does not close, and deprecated parts of SQLAlchemy and others.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when it is imported
mlflow = pytest.importorskip("mlflow")

from trackside.handlers.mlflow import MlflowSink  # noqa: E402  it needs mlflow

LOSS = "training_single_iteration/loss"
WAIT_S = 120.0


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Make MLflow's client give up quickly, and isolate it from the tests' own environment."""
    for name in [name for name in os.environ if name.startswith("MLFLOW_") and name != "MLFLOW_DISABLE_TELEMETRY"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """Give the address of a database; to make its tables takes some seconds."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"
    mlflow.MlflowClient(uri).search_experiments()
    return uri


def log(sink, *events, reason="closed", **fields):
    """Log *events* as a process; return its source."""
    source = Source(**{"run_id": "run-1", **fields})
    with Bus(source=source) as bus:
        bus.subscribe(sink)
        for event in events:
            bus.log(event)
        bus.end(reason)
        assert bus.flush(WAIT_S)
        assert bus.close(WAIT_S)
    assert bus.stats().lost == 0
    return source


class Run:
    """The run of a process, as MLflow stores it."""

    def __init__(self, uri, source, experiment="trackside"):
        self.client = mlflow.MlflowClient(uri)
        found = self.client.get_experiment_by_name(experiment)
        asked = f"tags.`trackside.source` = '{source.id}'"
        (self.run,) = self.client.search_runs([found.experiment_id], filter_string=asked)

    def points(self, tag):
        """Return a curve's points, as step and value."""
        return sorted((point.step, point.value) for point in self.history(tag))

    def history(self, tag):
        """Return a curve as MLflow stores it."""
        return self.client.get_metric_history(self.run.info.run_id, tag)


class TestDatabase:
    def test_extreme_numbers(self, database, losses, bits):
        """Infinities are the largest numbers, as MLflow's databases store them; NaN, zeros and limits are unchanged."""
        run = Run(database, log(MlflowSink(database), *losses))
        largest = sys.float_info.max
        values = [value for _, value in run.points(LOSS)]
        assert bits(abs(value) for value in values) == bits([largest, largest, math.nan, 0.0, 1e308, 5e-324])
        assert values[1] < 0

    def test_metrics(self, database):
        """Every point is a metric, at its step and time."""
        source = log(
            MlflowSink(database),
            ProfileSpanEnded(step=0, span_id=2, parent_span_id=1, name="model_forward", duration_ns=10**8),
            *(
                IterationEnded(
                    step=step, at_ns=1_700_000_000 * 10**9 + step, duration_ns=5 * 10**8, loss=1.0 / (step + 1)
                )
                for step in range(3)
            ),
        )
        run = Run(database, source)
        assert run.points("duration_s/model_forward") == [(0, 0.1)]
        assert run.points(LOSS) == [(0, 1.0), (1, 0.5), (2, 1 / 3)]
        assert {point.timestamp for point in run.history(LOSS)} == {1_700_000_000_000}

    def test_many(self, database):
        """More points than MLflow accepts at once all arrive, each once."""
        events = [IterationEnded(step=step, duration_ns=1, loss=1.0, samples=1, tokens=1) for step in range(1500)]
        run = Run(database, log(MlflowSink(database), *events))
        assert run.points(LOSS) == [(step, 1.0) for step in range(1500)]

    def test_one_event_with_many(self, database):
        """An event with more points than MLflow accepts at once arrives as a whole."""
        steps = list(range(2500))
        update = GoodputUpdated(
            session="s",
            elapsed_s=1.0,
            productive_s=1.0,
            goodput=1.0,
            last_step=2499,
            steps={"step": steps, "duration_s": [1.0] * 2500, "deviation_s": [0.5] * 2500},
        )
        run = Run(database, log(MlflowSink(database), update))
        assert run.points("step_deviation") == [(step, 0.5) for step in steps]
        assert run.points("goodput/goodput") == [(2499, 100.0)]

    def test_identity(self, database):
        """A run has the process's identity as tags; the training's configuration is its parameters."""
        source = log(
            MlflowSink(database),
            JobConfigured(world_size=2, rank=1, node_name="n", session_tag="friday"),
            TrainingConfigured(perf_tag=["a"], global_batch_size=64),
            rank=1,
            attempt=2,
            session_tag="friday",
        )
        run = Run(database, source).run
        assert run.info.run_name == "run-1 rank 1 attempt 2"
        assert (run.data.tags["trackside.rank"], run.data.tags["trackside.session_tag"]) == ("1", "friday")
        assert (run.data.params["global_batch_size"], run.data.params["world_size"]) == ("64", "2")

    def test_long_parameter(self, database):
        """Of a parameter that MLflow would refuse the beginning is sent, and how long it is."""
        source = log(MlflowSink(database), TrainingConfigured(perf_tag=["a" * 7_000], global_batch_size=64))
        params = Run(database, source).run.data.params
        assert len(params["perf_tag"]) == 6_000
        assert params["perf_tag"].startswith("['aaa")
        assert params["perf_tag"].endswith("a… (7,004 characters)")
        assert params["global_batch_size"] == "64"

    @pytest.mark.parametrize(
        ("reason", "status"), [("closed", "FINISHED"), ("exit", "FINISHED"), ("ValueError", "FAILED")]
    )
    def test_end(self, database, reason, status):
        """A run ends as the job did."""
        source = log(MlflowSink(database), IterationEnded(step=0, duration_ns=1), reason=reason)
        assert Run(database, source).run.info.status == status

    def test_names(self, database):
        """Characters that MLflow does not allow in a name are replaced, and no other point is lost."""
        event = ProfileSpanEnded(step=0, span_id=2, parent_span_id=1, name="a=b (c) 🚄", duration_ns=10**9)
        source = log(MlflowSink(database), event, IterationEnded(step=0, duration_ns=1, loss=1.0))
        assert Run(database, source).points("duration_s/a_b__c___") == [(0, 1.0)]
        assert Run(database, source).points(LOSS) == [(0, 1.0)]

    def test_asynchronous(self, database, monkeypatch):
        """With MLflow's asynchronous logging, all points are there after a flush."""
        monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_LOGGING", "true")
        source = Source(run_id="run-1")
        with Bus(source=source) as bus:
            bus.subscribe(MlflowSink(database))
            for step in range(50):
                bus.log(IterationEnded(step=step, duration_ns=1, loss=1.0))
            assert bus.flush(WAIT_S)
            assert Run(database, source).points(LOSS) == [(step, 1.0) for step in range(50)]

    def test_asynchronous_refusal(self, database, monkeypatch):
        """A failure of asynchronous logging is counted, too, with its reason."""
        monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_LOGGING", "true")
        sink = MlflowSink(database)
        with Bus() as bus:
            bus.subscribe(sink)
            bus.log(IterationEnded(step=0, duration_ns=1, loss=1.0))
            assert bus.flush(WAIT_S)
            (run_id,) = sink._runs.values()
            mlflow.MlflowClient(database).delete_run(run_id)
            bus.log(IterationEnded(step=1, duration_ns=1, loss=1.0))
            bus.flush(2.0)
            bus.close(2.0)
        assert sink.lost >= 1

    def test_variables(self, database, monkeypatch):
        """MLflow's variables give the server and the experiment."""
        monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "by-variable")
        source = log(MlflowSink(), IterationEnded(step=0, duration_ns=1, loss=1.0))
        assert Run(database, source, "by-variable").points(LOSS) == [(0, 1.0)]

    def test_refused_for_good(self, database):
        """Points that MLflow refuses for good are counted with the reason, and the rest arrives."""
        sink = MlflowSink(database)
        with Bus() as bus:
            bus.subscribe(sink)
            bus.log(IterationEnded(step=0, duration_ns=1, loss=1.0))
            assert bus.flush(WAIT_S)
            (run_id,) = sink._runs.values()
            mlflow.MlflowClient(database).delete_run(run_id)
            bus.log(IterationEnded(step=1, duration_ns=1, loss=1.0))
            assert not bus.flush(WAIT_S)
            mlflow.MlflowClient(database).restore_run(run_id)
            bus.log(IterationEnded(step=2, duration_ns=1, loss=1.0))
            assert bus.flush(WAIT_S)
            (counts,) = bus.stats().handlers
            assert counts.dropped == 1
        assert sink.losses() == {"MLflow refused: INVALID_PARAMETER_VALUE": 1}
        history = mlflow.MlflowClient(database).get_metric_history(run_id, LOSS)
        assert sorted(point.step for point in history) == [0, 2]


@contextlib.contextmanager
def server(database, port, log_path):
    """Run MLflow's own server, and end it with all its workers."""
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", database]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # it takes less time to start
    with log_path.open("ab") as output:
        child = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline_s = time.monotonic() + WAIT_S
        while not is_up(port):
            assert child.poll() is None, log_path.read_text()
            assert time.monotonic() < deadline_s, log_path.read_text()
            time.sleep(0.1)
        yield child
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def is_up(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.hang_guard(240)
class TestServer:
    def test_comes_and_goes(self, database, tmp_path):
        """Points wait while a server is down or hangs; each has arrived once it is back."""
        port = free_port()
        uri = f"http://127.0.0.1:{port}"
        source = Source(run_id="run-1")
        sink = MlflowSink(uri)
        with Bus(source=source) as bus:
            bus.subscribe(sink)
            bus.log(IterationEnded(step=0, duration_ns=1, loss=1.0))
            assert not bus.flush(1.0)
            with server(database, port, tmp_path / "log") as process:
                assert bus.flush(WAIT_S)
                os.killpg(process.pid, signal.SIGSTOP)
                for step in range(1, 40):
                    bus.log(IterationEnded(step=step, duration_ns=1, loss=1.0))
                assert not bus.flush(1.0)
                os.killpg(process.pid, signal.SIGCONT)
                assert bus.flush(WAIT_S)
                assert bus.close(WAIT_S)
        run = Run(database, source)
        assert run.points(LOSS) == [(step, 1.0) for step in range(40)]
        assert run.run.info.status == "FINISHED"
        assert sink.lost == 0

    def test_never_there(self):
        """With no server at all the job ends in time, and every event is counted with its reason."""
        sink = MlflowSink(f"http://127.0.0.1:{free_port()}")
        with Bus() as bus:
            bus.subscribe(sink)
            for step in range(100):
                bus.log(IterationEnded(step=step, duration_ns=1, loss=1.0))
            started_s = time.monotonic()
            assert not bus.close(3.0)
            assert time.monotonic() - started_s < 30
            (counts,) = bus.stats().handlers
        assert sink.losses() == {"not delivered before close": sink.lost}
        assert counts.logged == counts.handled + counts.dropped
        assert counts.dropped >= 100


class TestPage:
    def test_example(self, database, tmp_path):
        """The example in the documentation runs as it stands there."""
        page = (Path(__file__).resolve().parents[2] / "docs" / "mlflow.md").read_text(encoding="utf-8")
        code = page.split("```python\n")[1].split("```")[0]
        environment = {**os.environ, "MLFLOW_TRACKING_URI": database, "MLFLOW_EXPERIMENT_NAME": "page"}
        # A database on a busy disk may take longer than the end of a job waits.
        train = "def train():\n    trackside.counter('x').add(1)\n    trackside.flush(60)\n    trackside.close(60)\n"
        program = train + textwrap.dedent(code)
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True, timeout=90)
        found = mlflow.MlflowClient(database).get_experiment_by_name("page")
        (run,) = mlflow.MlflowClient(database).search_runs([found.experiment_id])
        assert run.info.status == "FINISHED"
