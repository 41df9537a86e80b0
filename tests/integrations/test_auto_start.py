"""Telemetry that a framework's callback turns on, and the texts of its results."""

from __future__ import annotations

import os

import pytest

import trackside
from trackside.events import SpanEnded, SpanStarted
from trackside.handlers import replay
from trackside.handlers.models.scores import KindScores, ScoreReport, Straggler
from trackside.integrations._auto_start import AutoStart, opted_in
from trackside.integrations._lightning_stragglers import described, scalars, warnings_of
from trackside.job._start import running_job


@pytest.fixture(autouse=True)
def quiet(monkeypatch, capsys):
    """Restore the variables for child processes."""
    monkeypatch.setenv("TRACKSIDE_RUN_ID", "")
    monkeypatch.delenv("TRACKSIDE_RUN_ID")


class TestAutoStart:
    def test_on_and_off(self, tmp_path):
        """Telemetry is on between the two, with the application's span around it, for the given rank."""
        telemetry = AutoStart(tmp_path, None, ())
        job = telemetry.begin(rank=3, local_rank=1, world_size=8)
        assert (job.source.rank, job.source.local_rank, job.source.world_size) == (3, 1, 8)
        assert running_job() is job
        assert telemetry.end()
        assert telemetry.end()
        assert running_job() is None
        events = list(replay(tmp_path))
        assert [event.name for event in events if isinstance(event, (SpanStarted, SpanEnded))] == ["application"] * 2

    def test_what_was_not_written(self, tmp_path, monkeypatch):
        """Ending it returns whether everything was written, as closing its job does."""
        telemetry = AutoStart(tmp_path, None, ())
        job = telemetry.begin()
        close = job.close
        monkeypatch.setattr(job, "close", lambda: close() and False)
        assert not telemetry.end()

    def test_nowhere(self):
        """Without a directory nothing is turned on."""
        telemetry = AutoStart(None, None, ())
        assert telemetry.begin(rank=0, local_rank=0, world_size=1) is None
        telemetry.end()

    def test_on_already(self, tmp_path):
        """If telemetry is on already, it is used, and stays on."""
        with trackside.start(tmp_path / "a", report=False) as job:
            telemetry = AutoStart(tmp_path / "b", None, ())
            assert telemetry.begin(rank=0, local_rank=0, world_size=1) is job
            telemetry.end()
            assert job.is_open
        assert not (tmp_path / "b").exists()

    def test_what_is_configured_wins(self, tmp_path):
        """A rank and a run id in the job's configuration take precedence."""
        config = trackside.JobConfig(application_name="tiny", run_id="a run", rank=5)
        telemetry = AutoStart(tmp_path, config, ())
        job = telemetry.begin(rank=3, local_rank=1, world_size=8)
        telemetry.end()
        assert (job.source.run_id, job.source.rank, job.source.application) == ("a run", 5, "tiny")

    def test_one_run_for_its_children(self, tmp_path):
        """Processes that are started later find the run's id, and use it."""
        AutoStart(tmp_path, None, ())
        agreed = os.environ["TRACKSIDE_RUN_ID"]
        telemetry = AutoStart(tmp_path, None, ())
        job = telemetry.begin(rank=0, local_rank=0, world_size=1)
        telemetry.end()
        assert job.source.run_id == agreed

    def test_the_launchers_run(self, monkeypatch, tmp_path):
        """If a launcher sets the run's id, it is used, and no variable is left for children."""
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "theirs")
        telemetry = AutoStart(tmp_path, None, ())
        job = telemetry.begin(rank=0, local_rank=0, world_size=1)
        telemetry.end()
        assert job.source.run_id == "theirs"
        assert "TRACKSIDE_RUN_ID" not in os.environ


class TestOptedIn:
    @pytest.mark.parametrize(
        ("recorded", "expected"),
        [("", None), ("0", None), ("False", None), ("no", None), ("1", "runs"), ("TRUE", "runs"), ("/a/b", "/a/b")],
    )
    def test_variable(self, recorded, expected, monkeypatch):
        """The variable holds a directory, or merely yes or no."""
        monkeypatch.setenv("TRACKSIDE", recorded)
        assert opted_in() == expected

    def test_unset(self):
        """Without opting in nothing is recorded."""
        assert opted_in() is None


def report(**given):
    """Return a report on five ranks: their scores fall from rank to rank, and the last one has none."""
    scores = KindScores(gpu=[1.0, 0.9, 0.8, 0.5, None], sections={"forward": [0.7, 1.0, None, None, None]})
    fields = {
        "attempt": 0,
        "window": 2,
        "first_step": 20,
        "last_step": 29,
        "start_ns": 0,
        "end_ns": 1,
        "revision": 5,
        "is_closed": True,
        "group": "",
        "ranks": [0, 1, 2, 3, 4],
        "nodes": ["a", "a", "b", "b", ""],
        "peers": [""] * 5,
        "relative": scores,
        "individual": KindScores(),
        "off": ["individual"],
        "waited_s_per_step": [None] * 5,
        "coverage": [None] * 5,
        "missing": [],
        "stragglers": [],
    }
    return ScoreReport(**{**fields, **given})


class TestWords:
    def test_described(self):
        """The worst and the best are named where there are more, all where there are not, the worst first."""
        assert list(described(report(), 1)) == [
            "relative gpu, steps 20 to 29: worst rank 3 (b) 0.50; best rank 0 (a) 1.00",
            "relative section forward, steps 20 to 29: rank 0 (a) 0.70, rank 1 (a) 1.00",
        ]

    def test_none(self):
        """Without ranks to name there is no line."""
        assert list(described(report(), 0)) == []

    def test_warnings(self):
        """A kind of score has a line if there are stragglers by it."""
        slow = Straggler(
            rank=3, node="b", kind="relative", what="gpu", score=0.5, lost_s_per_step=0.1, since_window=1, since_step=10
        )
        assert list(warnings_of(report(stragglers=[slow]))) == ["relative stragglers: rank 3 (b), gpu 0.50 since 10"]
        assert list(warnings_of(report())) == []

    def test_scalars(self):
        """Smallest, median and largest of the existing scores."""
        assert scalars(report()) == {
            "gpu_relative_perf/min": 0.5,
            "gpu_relative_perf/median": pytest.approx(0.85),
            "gpu_relative_perf/max": 1.0,
            "section_relative_perf/forward/min": 0.7,
            "section_relative_perf/forward/median": pytest.approx(0.85),
            "section_relative_perf/forward/max": 1.0,
        }
