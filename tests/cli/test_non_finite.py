"""Values that are no finite numbers, through every command that reads logs."""

from __future__ import annotations

import contextlib
import json
import math
import stat

import pytest

from trackside.bus import Bus
from trackside.events import (
    CounterWindow,
    Heartbeat,
    IterationEnded,
    SectionWindow,
    Source,
    SpanEnded,
    SpanEventAdded,
    SpanStarted,
    StallDetected,
    TrainingConfigured,
)
from trackside.handlers import EventLog

ODD = [math.inf, -math.inf, math.nan, -0.0, 1e308, -1e308, 5e-324, 2.2e-310]
START_NS = 1_700_000_000 * 10**9
S = 10**9


def no_json(constant):
    """Refuse the constants that Python reads and JSON does not have."""
    raise AssertionError(f"{constant} is no JSON")


def parsed(text):
    """Return what each line of *text*, or all of it, holds as strict JSON."""
    try:
        return [json.loads(text, parse_constant=no_json)]
    except json.JSONDecodeError:
        return [json.loads(line, parse_constant=no_json) for line in text.splitlines()]


def window(name, odd, other, step):
    """Return a closed window of a statistic that met *odd* values."""
    at_ns = START_NS + step * S
    return CounterWindow(
        at_ns=at_ns,
        span_id=0,
        step=step,
        name=name,
        unit="nats",
        start_ns=at_ns - S,
        end_ns=at_ns,
        count=3,
        values={"mean": odd, "max": other, "min": odd, "p99": other, "sum": odd, "last": odd},
        total_count=3 * step,
        total_sum=odd,
    )


def sections(odd, other, step):
    """Return a window of sections whose times are *odd* values."""
    times = {name: [odd, other] for name in ("min_ns", "max_ns", "median_ns", "mean_ns", "std_ns")}
    return SectionWindow(
        at_ns=START_NS + step * S,
        span_id=0,
        step=step,
        window=step,
        first_step=step,
        last_step=step,
        start_ns=START_NS,
        names=["forward", "backward"],
        counts=[1, 1],
        entries=[1, 1],
        **times,
    )


@pytest.fixture
def odd_logs(tmp_path):
    """Record two ranks whose losses, FLOPs, counters, sections and attributes are the odd values."""
    for rank in range(2):
        source = Source(id=f"{rank:016x}", run_id="odd", session_tag="odd", rank=rank, world_size=2)
        with contextlib.closing(Bus(source=source)) as bus:
            bus.subscribe(EventLog(tmp_path / "odd"))
            for event in events(rank):
                bus.log(event)
            assert bus.flush(10)
        assert bus.stats().invalid == 0
    return tmp_path / "odd"


def events(rank):
    """Yield what a rank records."""
    envelope = {"step": -1, "at_ns": START_NS}
    configured = TrainingConfigured(
        perf_tag=["odd"], global_batch_size=8, peak_flops_per_s=math.inf, span_id=0, **envelope
    )
    yield configured
    attributes = {str(index): odd for index, odd in enumerate(ODD)}
    yield SpanStarted(name="training_loop", span_id=1, parent_span_id=0, attributes=attributes, **envelope)
    for step, odd in enumerate(ODD * 2):
        other = ODD[(step + 3) % len(ODD)]
        at_ns = START_NS + step * S
        yield IterationEnded(
            at_ns=at_ns,
            span_id=100 + step,
            parent_span_id=1,
            step=step,
            duration_ns=S // 2,
            samples=4,
            tokens=9,
            flops=odd,
            loss=other,
        )
        yield window("train.loss", odd, other, step)
        yield window("gpu.power", other, odd, step)
        yield window("gpu.most", 1e308, 1e308, step)
        yield window("gpu.signs", -math.inf if rank else math.inf, 0.0, step)
        yield sections(odd, other, step)
        yield SpanEventAdded(at_ns=at_ns, span_id=1, step=step, name="odd", attributes={"value": odd})
        yield Heartbeat(at_ns=at_ns, span_id=1, step=step, sequence=step, interval_s=odd)
        yield StallDetected(at_ns=at_ns, span_id=1, step=step, usual_s=other, stalled_s=odd, stacks={}, open_spans={})
    at_ns = START_NS + len(ODD) * 2 * S
    yield SpanEnded(
        name="training_loop",
        span_id=1,
        parent_span_id=0,
        duration_ns=at_ns - START_NS,
        attributes=attributes,
        at_ns=at_ns,
        step=-1,
    )


COMMANDS = {
    "info": ["info", "--json"],
    "tail": ["tail", "--json"],
    "report": ["report", "--json"],
    "goodput": ["goodput", "--json"],
    "top": ["top", "--once", "--json"],
    "scores": ["scores", "--json"],
    "runs": ["runs", "--json"],
}


class TestJson:
    @pytest.mark.parametrize("name", COMMANDS)
    def test_printed(self, command, odd_logs, name):
        """Every command prints JSON that every reader accepts, whatever the values are."""
        outcome = command(*COMMANDS[name], odd_logs)

        assert (outcome.code in (0, 1), outcome.err) == (True, "")
        assert parsed(outcome.out)

    def test_compared(self, command, odd_logs, tmp_path):
        """So it is where two runs are compared."""
        outcome = command("compare", "--json", odd_logs, odd_logs)

        assert outcome.code in (0, 1)
        assert parsed(outcome.out)

    def test_exported(self, command, odd_logs, tmp_path):
        """An exported file is JSON too, and each of the values in it is distinguishable."""
        outcome = command("export", "--jsonl", tmp_path / "events.jsonl", odd_logs)

        assert (outcome.code, outcome.err) == (0, "")
        lines = parsed((tmp_path / "events.jsonl").read_text())
        losses = [line["fields"]["loss"] for line in lines if line["type"] == "trackside.iteration.ended"]
        assert losses[:5] == [-0.0, 1e308, -1e308, 5e-324, 2.2e-310]
        assert losses[5:8] == ["Infinity", "-Infinity", "NaN"]
        assert math.copysign(1, losses[0]) == -1

    def test_traced(self, command, odd_logs, tmp_path):
        """So is a trace, and its file is its owner's alone."""
        outcome = command("trace", "-o", tmp_path / "trace.json", "--json", odd_logs)

        assert outcome.code == 0
        assert parsed(outcome.out)
        assert parsed((tmp_path / "trace.json").read_text())
        assert stat.S_IMODE((tmp_path / "trace.json").stat().st_mode) == 0o600


class TestText:
    @pytest.mark.parametrize("name", [*COMMANDS, "html"])
    def test_printed(self, command, odd_logs, name, tmp_path):
        """No command ends in an error because of such values."""
        pytest.importorskip("rich")
        arguments = (
            ["report", "--html", tmp_path / "page.html"]
            if name == "html"
            else [part for part in COMMANDS[name] if part != "--json"]
        )
        outcome = command(*arguments, odd_logs)

        assert outcome.code in (0, 1)
        assert "Traceback" not in outcome.out + outcome.err

    def test_compared(self, command, odd_logs):
        """Nor does a comparison."""
        assert command("compare", odd_logs, odd_logs).code in (0, 1)


class TestImported:
    def test_through_every_command(self, command, tmp_path):
        """Scalars of torchtitan with such values are imported, and every command reports them as valid JSON."""
        records = []
        for step, odd in enumerate(ODD):
            at_us = START_NS // 1000 + step * 1_000_000
            shared = {"tid": 1, "global_rank": 0, "pid": 7, "host_name": "node", "source": "trainer", "step": step}
            for name, value in (("step_start", None), ("metric_value", odd), ("step_end", odd)):
                kind = "scalar" if name == "metric_value" else "event"
                line = {"log_type": kind, "log_type_name": name, "time_us": at_us, "value": value, **shared}
                records.append(json.dumps({**line, "event_name": "loss"}))
                at_us += 1000
        (tmp_path / "structured.jsonl").write_text("\n".join(records))

        outcome = command("import", "-o", tmp_path / "log", tmp_path / "structured.jsonl")

        assert (outcome.code, outcome.err) == (0, "")
        lines = parsed(command("tail", "--json", tmp_path / "log").out)
        values = [line["fields"]["values"]["value"] for line in lines if line["type"] == "trackside.counter.window"]
        assert values[:3] == ["Infinity", "-Infinity", "NaN"]
        assert (values[3:], math.copysign(1, values[3])) == ([-0.0, 1e308, -1e308, 5e-324, 2.2e-310], -1)
        for name in COMMANDS.keys() - {"scores"}:  # there are no sections to score
            outcome = command(*COMMANDS[name], tmp_path / "log")
            assert (outcome.code in (0, 1), outcome.err) == (True, "")
            assert parsed(outcome.out)
