"""Goodput while the job runs: the times and the contents of the monitor's updates."""

from __future__ import annotations

import threading

import pytest

from trackside.events import ConfigError, Source
from trackside.handlers.models.goodput import GoodputMonitor, _goodput_monitor, read_payloads

pytestmark = pytest.mark.once

SECOND = 10**9
DEADLINE_S = 30.0
START = 1_000 * SECOND


@pytest.fixture
def got():
    """Give a list for the published events."""
    return []


@pytest.fixture
def updates_of(got):
    """Give a function that feeds streams to a monitor and returns what it published."""

    def run(*streams, **settings):
        monitor = GoodputMonitor(got.append, **settings)
        for stream in streams:
            for event in stream.events:
                monitor(event)
        return got

    return run


@pytest.fixture
def job(stream):
    """Give a function that makes a process which trains for so many seconds, a step each, with heartbeats."""

    def make(seconds, *, first=0, start=START, **identity):
        made = stream(**identity).start(start)
        for number in range(seconds):
            begin = start + number * SECOND
            made.step(first + number, begin, begin + SECOND)
            made.beat(begin + SECOND)
        return made

    return make


class TestInterval:
    def test_none_at_first(self, job, updates_of):
        """The first event brings no update."""
        assert updates_of(job(0)) == []

    def test_every(self, job, updates_of):
        """An update comes with the first event after each interval, and covers the time until then."""
        updates = updates_of(job(35), update_interval_s=10)
        assert [(one.at_ns - START) // SECOND for one in updates] == [10, 20, 30]
        assert [one.elapsed_s for one in updates] == [10.0, 20.0, 30.0]

    def test_nothing_new(self, stream, updates_of):
        """A late event without news brings no update."""
        late = stream().start(START).step(0, START, START + 50 * SECOND).step(1, START + SECOND, START + 2 * SECOND)
        assert len(updates_of(late, update_interval_s=10)) == 1

    @pytest.mark.parametrize("at_ns", ["x", None, 5e18, 1 << 62], ids=str)
    def test_impossible_time(self, job, updates_of, at_ns):
        """An event with an impossible time brings no update."""
        odd = job(5)
        odd.events[-1].at_ns = odd.events[-2].at_ns = at_ns
        assert updates_of(odd, update_interval_s=10) == []

    def test_asked(self, job, got):
        """A requested update is published with the next heartbeat, so that events in transit count."""
        monitor = GoodputMonitor(got.append, update_interval_s=1_000)
        *before, last_step, last_beat = job(5).events
        for event in before:
            monitor(event)
        monitor.ask(before[-1].at_ns + 1)
        monitor(before[-1])
        monitor(last_step)
        assert got == []
        monitor(last_beat)
        assert [(one.elapsed_s, one.last_step) for one in got] == [(5.0, 4)]

    def test_asked_once(self, job, got):
        """A request is answered once."""
        monitor = GoodputMonitor(got.append, update_interval_s=1_000)
        monitor.ask(0)
        for event in job(5).events:
            monitor(event)
        assert len(got) == 1

    def test_helpers_bring_none(self, stream, updates_of):
        """A process that is no rank, with a clock of its own, brings no update."""
        loader = stream(source=Source(id="w", run_id="run", role="worker")).start(START + 1).beat(START + 900 * SECOND)
        assert updates_of(stream().start(START).step(0, START, START + SECOND), loader, update_interval_s=10) == []

    @pytest.mark.parametrize(
        "wrong", [{"update_interval_s": 0}, {"update_interval_s": float("nan")}, {"windows_s": [60, -1]}]
    )
    def test_refused(self, wrong):
        """Intervals and windows are above zero."""
        with pytest.raises(ConfigError, match="above zero"):
            GoodputMonitor(**wrong)

    def test_without_publish(self, job):
        """A monitor without a publish function is the model alone."""
        monitor = GoodputMonitor(update_interval_s=1)
        for event in job(5).events:
            monitor(event)
        assert monitor.result().productive_s == 5.0


class TestUpdate:
    def test_account(self, stream, updates_of):
        """An update is the model's result of that moment."""
        at = START
        recorded = (
            stream()
            .start(at)
            .step(0, at + SECOND, at + 3 * SECOND)
            .span("eval", at + 3 * SECOND, at + 4 * SECOND, badput_type="Eval")
        )
        (update,) = updates_of(recorded.beat(at + 10 * SECOND), update_interval_s=10)
        assert (update.session, update.elapsed_s, update.productive_s, update.goodput) == ("run", 10.0, 2.0, 0.2)
        assert update.badput_s["CUSTOM_BADPUT_EVENTS"] == {"Eval": 1.0}
        assert update.badput_s["OTHER"] == 7.0
        assert len(update.badput_s) == 14
        assert update.ranks["productive_s"] == [2.0]
        assert (update.attempts, update.disruptions, update.last_step, update.step) == (1, 0, 0, 0)

    def test_alive(self, job, updates_of):
        """The missing end of the attempt is no fault: it is running."""
        assert updates_of(job(10), update_interval_s=10)[0].problems == {}

    def test_other_ranks(self, job, updates_of):
        """A monitor that hears one rank of four says how many it does not hear."""
        (update, *_) = updates_of(job(10, rank=0, world_size=4), update_interval_s=10)
        assert update.problems == {"a rank of which no events are here: the figures are of the others alone": 3}

    def test_windows(self, stream, updates_of):
        """A rolling window ends with the update and counts its own length, or the job's if that is shorter."""
        at = START
        recorded = stream().start(at).step(0, at, at + 6 * SECOND).beat(at + 10 * SECOND)
        (update,) = updates_of(recorded, update_interval_s=10, windows_s=[5, 60])
        assert update.windows["length_s"] == [5, 60]
        assert update.windows["elapsed_s"] == [5.0, 10.0]
        assert update.windows["productive_s"] == [1.0, 6.0]
        assert update.windows["goodput"] == [0.2, 0.6]
        assert [badput["OTHER"] for badput in update.windows["badput_s"]] == [4.0, 4.0]

    def test_no_windows(self, job, updates_of):
        """Without rolling windows there are none."""
        assert updates_of(job(10), update_interval_s=10)[0].windows == {}

    def test_steps(self, job, updates_of):
        """Each step is in one update, with its distance from the ideal step time."""
        updates = updates_of(job(20), update_interval_s=10, ideal_step_time_s=0.75)
        assert [one.steps["step"] for one in updates] == [list(range(10)), list(range(10, 20))]
        assert updates[0].steps["duration_s"] == [1.0] * 10
        assert updates[0].steps["deviation_s"] == [0.25] * 10

    def test_most_steps(self, job, updates_of, monkeypatch):
        """Of very many steps an update has the latest."""
        monkeypatch.setattr(_goodput_monitor, "MOST_STEPS", 3)
        assert updates_of(job(10), update_interval_s=10)[0].steps["step"] == [7, 8, 9]

    def test_most_steps_of_uneven_length(self, stream, updates_of, monkeypatch):
        """The same holds where the latest took much longer than most."""
        monkeypatch.setattr(_goodput_monitor, "MOST_STEPS", 8)
        made, at = stream().start(START), START
        for number in range(15):
            end = at + (1 if number < 10 else 100) * SECOND
            made.step(number, at, end)
            at = end
        (update,) = updates_of(made, update_interval_s=510)
        assert update.steps["step"] == list(range(7, 15))

    def test_sessions(self, job, updates_of):
        """With several sessions, each has updates of its own, as long as it has new events."""
        first, second = job(10, id="a", run_id="a"), job(30, id="b", run_id="b", start=START + 10 * SECOND)
        recorded = [(one.session, one.elapsed_s) for one in updates_of(first, second, update_interval_s=10)]
        assert recorded == [("a", 10.0), ("b", 10.0), ("b", 20.0), ("b", 30.0)]

    def test_slices(self, records, got):
        """An elastic job's share of slices is in the update."""
        records.job(0).put(active_slices=2, total_slices=4, available_slices=3, elastic_slice_counts_timestamp=0)
        records.steps(range(5), at=0)
        monitor = GoodputMonitor(got.append, update_interval_s=10)
        for event in read_payloads(records.payloads):
            monitor(event)
        assert got[0].slice_efficiency == {"stepping": 0.5, "available": 0.75}


class TestEarlier:
    @pytest.fixture
    def resumed(self, job, got):
        """Give a function that runs a second attempt, which reads events of the first, and returns the monitor."""

        def run(read, *, wait=True):
            monitor = GoodputMonitor(got.append, update_interval_s=5, read_earlier=read)
            events = iter(job(10, first=3, start=START + 20 * SECOND, attempt=1).events)
            monitor(next(events))
            for thread in threading.enumerate():
                if wait and thread.name == "trackside-goodput":
                    thread.join(DEADLINE_S)
            for event in events:
                monitor(event)
            return monitor

        return run

    def test_all_attempts(self, job, resumed, got):
        """An update covers all attempts: the time lost between them, and the wasted time."""
        resumed(lambda: job(5).events)
        assert (got[-1].attempts, got[-1].disruptions, got[-1].elapsed_s) == (2, 1, 30.0)
        assert got[-1].badput_s["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"] == 15.0
        assert got[-1].badput_s["WASTED_PROGRESS_FROM_DISRUPTION"] == 2.0
        assert got[-1].problems == {}

    def test_as_over_the_log(self, job, resumed, feed):
        """The model equals one that read both attempts itself."""
        monitor = resumed(lambda: job(5).events)
        both = feed(job(5), job(10, first=3, start=START + 20 * SECOND, attempt=1))
        assert monitor.dump() == both.dump()

    def test_steps_once(self, job, resumed, got):
        """Steps of earlier attempts were in their own updates."""
        resumed(lambda: job(5).events)
        assert [step for one in got for step in one.steps["step"]] == list(range(3, 13))

    def test_not_read_yet(self, job, resumed, got):
        """While they are being read, an update says that it lacks them."""
        go_on = threading.Event()

        def read():
            go_on.wait(DEADLINE_S)
            yield from job(5).events

        resumed(read, wait=False)
        go_on.set()
        assert [one.attempts for one in got] == [1] * len(got)
        assert got[-1].problems == {"earlier attempts that were not read": 1}

    def test_broken(self, job, resumed, got):
        """If reading fails, the events read count, and updates say that they are not all."""

        def read():
            yield from job(5).events
            raise OSError("disk")

        resumed(read)
        assert got[-1].attempts == 2
        assert got[-1].problems == {"earlier attempts that were not read": 1}
