"""A job that One Logger instruments, with trackside as its exporter: turned on by one environment variable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import trackside
from trackside.events import CheckpointSaveSucceeded, JobConfigured, SpanEnded, SpanStarted, TrainingConfigured
from trackside.handlers.models import SpanBuilder

pytestmark = pytest.mark.integration
pytest.importorskip("nv_one_logger")

DRIVER = Path(__file__).with_name("one_logger_job.py")
THEIRS = "provider.with_exporter(FileExporter(file_path=Path(path)))"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a function that runs the job's scenario with the variable set, and gives the directory it wrote."""
    done = {}

    def run(scenario):
        if scenario not in done:
            directory = done[scenario] = tmp_path_factory.mktemp(scenario)
            environ = {**os.environ, "TRACKSIDE_ONE_LOGGER": str(directory / "runs")}
            # A job that leaves the choice of exporters to One Logger, as NeMo's do.
            source = DRIVER.read_text().replace(THEIRS, "provider.with_export_config()")
            assert "with_export_config" in source
            driver = directory / "job.py"
            driver.write_text(source)
            command = [sys.executable, driver, "no file", scenario]
            subprocess.run(command, check=True, env=environ, timeout=120, capture_output=True)
        return done[scenario] / "runs"

    return run


def names(events, kind):
    return [event.name for event in events if isinstance(event, kind)]


class TestExporter:
    def test_spans(self, recorded):
        """The spans of the job are in trackside's log, each closed inside of the one that it was opened in."""
        events = list(trackside.replay(recorded("synchronous")))
        ended = names(events, SpanEnded)
        assert ended[:4] == [
            "distributed_code_initialization",
            "model_initialization",
            "optimizer_initialization",
            "data_loader_initialization",
        ]
        assert ended[-3:] == ["training_loop", "testing_loop", "application"]
        assert sorted(ended) == sorted(names(events, SpanStarted))

    def test_durations(self, recorded):
        """The times are those that the job gave: four phases of one to four seconds."""
        ended = [event for event in trackside.replay(recorded("synchronous")) if isinstance(event, SpanEnded)]
        assert [round(event.duration_ns / 1e9, 3) for event in ended[:4]] == [1.0, 2.0, 3.0, 4.0]

    def test_tree(self, recorded):
        """Trackside's span builder makes one tree of it, with the application at its root."""
        model = SpanBuilder()
        trackside.feed(trackside.replay(recorded("synchronous")), model)
        (source,) = model.result().sources
        assert [root.name for root in source.spans if not root.parent_id] == ["application"]

    def test_configuration(self, recorded):
        """One Logger's configuration becomes trackside's events of the job's configuration, and of the training's."""
        events = list(trackside.replay(recorded("synchronous")))
        (job,) = [event for event in events if isinstance(event, JobConfigured)]
        assert (job.world_size, job.session_tag, job.is_baseline_run) == (4, "a session", True)
        (training,) = [event for event in events if isinstance(event, TrainingConfigured)]
        assert (training.global_batch_size, training.seq_length) == (32, 128)

    def test_source(self, recorded):
        """Every event is of a source with One Logger's session tag, so runs of one tag are one session."""
        (source,) = {event.source for event in trackside.replay(recorded("synchronous"))}
        (training,) = [
            event for event in trackside.replay(recorded("synchronous")) if isinstance(event, TrainingConfigured)
        ]
        assert (source.session_tag, source.world_size, source.baseline) == ("a session", 4, True)
        assert list(source.perf_tags) == training.perf_tag

    def test_checkpoints(self, recorded):
        """Of three saves two succeeded, and those are the events of success."""
        events = trackside.replay(recorded("synchronous"))
        assert [event.global_step for event in events if isinstance(event, CheckpointSaveSucceeded)] == [5, 10]

    def test_errors(self, recorded):
        """An exception in a span of One Logger's is an event of that span."""
        events = list(trackside.replay(recorded("customized")))
        (span,) = [event for event in events if isinstance(event, SpanStarted) and event.name == "model_initialization"]
        (error,) = [event for event in events if getattr(event, "name", "") == "error"]
        assert error.span_id == span.span_id
