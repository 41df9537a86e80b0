"""Goodput of a job while it runs."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trackside.bus import Bus
from trackside.events import GoodputUpdated, Heartbeat, IterationEnded, RunsOn, Source, SourceEnded, clock
from trackside.handlers import EventLog, feed, replay
from trackside.handlers.models.goodput import GoodputAccumulator, GoodputMonitor
from trackside.job import JobConfig

DEADLINE_S = 30.0


def train(bus, steps, first=0):
    """Publish *steps* steps of a millisecond, the first one beginning now."""
    now = clock.now_ns()
    for index in range(steps):
        at_ns = now + (index + 1) * 10**6
        bus.log(IterationEnded(at_ns=at_ns, duration_ns=10**6, step=first + index, parent_span_id=0))


def updates(job):
    """Return the updates that *job* recorded."""
    return list(replay(job.directory, to=GoodputUpdated))


class TestDefault:
    def test_at_the_end(self, run, bus):
        """A job without settings for goodput records it at its end, with all that was published before."""
        job = run()
        train(bus, 20)
        assert job.close(timeout_s=60)
        (update,) = updates(job)
        assert (update.last_step, update.productive_s) == (19, 0.02)

    def test_before_the_end(self, run, bus):
        """Goodput is part of the job's stream, which ends after it."""
        job = run()
        train(bus, 20)
        job.close()
        events = list(replay(job.directory))
        kinds = [type(event) for event in events]
        assert kinds.index(GoodputUpdated) < kinds.index(SourceEnded) == len(kinds) - 1
        assert len({event.source.id for event in events}) == 1

    def test_is_the_models(self, run, bus):
        """The recorded goodput is the model's result over the events up to the heartbeat whose time it has."""
        job = run()
        train(bus, 20)
        job.close()
        (update,) = updates(job)
        events = list(replay(job.directory))
        beats = [place for place, event in enumerate(events) if isinstance(event, Heartbeat)]
        (place,) = [place for place in beats if events[place].at_ns == update.at_ns]
        (model,) = feed(events[: place + 1], GoodputAccumulator())
        result = model.result()
        assert (update.elapsed_s, update.productive_s, update.badput_s) == (
            result.elapsed_s,
            result.productive_s,
            result.badput_s,
        )

    def test_other_ranks(self, run, bus):
        """Rank 0 publishes the goodput; the others' own accounts are in their logs."""
        job = run(job=JobConfig(application_name="a", rank=1))
        train(bus, 20)
        job.close()
        assert updates(job) == []

    def test_own_monitor(self, run, bus):
        """A monitor that the caller passes replaces the default one."""
        job = run(handlers=[GoodputMonitor(windows_s=[60])])
        train(bus, 20)
        job.close()
        (update,) = updates(job)
        assert update.windows["length_s"] == [60]

    def test_own_way(self, run, bus):
        """A monitor that publishes elsewhere does so."""
        got = []
        job = run(handlers=[GoodputMonitor(got.append)])
        train(bus, 20)
        job.close()
        assert len(got) == 1
        assert updates(job) == []

    def test_interval(self, run, bus):
        """While the job runs, an update comes on an interval."""
        came = threading.Event()
        job = run(handlers=[GoodputMonitor(update_interval_s=0.01)], heartbeat_interval_s=0.005)
        bus.subscribe(lambda _: came.set(), to=GoodputUpdated)
        train(bus, 20)
        assert came.wait(DEADLINE_S)
        job.close()

    def test_replayed(self, run, bus):
        """A monitor that reads the log publishes the same updates that it published on its interval."""
        job = run(handlers=[GoodputMonitor(update_interval_s=0.004, windows_s=[0.01])])
        assert bus.flush(60)
        train(bus, 50)
        assert bus.flush(60)
        job.close()
        again = []
        feed(replay(job.directory), GoodputMonitor(again.append, update_interval_s=0.004, windows_s=[0.01]))
        *recorded, _ = updates(job)
        reported = [(one.at_ns, one.productive_s, one.windows, one.steps) for one in recorded]
        assert reported == [(one.at_ns, one.productive_s, one.windows, one.steps) for one in again[: len(recorded)]]
        assert len(recorded) > 5


class TestEarlierAttempts:
    @pytest.fixture
    def earlier(self, tmp_path):
        """Give a function that leaves behind the log of an earlier process."""

        def make(**identity):
            source = Source(**{"run_id": "other", **identity})
            with Bus(source=source) as bus:
                bus.subscribe(EventLog(tmp_path / "runs"))
                train(bus, 10)

        return make

    def attempts(self, run, bus, **config):
        """Return how many attempts of its one session a job knows of, when it has read about earlier ones."""
        got = []
        came = threading.Event()

        def note(update):
            got.append(update)
            if not update.problems.get("earlier attempts that were not read"):
                came.set()

        monitor = GoodputMonitor(update_interval_s=0.01)
        job = run(job=JobConfig(application_name="a", **config), handlers=[monitor], heartbeat_interval_s=0.005)
        bus.subscribe(note, to=GoodputUpdated)
        train(bus, 10, first=5)
        assert came.wait(DEADLINE_S)
        job.close()
        assert len(monitor.sessions()) == 1
        return got[-1].attempts

    def test_same_session(self, run, bus, earlier):
        """A run of the same session counts as an earlier attempt."""
        earlier(session_tag="task")
        assert self.attempts(run, bus, session_tag="task") == 2

    def test_same_run(self, run, bus, earlier):
        """So does an earlier attempt of the same run."""
        earlier(run_id="mine", attempt=0)
        assert self.attempts(run, bus, run_id="mine", attempt=1) == 2

    @pytest.mark.parametrize(
        "identity", [{"session_tag": "else"}, {}, {"session_tag": "task", "rank": 3}], ids=["session", "run", "rank"]
    )
    def test_stranger(self, run, bus, earlier, identity):
        """Other sessions' runs and other ranks' logs in the directory are not this rank's."""
        earlier(**identity)
        assert self.attempts(run, bus, session_tag="task") == 1


class Stalled:
    """A sink that never returns from its first update."""

    runs_on = RunsOn.WORKER

    def __init__(self):
        self.go_on = threading.Event()

    def __call__(self, event):
        """Block."""
        if isinstance(event, GoodputUpdated):
            self.go_on.wait(DEADLINE_S)


class TestExit:
    @pytest.mark.hang_guard(60)
    def test_bounded(self, run, bus):
        """A job with a blocked handler of updates ends within its time limit all the same."""
        sink = Stalled()
        job = run(handlers=[sink])
        train(bus, 20)
        began = time.monotonic()
        job.close(timeout_s=0.5)
        assert time.monotonic() - began < DEADLINE_S / 3
        sink.go_on.set()
        assert len(updates(job)) == 1


class TestPage:
    def test_example(self, tmp_path):
        """The page's example runs as it stands, and gets the goodput once, at the end."""
        page = (Path(__file__).resolve().parents[2] / "docs" / "goodput.md").read_text(encoding="utf-8")
        (example,) = re.findall(r"```python\n(import trackside\n.*?)```", page, re.DOTALL)
        ran = subprocess.run(
            [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0
        assert re.fullmatch(r"0\.\d+ \[0\.\d+, 0\.\d+\]\n", ran.stdout)
