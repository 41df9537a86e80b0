"""
Systems that are dead, slow or refusing, each in turn and all at once.

The training has the same loss bit for bit, no other sink misses an event, each lost one is counted, and when the system
is back, so is the service.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import types

import pytest

import trackside
from trackside.events import GoodputUpdated, IterationEnded, RunsOn, SpanEnded
from trackside.handlers import JsonlSink, replay
from trackside.wire import fields_of

torch = pytest.importorskip("torch")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
pytest.importorskip("google.cloud.monitoring_v3")
pytest.importorskip("prometheus_client")
grpc = pytest.importorskip("grpc")
nats = pytest.importorskip("nats")
pytest.importorskip("mlflow")
wandb = pytest.importorskip("wandb")

from trackside.handlers import mlflow as mlflow_module  # noqa: E402  these import theirs
from trackside.handlers.google_cloud_monitoring import GoogleCloudMonitoringSink  # noqa: E402
from trackside.handlers.mlflow import MlflowSink  # noqa: E402
from trackside.handlers.nats import NatsReader, NatsSink  # noqa: E402
from trackside.handlers.opentelemetry import OpenTelemetrySink  # noqa: E402
from trackside.handlers.prometheus_client import PrometheusSink  # noqa: E402
from trackside.handlers.wandb import WandbSink  # noqa: E402

pytestmark = pytest.mark.integration

STEPS = 8
"""Before the trouble, in it, and after it."""
TROUBLES = ("dead", "slow", "refusing")


class Collector:
    """The stand-in for an OpenTelemetry collector, and the sink that sends to it."""

    def __init__(self, server):
        self.server = server
        self.sink = OpenTelemetrySink(server.url, timeout_s=0.5)

    def trouble(self, kind):
        """Make the system dead, slow or refusing."""
        if kind == "dead":
            self.server.stop()
        elif kind == "slow":
            self.server.waits.clear()
        else:
            self.server.status = 503

    def heal(self, kind):
        """Restore it."""
        if kind == "dead":
            self.server.start()
        self.server.waits.set()
        self.server.status = 200

    def arrived(self):
        """Return the steps of the iterations that arrived; a slow server may have one twice."""
        spans = [recorded for _, recorded in self.server.spans() if recorded.name == "training_single_iteration"]
        return {one.value.int_value for recorded in spans for one in recorded.attributes if one.key == "trackside.step"}


class Nats:
    def __init__(self, server):
        self.server = server
        self.sink = NatsSink(server.url, stream="runs", timeout_s=0.5)

    def trouble(self, kind):
        """Make the system dead, slow or refusing."""
        if kind == "dead":
            self.server.stop()
        elif kind == "slow":
            self.server.pause()
        else:
            self.limit(1)  # a full stream that refuses what is new

    def heal(self, kind):
        """Restore it."""
        if kind == "dead":
            self.server.start()
        elif kind == "slow":
            self.server.resume()
        else:
            self.limit(-1)

    def limit(self, messages):
        """Let the stream accept no more than some messages."""
        from nats.js.api import DiscardPolicy

        async def change():
            client = await nats.connect(self.server.url)
            stream = client.jetstream()
            config = (await stream.stream_info("runs")).config
            config.max_msgs, config.discard = messages, DiscardPolicy.NEW
            await stream.update_stream(config)
            await client.close()

        asyncio.run(change())

    def arrived(self):
        """Return the steps that arrived."""
        with NatsReader(self.server.url, stream="runs", follow=False, to=IterationEnded) as events:
            return {event.step for event in events}


class Monitoring:
    def __init__(self, server):
        self.server = server
        self.sink = GoogleCloudMonitoringSink("p", "l", export_interval_s=0.0, timeout_s=0.5, client=server.client())

    def trouble(self, kind):
        """Make the system dead, slow or refusing."""
        if kind == "dead":
            self.server.stop()
        elif kind == "slow":
            self.server.waits.clear()
        else:
            self.server.code = grpc.StatusCode.UNAVAILABLE

    def heal(self, kind):
        """Restore it."""
        if kind == "dead":
            self.server.start()
        self.server.waits.set()
        self.server.code = None

    def arrived(self):
        """Return the steps that arrived."""
        return {
            int(series.points[0].value.double_value)
            for request in self.server.requests
            for series in request.time_series
            if series.metric.type.endswith("total_elapsed_time")
        }


class Tracker:
    """The far end of an experiment tracker's client; the real ones have tests of their own."""

    CURVE = "duration_s/training_single_iteration"

    def __init__(self, sink):
        self.sink = sink
        self.kind = None
        self.healed = threading.Event()
        self.steps = set()

    def trouble(self, kind):
        """Make the system dead, slow or refusing."""
        self.healed.clear()
        self.kind = kind

    def heal(self, kind):
        """Restore it."""
        self.kind = None
        self.healed.set()

    def arrived(self):
        """Return the steps that arrived."""
        return self.steps

    def meet(self):
        """Be called."""
        if self.kind == "slow":
            self.healed.wait(30)
        elif self.kind is not None:
            raise ConnectionError("dead") if self.kind == "dead" else RuntimeError("refused")


class Mlflow(Tracker):
    """The part of MLflow's client that the sink calls."""

    def __init__(self, monkeypatch):
        super().__init__(MlflowSink())
        monkeypatch.setattr(mlflow_module, "MlflowClient", lambda _: self)

    def get_experiment_by_name(self, name):
        """Return an experiment."""
        return types.SimpleNamespace(experiment_id=name)

    def create_run(self, *_, **__):
        """Begin a run."""
        self.meet()
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="1"))

    def log_batch(self, _, metrics=(), params=()):
        """Accept metrics."""
        self.meet()
        self.steps |= {metric.step for metric in metrics if metric.key == self.CURVE}

    def set_terminated(self, *_):
        """End a run."""
        self.meet()


class WandB(Tracker):
    """The part of a W&B run that the sink calls."""

    def __init__(self, monkeypatch):
        super().__init__(WandbSink())
        self.summary, self.config = {}, {}
        monkeypatch.setattr(wandb, "init", lambda **_: self.meet() or self)
        monkeypatch.setattr(wandb, "teardown", lambda: None)

    def log(self, row):
        """Accept a row."""
        self.meet()
        self.steps |= {row["step"]} if self.CURVE in row else set()

    def define_metric(self, *_, **__):
        """Ignore it."""

    def finish(self, **_):
        """End the run."""
        self.meet()


class Broken:
    """Raises at every event."""

    runs_on = RunsOn.WORKER

    def __call__(self, event):
        """Fail."""
        raise RuntimeError(event)


class Stuck:
    """A handler that blocks until the test is over."""

    runs_on = RunsOn.WORKER

    def __init__(self):
        self.over = threading.Event()

    def __call__(self, event):
        """Wait."""
        self.over.wait()


@pytest.fixture
def systems(collector, nats_server, monitoring, monkeypatch):
    for name in ("OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    return {
        "opentelemetry": Collector(collector),
        "nats": Nats(nats_server),
        "monitoring": Monitoring(monitoring),
        "mlflow": Mlflow(monkeypatch),
        "wandb": WandB(monkeypatch),
    }


class Training:
    """A small training, the same each time."""

    def __init__(self):
        torch.manual_seed(7)
        torch.set_num_threads(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.losses = []

    def train(self, steps):
        """Run some more steps."""
        for step in range(len(self.losses), len(self.losses) + steps):
            with trackside.training_iteration(step=step):
                with trackside.model_forward():
                    inputs = torch.randn(64, 16)
                    loss = ((self.model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            trackside.log(GoodputUpdated(session="s", elapsed_s=float(step), productive_s=0.5, goodput=0.5, step=step))
            self.losses.append(loss.item().hex())


@pytest.fixture(scope="module")
def undisturbed():
    """Return the losses of a training without telemetry."""
    training = Training()
    training.train(3 * STEPS)
    return training.losses


@pytest.fixture
def started(tmp_path):
    """
    Return a function that starts a job with some sinks and the witnesses; jobs that are open at the end are closed.
    """
    jobs = []

    def start(*sinks):
        witness = []
        handlers = [*sinks, JsonlSink(tmp_path / "events.jsonl"), PrometheusSink(None), Witness(witness)]
        jobs.append(trackside.start(tmp_path / "runs", handlers=handlers, report=False, heartbeat_interval_s=0.2))
        return jobs[-1], witness

    yield start
    for job in jobs:
        job.close(timeout_s=1)


class Witness:
    """Keeps every event, on a sink worker like the others."""

    runs_on = RunsOn.WORKER

    def __init__(self, seen):
        self.seen = seen

    def __call__(self, event):
        """Keep *event*."""
        self.seen.append((event.seq, type(event), fields_of(event)))


def check_witnesses(tmp_path, witness):
    """Check that each undisturbed sink has every event, each once."""
    logged = [(event.seq, type(event)) for event in replay(tmp_path / "runs")]
    assert [number for number, _ in logged] == list(range(len(logged)))
    assert [(number, kind) for number, kind, _ in witness] == logged
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["seq"] for line in lines] == [number for number, _ in logged]


def counts():
    """Return each handler's present counts; those of closed ones of earlier jobs are among them."""
    found = {}
    for stats in trackside.stats().handlers:
        name = stats.name.rpartition(".")[2].partition(" ")[0]
        found[name] = stats.plus(found[name]) if name in found else stats
    return found


def since(before, now):
    """Return the increase of the counts."""
    names = ("logged", "handled", "failed", "dropped", "suspended", "lost", "balance")
    return {
        handler: {name: getattr(stats, name) - getattr(before.get(handler), name, 0) for name in names}
        for handler, stats in now.items()
    }


@pytest.mark.hang_guard(100)
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("who", ["opentelemetry", "nats", "monitoring", "mlflow", "wandb", "all"])
class TestComesBack:
    def test_nothing_is_lost(self, systems, started, tmp_path, undisturbed, eventually, *, who, trouble):
        """
        A system that is away for a while gets everything once it is back; neither other sinks nor the training notice.
        """
        troubled = list(systems.values()) if who == "all" else [systems[who]]
        job, witness = started(*(system.sink for system in systems.values()))
        training = Training()
        training.train(STEPS)
        assert job.bus.flush(60)
        for system in troubled:
            system.trouble(trouble)
        training.train(STEPS)
        assert not job.bus.flush(1.5)
        for system in troubled:
            system.heal(trouble)
        training.train(STEPS)
        eventually(lambda: job.bus.flush(5), what="everything arrived")  # gRPC takes its time to connect again
        assert job.close(timeout_s=10)

        assert training.losses == undisturbed
        check_witnesses(tmp_path, witness)
        for system in systems.values():
            assert system.arrived() == set(range(3 * STEPS))
            assert system.sink.lost == 0


@pytest.mark.hang_guard(100)
class TestStaysAway:
    @pytest.mark.parametrize("trouble", TROUBLES)
    def test_all_at_once(self, systems, trouble, started, tmp_path, undisturbed):
        """
        With all systems in trouble to the end, and two broken sinks, the end comes in time; events that did not arrive
        is counted for each by reason, and the loss is the same.
        """
        stuck, before = Stuck(), counts()
        job, witness = started(*(system.sink for system in systems.values()), Broken(), stuck)
        training = Training()
        training.train(STEPS)
        job.bus.flush(5)
        for system in systems.values():
            system.trouble(trouble)
        training.train(2 * STEPS)
        began_s = time.monotonic()
        assert not job.close(timeout_s=4.0)
        took_s = time.monotonic() - began_s
        stuck.over.set()

        assert training.losses == undisturbed
        assert took_s < 15
        check_witnesses(tmp_path, witness)
        found = since(before, counts())
        assert {handler: recorded["balance"] for handler, recorded in found.items()} == dict.fromkeys(found, 0)
        for system in systems.values():
            recorded = found[type(system.sink).__name__]
            assert recorded["dropped"] == sum(system.sink.losses().values()) > 0
            assert (recorded["failed"], recorded["suspended"]) == (0, 0)
        assert (found["Broken"]["handled"], found["Broken"]["failed"]) == (0, 5)
        assert found["Broken"]["suspended"] == found["Broken"]["logged"] - 5
        assert found["Stuck"]["dropped"] > 0
        for name in ("JsonlSink", "PrometheusSink", "Witness", "EventLog"):
            assert found[name]["lost"] == 0
        for system in systems.values():
            system.heal(trouble)


class TestPrometheus:
    def test_scraper_that_hangs(self, port, tmp_path):
        """A client that connects to the page and never reads blocks neither the job nor the next client."""
        import socket
        import urllib.request

        with trackside.start(tmp_path, handlers=[PrometheusSink(port)], report=False) as job:
            with trackside.training_iteration(step=2):  # a page is served from the first event on
                pass
            assert job.bus.flush(5)
            with socket.create_connection(("127.0.0.1", port)) as hanging:
                hanging.sendall(b"GET /metrics HTTP/1.1\r\n")
                with trackside.training_iteration(step=3):
                    pass
                assert job.bus.flush(5)
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    assert b"trackside_last_step" in answer.read()
                assert job.close(timeout_s=5)


def test_spans_are_there(started):
    """The trainings above have spans: what these tests look at is more than the life of a job."""
    job, witness = started()
    Training().train(1)
    job.close()
    assert [kind for _, kind, _ in witness if issubclass(kind, (SpanEnded, IterationEnded))]
