"""
Failures of torch.monitor's Stat, which do not happen here, and the requests of its reviewers.

The rows are those found by probing PyTorch 2.13; the requests those made in the review of PyTorch's RFC-0018.
"""

from __future__ import annotations

import gc
import threading

import pytest

from children import printed_by
from trackside.bus import Bus
from trackside.counters import Aggregation
from trackside.events import ConfigError, CounterWindow

SECOND = 10**9


class TestAggregationRows:
    def test_value_is_bound_to_nothing(self, station):
        """Stat: VALUE alone gives events without data. Here it is the last value."""
        station.collect(interval_s=1, aggregations=[Aggregation.VALUE])
        station.add("x", 1, 2)
        station.tick()

        assert station.values() == [{"value": 2}]

    def test_deviation_and_histogram_do_not_exist(self):
        """Stat: the RFC's STDDEV and HISTOGRAM were never made. Here they are."""
        assert {"stddev", "histogram"} <= {member.value for member in Aggregation}

    def test_empty_list_is_allowed(self, station):
        """Stat: no aggregations at all give events without data. Here that is refused."""
        with pytest.raises(ConfigError, match="at least one"):
            station.stat("x", aggregations=[])

    def test_duplicates_collapse(self, station):
        """Stat: an aggregation named twice counts once. Here too."""
        assert station.stat("x", aggregations=["max", "max"]).aggregations == (Aggregation.MAX,)


class TestWindowRows:
    def test_aligned_to_the_clocks_origin(self, station):
        """Stat: the first window is cut short by where the clock's zero lies. Here it is as long as the others."""
        station.clock.advance(0.68)
        station.collect(interval_s=1)
        station.add("x", 1)
        station.tick(0.32)
        station.tick(0.68)

        assert [window.end_ns - window.start_ns for window in station.windows()] == [SECOND]

    def test_idle_stat_logs_nothing(self, station):
        """Stat: only the first add() of a later window closes one. Here the sampler does."""
        station.collect(interval_s=1)
        station.add("x", 1)
        station.tick()
        station.tick()

        assert station.counts() == [1, 0]

    def test_no_bounds_and_a_late_time(self, station):
        """Stat: the event has the time of some later add() and no bounds. Here it has both of its own."""
        station.collect(interval_s=1)
        station.add("x", 1)
        start_ns = station.clock.now_ns
        station.tick()
        window = station.windows()[0]

        assert (window.start_ns, window.end_ns, window.at_ns) == (start_ns, start_ns + SECOND, start_ns + SECOND)

    def test_samples_discarded_after_max_samples(self, station):
        """Stat: after max_samples the rest of the window's time is thrown away. Here the next window has it."""
        station.collect(count=3, aggregations=["sum"])
        station.add("x", 1, 1, 1, 5, 5, 5)
        station.tick()

        assert station.values() == [{"sum": 3}, {"sum": 15}]

    def test_one_batch_of_a_count_window(self, station):
        """Stat: windows of samples alone log one batch, ever. Here one after another."""
        station.collect(count=5)
        station.add("x", *range(20))
        station.tick()

        assert station.counts() == [5, 5, 5, 5]

    @pytest.mark.parametrize("count", [0, -1])
    def test_max_samples_zero_or_negative(self, station, count):
        """Stat: max_samples of 0 or -1 means 1. Here it is refused."""
        with pytest.raises(ConfigError, match="count: got"):
            station.collect(count=count)

    @pytest.mark.parametrize("interval_s", [0, 0.0001, -1])
    def test_window_zero(self, station, interval_s):
        """Stat: a window below a millisecond ends the process by SIGFPE. Here it is refused."""
        with pytest.raises(ConfigError, match="interval_s: got"):
            station.collect(interval_s=interval_s)

    def test_empty_window(self, station):
        """Stat: an empty window is no event. Here it is an explicit zero."""
        station.collect(interval_s=1)
        station.stat("x")
        station.tick()

        assert [(window.count, window.values) for window in station.windows()] == [(0, {"count": 0, "sum": 0})]

    def test_minimum_of_nothing(self, station):
        """Stat: minimum, maximum and mean of an empty window are 0. Here there are none."""
        station.collect(interval_s=1, aggregations=["mean", "min", "max", "stddev", "p99", "value"])
        station.stat("x")
        station.tick()

        assert station.values() == [{}]

    def test_lost_last_window(self):
        """Stat: at exit the last window is lost. Here the process prints it on its way out."""
        program = """
            from trackside.bus import Bus
            from trackside.events import CounterWindow
            bus = Bus()
            bus.subscribe(lambda window: print(window.name, window.count, window.total_sum), to=CounterWindow)
            bus.collect(interval_s=1000)
            bus.stat("x").record(5)
        """
        assert printed_by(program) == "x 1 5.0\n"

    def test_count_is_a_float(self, station):
        """Stat: a count is 2.0. Here it is 2."""
        station.collect(interval_s=1)
        station.add("x", 1, 1)
        station.tick()

        assert type(station.windows()[0].count) is int

    def test_fork_shares_the_open_window(self, station):
        """Stat: a child has a copy of the open window, and both log it. Here the child's is its own."""
        station.collect(interval_s=1)
        station.add("x", 1, 2)
        station.registry.after_fork()
        station.add("x", 10)
        station.tick()

        assert [(window.count, window.total_sum) for window in station.windows()] == [(1, 10)]


class TestStatRows:
    def test_nan_sticks(self, station):
        """Stat: a first NaN stays minimum and maximum for ever, and the sum is NaN. Here it is an invalid sample."""
        station.collect(interval_s=1, aggregations=["sum", "min", "max"])
        station.add("x", float("nan"), 1, 2)
        station.tick()

        assert station.values() == [{"sum": 3, "min": 1, "max": 2}]
        assert station.stat("x").snapshot().invalid == 1

    def test_text_raises(self, station):
        """Stat: a value that is no number raises in the training loop. Here it is an invalid sample."""
        assert station.add("x", "3").snapshot().invalid == 1

    def test_two_stats_one_name(self, station):
        """Stat: two may share a name, and their events cannot be distinguished. Here a name is one stat."""
        assert station.stat("x", unit="s") is station.stat("x")
        assert station.stat("x", unit="ms").unit == "s"

    def test_empty_name(self, station):
        """Stat: an empty name gives a metric called ".sum". Here it is refused."""
        with pytest.raises(ConfigError, match="name: got ''"):
            station.stat("")

    def test_open_window_is_not_visible(self, station):
        """Stat: get() returns the window before, zeros at first. Here a snapshot has all that was added."""
        assert (station.add("x", 1, 2).count, station.stat("x").sum) == (2, 3)

    def test_registry_is_not_readable(self, station):
        """Stat: there is no list of them. Here there is."""
        station.stat("x")

        assert [stat.name for stat in station.registry.counters()] == ["x"]


class TestHandlerRows:
    def test_handler_raises_in_add(self):
        """
        Stat: an exception raised by a handler leaves add(). Here it does not, and the next handler has the window.
        """
        windows = []
        with Bus() as bus:
            bus.subscribe(lambda window: 1 / 0, to=CounterWindow)
            bus.subscribe(windows.append, to=CounterWindow)
            bus.collect(count=1)
            bus.stat("x").record(1)
            bus.registry.tick()

        assert [window.count for window in windows] == [1]

    def test_handler_raises_while_a_stat_is_destroyed(self):
        """Stat: a handler that raises then aborts the process. Here counters publish nothing when they are deleted."""
        bus = Bus()
        asked = []

        def fail(window):
            asked.append(window.count)
            raise ZeroDivisionError

        bus.subscribe(fail, to=CounterWindow)
        bus.collect(interval_s=1000)
        bus.stat("x").record(1)
        bus.close()
        recorded = list(asked)
        del bus
        gc.collect()

        assert (recorded, asked) == ([1], [1])

    def test_handler_adds_to_the_stat_being_logged(self):
        """Stat: a handler that adds to or reads the very Stat deadlocks. Here it has what was added before."""
        seen = []

        def handle(window):
            stat = bus.stat("x")
            stat.record(1)
            seen.append((window.count, stat.count))

        with Bus() as bus:
            bus.subscribe(handle, to=CounterWindow)
            collector = bus.collect(interval_s=1000)
            bus.stat("x").record(1)
            collector.close()

        assert seen == [(1, 2)]

    def test_handler_registers_and_unregisters(self):
        """Stat: a handler that registers or unregisters one deadlocks. Here it may."""
        later = []

        def handle(_window):
            subscription.close()
            bus.subscribe(later.append, to=CounterWindow)

        with Bus() as bus:
            subscription = bus.subscribe(handle, to=CounterWindow)
            bus.stat("x")
            bus.collect(interval_s=1000).close()
            bus.collect(interval_s=1000).close()

        assert len(later) == 1

    @pytest.mark.hang_guard(60)
    def test_handler_sleeping_deadlock(self, in_threads):
        """Stat: four threads that add while a handler sleeps deadlock. Here they add, and none of it is lost."""
        windows = []

        def sleepy(window):
            threading.Event().wait(0.002)
            windows.append(window)

        with Bus() as bus:
            bus.subscribe(sleepy, to=CounterWindow)
            stat = bus.stat("x")
            bus.collect(interval_s=0.005)
            in_threads(4, lambda index: [stat.record(1) for _ in range(50_000)])

        assert windows[-1].total_count == sum(window.count for window in windows) == 200_000


class TestReviewRequests:
    def test_2_windows_of_samples(self, station):
        """Request 2: windows by count, so that deviations compare and slow steps do not bias the mean."""
        station.collect(count=4, aggregations=["count", "stddev"])
        station.add("x", 2, 4, 4, 6, 1, 1, 1, 1)
        station.tick()

        assert station.values() == [{"count": 4, "stddev": 2**0.5}, {"count": 4, "stddev": 0}]

    def test_3_count_and_no_data(self, station):
        """Request 3: a count in each window, and an explicit "no data"."""
        station.collect(interval_s=1)
        station.add("x", 1)
        station.tick()
        station.tick()

        assert station.counts() == [1, 0]

    def test_8_raw_values(self, station):
        """Request 8: the values themselves, for sinks that aggregate later."""
        got = []
        station.collect(interval_s=1, raw=lambda name, samples: got.extend(samples))
        station.add("x", 3, 1, 2)
        station.tick()

        assert got == [3, 1, 2]

    def test_13_whose_loop(self, station):
        """Request 13: no user code closes windows, and no window closes on the thread that adds."""
        station.collect(interval_s=1)
        station.clock.advance(100)
        station.add("x", *[1] * 5000)

        assert station.published == []

    def test_18_counters_only_accumulate(self, station):
        """Request 18: counters accumulate, collectors sample; with no collector the counts are there all the same."""
        stat = station.add("x", 1, 2)
        station.tick()

        assert (station.published, stat.count, stat.sum) == ([], 2, 3)

    def test_19_passive_counters(self, station):
        """Request 19: a callback asked once in each cycle of a collector."""
        station.gauge("cuda.memory", callback=lambda: 42)
        station.collect(interval_s=1)
        station.tick()

        assert station.values("cuda.memory") == [{"value": 42}]

    def test_20_timers(self, station):
        """Request 20: ``with stat.time():``."""
        stat = station.stat("x")
        with stat.time():
            pass

        assert stat.count == 1

    def test_21_help_and_unit(self, station):
        """Request 21: called counters, with a unit and a help text."""
        stat = station.stat("x", unit="s", help="Time to wait.")

        assert (stat.unit, stat.help) == ("s", "Time to wait.")

    def test_22_list_and_filter(self, station):
        """Request 22: counters can be listed and filtered, and are registered by being asked for."""
        station.stat("train.loss")
        station.stat("eval.loss")

        assert [stat.name for stat in station.registry.counters("train.*")] == ["train.loss"]

    def test_23_explicit_zero(self, station):
        """Request 23: an explicit zero rather than a missing entry."""
        station.stat("x")
        station.collect(interval_s=1)
        station.tick()

        assert station.counts() == [0]

    def test_24_collection_apart_from_aggregation(self, station):
        """Request 24: the collector says how long, the declaration says which values; the collector may override it."""
        station.stat("x", aggregations=["max"])
        station.collect(interval_s=1)
        station.collect(interval_s=2, aggregations=["min"])
        station.add("x", 1, 2)
        station.tick()
        station.tick()

        assert station.values() == [{"max": 2}, {}, {"min": 1}]

    def test_25_robust_percentiles(self, station):
        """Request 25: percentiles that one outlier does not move."""
        station.collect(interval_s=1, aggregations=["p50", "p95", "p99"])
        station.add("x", *[1.0] * 998, 1e6, 1e6)
        station.tick()

        assert station.values() == [
            {"p50": pytest.approx(1, rel=0.01), "p95": pytest.approx(1, rel=0.01), "p99": pytest.approx(1, rel=0.01)}
        ]
