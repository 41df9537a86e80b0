"""A process that learns its run and rank after telemetry was turned on."""

from __future__ import annotations

import pytest

import trackside
from trackside.events import IterationEnded, SourceStarted
from trackside.handlers.eventlog import outline
from trackside.report import read_runs

FIELDS = {"session_tag": "a tag", "world_size": 7, "baseline": True}


def recorded(run, tmp_path, *, is_written):
    """Record two steps; the job is described between them, when the first *is_written* or before."""
    job = run()
    job.bus.log(IterationEnded(step=0, kind="training", duration_ns=10))
    if is_written:
        assert job.bus.flush(30)
    job.describe(**FIELDS)
    job.bus.log(IterationEnded(step=1, kind="training", duration_ns=10))
    assert job.close(timeout_s=60)
    return tmp_path / "runs"


@pytest.mark.parametrize("is_written", [True, False])
class TestDescribe:
    def test_one_source(self, run, tmp_path, is_written):
        """There is one source, one stream and one end, and its number 0 is its first start."""
        events = list(trackside.replay(recorded(run, tmp_path, is_written=is_written)))
        assert len({event.source.id for event in events}) == 1
        assert [event.seq for event in events] == list(range(len(events)))
        assert len([event for event in events if event.wire_name == "trackside.source.ended"]) == 1

    def test_later_events(self, run, tmp_path, is_written):
        """Events logged from then on carry the new description, in the live process and in the log."""
        *_, last = trackside.replay(recorded(run, tmp_path, is_written=is_written))
        assert (last.source.session_tag, last.source.world_size, last.source.baseline) == ("a tag", 7, True)

    def test_runs(self, run, tmp_path, is_written):
        """The log counts as one process of the session, from the first event on."""
        (session,) = read_runs(recorded(run, tmp_path, is_written=is_written)).sessions
        (one,) = session.runs
        (attempt,) = one.attempts
        assert (session.name, one.baseline, attempt.world_size, attempt.last_step) == ("a tag", True, 7, 1)

    def test_goodput(self, run, tmp_path, is_written):
        """Goodput knows one session with one attempt."""
        model = trackside.handlers.models.GoodputAccumulator()
        trackside.feed(trackside.replay(recorded(run, tmp_path, is_written=is_written)), model)
        assert (model.sessions(), len(model.attempts())) == (["a tag"], 1)


def test_parts(run, tmp_path):
    """Events written before are in a file of their own; each file's header describes the source as it was."""
    directory = recorded(run, tmp_path, is_written=True)
    paths = sorted(directory.rglob("*.tslog"))
    assert [path.name[-10:] for path in paths] == ["0000.tslog", "0001.tslog"]
    tags = [next(iter(trackside.replay(path))).source.session_tag for path in paths]
    assert tags == ["", "a tag"]
    (seen,) = outline(directory).sources
    assert seen.source.session_tag == "a tag"


def test_late_rank(run, tmp_path):
    """A rank and a run that become known late are the process's, in the stream that it has."""
    job = run()
    job.bus.log(IterationEnded(step=0, kind="training", duration_ns=10))
    assert job.bus.flush(60)
    job.describe(rank=3, world_size=4, run_id="the run")
    job.bus.log(IterationEnded(step=1, kind="training", duration_ns=10))
    assert job.close(timeout_s=60)
    events = list(trackside.replay(tmp_path / "runs"))
    assert [event.seq for event in events] == list(range(len(events)))
    *_, last = events
    assert (last.source.rank, last.source.world_size, last.source.run_id) == (3, 4, "the run")
    (session,) = read_runs(tmp_path / "runs").sessions
    assert [(one.run_id, [each.rank for each in one.attempts[0].processes]) for one in session.runs] == [
        ("the run", [3])
    ]


def test_file_of_a_late_rank(run, tmp_path):
    """Events written from then on are below the run's own directory, under the rank's own name."""
    job = run()
    assert job.bus.flush(60)
    job.describe(rank=3, world_size=4, run_id="the run")
    assert job.close(timeout_s=60)
    names = [path.name for path in (tmp_path / "runs" / "the-run").iterdir()]
    assert [(name[:10], name[-10:]) for name in names] == [("rank-00003", "0001.tslog")]


def test_the_same(run, tmp_path):
    """A description that changes nothing starts no new file."""
    job = run()
    job.describe(application=job.source.application)
    assert job.close(timeout_s=60)
    starts = [event for event in trackside.replay(tmp_path / "runs") if isinstance(event, SourceStarted)]
    assert len(starts) == 1
