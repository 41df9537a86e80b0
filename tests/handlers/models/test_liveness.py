"""One rule decides whether a process runs, is silent, died or ended, and every view follows it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import attrs
import pytest

from framing import write_log
from processes import numbered
from trackside.events import Heartbeat, IterationEnded, RankFellSilent, Source, SourceEnded, SourceStarted
from trackside.handlers import replay
from trackside.handlers.models import GoodputAccumulator
from trackside.handlers.models.liveness import DIED, ENDED, RUNNING, SILENT, LifeSigns, is_gone, liveness, worst
from trackside.handlers.zeromq._receiver import SourceRegistry
from trackside.report import read_report, read_runs
from trackside.report._top import Top
from trackside.wire import Frame, FrameView

S = 10**9


def signs(interval_s=1.0, end_reason=None, **known):
    """Return the signs of life of a process whose last event was at second 100."""
    interval_ns = None if interval_s is None else round(interval_s * S)
    return LifeSigns(last_ns=100 * S, heartbeat_interval_ns=interval_ns, end_reason=end_reason, **known)


class TestRule:
    @pytest.mark.parametrize(
        ("interval_s", "silent_s", "state"),
        [
            (1, 3, RUNNING),
            (1, 4, SILENT),
            (1, 60, SILENT),
            (1, 61, DIED),
            (0.1, 3, RUNNING),
            (0.1, 4, SILENT),
            (30, 90, RUNNING),
            (30, 120, SILENT),
            (30, 300, SILENT),
            (30, 301, DIED),
            (None, 60, RUNNING),
            (None, 61, SILENT),
            (None, 10**6, SILENT),
        ],
    )
    def test_silence(self, interval_s, silent_s, state):
        """
        Three intervals and three seconds are silence, ten and a minute death; without heartbeats death is never proven.
        """
        assert liveness(signs(interval_s), (100 + silent_s) * S).state == state

    @pytest.mark.parametrize("reason", ["closed", "exit", ""])
    def test_good_end(self, reason):
        """A process that recorded its good end has one, however long ago."""
        life = liveness(signs(end_reason=reason), 10**6 * S)

        assert (life.state, life.has_good_end, life.error, life.silent_ns) == (ENDED, True, "", None)

    def test_ended_by_an_exception(self):
        """A process that an exception ended has ended, and not well."""
        life = liveness(signs(end_reason="ValueError"), 101 * S)

        assert (life.state, life.has_good_end, life.error) == (ENDED, False, "ValueError")

    def test_replaced(self):
        """A process without an end whose rank was launched again has died, at once."""
        life = liveness(signs(), 100 * S, is_replaced=True)

        assert (life.state, life.reason) == (DIED, "no end record, and its rank was launched again")

    def test_exited(self):
        """A process that its launcher saw exit, and that recorded no end, has died."""
        life = liveness(signs(exit_status=-9), 100 * S)

        assert (life.state, life.reason) == (DIED, "no end record, and its program ended with signal 9")

    @pytest.mark.parametrize(("status", "error"), [(0, ""), (3, "Exit with status 3")])
    def test_exited_after_its_end(self, status, error):
        """A process that ended well as it said, and then exited with a status of failure, has not ended well."""
        life = liveness(signs(end_reason="exit", exit_status=status), 100 * S)

        assert (life.state, life.error, life.has_good_end) == (ENDED, error, not error)

    def test_no_event(self):
        """A process of which no event is known is silent."""
        assert liveness(LifeSigns(), 100 * S).state == SILENT

    @pytest.mark.parametrize(
        ("states", "expected"),
        [([], SILENT), ([ENDED, RUNNING], RUNNING), ([RUNNING, SILENT], SILENT), ([DIED, SILENT, ENDED], DIED)],
    )
    def test_worst(self, states, expected):
        """Several processes are as their worst one."""
        assert worst(states) == expected


def stream(source, last_s, interval_s, reason=None):
    """Return the numbered events of a process that began at second 1."""
    events = [
        SourceStarted(identity=source.to_wire(), at_ns=S, step=-1),
        Heartbeat(sequence=0, interval_s=interval_s, at_ns=last_s * S, step=-1),
        IterationEnded(step=0, at_ns=last_s * S, duration_ns=S // 10),
    ]
    if reason is not None:
        events.append(SourceEnded(reason=reason, at_ns=last_s * S, step=-1))
    return numbered(events, source)


@attrs.frozen
class Views:
    """The state of rank 0 in each view."""

    runs: str
    report: str
    top: str
    goodput: str
    collector: str


@pytest.fixture
def views(tmp_path):
    """Give a function that returns the state of rank 0 in every view, over one log of two ranks."""

    def read(last_s, newest_s, interval_s, reason=None):
        sources = [Source(id=f"source-{rank}", run_id="run", rank=rank, world_size=2) for rank in (0, 1)]
        both = [stream(sources[0], last_s, interval_s, reason), stream(sources[1], newest_s, interval_s, "closed")]
        for events in both:
            write_log(tmp_path, events[0].source, events)
        now_ns = newest_s * S
        (session,) = read_runs(tmp_path).sessions
        report = read_report(tmp_path)
        top, goodput = Top(), GoodputAccumulator()
        for event in replay(tmp_path):
            top.drive(event)
            goodput.consume(FrameView(event.source, [event]))
        return Views(
            runs=session.runs[0].attempts[0].processes[0].state,
            report=next(row.state for row in report.ranks if row.rank == 0),
            top=top_state(top.view(now_ns)),
            goodput=next(liveness(one.signs, now_ns).state for one in goodput.lately(1) if one.source.rank == 0),
            collector=collector_state(both[0], last_s, newest_s),
        )

    return read


def top_state(view):
    """Return the state that `top` shows of rank 0, the only one that may not have ended."""
    why = next((one.why for one in view.worst if one.rank == 0), "")
    if why.startswith("silent"):
        return SILENT
    if why.startswith("dead"):
        return DIED
    return RUNNING if view.alive else ENDED


def collector_state(events, last_s, now_s):
    """Return the state that a collector gives a source last heard of at *last_s*; to it a silent one may be dead."""
    registry = SourceRegistry()
    source = events[0].source
    state = registry.state_of(source, float(last_s))
    state.admit(Frame(source, 0, len(events) - 1, {}, list(events)))
    is_silent = [type(event) for event in registry.silent(float(now_s), now_s * S)] == [RankFellSilent]
    if state.ended is not None:
        return ENDED
    return SILENT if is_silent else RUNNING


@pytest.fixture
def gone():
    """Give the source of a process of this machine that has exited, and that left no end record."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(60)
    return Source(id="gone", run_id="run", pid=process.pid, host=platform.node())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot be asked without a signal")
class TestGone:
    def test_every_view_of_logs(self, gone, tmp_path):
        """A process of this machine that has exited without an end has died at once: to runs, report and top."""
        top, events = Top(), stream(gone, 100, 1.0)
        for event in events:
            top.drive(event)
        write_log(tmp_path, gone, events)
        (process,) = read_runs(tmp_path).sessions[0].runs[0].attempts[0].processes
        (row,) = read_report(tmp_path).ranks
        said = (DIED, "no end record, and its process is gone")
        assert ((process.state, process.reason), (row.state, row.reason)) == (said, said)
        assert top.view(100 * S).worst[0].why.startswith("dead")

    def test_lives(self):
        """This process has not exited, nor is a process of another machine known to have."""
        assert not is_gone(Source(id="a", run_id="run", pid=os.getpid(), host=platform.node()))
        assert not is_gone(Source(id="a", run_id="run", pid=2**22 + 1, host="elsewhere"))


class TestEveryView:
    def test_two_minutes_of_silence_with_slow_heartbeats(self, views):
        """With a heartbeat every 30 s, two minutes of silence are silence to every view, and death to none."""
        assert attrs.astuple(views(100, 220, 30.0)) == (SILENT,) * 5

    def test_a_short_pause(self, views):
        """Two seconds of silence are no silence to any view."""
        assert attrs.astuple(views(100, 102, 1.0)) == (RUNNING,) * 5

    def test_long_silence(self, views):
        """
        After a minute and ten heartbeats it is dead to all; a collector gives the time of its silence, and no more.
        """
        assert attrs.astuple(views(100, 161, 1.0)) == (DIED, DIED, DIED, DIED, SILENT)

    def test_ended(self, views):
        """A process that ended has ended to every view."""
        assert attrs.astuple(views(100, 220, 1.0, "closed")) == (ENDED,) * 5
