"""Collectors: windows that are exact, complete, and each collector's own."""

from __future__ import annotations

import logging
import statistics
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trackside.core.sketch import Sketch
from trackside.counters import Aggregation, _registry
from trackside.counters._window_collector import MAX_WAITING
from trackside.events import ConfigError, CounterWindow

SECOND = 10**9
START = 1000 * SECOND


class TestTimeWindows:
    def test_the_event(self, station):
        """A window has the count, its start and end, its unit, and the totals since the start."""
        station.stat("x", unit="tokens", aggregations=["sum", "max"])
        station.collect(interval_s=10)
        station.add("x", 3, 4)
        station.tick(10)

        assert station.published == [
            CounterWindow(
                at_ns=START + 10 * SECOND,
                span_id=0,
                step=-1,
                name="x",
                unit="tokens",
                start_ns=START,
                end_ns=START + 10 * SECOND,
                count=2,
                values={"sum": 7.0, "max": 4.0},
                sketch=b"",
                total_count=2,
                total_sum=7.0,
            )
        ]

    def test_each_sample_in_one_window(self, station):
        """Samples added before a tick are in the window that it ends, those added after in the next."""
        station.collect(interval_s=1)
        station.add("x", 1, 2)
        station.tick()
        station.add("x", 3)
        station.tick()

        assert station.counts() == [2, 1]
        assert [window.values["sum"] for window in station.windows()] == [3, 3]

    def test_counts_what_is_not_finite(self, station):
        """Two of five samples are not finite, the first after two others; the next window has none of them."""
        station.collect(interval_s=1)
        station.add("x", 1.0, 2.0, float("nan"), 3.0, float("inf"))
        station.tick()
        station.add("x", 4.0)
        station.tick()

        assert [(each.non_finite, each.before_non_finite) for each in station.windows()] == [(2, 2), (0, 0)]

    def test_nothing_but_nan(self, station):
        """A window of NaN alone has no value and two samples that were not finite."""
        station.collect(interval_s=1)
        station.add("x", float("nan"), float("nan"))
        station.tick()

        assert [(each.count, each.non_finite, each.before_non_finite) for each in station.windows()] == [(0, 2, 0)]

    def test_windows_adjoin(self, station):
        """A late window ends late; the next begins there and ends when it is due: 0 to 1, 2.25, 5.75 and 6 seconds."""
        station.collect(interval_s=1)
        station.add("x", 1)
        for seconds in (1, 1.25, 3.5, 0.1, 0.15):
            station.tick(seconds)
        bounds = [
            ((window.start_ns - START) / SECOND, (window.end_ns - START) / SECOND) for window in station.windows()
        ]

        assert bounds == [(0, 1), (1, 2.25), (2.25, 5.75), (5.75, 6)]

    def test_not_before_its_time(self, station):
        """A tick in the middle of a window ends nothing."""
        station.collect(interval_s=1)
        station.add("x", 1)
        station.tick(0.5)

        assert station.published == []

    def test_totals_are_cumulative(self, station):
        """Each window carries what was counted since the stat was made, so a lost one costs no total."""
        station.add("x", 100)
        station.collect(interval_s=1)
        station.add("x", 1)
        station.tick()
        station.add("x", 2, 3)
        station.tick()

        assert [(window.count, window.total_count, window.total_sum) for window in station.windows()] == [
            (1, 2, 101),
            (2, 4, 106),
        ]

    def test_extremes_are_the_windows_own(self, station):
        """Minimum and maximum start afresh in each window."""
        station.collect(interval_s=1, aggregations=["min", "max"])
        station.add("x", -5, 50)
        station.tick()
        station.add("x", 1, 2)
        station.tick()

        assert station.values() == [{"min": -5, "max": 50}, {"min": 1, "max": 2}]

    def test_begins_with_the_collector(self, station):
        """Samples added before the collector began are in none of its windows."""
        station.add("x", 1, 2, 3)
        station.collect(interval_s=1)
        station.tick()

        assert station.counts() == [0]

    def test_counters_made_later(self, station):
        """A stat made later is collected from its first value on."""
        station.collect(interval_s=1)
        station.tick(0.5)
        station.add("x", 1)
        station.tick(0.5)

        assert [(window.count, window.start_ns) for window in station.windows()] == [(1, START + SECOND // 2)]

    def test_a_clock_set_back(self, station):
        """A window that would end before its start has no length, never a negative one."""
        collector = station.collect(interval_s=1)
        station.add("x", 1)
        station.tick()
        station.add("x", 1)
        station.clock.advance(-10)
        collector.close()

        assert [window.end_ns - window.start_ns for window in station.windows()] == [SECOND, 0]

    def test_closed_for_good(self, station):
        """A tick that still holds a window which another thread has ended publishes nothing of it."""
        collector = station.collect(interval_s=1)
        station.add("x", 1)
        (window,) = collector._windows.values()
        collector.close()
        station.clock.advance(1)
        window.close(station.clock.now_ns)
        station.registry._hand_out([collector], 1.0)

        assert station.counts() == [1]


class TestCountWindows:
    def test_exact(self, station):
        """Windows of 3 samples hold three each, in the order in which they were added, whenever they were folded."""
        station.collect(count=3, aggregations=["sum"])
        station.add("x", *range(8))
        station.tick()

        assert station.values() == [{"sum": 0 + 1 + 2}, {"sum": 3 + 4 + 5}]

    def test_over_many_folds(self, station):
        """Windows of 1,000 samples are exact though the buffer holds 1,024: 10,240 samples make ten."""
        station.collect(count=1000, aggregations=["count", "sum", "min", "max"])
        station.add("x", *range(10_240))
        station.tick()

        assert station.values() == [
            {
                "count": 1000,
                "sum": sum(range(first, first + 1000)),
                "min": first,
                "max": first + 999,
            }
            for first in range(0, 10_000, 1000)
        ]

    def test_totals_of_each_job(self, station):
        """At the end of a job a window ends, too, and the totals of the next one begin at zero."""
        counter = station.registry.counter("tokens")
        collector = station.registry.collect(count=10)
        counter.add(3)
        station.registry.end_job()
        counter.add(4)
        collector.close()

        assert [(window.total_count, window.total_sum) for window in station.windows("tokens")] == [(1, 3), (1, 4)]

    def test_totals_since_it_was_made(self, station):
        """Count, sum and extremes of an instrument itself are those of all jobs: here of 4, 1 and 2."""
        loss = station.registry.stat("loss", aggregations=["min", "max"])
        loss.record(4.0)
        station.registry.end_job()
        loss.record(1.0)
        station.registry.end_job()
        loss.record(2.0)
        of_all, of_job = loss.snapshot(), loss.snapshot(of_job=True)

        assert (loss.count, loss.sum) == (3, 7.0)
        assert (of_all.count, of_all.sum, of_all.last, of_all.minimum, of_all.maximum) == (3, 7.0, 2.0, 1.0, 4.0)
        assert (of_job.count, of_job.sum, of_job.last, of_job.minimum, of_job.maximum) == (1, 2.0, 2.0, 2.0, 2.0)

    def test_totals_as_of_the_window(self, station):
        """The totals of a window are those at its own end, though more had been added when it was published."""
        station.add("x", 10)
        station.collect(count=2)
        station.add("x", 1, 2, 3, 4, 5)
        station.tick()

        assert [(window.total_count, window.total_sum) for window in station.windows()] == [(3, 13), (5, 20)]

    def test_comparable_spread(self, station):
        """Each window's deviation is that of as many samples: the statistics module's of its slice."""
        values = [((7 * n) % 11) / 3 for n in range(100)]
        station.collect(count=20, aggregations=["stddev"])
        station.add("x", *values)
        station.tick()

        assert [recorded["stddev"] for recorded in station.values()] == pytest.approx(
            [statistics.pstdev(values[first : first + 20]) for first in range(0, 100, 20)]
        )

    def test_the_last_partial_one(self, station):
        """Closing publishes the last, incomplete window."""
        collector = station.collect(count=3)
        station.add("x", 1, 2, 3, 4)
        collector.close()

        assert station.counts() == [3, 1]

    def test_no_empty_last_one(self, station):
        """If the last window was complete, closing publishes no empty one."""
        with station.collect(count=2):
            station.add("x", 1, 2)

        assert station.counts() == [2]

    def test_ints_that_no_float_holds(self, station):
        """Ints beyond the range of floats are invalid, also where they cancel out in the chunk they came in."""
        station.collect(count=1)
        stat = station.add("x", 10**400, 1, -(10**400), 2)
        station.tick()

        assert ([window.total_sum for window in station.windows()], stat.snapshot().invalid) == ([1, 3], 2)

    def test_with_an_interval_too(self, station):
        """With both lengths, whichever comes first ends a window."""
        station.collect(count=3, interval_s=10)
        station.add("x", 1, 2, 3, 4)
        station.tick(10)
        station.tick(10)

        assert station.counts() == [3, 1, 0]

    def test_standing_still(self, station):
        """A stat without new samples completes no window of samples."""
        station.collect(count=3)
        station.add("x", 1)
        station.tick(100)

        assert station.published == []

    @pytest.mark.parametrize("threads", [4, 16])
    def test_exact_in_threads(self, station, in_threads, threads):
        """
        For any interleaving of threads, each window holds 100 samples, and all of them together every sample once.
        """
        station.collect(count=100, aggregations=["sum"])
        stat = station.stat("x")
        done = threading.Event()

        def work(index):
            if index == 0:
                while not done.is_set():
                    station.tick()
                return
            for _ in range(5000):
                stat.record(1)

        watcher = threading.Thread(target=work, args=(0,))
        watcher.start()
        in_threads(threads, lambda index: work(index + 1))
        done.set()
        watcher.join()
        station.tick()

        assert station.values() == [{"sum": 100}] * (threads * 50)
        assert [window.total_count for window in station.windows()] == list(range(100, threads * 5000 + 1, 100))

    def test_more_than_can_wait(self, station):
        """Of windows that cannot be published, 4,096 wait; the rest is counted, and the totals stay right."""
        collector = station.collect(count=1)
        station.add("x", *[1] * (MAX_WAITING + 10))
        station.tick()
        station.add("x", 1)
        station.tick()

        assert (len(station.published), collector.dropped.value, station.registry.dropped) == (MAX_WAITING + 1, 10, 10)
        assert station.published[-1].total_count == MAX_WAITING + 11
        collector.close()
        assert station.registry.dropped == 10
        station.registry.close()
        assert station.registry.dropped == 10


class TestAggregations:
    def test_default(self, station):
        """By default a window has count, sum and mean."""
        station.collect(interval_s=1)
        station.add("x", 1, 2)
        station.tick()

        assert station.values() == [{"count": 2, "sum": 3, "mean": 1.5}]

    def test_as_declared(self, station):
        """The aggregations that a stat was declared with are in its windows, in a fixed order."""
        station.stat("x", aggregations=[Aggregation.MAX, "mean", "max"])
        station.collect(interval_s=1)
        station.add("x", 1, 2)
        station.tick()

        assert [list(values.items()) for values in station.values()] == [[("mean", 1.5), ("max", 2)]]

    def test_declared_later(self, station):
        """An aggregation declared while a window is empty is in it, and in all that follow."""
        station.collect(interval_s=1)
        station.stat("x")
        station.stat("x", aggregations=["min", "max", "stddev"])
        station.add("x", 1, 3)
        station.tick()
        station.add("x", 5)
        station.tick()

        assert station.values() == [{"min": 1, "max": 3, "stddev": 1}, {"min": 5, "max": 5, "stddev": 0}]

    def test_declared_too_late(self, station):
        """An aggregation declared when a window has values already is in the windows from the next one on."""
        station.collect(interval_s=1)
        station.add("x", 1, 3)
        station.stat("x", aggregations=["max", "sum"])
        station.add("x", 2)
        station.tick()
        station.add("x", 5)
        station.tick()

        assert station.values() == [{"sum": 6}, {"sum": 5, "max": 5}]

    def test_collectors_override(self, station):
        """A collector's aggregations replace those that the stat was declared with, for that collector alone."""
        station.stat("x", aggregations=["max"])
        station.collect(interval_s=1, aggregations=["min"])
        station.collect(interval_s=1)
        station.add("x", 1, 2)
        station.tick()

        assert station.values() == [{"min": 1}, {"max": 2}]

    @pytest.mark.parametrize("name", [member.value for member in Aggregation])
    def test_each_alone(self, station, name):
        """Each aggregation can be asked for alone, and then is the only one."""
        station.collect(interval_s=1, aggregations=[name])
        station.add("x", 4.0, 4.0)
        station.tick()
        expected = {
            "value": {"value": 4.0},
            "count": {"count": 2},
            "sum": {"sum": 8.0},
            "mean": {"mean": 4.0},
            "min": {"min": 4.0},
            "max": {"max": 4.0},
            "stddev": {"stddev": 0.0},
            "histogram": {},
            "p50": {"p50": 4.0},
            "p90": {"p90": 4.0},
            "p95": {"p95": 4.0},
            "p99": {"p99": 4.0},
        }

        assert station.values() == [expected[name]]
        has_sketch = name in {"histogram", "p50", "p90", "p95", "p99"}
        assert station.windows()[0].sketch == (Sketch([4.0, 4.0]).to_wire() if has_sketch else b"")

    @pytest.mark.parametrize(
        "draw",
        [
            pytest.param(lambda rng: rng.lognormvariate(-2, 1.5), id="log-normal"),
            pytest.param(lambda rng: rng.uniform(1e-3, 1e3), id="uniform"),
            pytest.param(lambda rng: rng.gauss(0.3, 0.004) + 5 * (rng.random() < 0.02), id="steps-with-stragglers"),
        ],
    )
    def test_percentiles_of_a_million(self, station, rng, draw):
        """The percentiles of a window of a million samples are right within 1 %, for each of three shapes."""
        station.collect(interval_s=1, aggregations=["p50", "p90", "p95", "p99"])
        stat = station.stat("x")
        values = [draw(rng) for _ in range(1_000_000)]
        for value in values:
            stat.record(value)
        station.tick()
        values.sort()
        expected = {
            name: values[int(q * 999_999)] for name, q in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
        }

        assert station.counts() == [1_000_000]
        assert station.values() == [pytest.approx(expected, rel=0.01)]

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it gives a class
    @given(values=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=3000), ranks=st.integers(1, 5))
    def test_ranks_merge_to_the_union(self, make_station, values, ranks):
        """The sketches in the windows of several ranks merge to that of all samples."""
        merged = Sketch()
        for rank in range(ranks):
            station = make_station()
            station.collect(interval_s=1, aggregations=["histogram"])
            station.add("x", *values[rank::ranks])
            station.tick()
            merged.merge(Sketch.from_wire(station.windows()[0].sketch))

        assert merged == Sketch(values)

    @pytest.mark.parametrize("given", [[], ["p42"], "median", ["mean", 3]])
    def test_unknown(self, station, given):
        """A value that is no aggregation is refused with the list of those there are."""
        with pytest.raises(
            ConfigError, match="value, count, sum, mean, min, max, stddev, histogram, p50, p90, p95, p99"
        ):
            station.collect(interval_s=1, aggregations=given)


class TestSeveral:
    def test_windows_of_their_own(self, station):
        """Two collectors of one stat have independent windows."""
        station.collect(interval_s=1, aggregations=["count"])
        station.collect(interval_s=3, aggregations=["sum"])
        for _ in range(3):
            station.add("x", 10)
            station.tick()

        assert station.values() == [{"count": 1}, {"count": 1}, {"count": 1}, {"sum": 30}]

    def test_match(self, station):
        """A collector has the counters whose names match, and no others."""
        station.collect(interval_s=1, match="train.*")
        station.add("train.loss", 1)
        station.add("eval.loss", 1)
        station.tick()

        assert [window.name for window in station.published] == ["train.loss"]

    def test_one_that_comes_later(self, station):
        """A second collector begins at its own start, and the first one's window goes on."""
        station.collect(interval_s=2)
        station.add("x", 1, 2)
        station.clock.advance(1)
        station.collect(interval_s=1, aggregations=["sum"])
        station.add("x", 3)
        station.tick()

        assert station.values() == [{"count": 3, "sum": 6, "mean": 2}, {"sum": 3}]


class TestClose:
    def test_publishes_what_there_is(self, station):
        """The last window is published though its time is not over."""
        with station.collect(interval_s=100):
            station.add("x", 1, 2)
            station.clock.advance(3)

        assert [(window.count, window.end_ns - window.start_ns) for window in station.windows()] == [(2, 3 * SECOND)]

    def test_right_after_a_tick(self, station):
        """A collector closed at the very moment of a tick has no last window of length zero."""
        collector = station.collect(interval_s=1)
        station.add("x", 1)
        station.tick()
        collector.close()

        assert station.counts() == [1]

    def test_once(self, station):
        """Closing twice, or closing the registry after, publishes nothing more."""
        collector = station.collect(interval_s=100)
        station.add("x", 1)
        collector.close()
        collector.close()
        station.registry.close()

        assert station.counts() == [1]

    def test_ends_it(self, station):
        """A closed collector has no more windows, and the stat counts on."""
        collector = station.collect(interval_s=1)
        collector.close()
        stat = station.add("x", 1)
        station.tick()

        assert station.published == []
        assert stat.count == 1

    def test_of_the_registry(self, station):
        """Closing the registry publishes every collector's last windows."""
        station.collect(interval_s=100)
        station.collect(count=100)
        station.add("x", 1)

        assert station.registry.close()
        assert station.counts() == [1, 1]

    def test_while_another_thread_publishes(self, station, monkeypatch):
        """Closing a collector returns whether its last windows were published in their order: not if one is stuck."""
        monkeypatch.setattr(_registry, "LOCK_TIMEOUT_S", 0.01)
        collectors = [station.collect(interval_s=100) for _ in range(2)]
        station.add("x", 1)
        stuck, goes_on = threading.Event(), threading.Event()

        def publish(window):
            stuck.set()
            assert goes_on.wait(60)

        station.registry._publish = publish
        thread = threading.Thread(target=collectors[0].close)
        thread.start()
        assert stuck.wait(60)
        station.registry._publish = station.publish

        assert not collectors[1].close()

        goes_on.set()
        thread.join(60)
        assert station.collect(interval_s=100).close()

    def test_no_collecting_after(self, station):
        """A collector after the end is refused."""
        station.registry.close()

        with pytest.raises(ConfigError, match="before closing"):
            station.collect(interval_s=1)

    def test_while_others_tick(self, station, in_threads):
        """A collector closed while the sampler ticks and threads add: every sample in one window, none in two."""
        collector = station.collect(interval_s=0.001, aggregations=["count"])
        stat = station.stat("x")

        def work(index):
            if index == 4:
                for _ in range(200):
                    station.tick(0.001)
            elif index == 5:
                while stat.count < 20_000:
                    pass
                collector.close()
            else:
                for _ in range(20_000):
                    stat.record(1)

        in_threads(6, work)
        windows = station.windows()

        assert windows[-1].total_count == sum(window.count for window in windows)
        assert 20_000 <= windows[-1].total_count <= stat.count == 80_000


class TestFlush:
    def test_complete_windows_only(self, station):
        """A flush publishes complete windows of samples, and ends none of a time."""
        station.collect(count=2, aggregations=["sum"])
        station.collect(interval_s=10)
        station.add("x", 1, 2, 3)

        assert station.registry.flush()
        assert station.values() == [{"sum": 3}]

    def test_from_a_handler_of_windows(self, station):
        """A handler of windows may flush: it gets each window once, in order."""
        order = []

        def handle(event):
            order.append(event.total_count)
            station.registry.flush()

        station.registry._publish = handle
        station.collect(count=1)
        station.add("x", 1, 1, 1)
        station.tick()

        assert order == [1, 2, 3]

    def test_handler_that_adds(self, station):
        """A handler of windows may add to the very stat: that is in the next window."""

        def handle(event):
            station.publish(event)
            station.add("x", 1)

        station.registry._publish = handle
        station.collect(interval_s=1)
        station.add("x", 1)
        station.tick()
        station.tick()

        assert station.counts() == [1, 1]


class TestWanted:
    def test_nothing_is_built_for_nobody(self, station):
        """If no handler wants windows, none are published, and the samples are not kept for later."""
        station.collect(interval_s=1)
        station.wanted = False
        station.add("x", 1)
        station.tick()
        station.wanted = True
        station.add("x", 1)
        station.tick()

        assert [(window.count, window.total_count) for window in station.windows()] == [(1, 2)]


class TestRaw:
    def test_samples_of_each_window(self, station):
        """A raw callback gets the samples of each window, in the order in which they were added."""
        got = []
        station.collect(interval_s=1, raw=lambda name, samples: got.append((name, list(samples))))
        station.add("x", 3, 1, 2)
        station.tick()
        station.tick()
        station.add("x", 5)
        station.tick()

        assert got == [("x", [3, 1, 2]), ("x", []), ("x", [5])]

    def test_bounded(self, station):
        """The first 65,536 samples of a window are kept, and all are counted."""
        got = []
        station.collect(interval_s=1, raw=lambda name, samples: got.append(len(samples)))
        station.add("x", *[1] * 70_000)
        station.tick()

        assert (got, station.counts()) == ([65_536], [70_000])

    def test_that_raises(self, station, caplog):
        """An exception raised by the callback is reported, and the window is published all the same."""

        def fail(name, samples):
            raise ValueError("no space")

        with caplog.at_level(logging.WARNING, "trackside"):
            station.collect(interval_s=1, raw=fail)
            station.add("x", 1)
            station.tick()

        assert station.counts() == [1]
        assert "no space" in caplog.text

    def test_each_sample_as_an_event(self, station):
        """A window of one sample is that sample, for sinks that want each of them."""
        station.collect(count=1, aggregations=["value"])
        station.add("x", 3, 1, 2)
        station.tick()

        assert station.values() == [{"value": 3}, {"value": 1}, {"value": 2}]


class TestPublishing:
    def test_that_raises(self, station, caplog):
        """An exception raised in publishing, as on a strict bus, costs that window and no other."""
        failed = []

        def publish(event):
            if not failed:
                failed.append(event)
                raise ValueError("strict")
            station.publish(event)

        station.registry._publish = publish
        with caplog.at_level(logging.WARNING, "trackside"):
            station.collect(interval_s=1)
            station.add("x", 1)
            station.add("y", 1)
            station.tick()

        assert (station.counts("x"), station.counts("y")) == ([], [1])
        assert "strict" in caplog.text


class TestFork:
    def test_child_has_its_own_windows(self, station):
        """
        A child's windows hold the samples that the child added, counters it did not use have none, and the parent's go
        on.
        """
        station.collect(interval_s=100)
        station.add("x", 1, 2)
        station.add("y", 1)
        station.registry.after_fork()
        station.add("x", 5)
        station.registry.close()

        assert [(window.name, window.count, window.total_sum) for window in station.published] == [("x", 1, 5)]


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({}, "interval_s"),
            ({"interval_s": 0}, "interval_s"),
            ({"interval_s": -1}, "interval_s"),
            ({"interval_s": 0.0001}, "interval_s"),
            ({"interval_s": float("nan")}, "interval_s"),
            ({"interval_s": float("inf")}, "interval_s"),
            ({"interval_s": "1"}, "interval_s"),
            ({"interval_s": True}, "interval_s"),
            ({"count": 0}, "count"),
            ({"count": 1.5}, "count"),
            ({"count": True}, "count"),
            ({"interval_s": 1, "match": 3}, "match"),
        ],
    )
    def test_refused(self, station, options, field):
        """An impossible window is refused where it is asked for, with the name of the field."""
        with pytest.raises(ConfigError) as raised:
            station.collect(**options)

        assert raised.value.field == field
