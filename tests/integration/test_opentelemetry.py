"""Traces, metrics and logs over OTLP, as a collector decodes them, and the losses if it does not accept them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

import trackside
from processes import of
from trackside.events import (
    CheckpointSaveFailed,
    ConfigError,
    CounterWindow,
    ExceptionRaised,
    GoodputUpdated,
    HandlerSuspended,
    Heartbeat,
    IterationEnded,
    Parent,
    ProfileSpanEnded,
    Source,
    SourceEnded,
    SpanEnded,
    SpanEventAdded,
    SpanStarted,
    set_process_source,
)
from trackside.handlers import replay
from trackside.instruments import environ_for_child, span

opentelemetry = pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from trackside.handlers.opentelemetry import OpenTelemetrySink  # noqa: E402  it imports the library

pytestmark = pytest.mark.integration
ASKS_AGAIN = pytest.mark.skipif(
    Version(version("opentelemetry-sdk")) < Version("1.45"), reason="the exporter itself asks again after a 500"
)

HERE = Path(__file__).resolve().parent
TRACE = "0af7651916cd43dd8448eb211c80319c"
MAIN = Source(id="00c0ffee00c0ffee", run_id="run", host="node7", pid=123, rank=1, local_rank=1, world_size=2, attempt=3)
OK, ERROR = 1, 2


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def sink(collector):
    found = OpenTelemetrySink(collector.url)
    yield found
    found.close(5)


def ended(number, name="work", parent=0, start=1_000, end=2_000, **given):
    return SpanEnded(
        span_id=number, parent_span_id=parent, name=name, at_ns=end, duration_ns=end - start, step=-1, **given
    )


def only(found):
    [one] = found
    return one


class TestSpans:
    def test_a_thousand_over_two_ranks(self, collector, tmp_path):
        """
        1,004 spans of two ranks arrive, each with the id, the parent, the name and the times that the log has of it.
        """
        children = [
            subprocess.Popen(
                [sys.executable, str(HERE / "opentelemetry_rank.py"), str(tmp_path), collector.url],
                env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            )
            for rank in range(2)
        ]
        try:
            assert [child.wait(100) for child in children] == [0, 0]
        finally:
            for child in children:
                child.kill()
        recorded = {}
        for event in replay(tmp_path):
            if isinstance(event, (SpanEnded, IterationEnded)):
                parent = event.parent_span_id
                name = "training_single_iteration" if isinstance(event, IterationEnded) else event.name
                times = (event.at_ns - event.duration_ns, event.at_ns)
                recorded[event.source.id, event.span_id] = (event.source.rank, parent, name, *times)
        sent = {}
        for resource, reported in collector.spans():
            source_id, number = resource["service.instance.id"], int.from_bytes(reported.span_id, "big")
            assert reported.trace_id.hex() == source_id + "0" * 16
            parent = int.from_bytes(reported.parent_span_id, "big")
            times = (reported.start_time_unix_nano, reported.end_time_unix_nano)
            sent[source_id, number] = (resource["trackside.rank"], parent, reported.name, *times)
        assert sent == recorded
        assert len(sent) == 2 * (2 * 250 + 2)

    def test_resource(self, collector, sink):
        """
        Each process is one resource, with the names of the conventions and, where they have none, with trackside's.
        """
        sink(of(MAIN, ended(1)))
        assert sink.flush(5)
        resource, _ = only(collector.spans())
        assert resource["host.name"] == "node7"
        assert resource["process.pid"] == 123
        assert resource["service.instance.id"] == MAIN.id
        assert (resource["trackside.run_id"], resource["trackside.attempt"]) == ("run", 3)
        assert (resource["trackside.rank"], resource["trackside.world_size"]) == (1, 2)

    def test_tags_and_metadata(self, collector, sink):
        """Session tag, perf tags, baseline and metadata are attributes of the resource."""
        source = Source(session_tag="friday", perf_tags=("a", "b"), baseline=True, metadata={"git": "1234"})
        sink(of(source, ended(1)))
        assert sink.flush(5)
        resource, _ = only(collector.spans())
        names = ("session_tag", "perf_tags", "baseline", "metadata.git")
        assert [resource[f"trackside.{name}"] for name in names] == ["friday", ["a", "b"], True, "1234"]

    def test_worker_under_its_starter(self, collector, sink):
        """A forked worker's spans are in the trace of the process that forked it, under the span around the fork."""
        worker = Source(id="1111111111111111", role="worker", parent=Parent(MAIN.id, 5))
        sink(of(MAIN, ended(5, "fork")))
        sink(of(worker, ended(5, "load")))
        sink(of(worker, ended(6, "decode", parent=5)))
        assert sink.flush(5)
        spans = {reported.name: reported for _, reported in collector.spans()}
        assert len({reported.trace_id for reported in spans.values()}) == 1
        assert spans["load"].parent_span_id == spans["fork"].span_id
        assert spans["decode"].parent_span_id == spans["load"].span_id
        assert len({reported.span_id for reported in spans.values()}) == 3

    def test_ranks_started_in_one_trace(self, collector, sink):
        """Ranks that a traced launcher started hang under its span, and their ids do not collide."""
        for rank in range(2):
            sink(of(Source(rank=rank, parent=Parent(TRACE, 0xB7AD6B7169203331)), ended(1)))
        assert sink.flush(5)
        first, second = (reported for _, reported in collector.spans())
        assert first.trace_id.hex() == second.trace_id.hex() == TRACE
        assert first.parent_span_id.hex() == second.parent_span_id.hex() == "b7ad6b7169203331"
        assert first.span_id != second.span_id

    @pytest.mark.parametrize("parent", [None, Parent(TRACE, 5)])
    def test_propagated_by_others(self, collector, parent):
        """
        A process with OpenTelemetry of its own, started within a trackside span, finds that span by its own propagator.
        """
        from opentelemetry.trace import get_current_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        bus = trackside.bus.default_bus
        bus.end("another test's")  # a stream that is open keeps its source
        set_process_source(Source(parent=parent))
        sink = OpenTelemetrySink(collector.url)
        with bus.subscribe(sink), span("spawn"):
            reported = environ_for_child()["TRACEPARENT"]
        found = get_current_span(TraceContextTextMapPropagator().extract({"traceparent": reported})).get_span_context()
        bus.end("over")
        [(_, sent)] = [one for one in collector.spans() if one[1].name == "spawn"]
        assert f"{found.trace_id:032x}" == sent.trace_id.hex()
        assert f"{found.span_id:016x}" == sent.span_id.hex()

    def test_attributes(self, collector, sink, decoded):
        """Scalars and lists of one kind keep their type, all other values become text; names follow the conventions."""
        given = {
            "int": 7,
            "float": 0.5,
            "bool": True,
            "text": "x",
            "list": [1, 2],
            "mixed": [1, "a"],
            "table": {"a": [1]},
            "large": 1 << 70,
            "none": None,
            "object": object,
            "thread": "loader-3",
        }
        sink(of(MAIN, ended(1, attributes=given)))
        assert sink.flush(5)
        reported = decoded(only(collector.spans())[1].attributes)
        text = {name: reported.pop(name) for name in ("mixed", "table", "large", "object")}
        assert reported == {
            "int": 7,
            "float": 0.5,
            "bool": True,
            "text": "x",
            "list": [1, 2],
            "thread.name": "loader-3",
        }
        assert (text["mixed"], text["table"], text["large"]) == ('[1,"a"]', '{"a":[1]}', str(1 << 70))
        assert isinstance(text["object"], str)

    def test_extreme_numbers(self, collector, sink, decoded, losses, bits):
        """Infinities, NaN, negative zero and the limits of the format are attributes unchanged, and texts in JSON."""
        values = [event.loss for event in losses]
        sink(of(MAIN, ended(1, attributes={"list": values, "table": {"values": values}})))
        assert sink.flush(5)
        attributes = decoded(only(collector.spans())[1].attributes)
        assert bits(attributes["list"]) == bits(values)
        assert attributes["table"] == '{"values":["Infinity","-Infinity","NaN",-0.0,1e+308,5e-324]}'

    def test_what_no_span_has(self, collector, sink):
        """A negative id and times before 1970 or after 2554 do not affect the spans around them."""
        sink(of(MAIN, ended(1)))
        sink(of(MAIN, ended(-2, parent=-3, start=-6, end=-1)))
        sink(of(MAIN, SpanEventAdded(name="odd", span_id=4, at_ns=-7)))
        sink(of(MAIN, ended(4, start=(1 << 64) + 5, end=(1 << 64) + 5)))
        sink(of(MAIN, ExceptionRaised(type="E", message="", span_id=-1, at_ns=-1)))
        assert sink.flush(5)
        spans = [span for _, span in collector.spans()]
        assert [int.from_bytes(span.span_id, "big") for span in spans] == [1, (1 << 64) - 2, 4]
        assert [(span.start_time_unix_nano, span.end_time_unix_nano) for span in spans[1:]] == [
            (0, 0),
            ((1 << 64) - 1, (1 << 64) - 1),
        ]
        assert sink.lost == 0

    def test_lone_surrogates(self, collector, sink, decoded):
        """
        Texts without a UTF-8 form, such as a file's name, have an escape, and do not affect the spans around them.
        """
        sink(of(MAIN, SpanEventAdded(name="a\ud800", attributes={"b\udcff": "c\udcff"}, span_id=1, at_ns=1_500)))
        error = {"type": "ValueError", "message": "no\udcff"}
        sink(of(MAIN, ended(1, name="work\ud800", attributes={"d\ud800": ["e\ud800"]}, error=error)))
        sink(of(MAIN, ended(2)))
        assert sink.flush(5)
        (_, reported), (_, other) = collector.spans()
        assert (reported.name, other.name, reported.status.message) == (r"work\ud800", "work", r"ValueError: no\udcff")
        assert decoded(reported.attributes) == {r"d\ud800": [r"e\ud800"], "error.type": "ValueError"}
        event = only(reported.events)
        assert (event.name, decoded(event.attributes)) == (r"a\ud800", {r"b\udcff": r"c\udcff"})

    def test_iteration(self, collector, sink, decoded):
        """An iteration is a span of its loop's name, with its step, its samples and its tokens."""
        event = IterationEnded(
            span_id=9, parent_span_id=4, step=12, at_ns=5_000, duration_ns=3_000, samples=32, loss=0.25
        )
        sink(of(MAIN, event))
        assert sink.flush(5)
        _, reported = only(collector.spans())
        assert (reported.name, reported.span_id.hex(), reported.parent_span_id.hex()) == (
            "training_single_iteration",
            f"{9:016x}",
            f"{4:016x}",
        )
        assert (reported.start_time_unix_nano, reported.end_time_unix_nano) == (2_000, 5_000)
        assert decoded(reported.attributes) == {"trackside.step": 12, "trackside.samples": 32, "trackside.loss": 0.25}

    def test_events(self, collector, sink, decoded):
        """A span event is an event of its span, at its time."""
        sink(of(MAIN, SpanEventAdded(name="resharded", attributes={"shards": 4}, span_id=1, at_ns=1_500)))
        sink(of(MAIN, ended(1)))
        assert sink.flush(5)
        event = only(only(collector.spans())[1].events)
        assert (event.name, event.time_unix_nano, decoded(event.attributes)) == ("resharded", 1_500, {"shards": 4})

    def test_error(self, collector, sink, decoded):
        """
        A span that an exception ended has the status of an error, and the exception in the form of the conventions.
        """
        error = {"type": "ValueError", "message": "no", "traceback": "Traceback …"}
        sink(of(MAIN, ended(1, error=error)))
        assert sink.flush(5)
        _, reported = only(collector.spans())
        assert (reported.status.code, reported.status.message) == (ERROR, "ValueError: no")
        assert decoded(reported.attributes) == {"error.type": "ValueError"}
        event = only(reported.events)
        assert (event.name, event.time_unix_nano) == ("exception", 2_000)
        assert decoded(event.attributes) == {
            "exception.type": "ValueError",
            "exception.message": "no",
            "exception.stacktrace": "Traceback …",
        }

    def test_error_further_out(self, collector, sink):
        """A span that an exception passed through has the status, and no second copy of the exception."""
        sink(of(MAIN, ended(1, error={"type": "ValueError", "message": "no", "raised_in": "2"})))
        assert sink.flush(5)
        _, reported = only(collector.spans())
        assert reported.status.code == ERROR
        assert not reported.events

    def test_failed_iteration(self, collector, sink, decoded):
        """A failed iteration has the exception that was raised in it."""
        reported = {"exception_type": "OSError", "exception_message": "gone", "error_message": "OSError: gone"}
        sink(of(MAIN, SpanEventAdded(name="error", attributes=reported, span_id=1, at_ns=4_000)))
        sink(of(MAIN, IterationEnded(span_id=1, parent_span_id=0, step=1, at_ns=5_000, duration_ns=1_000, failed=True)))
        assert sink.flush(5)
        _, found = only(collector.spans())
        assert (found.status.code, found.status.message) == (ERROR, "OSError: gone")
        assert decoded(only(found.events).attributes)["exception.type"] == "OSError"

    def test_fine(self, collector, sink):
        """A span that ended well leaves its status unset, as the conventions want it."""
        sink(of(MAIN, ended(1)))
        assert sink.flush(5)
        assert only(collector.spans())[1].status.code == 0

    def test_unfinished(self, collector, sink, decoded):
        """A span that is open when its process ends is sent then, marked as unfinished."""
        sink(
            of(
                MAIN,
                SpanStarted(
                    span_id=1,
                    parent_span_id=0,
                    name="application",
                    at_ns=1_000,
                ),
            )
        )
        sink(
            of(
                MAIN,
                SpanStarted(
                    span_id=2,
                    parent_span_id=1,
                    name="checkpoint_load",
                    at_ns=2_000,
                ),
            )
        )
        sink(of(MAIN, SourceEnded(reason="SIGTERM", at_ns=9_000)))
        assert sink.flush(5)
        reported = {one.name: one for _, one in collector.spans()}
        assert {name: (one.start_time_unix_nano, one.end_time_unix_nano) for name, one in reported.items()} == {
            "application": (1_000, 9_000),
            "checkpoint_load": (2_000, 9_000),
        }
        assert all(decoded(one.attributes) == {"trackside.unfinished": True} for one in reported.values())

    def test_limits(self, collector, monkeypatch):
        """OpenTelemetry's limits of spans are honoured."""
        monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "2")
        sink = OpenTelemetrySink(collector.url)
        sink(of(MAIN, ended(1, attributes={"a": 1, "b": 2, "c": 3})))
        assert sink.close(5)
        _, reported = only(collector.spans())
        assert (len(reported.attributes), reported.dropped_attributes_count) == (2, 1)

    def test_sampler(self, collector, monkeypatch):
        """OpenTelemetry's sampler is honoured, and spans that it drops are no loss."""
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
        sink = OpenTelemetrySink(collector.url)
        sink(of(MAIN, ended(1)))
        assert sink.close(5)
        assert collector.spans() == []
        assert sink.lost == 0


class TestMetrics:
    def test_extreme_numbers(self, collector, sink, losses, bits):
        """NaN and infinities, which the SDK does not record, are left out and counted; other numbers arrive."""
        for event in losses:
            window = {"start_ns": 0, "end_ns": 1, "count": 1, "total_count": 1, "total_sum": event.loss}
            for kind in ("gauge", "stat"):
                name = f"{kind}{event.step}"
                sink(of(MAIN, CounterWindow(name=name, kind=kind, values={"value": event.loss}, **window)))
        assert sink.flush(5)
        for name in ("gauge{}", "stat{}", "stat{}.sum"):
            arrived = [collector.points(name.format(event.step)) for event in losses]
            assert arrived[:3] == [[], [], []]
            assert bits(abs(points[-1][2].as_double) for points in arrived[3:]) == bits([0.0, 1e308, 5e-324])
        assert sink.not_finite == 9

    def test_durations(self, collector, sink):
        """Iterations make a histogram of seconds, by loop and outcome."""
        for step, duration_ns in enumerate((10**8, 2 * 10**8, 10**9)):
            sink(of(MAIN, IterationEnded(step=step, duration_ns=duration_ns, samples=4, failed=step == 2)))
        assert sink.flush(5)
        reported = {
            attributes["trackside.failed"]: (point.count, point.sum)
            for _, attributes, point in collector.points("trackside.iteration.duration")
        }
        assert reported == {False: (2, pytest.approx(0.3)), True: (1, 1.0)}
        [(_, _, samples)] = collector.points("trackside.iteration.samples")
        assert samples.as_int == 8

    def test_counters(self, collector, sink):
        """The statistics of a stat are gauges; its sum and count are those since the process began."""
        for total in (3, 10):
            window = CounterWindow(
                name="train.loss",
                unit="nats",
                start_ns=0,
                end_ns=1,
                count=3,
                values={"mean": total / 4},
                total_count=total,
                total_sum=-0.5 * total,
            )
            sink(of(MAIN, window))
            assert sink.flush(5)
        last = {name: collector.points(name)[-1] for name in ("train.loss", "train.loss.sum", "train.loss.count")}
        assert last["train.loss"][1] == {"trackside.aggregation": "mean"}
        assert last["train.loss"][2].as_double == 2.5
        assert last["train.loss.sum"][2].as_double == -5.0
        assert last["train.loss.count"][2].as_int == 10

    def test_sums_beyond_64_bits(self, collector, sink, caplog):
        """
        Sums that OTLP's integers do not hold arrive as the largest number that they do, and a line says so; the
        metrics beside them arrive as they are. What others claim can be so large, and would cost the whole request.
        """
        for step in range(3):
            sink(of(MAIN, IterationEnded(step=step, duration_ns=10**9, samples=(1 << 62) - 1)))
        sink(of(MAIN, Heartbeat(sequence=0, counts={"dropped": 1 << 63, "published": 9})))
        assert sink.flush(5)

        [(_, _, samples)] = collector.points("trackside.iteration.samples")
        [(_, _, dropped)] = collector.points("trackside.events.dropped")
        [(_, _, durations)] = collector.points("trackside.iteration.duration")
        assert (samples.as_int, dropped.as_int, durations.count) == ((1 << 63) - 1, (1 << 63) - 1, 3)
        assert sink.lost == 0
        assert "larger than 64 bits hold; the largest number is sent" in caplog.text

    def test_negative(self, collector, sink):
        """
        A negative number of samples is left out and counted, and what comes after it arrives: 2⁶³ − 1 at most, as the
        sum starts at 0.
        """
        for step, samples in enumerate((-(1 << 63), 1 << 63)):
            sink(of(MAIN, IterationEnded(step=step, duration_ns=-1, samples=samples)))
        assert sink.flush(5)
        [(_, _, arrived)] = collector.points("trackside.iteration.samples")
        assert arrived.as_int == (1 << 63) - 1
        assert (sink.not_finite, sink.lost) == (3, 0)

    def test_unit_of_no_system(self, collector, sink):
        """A unit that OpenTelemetry refuses, being longer than 63 characters, is left out, and the values arrive."""
        window = {"start_ns": 0, "end_ns": 1, "count": 1, "total_count": 1, "total_sum": 1.0}
        sink(of(MAIN, CounterWindow(name="load", kind="gauge", unit="x" * 64, values={"value": 7.0}, **window)))
        assert sink.flush(5)
        [(_, _, point)] = collector.points("load")
        assert point.as_double == 7.0

    def test_delta(self, collector, monkeypatch):
        """The configured temporality is used."""
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
        sink = OpenTelemetrySink(collector.url)
        for step in range(3):
            sink(of(MAIN, IterationEnded(step=step, duration_ns=10**9)))
            assert sink.flush(5)
        assert [point.count for *_, point in collector.points("trackside.iteration.duration")] == [1, 1, 1]
        assert sink.close(5)

    def test_goodput_and_losses(self, collector, sink):
        """Goodput, badput by bucket and the losses of the bus are there, one resource for each process."""
        badput = {"OTHER": 3.0, "CUSTOM_BADPUT_EVENTS": {"EVAL": 1.0}}
        sink(of(MAIN, GoodputUpdated(session="s", elapsed_s=8.0, productive_s=4.0, goodput=0.5, badput_s=badput)))
        other = Source(rank=0)
        for dropped in (2, 5):
            sink(of(other, Heartbeat(sequence=0, counts={"dropped": dropped, "published": 9})))
        assert sink.flush(5)
        [(resource, _, ratio)] = collector.points("trackside.goodput.ratio")
        assert (resource["trackside.rank"], ratio.as_double) == (1, 0.5)
        reported = {one["trackside.bucket"]: point.as_double for _, one, point in collector.points("trackside.badput")}
        assert reported == {"OTHER": 3.0, "CUSTOM_BADPUT_EVENTS.EVAL": 1.0}
        [(resource, labels, dropped)] = collector.points("trackside.events.dropped")
        assert (resource["trackside.rank"], labels, dropped.as_int) == (0, {"trackside.reason": "dropped"}, 5)


class TestLogs:
    def test_what_nothing_else_tells(self, collector, sink, decoded):
        """An event that is neither in spans nor in metrics is a log record with the event's name, time and place."""
        sink(of(MAIN, CheckpointSaveFailed(global_step=7, path="/ckpt", at_ns=5_000, span_id=3, step=7)))
        sink(of(MAIN, ended(3)))
        sink(of(MAIN, IterationEnded(duration_ns=1)))
        assert sink.flush(5)
        resource, reported = only(collector.logs())
        assert resource["trackside.rank"] == 1
        assert (reported.event_name, reported.time_unix_nano, reported.severity_text) == (
            "trackside.checkpoint.failed",
            5_000,
            "WARN",
        )
        [(_, around)] = collector.spans()
        assert (reported.trace_id, reported.span_id) == (around.trace_id, around.span_id)
        attributes = decoded(reported.attributes)
        assert (attributes["global_step"], attributes["path"], attributes["trackside.step"]) == (7, "/ckpt", 7)

    def test_telemetry_data_error(self, collector, sink, decoded):
        """A gap in telemetry is a record of severity ERROR with its description."""
        from trackside.compat.one_logger._bridge import TelemetryFoundLacking

        sink(of(MAIN, TelemetryFoundLacking(message="lost a rank", attributes={"rank": 3})))
        assert sink.flush(5)
        _, reported = only(collector.logs())
        assert reported.severity_text == "ERROR"
        assert decoded(reported.attributes)["message"] == "lost a rank"

    def test_severities(self, collector, sink):
        """A problem is a warning, other events in the life of a job are information."""
        sink(of(MAIN, HandlerSuspended(handler="h", failures=5)))
        sink(of(MAIN, SourceEnded(reason="closed")))
        assert sink.flush(5)
        reported = {one.event_name: one.severity_text for _, one in collector.logs()}
        assert reported == {"trackside.handler.suspended": "WARN", "trackside.source.ended": "INFO"}


class TestSettings:
    def test_endpoint_headers_and_names(self, collector, monkeypatch):
        """The variables that every OpenTelemetry exporter honours are honoured."""
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=rails")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "llm")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=prod,host.name=renamed")
        sink = OpenTelemetrySink()
        sink(of(Source(application="demo", host="node"), ended(1)))
        assert sink.close(5)
        resource, _ = only(collector.spans())
        assert (resource["service.name"], resource["host.name"]) == ("llm", "renamed")
        assert resource["deployment.environment"] == "prod"
        [headers] = collector.headers
        assert (headers["x-team"], headers["Content-Encoding"]) == ("rails", "gzip")

    def test_arguments_first(self, collector, monkeypatch):
        """Arguments take precedence over the variables."""
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        sink = OpenTelemetrySink(f"{collector.url}/", headers={"x-a": "b"})
        sink(of(MAIN, ended(1)))
        assert sink.close(5)
        assert collector.headers[0]["x-a"] == "b"

    def test_disabled(self, collector, monkeypatch):
        """With OTEL_SDK_DISABLED nothing is sent, and nothing is lost."""
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        sink = OpenTelemetrySink(collector.url)
        sink(of(MAIN, ended(1)))
        assert sink.close(5)
        assert collector.requests == []

    @pytest.mark.parametrize(("signal", "reported"), [("TRACES", "spans"), ("LOGS", "logs")])
    def test_one_signal_off(self, collector, monkeypatch, signal, reported):
        """A signal whose exporter is ``none`` is not sent; the others are."""
        monkeypatch.setenv(f"OTEL_{signal}_EXPORTER", "none")
        sink = OpenTelemetrySink(collector.url)
        for event in (ended(1), HandlerSuspended(handler="h", failures=5), IterationEnded(duration_ns=1, span_id=2)):
            sink(of(MAIN, event))
        assert sink.close(5)
        assert {"spans": bool(collector.spans()), "logs": bool(collector.logs())} == {
            "spans": reported != "spans",
            "logs": reported != "logs",
        }
        assert collector.points("trackside.iteration.duration")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
            ("OTEL_SPAN_EVENT_COUNT_LIMIT", "-3"),
        ],
    )
    def test_what_there_is_not(self, monkeypatch, name, value):
        """A variable with an unsupported value is refused when the sink is made, by its name."""
        monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError, match=name):
            OpenTelemetrySink("http://127.0.0.1:9")


@pytest.mark.hang_guard(240)
@pytest.mark.filterwarnings("ignore")  # the library's own
class TestMlflow:
    def test_a_real_receiver(self, tmp_path, port, server, monkeypatch):
        """A real MLflow server accepts 1,002 spans of two ranks, and returns them with parents and times intact."""
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        pytest.importorskip("mlflow.server")
        pytest.importorskip("mlflow", minversion="3.0")  # takes traces from then on
        from mlflow import MlflowClient

        url = f"http://127.0.0.1:{port}"
        store = ("--backend-store-uri", f"sqlite:///{tmp_path / 'mlflow.db'}")
        command = (sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1", *store)
        server(*command, "--port", str(port), asks=f"{url}/health", within_s=180)
        headers = {"x-mlflow-experiment-id": "0"}
        sink = OpenTelemetrySink(url, headers=headers, metrics=False, logs=False, timeout_s=60)  # it is slow under load
        began_ns = time.time_ns()
        expected = {}
        for rank in range(2):
            source = Source(rank=rank)
            for number in range(2, 502):
                start = began_ns + 1_000 * number
                sink(of(source, ended(number, f"work{number}", parent=1, start=start, end=start + 500)))
                expected[source.id, f"work{number}"] = (start, start + 500, f"{1:016x}")
            sink(of(source, ended(1, "application", start=began_ns, end=began_ns + 10**9)))
            expected[source.id, "application"] = (began_ns, began_ns + 10**9, None)
        assert sink.close(60), sink.losses()
        found = {}
        for trace in MlflowClient(tracking_uri=url).search_traces(locations=["0"]):
            for reported in trace.data.spans:
                source_id = reported.trace_id.removeprefix("tr-")[:16]
                found[source_id, reported.name] = (reported.start_time_ns, reported.end_time_ns, reported.parent_id)
        assert found == expected


class TestDelivery:
    def test_collector_away(self, collector, bus):
        """While there is no collector all spans wait; when it is there all of them arrive."""
        collector.stop()
        sink = OpenTelemetrySink(collector.url, timeout_s=0.5, metrics=False)
        bus.subscribe(sink, to=SpanEnded)
        for number in range(1, 101):
            bus.log(ended(number))
        assert not bus.flush(2)
        collector.start()
        assert bus.flush(10)
        assert {int.from_bytes(reported.span_id, "big") for _, reported in collector.spans()} == set(range(1, 101))
        assert sink.lost == 0

    @pytest.mark.parametrize("status", [429, 503])
    def test_try_again(self, collector, bus, status):
        """Requests that the collector cannot accept now are tried again."""
        collector.status = status
        sink = OpenTelemetrySink(collector.url, timeout_s=0.5, metrics=False)
        bus.subscribe(sink, to=SpanEnded)
        bus.log(ended(1))
        assert not bus.flush(2)
        collector.status = 200
        assert bus.flush(10)
        assert len(collector.spans()) == 1

    @pytest.mark.parametrize("status", [400, 404, pytest.param(500, marks=ASKS_AGAIN)])
    def test_refused(self, collector, bus, status):
        """Requests that the collector refuses for good are counted as lost, with the reason, and block nothing."""
        collector.status = status
        sink = OpenTelemetrySink(collector.url, metrics=False)
        bus.subscribe(sink, to=SpanEnded)
        bus.log(ended(1))
        bus.log(ended(2))
        assert not bus.flush(5)
        collector.status = 200
        bus.log(ended(3))
        assert bus.flush(5)
        assert sink.losses() == {f"traces: {collector.url}/v1/traces answered {status}": 2}
        [stats] = bus.stats().handlers
        assert (stats.handled, stats.dropped, stats.balance) == (1, 2, 0)

    def test_partly_refused(self, collector, sink):
        """Items that the collector rejected in a request that it accepted are counted."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        answer = ExportTraceServiceResponse()
        answer.partial_success.rejected_spans = 2
        collector.answer = answer.SerializeToString()
        for number in (1, 2, 3):
            sink(of(MAIN, ended(number)))
        assert not sink.flush(5)
        assert sink.losses() == {f"traces: rejected by {collector.url}/v1/traces": 2}

    def test_one_signal_refused(self, collector, sink):
        """A collector that does not support one signal gets the others."""
        del collector.decoders["/v1/logs"]
        sink(of(MAIN, HandlerSuspended(handler="h", failures=5)))
        sink(of(MAIN, ended(1)))
        assert not sink.flush(5)
        assert len(collector.spans()) == 1
        assert sink.losses() == {f"logs: {collector.url}/v1/logs answered 404": 1}

    def test_close_in_time(self, collector, bus):
        """
        With a collector that hangs, the end takes no longer than its time limit, and undelivered items are counted.
        """
        collector.waits.clear()
        subscription = bus.subscribe(OpenTelemetrySink(collector.url), to=ProfileSpanEnded)
        for number in range(1, 101):
            bus.log(
                ProfileSpanEnded(
                    span_id=number,
                    parent_span_id=0,
                    name="n",
                    duration_ns=1,
                )
            )
        began_s = time.monotonic()
        assert not subscription.close(1.0)
        assert time.monotonic() - began_s < 5
        [stats] = bus.stats().handlers
        assert (stats.logged, stats.handled, stats.dropped, stats.balance) == (100, 0, 100, 0)

    def test_after_the_end(self, collector, sink):
        """Events after the end are not sent, and counted."""
        assert sink.close(5)
        assert sink.close(5)
        sink(of(MAIN, ended(1)))
        assert collector.requests == []
        assert sink.losses() == {"traces: queue full": 1}

    def test_no_room(self, collector, bus, monkeypatch):
        """Items beyond the queue's limit are counted, and the variable sets the limit."""
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
        collector.stop()
        sink = OpenTelemetrySink(collector.url, timeout_s=0.2, metrics=False)
        bus.subscribe(sink, to=SpanEnded)
        for number in range(1, 31):
            bus.log(ended(number))
        assert not bus.flush(2)
        assert sink.losses() == {"traces: queue full": 20}
        collector.start()
        assert bus.flush(10)
        assert len(collector.spans()) == 10

    def test_not_instrumented(self, collector, sink):
        """A site that instruments its HTTP requests sees none of trackside's."""
        requests = pytest.importorskip("requests")
        instrumentation = pytest.importorskip("opentelemetry.instrumentation.requests")
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        seen = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(seen))
        instrumentor = instrumentation.RequestsInstrumentor()
        instrumentor.instrument(tracer_provider=provider)
        try:
            sink(of(MAIN, ended(1)))
            sink(of(MAIN, HandlerSuspended(handler="h", failures=5)))
            assert sink.flush(5)
            assert len(collector.requests) == 2
            assert seen.get_finished_spans() == ()
            requests.post(f"{collector.url}/v1/traces", data=b"", timeout=5)
            assert len(seen.get_finished_spans()) == 1  # otherwise this test would see no span in any case
        finally:
            instrumentor.uninstrument()
            provider.shutdown()

    def test_one_complaint(self, collector, caplog, bus):
        """The exporters' own log does not mention trackside's deliveries: one line reports them, with counts."""
        collector.stop()
        bus.subscribe(OpenTelemetrySink(collector.url, timeout_s=0.2, metrics=False, logs=False), to=SpanEnded)
        bus.log(ended(1))
        bus.flush(1)
        bus.flush(1)
        [record] = caplog.records
        assert record.name == "trackside"
        assert "1 event(s) wait" in record.getMessage()
