"""Curves in Weights & Biases, in its offline mode; its files are read back."""

from __future__ import annotations

import gc
import json
import math
import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from pathlib import Path

import pytest

from trackside.bus import Bus
from trackside.compat.one_logger.api.config import OneLoggerConfig
from trackside.compat.one_logger.api.timed_span import timed_span
from trackside.compat.one_logger.core.attributes import Attributes
from trackside.compat.one_logger.core.event import ErrorEvent, Event, StandardEventName, TelemetryDataError
from trackside.compat.one_logger.core.span import Span
from trackside.compat.one_logger.core.time import TracingTimestamp
from trackside.compat.one_logger.exporter.exporter import ExportError
from trackside.compat.one_logger.training_telemetry.api import callbacks
from trackside.compat.one_logger.training_telemetry.api.config import TrainingTelemetryConfig
from trackside.compat.one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider
from trackside.events import (
    ConfigError,
    CounterWindow,
    GoodputUpdated,
    IterationEnded,
    JobConfigured,
    ProfileSpanEnded,
    Source,
    TrainingConfigured,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("ids_as_given"),
    # W&B forgets the process that it ends, which Python warns of.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <function Popen:pytest.PytestUnraisableExceptionWarning"),
]

wandb = pytest.importorskip("wandb")
wandb_internal_pb2 = pytest.importorskip("wandb.proto.wandb_internal_pb2")

from trackside.compat.one_logger.wandb.exporter import wandb_exporter  # noqa: E402  it needs wandb
from trackside.handlers.wandb import WandbSink  # noqa: E402

one_logger = wandb_exporter

WAIT_S = 60.0

# In offline mode W&B's client writes records of protobuf, in the framing of LevelDB's logs.
FILE_HEADER_BYTES = 7
BLOCK_BYTES = 32 << 10
HEADER = struct.Struct("<IHB")  # checksum, length, and whether it is whole, the first, a middle or the last part
WHOLE, LAST = 1, 4


def records(path):
    """Yield the records of a file, up to where it ends or is torn."""
    data = Path(path).read_bytes()
    at, parts = FILE_HEADER_BYTES, b""
    while at + HEADER.size <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEADER.size:
            at += left
            continue
        _, length, part = HEADER.unpack_from(data, at)
        if part == 0:
            return
        parts += data[at + HEADER.size : at + HEADER.size + length]
        at += HEADER.size + length
        if part in {WHOLE, LAST}:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


class Offline:
    """All runs below a directory."""

    def __init__(self, directory):
        self.paths = sorted(Path(directory).rglob("run-*.wandb"))
        self.paths = [path for path in self.paths if not path.parent.is_symlink()]

    def _of(self, kind):
        return [
            getattr(record, kind)
            for path in self.paths
            for record in records(path)
            if record.WhichOneof("record_type") == kind
        ]

    @property
    def runs(self):
        """The description of each run at its beginning."""
        return self._of("run")

    @property
    def rows(self):
        """The rows of all histories, without W&B's own keys."""
        found = []
        for history in self._of("history"):
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}
            found.append({name: value for name, value in row.items() if not name.startswith("_")})
        return found

    def points(self, tag):
        """Return a curve's points, as step and value."""
        return [(row["step"], row[tag]) for row in self.rows if tag in row]

    @property
    def config(self):
        """The configuration of the runs, later values over earlier ones."""
        found = {}
        for config in [*(run.config for run in self.runs), *self._of("config")]:
            found.update(
                {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in config.update}
            )
        return found

    @property
    def exit_codes(self):
        """The ends of the runs."""
        return [ending.exit_code for ending in self._of("exit")]


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """Make W&B write to a directory of the test's own, and connect to no server."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    given = {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true", "ERROR_REPORTING": "false"}
    for name, value in given.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    yield
    end_service()


@pytest.fixture
def log(tmp_path):
    """Give a function that has events logged, and returns the records that W&B wrote."""

    def logged(*events, sink=None, reason="closed", **fields):
        with Bus(source=Source(**{"run_id": "run-1", **fields})) as bus:
            bus.subscribe(sink or WandbSink())
            for event in events:
                bus.log(event)
            bus.end(reason)
            assert bus.flush(WAIT_S)
            assert bus.close(WAIT_S)
        return written(tmp_path)

    return logged


def service_processes():
    """Return the ids of W&B's own processes that this one started."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], check=True, capture_output=True, text=True
    )
    return [
        int(line.split()[0]) for line in listed.stdout.splitlines() if "wandb-core" in line and "<defunct>" not in line
    ]


def end_service():
    """End W&B's own process, so that all is on the disk, and wait for it."""
    wandb.teardown()
    deadline_s = time.monotonic() + WAIT_S
    while service_processes():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    gc.collect()


def written(directory):
    """Return the records that W&B wrote."""
    end_service()
    return Offline(directory)


class TestCurves:
    def test_extreme_numbers(self, log, losses, bits):
        """Infinities and NaN are W&B's words for them; zeros lose their sign, and other numbers arrive."""
        points = log(*losses).points("training_single_iteration/loss")
        assert [step for step, _ in points] == [0, 1, 2, 3, 4, 5]
        assert bits(float(value) + 0.0 for _, value in points) == bits(event.loss + 0.0 for event in losses)

    def test_rows(self, log):
        """The values of a step are one row, at that step."""
        found = log(
            ProfileSpanEnded(step=0, span_id=2, parent_span_id=1, name="model_forward", duration_ns=10**8),
            IterationEnded(step=0, duration_ns=5 * 10**8, loss=2.5),
            IterationEnded(step=1, duration_ns=25 * 10**7, loss=1.5),
        )
        assert found.rows == [
            {
                "step": 0,
                "duration_s/model_forward": 0.1,
                "duration_s/training_single_iteration": 0.5,
                "training_single_iteration/loss": 2.5,
            },
            {"step": 1, "duration_s/training_single_iteration": 0.25, "training_single_iteration/loss": 1.5},
        ]

    def test_twice_in_a_step(self, log):
        """Several points of one curve at one step all arrive."""
        spans = [
            ProfileSpanEnded(step=3, span_id=n, parent_span_id=0, name="data_loading", duration_ns=n * 10**9)
            for n in (1, 2)
        ]
        assert log(*spans).points("duration_s/data_loading") == [(3, 1.0), (3, 2.0)]

    def test_steps_out_of_order(self, log):
        """A step that comes late is a point like any other: W&B's own step plays no part."""
        found = log(*(IterationEnded(step=step, duration_ns=1, loss=1.0) for step in (5, 2, 9)))
        assert found.points("training_single_iteration/loss") == [(5, 1.0), (2, 1.0), (9, 1.0)]

    def test_goodput_and_counters(self, log):
        """Goodput, badput, each step's deviation and counters are curves."""
        found = log(
            GoodputUpdated(
                session="s",
                elapsed_s=10.0,
                productive_s=5.0,
                goodput=0.5,
                badput_s={"CUSTOM_BADPUT_EVENTS": {"EVAL": 1.0}},
                last_step=4,
                steps={"step": [3, 4], "duration_s": [1.0, 2.0], "deviation_s": [0.5, 0.25]},
            ),
            CounterWindow(
                step=5, name="loss", start_ns=0, end_ns=1, count=1, values={"mean": 2.0}, total_count=1, total_sum=2.0
            ),
        )
        assert found.points("goodput/goodput") == [(4, 50.0)]
        assert found.points("badput/custom_badput_events/eval") == [(4, 10.0)]
        assert found.points("step_deviation") == [(3, 0.5), (4, 0.25)]
        assert found.points("stat/loss/mean") == [(5, 2.0)]

    def test_not_finite(self, log):
        """A loss that is not finite arrives unchanged."""
        ((_, value),) = log(IterationEnded(step=0, duration_ns=1, loss=math.nan)).points(
            "training_single_iteration/loss"
        )
        assert value == "NaN" or math.isnan(value)


class TestRun:
    def test_identity(self, log):
        """The run is this process's: its id, its session, its ranks."""
        found = log(
            IterationEnded(step=0, duration_ns=1), id="0123456789abcdef", session_tag="friday", rank=3, attempt=1
        )
        (run,) = found.runs
        assert (run.run_id, run.run_group, run.display_name) == ("0123456789abcdef", "friday", "run-1 rank 3 attempt 1")
        assert (run.project, found.config["trackside.rank"]) == ("trackside", 3)

    def test_configuration(self, log):
        """The configuration of the job and of the training is the run's configuration."""
        found = log(
            JobConfigured(world_size=2, rank=0, node_name="n", session_tag="s"),
            TrainingConfigured(perf_tag=["a"], global_batch_size=64),
        )
        assert (found.config["world_size"], found.config["global_batch_size"]) == (2, 64)

    @pytest.mark.parametrize(("reason", "code"), [("closed", 0), ("exit", 0), ("ValueError", 1)])
    def test_end(self, log, reason, code):
        """The run ends as the job did."""
        assert log(IterationEnded(step=0, duration_ns=1), reason=reason).exit_codes == [code]

    def test_variables(self, log, monkeypatch):
        """W&B's variables are honoured; the run's id alone is trackside's, so that the job's run keeps its own."""
        for name, value in {"PROJECT": "p", "RUN_GROUP": "g", "NAME": "n", "RUN_ID": "users"}.items():
            monkeypatch.setenv(f"WANDB_{name}", value)
        (run,) = log(IterationEnded(step=0, duration_ns=1), id="0123456789abcdef").runs
        assert (run.project, run.run_group, run.display_name, run.run_id) == ("p", "g", "n", "0123456789abcdef")

    def test_arguments(self, log, monkeypatch):
        """Arguments of the sink precede the variables."""
        monkeypatch.setenv("WANDB_PROJECT", "p")
        (run,) = log(IterationEnded(step=0, duration_ns=1), sink=WandbSink(project="mine", tags=["t"])).runs
        assert (run.project, list(run.tags)) == ("mine", ["t"])

    def test_unknown_argument(self):
        """An argument that `wandb.init` does not have is refused at once, with the nearest one."""
        with pytest.raises(ConfigError, match=r"wandb.init\(\) has no such setting; did you mean project=…"):
            WandbSink(proect="acme")

    def test_beside_the_users_own(self, tmp_path):
        """A run of the job's own stays the current one, and neither gets the values logged to the other."""
        own = wandb.init(project="own", settings=wandb.Settings(console="off", x_disable_stats=True))
        with Bus() as bus:
            bus.subscribe(WandbSink())
            bus.log(IterationEnded(step=0, duration_ns=1, loss=2.0))
            assert bus.flush(WAIT_S)
            assert wandb.run is own
            own.log({"mine": 1})
            assert bus.close(WAIT_S)
        own.log({"mine": 2})
        own.finish()
        rows = {path.parent.name: Offline(path.parent).rows for path in written(tmp_path).paths}
        fields = [rows[name] for name in rows if name.endswith(own.id)]
        assert fields == [[{"mine": 1}, {"mine": 2}]]
        assert len(rows) == 2

    def test_disabled(self, log, monkeypatch):
        """In W&B's disabled mode nothing is written and nothing is lost."""
        monkeypatch.setenv("WANDB_MODE", "disabled")
        assert log(IterationEnded(step=0, duration_ns=1)).paths == []


class TestTrouble:
    def test_service_dies(self, tmp_path):
        """If W&B's service process dies, points that it may have lost are sent again, in the same run."""
        sink = WandbSink()
        with Bus(source=Source(id="0123456789abcdef")) as bus:
            bus.subscribe(sink)
            bus.log(IterationEnded(step=0, duration_ns=1, loss=1.0))
            assert bus.flush(WAIT_S)  # its step is with the service, which may not have written it when it is killed
            for pid in service_processes():
                os.kill(pid, signal.SIGKILL)
            for step in range(1, 20):
                bus.log(IterationEnded(step=step, duration_ns=1, loss=1.0))
            deadline_s = time.monotonic() + WAIT_S
            while not bus.flush(5.0):
                assert time.monotonic() < deadline_s
            assert bus.close(WAIT_S)
        found = written(tmp_path)
        assert {run.run_id for run in found.runs} == {"0123456789abcdef"}
        assert {step for step, _ in found.points("training_single_iteration/loss")} >= set(range(1, 20))
        assert sink.lost == 0

    def test_cannot_begin(self, tmp_path, monkeypatch):
        """If no run can be begun, the job goes on, and the events lost by the end are counted with the reason."""

        def refuse(**_):
            raise ConnectionError("no service")

        monkeypatch.setattr(wandb, "init", refuse)
        sink = WandbSink()
        with Bus() as bus:
            bus.subscribe(sink)
            for step in range(10):
                bus.log(IterationEnded(step=step, duration_ns=1))
            assert not bus.flush(0.5)
            assert not bus.close(2.0)
            (counts,) = bus.stats().handlers
        assert sink.losses() == {"not delivered before close": sink.lost}
        assert counts.dropped == sink.lost >= 10
        assert counts.logged == counts.handled + counts.dropped

    def test_exit_is_not_held_up(self, tmp_path):
        """With W&B's server out of reach a process ends in bounded time, and its data is on its disk."""
        program = """
            import sys
            import trackside
            from trackside.handlers.wandb import WandbSink

            bus = trackside.Bus()
            settings = {"base_url": "http://127.0.0.1:9", "init_timeout": 2, "finish_timeout": 2}
            bus.subscribe(WandbSink(settings=settings))
            bus.log(trackside.IterationEnded(step=0, duration_ns=1))
            print(bus.close(3.0))
        """
        environment = {**os.environ, "WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40}
        started_s = time.monotonic()
        child = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            check=False,
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert child.returncode == 0, child.stderr
        assert time.monotonic() - started_s < 60


class TestOneLoggerConfig:
    def test_defaults(self):
        """One Logger's defaults."""
        config = one_logger.Config(entity="team")
        assert (config.host, config.api_key, config.project) == ("https://api.wandb.ai", "", "one-logger-tracking")
        assert (config.save_dir, config.tags) == ("./wandb", ["e2e_metrics_enabled"])
        assert config.run_name.startswith("one-logger-tracking-run-")

    def test_entity_is_needed(self):
        """The project must be given."""
        with pytest.raises(TypeError):
            one_logger.Config()


@pytest.fixture
def config(tmp_path):
    """Give a configuration of One Logger's exporters."""
    return one_logger.Config(entity="team", save_dir=str(tmp_path / "own"), run_name="named")


def export(exporter, *calls):
    """Make *calls* of an exporter, from its beginning to its end."""
    exporter.initialize()
    for call, *given in calls:
        getattr(exporter, f"export_{call}")(*given)
    exporter.close()


def at(seconds):
    return TracingTimestamp.for_timestamp(seconds, float(seconds), validate_timestamp=False)


class ByPosition(one_logger.MetricNamingStrategy):
    """A naming strategy of the user's own."""

    def from_span_attribute(self, span, attribute):
        """Return the name."""
        return f"s-{attribute.name}"

    def from_event_attribute(self, span, event, attribute):
        """Return the name."""
        return f"e-{attribute.name}"


@pytest.mark.parametrize("kind", [one_logger.WandBExporterSync, one_logger.WandBExporterAsync])
class TestOneLoggerExporters:
    """Exporters of both kinds, synchronous and asynchronous."""

    @pytest.fixture
    def span(self):
        """Give a span that has begun."""
        began = Event(StandardEventName.SPAN_START, at(1_700_000_000), Attributes({"reason": "new"}))
        return Span(uuid.uuid4(), "loop", began, None, Attributes({"goal": 10, "kind": "train"}))

    def rows(self, tmp_path):
        """Return the exported sets of values, each of which has the time."""
        found = written(tmp_path).rows
        assert all(abs(row.pop("app_last_log_time") / 1000 - time.time()) < 600 for row in found)
        return found

    def test_start(self, kind, config, span, tmp_path):
        """A start is all attributes of the span and of its start, under the span's name."""
        export(kind(config), ("start", span))
        assert self.rows(tmp_path) == [
            {
                "loop.goal": 10,
                "loop.kind": "train",
                "loop.span_start.reason": "new",
                "loop.span_start.timestamp_msec": 1_700_000_000_000,
            }
        ]

    def test_stop(self, kind, config, span, tmp_path):
        """A stop is the attributes that changed since the start, and the attributes of the stop."""
        span.add_attribute("done", 7)
        span.stop(stop_time=at(1_700_000_002))
        export(kind(config), ("stop", span))
        (row,) = self.rows(tmp_path)
        assert row == {
            "loop.done": 7,
            "loop.duration_msec": 2000,
            "loop.span_stop.timestamp_msec": 1_700_000_002_000,
        }

    def test_event(self, kind, config, span, tmp_path):
        """An event is its attributes, under the names of the span and its own."""
        event = Event("saved", at(1_700_000_001), Attributes({"size": 5}))
        export(kind(config), ("event", event, span))
        assert self.rows(tmp_path) == [{"loop.saved.size": 5, "loop.saved.timestamp_msec": 1_700_000_001_000}]

    def test_without_attributes(self, kind, config, tmp_path):
        """A span without attributes is its times alone."""
        span = Span.create("bare", start_time=at(1_700_000_000))
        span.stop(stop_time=at(1_700_000_001))
        export(kind(config), ("start", span), ("stop", span))
        assert [set(row) for row in self.rows(tmp_path)][1] == {"bare.duration_msec", "bare.span_stop.timestamp_msec"}

    def test_error(self, kind, config, span, tmp_path):
        """An error of the application is not exported."""
        export(kind(config), ("error", ErrorEvent.create("broken", ValueError("x")), span))
        assert self.rows(tmp_path) == []

    def test_data_error(self, kind, config, tmp_path):
        """A gap in telemetry is a metric with its size."""
        error = TelemetryDataError.create(TelemetryDataError.ErrorType.INCOMPLETE_TELEMETRY_DATA, "lost")
        export(kind(config), ("telemetry_data_error", error))
        assert self.rows(tmp_path) == [{"telemetry_data_error": "INCOMPLETE_TELEMETRY_DATA"}]

    @pytest.mark.parametrize(
        ("naming", "names"),
        [
            (one_logger.FlatMetricNamingStrategy(), {"goal", "kind", "reason", "timestamp_msec"}),
            (one_logger.HierarchicalMetricNamingStrategy("/"), {"loop/goal", "loop/kind", "loop/span_start/reason"}),
            (ByPosition(), {"s-goal", "s-kind", "e-reason", "e-timestamp_msec"}),
        ],
    )
    def test_naming(self, kind, config, span, tmp_path, *, naming, names):
        """Metrics are named as configured: flat, with another separator, or by a strategy of the user's own."""
        export(kind(config, naming), ("start", span))
        assert names <= set(self.rows(tmp_path)[0])

    def test_run(self, kind, config, span, tmp_path, monkeypatch):
        """The run is named as configured, in its own directory, and is not the one that a variable names."""
        monkeypatch.setenv("WANDB_RUN_ID", "users")
        export(kind(config), ("start", span))
        (run,) = written(tmp_path).runs
        assert (run.entity, run.project, run.display_name) == ("team", "one-logger-tracking", "named")
        assert list(run.tags) == ["e2e_metrics_enabled"]
        assert run.run_id != "users"
        assert os.environ["WANDB_RUN_ID"] == "users"
        assert [path.parents[2] for path in Offline(tmp_path).paths] == [tmp_path / "own"]

    def test_order_of_use(self, kind, config, span):
        """Before it was initialized and after it was closed it refuses."""
        exporter = kind(config)
        with pytest.raises(ExportError, match="not initialized"):
            exporter.export_start(span)
        export(exporter)
        with pytest.raises(ExportError, match="closed"):
            exporter.export_start(span)

    def test_of_a_job(self, kind, config, tmp_path, monkeypatch):
        """Configured as One Logger's, it gets the job's spans on a thread of its own."""
        monkeypatch.setattr(wandb_exporter, "_CLOSE_S", WAIT_S)  # W&B may take long to begin on a busy machine
        provider = TrainingTelemetryProvider.instance()
        fields = {"application_name": "a", "session_tag_or_fn": "s", "world_size_or_fn": 1}
        training = TrainingTelemetryConfig(perf_tag_or_fn="p", global_batch_size_or_fn=4)
        try:
            provider.with_base_config(OneLoggerConfig(**fields, telemetry_config=training)).with_exporter(kind(config))
            provider.configure_provider()
            callbacks.on_app_start()
            with timed_span("work", span_attributes=Attributes({"size": 3})):
                pass
            callbacks.on_app_end()
        finally:
            TrainingTelemetryProvider.forget()
        rows = self.rows(tmp_path)
        assert {"work.size": 3}.items() <= next(row for row in rows if "work.size" in row).items()
        assert any("application.one_logger_initialization.world_size" in row for row in rows)
        assert "application.duration_msec" in rows[-1]


class TestOneLoggerTrouble:
    def test_synchronous(self, config, monkeypatch):
        """A refusal by W&B is an error of that very call."""
        exporter = one_logger.WandBExporterSync(config)
        exporter.initialize()

        def refuse(*_):
            raise ConnectionError("gone")

        monkeypatch.setattr(type(exporter._run._run), "log", refuse)
        with pytest.raises(ExportError, match="gone"):
            exporter.export_start(Span.create("x"))
        exporter.close()

    def test_synchronous_cannot_begin(self, config, monkeypatch):
        """A run that cannot be begun is an error when telemetry is configured."""
        monkeypatch.setattr(wandb, "init", lambda **_: 1 / 0)
        with pytest.raises(ExportError, match="ZeroDivisionError"):
            one_logger.WandBExporterSync(config).initialize()

    def test_asynchronous(self, config, monkeypatch, tmp_path):
        """A refusal by W&B is an error of the next call, once, and nothing is lost when it accepts again."""
        monkeypatch.setattr(wandb_exporter, "_CLOSE_S", WAIT_S)  # a busy machine is no failure
        release = threading.Event()
        init = wandb.init

        def refuse(**given):
            if not release.is_set():
                raise ValueError("not now")
            return init(**given)

        monkeypatch.setattr(wandb, "init", refuse)
        exporter = one_logger.WandBExporterAsync(config)
        exporter.initialize()
        exporter.export_start(Span.create("first"))
        deadline_s = time.monotonic() + WAIT_S
        while not exporter._batches.last_error:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        with pytest.raises(ExportError, match="not now"):
            exporter.export_start(Span.create("second"))
        exporter.export_start(Span.create("third"))
        release.set()
        exporter.close()
        names = [{name.partition(".")[0] for name in row} - {"app_last_log_time"} for row in written(tmp_path).rows]
        assert names == [{"first"}, {"second"}, {"third"}]

    def test_asynchronous_is_never_waited_for(self, config, monkeypatch):
        """While W&B hangs calls return, and so does close, which reports the values that were not delivered."""
        monkeypatch.setattr(wandb_exporter, "_CLOSE_S", 0.2)
        release = threading.Event()
        monkeypatch.setattr(wandb, "init", lambda **_: release.wait(WAIT_S) and 1 / 0)
        exporter = one_logger.WandBExporterAsync(config)
        exporter.initialize()
        for _ in range(3):
            exporter.export_start(Span.create("x"))
        with pytest.raises(ExportError, match=r"not delivered before close.*3"):
            exporter.close()
        release.set()


class TestPage:
    def test_example(self, tmp_path):
        """The example in the documentation runs as it stands there."""
        page = (Path(__file__).resolve().parents[2] / "docs" / "wandb.md").read_text(encoding="utf-8")
        code = page.split("```python\n")[1].split("```")[0]
        subprocess.run(
            [sys.executable, "-c", f"train = lambda: trackside.flush(60)\n{code}"], cwd=tmp_path, check=True, timeout=90
        )
        assert Offline(tmp_path).runs
