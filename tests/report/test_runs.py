"""Sessions, runs and attempts, from the log alone."""

from __future__ import annotations

import pytest

from framing import write_log
from trackside.events import Heartbeat, IterationEnded, Parent, ProgramEnded, Source, SourceEnded, TrainingConfigured
from trackside.report import read_runs

pytestmark = pytest.mark.once

S = 10**9


def events_of(start_s, last_s, step, reason, *, beats=True):
    """Return the events of a process from *start_s* to *last_s*, at the end of which it comes to *step*."""
    yield IterationEnded(step=0, at_ns=start_s * S, duration_ns=1)
    if beats:
        yield from (Heartbeat(sequence=n, at_ns=last_s * S, step=-1) for n in range(2))
    yield IterationEnded(step=step, at_ns=last_s * S, duration_ns=1)
    if reason:
        yield SourceEnded(reason=reason, at_ns=last_s * S, step=-1)


@pytest.fixture
def write(tmp_path):
    """Give a function that writes the log of a process that lived from one second to another."""

    def write(start_s=0, last_s=10, *, step=9, reason="closed", extra=(), beats=True, **reported):
        source = Source(**{"run_id": "run", "host": "node", **reported})
        write_log(tmp_path, source, [*extra, *events_of(start_s, last_s, step, reason, beats=beats)])
        return source

    return write


@pytest.fixture
def only(tmp_path):
    """Give a function that returns the attempts of the one run of the one session there is."""

    def only():
        (session,) = read_runs(tmp_path).sessions
        (run,) = session.runs
        return run.attempts

    return only


class TestStates:
    def test_ended(self, write, only):
        """A process that recorded its end has ended, for the recorded reason."""
        write(reason="ValueError")
        (attempt,) = only()
        assert attempt.states == {("ended", "ValueError"): [0]}

    def test_alone(self, write, only):
        """A process whose log has no end runs, for all that is known, while nothing is newer."""
        write(reason=None)
        (attempt,) = only()
        assert attempt.states == {("running", "no end record"): [0]}

    @pytest.mark.parametrize(("later_s", "state"), [(13, "running"), (14, "silent"), (70, "silent"), (71, "died")])
    def test_others_go_on(self, write, tmp_path, later_s, state):
        """
        A process that has been silent for over a minute, while another one in the directory was heard of, has died.
        """
        write(last_s=10, reason=None)
        write(last_s=later_s, run_id="another")
        states = {run.run_id: run.attempts[0].state for each in read_runs(tmp_path).sessions for run in each.runs}
        assert states == {"run": state, "another": "ended"}

    @pytest.mark.parametrize(("later_s", "state"), [(310, "silent"), (311, "died")])
    def test_slow_heart(self, write, only, later_s, state):
        """It is given ten heartbeats if that is longer."""
        write(0, 10, reason=None, beats=False, extra=[Heartbeat(sequence=0, interval_s=30.0, at_ns=10 * S)])
        write(0, later_s, rank=1)
        (attempt,) = only()
        assert [one.state for one in attempt.processes] == [state, "ended"]

    def test_without_heartbeats(self, write, only):
        """The silence of a process without heartbeats proves nothing."""
        write(reason=None, beats=False)
        write(0, 10_000, rank=1)
        (attempt,) = only()
        assert attempt.states == {
            ("silent", "no end record, and no event for 9,990 s; it sends no heartbeats, so it may be alive"): [0],
            ("ended", "closed"): [1],
        }

    def test_launched_again(self, write, only):
        """A process whose launcher started it again a moment later has died, heartbeats or not."""
        write(0, 10, reason=None, beats=False)
        write(12, 20, reason=None, attempt=1)
        assert [attempt.states for attempt in only()] == [
            {("died", "no end record, and its rank was launched again"): [0]},
            {("running", "no end record"): [0]},
        ]

    def test_of_an_attempt(self, write, only):
        """An attempt has died if any of its ranks did, whether or not others run."""
        write(0, 10, reason=None)
        write(0, 100, reason="closed", rank=1)
        (before,) = only()
        write(0, 100, reason=None, rank=2)
        (after,) = only()
        assert (before.state, after.state) == ("died", "died")


class TestAttempts:
    def test_ranks(self, write, only):
        """
        An attempt is the processes started together: by rank, from the first to the last time, to the highest step.
        """
        write(2, 10, step=7, rank=1, world_size=4)
        write(1, 11, step=8, rank=0, world_size=4)
        (attempt,) = only()
        assert [one.rank for one in attempt.processes] == [0, 1]
        assert (attempt.world_size, attempt.first_ns, attempt.last_ns, attempt.last_step) == (4, S, 11 * S, 8)

    def test_restarts(self, write, only):
        """Restarts are attempts in order."""
        for attempt in (10, 9, 0):
            write(attempt * 20, attempt * 20 + 10, attempt=attempt)
        assert [attempt.number for attempt in only()] == [0, 9, 10]

    def test_without_a_launcher(self, write, only):
        """A run id that was given again is another launch of each rank."""
        for start_s in (100, 0):
            for rank in (0, 1):
                write(start_s, start_s + 10, step=start_s, rank=rank)
        found = [(attempt.number, attempt.launch, len(attempt.processes), attempt.last_step) for attempt in only()]
        assert found == [(0, 0, 2, 0), (0, 1, 2, 100)]

    def test_workers(self, write, only):
        """Workers are no ranks; they are counted with the process that started them."""
        first = write(0, 10)
        second = write(20, 30)
        worker = write(21, 25, role="worker", parent=Parent(second.id, 0))
        write(22, 25, role="worker", parent=Parent(worker.id, 0))
        assert first.id != second.id
        assert [(attempt.workers, len(attempt.processes)) for attempt in only()] == [(0, 1), (2, 1)]

    def test_workers_alone(self, write, only):
        """A rank without a log, whose workers have one, is silent."""
        write(role="worker", world_size=2, parent=Parent("ffff", 0))
        (attempt,) = only()
        assert (attempt.processes, attempt.workers, attempt.world_size, attempt.state) == ((), 1, 2, "silent")


class TestGroups:
    def test_sessions(self, write, tmp_path):
        """Runs with one session tag are a session; each without one is a session of its own. The first comes first."""
        write(20, 30, run_id="a", session_tag="s")
        write(0, 10, run_id="b", session_tag="s")
        write(15, 16, run_id="c")
        write(17, 18, run_id="d")
        found = [
            (session.name, session.is_tagged, [run.run_id for run in session.runs])
            for session in read_runs(tmp_path).sessions
        ]
        assert found == [("s", True, ["b", "a"]), ("c", False, ["c"]), ("d", False, ["d"])]

    def test_perf_tags(self, write, tmp_path):
        """Restarts with other tags are a run of their own, though the launcher gives it the same id."""
        write(0, 10, session_tag="s", perf_tags=("a", "b"))
        write(20, 30, session_tag="s", attempt=1, extra=[TrainingConfigured(perf_tag=["c"], at_ns=21 * S)])
        (session,) = read_runs(tmp_path).sessions
        assert [(run.perf_tags, run.attempts[0].number) for run in session.runs] == [(("a", "b"), 0), (("c",), 1)]

    def test_baseline(self, write, tmp_path):
        """A run that is marked as a baseline is one."""
        write(run_id="a", baseline=True)
        write(run_id="b")
        assert [session.runs[0].baseline for session in read_runs(tmp_path).sessions] == [True, False]


class TestLauncher:
    def test_exit_status(self, write, tmp_path):
        """The program's end that `trackside run` saw belongs to the run, and explains a rank without an end."""
        write(reason=None)
        write(last_s=11, role="collector", extra=[ProgramEnded(exit_status=-9, at_ns=11 * S, step=-1)], beats=False)
        (session,) = read_runs(tmp_path).sessions
        (run,) = session.runs
        (rank,) = run.attempts[0].processes
        assert (run.exit_status, rank.state) == (-9, "died")
        assert rank.reason == "no end record, and its program ended with signal 9"
