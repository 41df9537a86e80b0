from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import trackside
from trackside.bus import Bus
from trackside.cli import main
from trackside.compat.torchtitan import TitanHandler
from trackside.events import CounterWindow, IterationEnded, SpanEnded, SpanEventAdded
from trackside.handlers import Capture, replay
from trackside.handlers.models import TrainingMetrics
from trackside.handlers.torchtitan import TitanFiles
from trackside.report import read_report

BEGAN_US = 1_700_000_000_000_000


def line(name, at_us, step=None, **given):
    """Return a line as torchtitan's formatter writes it; its fields that are not read are left out."""
    sent = {"rank": 1, "global_rank": 1, "local_rank": 1, "source": "training", "host_name": "node-1", "pid": 77}
    sent |= {"tid": 5, "time_us": BEGAN_US + at_us, "log_type": "event", "log_type_name": name, "seq_id": 0}
    return sent | ({"step": step} if step is not None else {}) | given


def step_of(step, at_us):
    """Return the lines of a step that takes 100 ms: 60 ms forward and backward, 30 ms the optimizer."""
    return [
        line("fwd_bwd_start", at_us, step),
        line("fwd_bwd_end", at_us + 60_000, step, value=60.0),
        line("optimizer_start", at_us + 65_000, step),
        line("optimizer_end", at_us + 95_000, step, value=30.0),
        line("metric_value", at_us + 96_000, step, log_type="instant", event_name="train.loss", value=0.5 * step),
    ]


@pytest.fixture
def write(tmp_path):
    """Return a function that writes lines to a file and returns its directory."""

    def write(lines, name="training.global_rank_1.jsonl"):
        directory = tmp_path / "structured_logs"
        directory.mkdir(exist_ok=True)
        (directory / name).write_text("".join(json.dumps(sent) + "\n" for sent in lines))
        return directory

    return write


class TestTitanFiles:
    def test_spans(self, write):
        """A start and its end become a span, whose length is the one that the end records."""
        events = TitanFiles([write(step_of(1, 0))])
        spans = [(event.name, event.duration_ns, event.step) for event in events if isinstance(event, SpanEnded)]
        assert spans == [("fwd_bwd", 60_000_000, 1), ("optimizer", 30_000_000, 1)]

    def test_iterations(self, write):
        """A change of the step ends an iteration; the last one ends with the file."""
        events = TitanFiles([write(step_of(1, 0) + step_of(2, 100_000))])
        found = [(event.step, event.duration_ns) for event in events if isinstance(event, IterationEnded)]
        assert found == [(1, 100_000_000), (2, 96_000_000)]

    def test_parents(self, write):
        """A span inside of another has it as its parent, and the outer one the iteration."""
        lines = [
            line("outer_start", 0, 1),
            line("inner_start", 10, 1),
            line("inner_end", 20, 1),
            line("outer_end", 30, 1),
        ]
        inner, outer, iteration = (
            event for event in TitanFiles([write(lines)]) if isinstance(event, (SpanEnded, IterationEnded))
        )
        assert (inner.parent_span_id, outer.parent_span_id) == (outer.span_id, iteration.span_id)

    def test_scalars(self, write):
        """A scalar is a counter's window, with the totals so far."""
        events = TitanFiles([write(step_of(1, 0) + step_of(2, 100_000))])
        windows = [event for event in events if isinstance(event, CounterWindow)]
        assert [(window.name, window.values["value"]) for window in windows] == [
            ("train.loss", 0.5),
            ("train.loss", 1.0),
        ]
        assert (windows[-1].total_count, windows[-1].total_sum) == (2, 1.5)

    def test_error(self, write):
        """A failed span carries its error."""
        lines = [
            line("load_start", 0),
            line("load_error", 5, message="[step N/A] load_error: ValueError: no"),
            line("load_end", 6),
        ]
        (span,) = [event for event in TitanFiles([write(lines)]) if isinstance(event, SpanEnded)]
        assert span.error == {"type": "", "message": "[step N/A] load_error: ValueError: no"}

    def test_instants(self, write):
        """A point in time without a step belongs to the step in progress."""
        lines = [*step_of(3, 0), line("checkpoint_staged", 97_000, log_type="instant")]
        (sent,) = [event for event in TitanFiles([write(lines)]) if isinstance(event, SpanEventAdded)]
        assert (sent.name, sent.step) == ("checkpoint_staged", 3)

    def test_nothing_is_lost(self, write):
        """Of 1,000 lines each is read, and each pair, scalar and step comes out once."""
        files = TitanFiles([write([sent for step in range(200) for sent in step_of(step, step * 100_000)])])
        kinds = [type(event).__name__ for event in files]
        assert (files.records, files.unpaired, files.problems) == (1_000, 0, [])
        assert [kinds.count(kind) for kind in ("IterationSpanEnded", "CounterWindow", "IterationEnded")] == [
            400,
            200,
            200,
        ]

    def test_source(self, write):
        """The events belong to the source of the rank that wrote the file, the same one whenever it is read."""
        directory = write(step_of(1, 0))
        first, again = (next(TitanFiles([directory])).source for _ in range(2))
        assert (first.rank, first.host, first.pid, first.id) == (1, "node-1", 77, again.id)

    @pytest.mark.parametrize("value", ["NaN", "Infinity", "1e308", "-5.0"])
    def test_length_that_is_none(self, write, value):
        """A span whose recorded length is impossible is as long as its times say."""
        lines = [line("load_start", 0), line("load_end", 6, value=float(value))]
        (span,) = [event for event in TitanFiles([write(lines)]) if isinstance(event, SpanEnded)]
        assert span.duration_ns == 6_000

    @pytest.mark.parametrize("given", [{"time_us": 10**400}, {"time_us": -1}, {"time_us": True}, {"value": 10**400}])
    def test_numbers_that_are_none(self, write, given):
        """A line with a number that no event can hold is no record; all others are read."""
        files = TitanFiles([write([line("metric_value", 0) | given, *step_of(1, 0)])])
        assert len([event for event in files if isinstance(event, SpanEnded)]) == 2
        (problem,) = files.problems
        assert "1 line(s) hold no record of torchtitan's: line 1" in str(problem)

    def test_large_integers(self, write):
        """A step, a thread or a process id that no event can hold counts as missing."""
        huge = {"tid": 2**70, "pid": 2**70, "global_rank": -(2**70)}
        events = list(TitanFiles([write([line("begun", 0, 2**70, log_type="instant", **huge)])]))
        assert [event.step for event in events] == [-1, -1, -1]
        assert (events[0].source.pid, events[0].source.rank) == (0, 0)

    def test_bad_lines(self, write):
        """Lines that are no records are named, and all others read."""
        directory = write(step_of(1, 0))
        with (directory / "training.global_rank_1.jsonl").open("a") as file:
            file.write('{"torn": \n[1]\n{"log_type_name": 3, "time_us": "x"}\n')
        files = TitanFiles([directory])
        list(files)
        assert files.records == 5
        assert "3 line(s) hold no record of torchtitan's: line 6, 7, 8" in str(files.problems[0])

    def test_unpaired(self, write):
        """An end without its start is counted, and makes no event."""
        files = TitanFiles([write([line("a_end", 0, value=1.0), line("b_start", 1)])])
        assert [event for event in files if isinstance(event, SpanEnded)] == []
        assert files.unpaired == 1


class TestTitanHandler:
    @pytest.fixture
    def logger(self):
        """Give torchtitan's logger, set up as torchtitan does it."""
        logger = logging.getLogger("torchtitan.structured_logger")
        logger.propagate = False
        logger.setLevel(logging.INFO)
        yield logger
        for handler in logger.handlers[:]:
            logger.removeHandler(handler)

    def test_records(self, logger):
        """Records logged as torchtitan logs them become spans and iterations, from which metrics are computed."""
        with Bus() as bus:
            capture, metrics = Capture(), TrainingMetrics()
            bus.subscribe(capture)
            bus.subscribe(metrics)
            handler = TitanHandler(bus)
            logger.addHandler(handler)
            for step in (1, 2):
                for name in ("fwd_bwd_start", "fwd_bwd_end"):
                    extra = {"log_type": "event", "log_type_name": name, "step": step, "value": None}
                    logger.info("[step] %s", name, extra=extra)
            handler.close()
            bus.flush()
        spans = [(event.name, event.step) for event in capture.events if isinstance(event, SpanEnded)]
        assert spans == [("fwd_bwd", 1), ("fwd_bwd", 2)]
        assert metrics.result().sources[0].training.num_iterations == 2

    def test_handed_over(self, logger):
        """Records that torchtitan's own thread hands over belong to the thread and the step that logged them."""

        class LoggedIn(NamedTuple):
            tid: int
            step: int

        with Bus() as bus, bus.subscribe(Capture()) as capture:
            logger.addHandler(TitanHandler(bus))
            for name, tid in (("a_start", 1), ("b_start", 2), ("a_end", 1), ("b_end", 2)):
                extra = {"log_type": "event", "log_type_name": name, "step": None, "value": None}
                logger.info("", extra={**extra, "logging_thread_state": LoggedIn(tid, 4)})
        spans = [(event.name, event.step) for event in capture.handler.events if isinstance(event, SpanEnded)]
        assert spans == [("a", 4), ("b", 4)]

    def test_plain_text(self, logger):
        """Plain text between the records is skipped."""
        with Bus() as bus, bus.subscribe(Capture()) as capture:
            logger.addHandler(TitanHandler(bus))
            logger.info("hello")
        assert capture.handler.events == []


# As torchtitan does it: factories by name, a queue that a thread empties, a flush, and an end at exit of its own.
JOB = """
import atexit, importlib, logging, os, sys, types

logger = logging.getLogger("torchtitan.structured_logger")
logger.propagate = False
logger.setLevel(logging.INFO)
module = types.ModuleType("torchtitan.observability.structured_logger.structured_logging")
sys.modules[module.__name__] = module
queued = []


def flush_structured_logger(timeout_s=10.0):
    while queued:
        logger.info("", extra=queued.pop(0))
    return True


module.flush_structured_logger = flush_structured_logger
atexit.register(flush_structured_logger)
for path in os.environ["TITAN_STRUCT_LOGGER_HANDLERS"].split(","):
    place, name = path.strip().rsplit(".", 1)
    factory = getattr(importlib.import_module(place), name)
    factory(structured_logger=logger, rank=0, source="training", output_dir=sys.argv[1])
for step in (1, 2):
    for name, value in (("fwd_bwd_start", None), ("fwd_bwd_end", 60.0)):
        queued.append({"log_type": "event", "log_type_name": name, "step": step, "value": value})
"""


class TestFactory:
    def test_the_one_line(self, tmp_path):
        """With the page's line in the environment a job is recorded to its last step, queued records included."""
        page = (Path(__file__).resolve().parents[2] / "docs" / "bridges.md").read_text(encoding="utf-8")
        (line,) = re.findall(r"^export (TITAN_STRUCT_LOGGER_HANDLERS)=(\S+)", page, re.MULTILINE)
        environ = {**os.environ, **dict([line])}
        command = [sys.executable, "-c", JOB, str(tmp_path)]
        subprocess.run(command, check=True, env=environ, capture_output=True, timeout=60)
        events = list(trackside.replay(tmp_path / "trackside"))
        spans = [(event.name, event.step) for event in events if isinstance(event, SpanEnded)]
        assert spans == [("fwd_bwd", 1), ("fwd_bwd", 2)]
        assert [event.step for event in events if isinstance(event, IterationEnded)] == [1, 2]


class TestImport:
    def test_log(self, write, tmp_path, capsys):
        """Imported records are read like any log of trackside's, and the command prints their number."""
        directory = write(step_of(1, 0) + step_of(2, 100_000))
        write(step_of(1, 0), name="training.global_rank_0.jsonl")
        assert main(["import", str(directory), "-o", str(tmp_path / "runs")]) == 0
        sent = capsys.readouterr().out
        assert sent.startswith("15 records of 2 process(es): 12 events in ")
        steps = [event.step for event in trackside.replay(tmp_path / "runs") if isinstance(event, IterationEnded)]
        assert sorted(steps) == [1, 1, 2]

    def test_times(self, write, tmp_path):
        """
        A log lasts from its first record to its last one, whenever it is imported; how the run ended is not known.

        Its steps take 100 and 96 ms; the first one's 4 ms more are starting up.
        """
        directory = write(step_of(1, 0) + step_of(2, 100_000))
        assert main(["import", str(directory), "-o", str(tmp_path / "runs")]) == 0
        result = read_report(tmp_path / "runs").goodput
        assert result.elapsed_s == pytest.approx(0.196, abs=1e-6)
        assert result.goodput == pytest.approx(192 / 196, abs=1e-6)
        (checked,) = trackside.check_logs(tmp_path / "runs").sources
        assert (checked.ended, checked.first_ns) == ("end of file", BEGAN_US * 1_000)

    def test_large_texts(self, write, tmp_path):
        """Records with long texts take several frames, and all come back."""
        lines = [line("x" * 60_000, at_us, 1, log_type="instant") for at_us in range(20)]
        assert main(["import", str(write(lines)), "-o", str(tmp_path / "runs")]) == 0
        noted = replay(tmp_path / "runs", to=SpanEventAdded)
        assert [len(event.name) for event in noted] == [60_000] * 20

    def test_two_runs(self, tmp_path, capsys):
        """The records of two runs, in files of the same name, are all in the log: two steps, none repeated."""
        for run, step in (("monday", 1), ("tuesday", 2)):
            records = tmp_path / run / "structured_logs"
            records.mkdir(parents=True)
            (records / "training.global_rank_1.jsonl").write_text(
                "".join(json.dumps(sent) + "\n" for sent in step_of(step, 0))
            )
        assert main(["import", str(tmp_path / "monday"), str(tmp_path / "tuesday"), "-o", str(tmp_path / "log")]) == 0
        events = replay(tmp_path / "log", to=IterationEnded)
        assert [(event.source.run_id, event.step) for event in sorted(events, key=lambda one: one.step)] == [
            ("monday", 1),
            ("tuesday", 2),
        ]
        assert events.repeated == 0

    @pytest.mark.parametrize("text", ["", '{"another": 1}\n', "no JSON\n"])
    def test_foreign(self, tmp_path, capsys, text):
        """A file without any record of torchtitan's is one line and exit code 2, and nothing is said to be imported."""
        (tmp_path / "other.jsonl").write_text(text)
        assert main(["import", str(tmp_path / "other.jsonl"), "-o", str(tmp_path / "runs")]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert said.err.startswith(f"trackside import: {tmp_path}/other.jsonl: holds no record of torchtitan's; give")

    def test_nothing_there(self, tmp_path, capsys):
        """A directory without records is refused in one line, with exit code 2."""
        assert main(["import", str(tmp_path), "-o", str(tmp_path / "runs")]) == 2
        assert "holds no .jsonl or .json file; give the files of torchtitan's" in capsys.readouterr().err

    def test_keeps_what_is_there(self, write, tmp_path, capsys):
        """A directory that is not empty is not written to."""
        directory = write(step_of(1, 0))
        assert main(["import", str(directory), "-o", str(directory)]) == 2
        assert "exists and is not empty" in capsys.readouterr().err
