"""The common part of sinks into experiment trackers, with a tracker that records its calls."""

from __future__ import annotations

import pytest

from trackside.bus import Bus
from trackside.events import GoodputUpdated, IterationEnded, JobConfigured, ProfileSpanEnded, Source, TrainingConfigured
from trackside.handlers.export import CurveReader, RefusedError, TrackerSink
from trackside.testing import recorded


class Tracker(TrackerSink):
    """Records its calls; *fail* raises where a test wants."""

    def __init__(self, fail=lambda call: None, most=3):
        super().__init__("tracker")
        self.calls = []
        self._fail = fail
        self._most = most

    def called(self, call, *arguments):
        """Record a call, or fail."""
        self._fail(call)
        self.calls.append((call, *arguments))

    def _fits(self, update, group):
        return len(group) < self._most

    def _open_run(self, source):
        self.called("begin", source.rank)
        return source.rank

    def _set_config(self, run, config):
        self.called("config", run, min(config))

    def _log_points(self, run, group):
        self.called("log", run, [point.step for update in group for point in update.points])

    def _end_run(self, run, *, failed):
        self.called("end", run, failed)


@pytest.fixture
def run():
    """Give a function that exports events to a tracker, and returns its calls."""

    def exported(sink, *events, reason="closed", **source):
        with Bus(source=Source(**source)) as bus:
            bus.subscribe(sink)
            for event in events:
                bus.log(event)
            bus.end(reason)
            bus.flush(10)
            bus.close(10)
        return sink.calls

    return exported


def spans(*steps):
    """Return events of a point each."""
    return [ProfileSpanEnded(step=step, span_id=1, parent_span_id=0, name="x", duration_ns=1) for step in steps]


class TestOrder:
    def test_from_begin_to_end(self, run):
        """A run begins with the process, gets its updates in order, and ends with it."""
        configured = TrainingConfigured(perf_tag=["a"], global_batch_size=4)
        assert run(Tracker(), *spans(0, 1), configured, *spans(2), rank=5) == [
            ("begin", 5),
            ("log", 5, [0, 1]),
            ("config", 5, "checkpoint_strategy"),
            ("log", 5, [2]),
            ("end", 5, False),
        ]

    def test_lone_surrogates(self):
        """Text without a UTF-8 form reaches the tracker with an escape, as a client would refuse the whole run."""
        sink = Tracker()
        sink._set_config = lambda _, config: sink.calls.append(config["application_name"])
        with Bus() as bus:
            bus.subscribe(sink)
            bus.log(JobConfigured(application_name="a\udcff.py", world_size=1, rank=0, node_name="", session_tag=""))
            assert bus.flush(10)
        assert sink.calls[:2] == [("begin", 0), r"a\udcff.py"]

    def test_groups(self, run):
        """Points are sent together as far as the tracker wants."""
        calls = run(Tracker(most=2), *spans(*range(5)))
        assert [arguments for call, *arguments in calls if call == "log"] == [[0, [0, 1]], [0, [2, 3]], [0, [4]]]

    def test_failed(self, run):
        """An exception that ended the job fails the run."""
        assert run(Tracker(), *spans(0), reason="ValueError")[-1] == ("end", 0, True)

    def test_sink_is_closed_first(self):
        """A sink that leaves before the process ends, ends its run."""
        sink = Tracker()
        with Bus() as bus:
            subscription = bus.subscribe(sink)
            bus.log(spans(0)[0])
            assert subscription.close(10)
        assert [call for call, *_ in sink.calls] == ["begin", "log", "end"]

    def test_several_processes(self):
        """Each process is a run of its own, also where one sink gets the events of all."""
        sink = Tracker()
        for rank in (0, 1, 0):
            (event,) = spans(rank)
            sink(recorded(event, source=Source(id=f"{rank:016x}", rank=rank)))
        assert sink.close(10)
        assert [call for call in sink.calls if call[0] != "log"] == [
            ("begin", 0),
            ("begin", 1),
            ("end", 0, False),
            ("end", 1, False),
        ]


class TestFailure:
    def test_is_tried_again(self, run):
        """Failed calls are sent again, in order, and successful ones are not."""
        failures = []

        def fail(call):
            logged = [arguments for made, *arguments in sink.calls if made == "log"]
            if call == "log" and len(logged) == 1 and not failures:
                failures.append(call)
                raise ConnectionError

        sink = Tracker(fail, most=1)
        calls = run(sink, *spans(0, 1, 2))
        assert [arguments[1] for call, *arguments in calls if call == "log"] == [[0], [1], [2]]
        assert len(failures) == 1
        assert sink.lost == 0

    def test_cannot_begin_at_first(self, run):
        """A run that cannot be opened at first loses nothing."""
        failures = []

        def fail(call):
            if call == "begin" and not failures:
                failures.append(call)
                raise ConnectionError

        assert [call for call, *_ in run(Tracker(fail), *spans(0))] == ["begin", "log", "end"]

    def test_refused(self, run):
        """Calls that are refused for good are counted under their reason, and the rest is sent."""

        def fail(call):
            if call == "log" and not sink.lost:
                raise RefusedError("never")

        sink = Tracker(fail, most=1)
        calls = run(sink, *spans(0, 1))
        assert [arguments[1] for call, *arguments in calls if call == "log"] == [[1]]
        assert sink.losses() == {"never": 1}

    def test_to_the_end(self):
        """Calls that fail to the end are counted, and the counts balance."""

        def fail(call):
            raise ConnectionError

        sink = Tracker(fail)
        with Bus() as bus:
            bus.subscribe(sink)
            for event in spans(0, 1, 2):
                bus.log(event)
            assert not bus.close(2)
            (counts,) = bus.stats().handlers
        assert sink.losses() == {"not delivered before close": sink.lost}
        assert sink.lost == counts.dropped >= 3
        assert counts.logged == counts.handled + counts.dropped


class TestPoints:
    @pytest.mark.parametrize(
        ("event", "points"),
        [
            (
                IterationEnded(step=3, duration_ns=5 * 10**8, loss=2.0),
                {"duration_s/training_single_iteration": (0.5, 3), "training_single_iteration/loss": (2.0, 3)},
            ),
            (
                GoodputUpdated(session="s", elapsed_s=4.0, productive_s=1.0, goodput=0.25, last_step=7),
                {
                    "goodput/goodput": (25.0, 7),
                    "goodput/elapsed_s": (4.0, 7),
                    "goodput/attempts": (0.0, 7),
                    "goodput/disruptions": (0.0, 7),
                },
            ),
            (TrainingConfigured(perf_tag=[]), {}),
        ],
    )
    def test_of_events(self, event, points):
        """The points of an event: tag, value and step."""
        found = CurveReader().read(event)
        assert {point.tag: (point.value, point.step) for point in found} == points

    def test_steps_that_no_tracker_holds(self):
        """A step beyond 64 bits with a sign is drawn at the largest that they hold, and one below 0 at 0."""
        reader, largest = CurveReader(), (1 << 63) - 1
        deviations = {"step": [-2, 1 << 64], "deviation_s": [0.5, 0.25]}
        update = GoodputUpdated(
            session="s", elapsed_s=4.0, productive_s=1.0, goodput=0.25, last_step=-7, steps=deviations
        )
        assert {point.step for point in reader.read(IterationEnded(step=1 << 63, duration_ns=1, loss=2.0))} == {largest}
        assert {point.step for point in reader.read(ProfileSpanEnded(name="later", duration_ns=1))} == {largest}
        drawn = [(point.tag, point.step) for point in reader.read(update)]
        assert drawn[0] == ("goodput/goodput", 0)
        assert drawn[-2:] == [("step_deviation", 0), ("step_deviation", largest)]
