"""The registry: one instrument for each name, and callbacks that are read when collected."""

from __future__ import annotations

import logging
import os
import sys
import threading

import pytest

from trackside.counters import Aggregation, CounterRegistry, Sampler, _registry
from trackside.counters import _registry as registry_module
from trackside.events import ConfigError, CounterWindow


class TestCounter:
    def test_same_for_a_name(self, station):
        """A name is one stat, whichever caller asks."""
        assert station.stat("x") is station.stat("x")

    def test_declaration(self, station):
        """A stat has its unit, its description and the aggregations of its windows."""
        stat = station.stat("x", unit="s", help="Time to load a batch.", aggregations=["p99", "mean"])

        assert (stat.name, stat.unit, stat.help) == ("x", "s", "Time to load a batch.")
        assert stat.aggregations == (Aggregation.MEAN, Aggregation.P99)

    def test_said_later(self, station):
        """Settings that the first caller left open may be made by a later one."""
        stat = station.stat("x")
        station.stat("x", unit="s", help="h", aggregations=["max"])

        assert (stat.unit, stat.help, stat.aggregations) == ("s", "h", (Aggregation.MAX,))

    @pytest.mark.parametrize(
        ("field", "given"), [("unit", "ms"), ("help", "Another."), ("aggregations", [Aggregation.MIN])]
    )
    def test_said_otherwise(self, station, caplog, field, given):
        """A declaration that contradicts an earlier one ends no training: the first holds, and one line has both."""
        stat = station.stat("x", unit="s", help="One.", aggregations=["max"])

        assert [station.stat("x", **{field: given}) for _ in range(3)] == [stat] * 3

        assert (stat.unit, stat.help, stat.aggregations) == ("s", "One.", (Aggregation.MAX,))
        (line,) = (record.getMessage() for record in caplog.records)
        assert line.startswith(f"{field}: got ")
        assert "stat 'x' has" in line

    def test_said_otherwise_strictly(self):
        """On a strict bus that is an error, at once."""
        registry = CounterRegistry(publish=print, wants=lambda _: True, threaded=False, strict=True)
        registry.stat("x", unit="s")
        with pytest.raises(ConfigError, match="unit: got 'ms'; stat 'x' has 's'"):
            registry.stat("x", unit="ms")

    def test_said_again(self, station):
        """A caller whose declaration equals an earlier one gets the stat."""
        stat = station.stat("x", unit="s", aggregations=["max", "min"])

        assert station.stat("x", unit="s", aggregations=("min", "max")) is stat

    @pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", None, 3, b"x", ["x"]])
    def test_wrong_name(self, station, name):
        """A name that is empty, endless or not a printable text is refused."""
        with pytest.raises(ConfigError, match="1 to 256 printable characters"):
            station.stat(name)

    def test_wrong_unit(self, station):
        """A unit is a text."""
        with pytest.raises(ConfigError, match="unit: got 3; give a text"):
            station.stat("x", unit=3)

    def test_made_in_threads(self, station, in_threads):
        """16 threads that ask for the same names at once get the same counters: each of 50 counts 16."""

        def work(index):
            for number in range(50):
                station.stat(f"c{number}").record(1)

        in_threads(16, work)

        assert [stat.count for stat in station.registry.counters()] == [16] * 50

    def test_a_name_for_each_step(self, station, monkeypatch, caplog):
        """Very many names do not fill the memory: beyond the limit they share one stat, and this is reported once."""
        monkeypatch.setattr(registry_module, "MAX_INSTRUMENTS", 3)
        with caplog.at_level(logging.WARNING, "trackside"):
            for step in range(10):
                station.stat(f"step.{step}").record(1)
        counts = {stat.name: stat.count for stat in station.registry.counters()}

        assert counts == {"step.0": 1, "step.1": 1, "step.2": 1, "trackside.stats.beyond": 7}
        assert [record.getMessage() for record in caplog.records] == [
            "3 names are in use; stat 'step.3' and all further ones are one"
        ]


class TestCounters:
    def test_listed_by_name(self, station):
        """All counters are listed, by name."""
        for name in ("train.tokens", "eval.loss", "train.loss"):
            station.stat(name)

        assert [stat.name for stat in station.registry.counters()] == ["eval.loss", "train.loss", "train.tokens"]

    def test_filtered(self, station):
        """A pattern finds those it matches."""
        for name in ("train.tokens", "eval.loss", "train.loss"):
            station.stat(name)

        assert [stat.name for stat in station.registry.counters("train.*")] == ["train.loss", "train.tokens"]

    def test_snapshots(self, station):
        """A report gets the totals of each counter."""
        station.add("a", 1, 2)
        station.add("b", None)

        assert [
            (snap.name, snap.count, snap.sum, snap.last, snap.invalid) for snap in station.registry.snapshots()
        ] == [
            ("a", 2, 3, 2.0, 0),
            ("b", 0, 0, None, 1),
        ]


class TestObserve:
    def test_once_in_a_cycle(self, station):
        """The callback is called once in each cycle of a collector, and its value is the window's."""
        values = iter([10, 20, 30])
        station.gauge("gpu.memory", callback=lambda: next(values), unit="bytes", help="Allocated.")
        station.collect(interval_s=1)
        station.tick(0.5)
        station.tick(0.5)
        station.tick(1)

        assert station.values("gpu.memory") == [{"value": 10}, {"value": 20}]
        assert station.windows("gpu.memory")[0].unit == "bytes"

    def test_once_for_collectors_of_one_cycle(self, station):
        """Two collectors whose windows end together share one reading."""
        asked = []
        station.gauge("x", callback=lambda: asked.append(1) or 5)
        station.collect(interval_s=1)
        station.collect(interval_s=1)
        station.tick()

        assert (len(asked), station.values()) == (1, [{"value": 5}, {"value": 5}])

    def test_not_without_a_collector(self, station):
        """Without a collector no callback is called."""
        asked = []
        station.gauge("x", callback=lambda: asked.append(1) or 5)
        station.collect(interval_s=1, match="y")
        station.tick()

        assert asked == []

    def test_no_value_now(self, station):
        """A callback that returns None has no value now, and the window has none."""
        station.gauge("x", callback=lambda: None)
        station.collect(interval_s=1)
        station.tick()

        assert (station.counts(), station.values()) == ([0], [{}])

    def test_that_raises(self, station, caplog):
        """A callback that raises is counted and reported, and the next one is called."""
        gauge = station.gauge("a", callback=lambda: 1 / 0)
        station.gauge("b", callback=lambda: 2)
        station.collect(interval_s=1)
        with caplog.at_level(logging.WARNING, "trackside"):
            station.tick()
            station.tick()

        assert (station.counts("a"), station.counts("b")) == ([0, 0], [1, 1])
        assert (gauge.failed, gauge.last_error) == (2, "ZeroDivisionError: division by zero")
        assert len(caplog.records) == 1
        assert "gauge('a')" in caplog.text

    def test_that_exits(self, station):
        """A callback cannot end the thread it runs on."""
        gauge = station.gauge("a", callback=lambda: sys.exit(1))
        station.collect(interval_s=1)
        station.tick()

        assert gauge.failed == 1

    def test_that_returns_no_number(self, station):
        """A value that is no number is an invalid sample."""
        station.gauge("x", callback=lambda: "much")
        station.collect(interval_s=1)
        station.tick()

        assert station.gauge("x").snapshot().invalid == 1

    def test_closed(self, station):
        """A closed gauge does not call its callback again, and may be given another."""
        first = station.gauge("x", callback=lambda: 1)
        station.collect(interval_s=1)
        with first:
            station.tick()
        station.gauge("x", callback=lambda: 2)
        station.tick()
        first.close()
        station.tick()

        assert station.values() == [{"value": 1}, {"value": 2}, {}]

    def test_twice(self, station):
        """Two callbacks for one name are refused."""
        station.gauge("x", callback=lambda: 1)

        with pytest.raises(ConfigError, match="has a callback already"):
            station.gauge("x", callback=lambda: 2)

    def test_not_callable(self, station):
        """An object that cannot be called is refused."""
        with pytest.raises(ConfigError, match="callback: got 3"):
            station.gauge("x", callback=3)

    def test_for_a_gauge_declared_before(self, station):
        """A callback may be given to a gauge that was declared with aggregations of its own."""
        station.gauge("x", aggregations=["max"])
        station.gauge("x", callback=lambda: 7)
        station.collect(interval_s=1)
        station.tick()

        assert station.values() == [{"max": 7}]

    def test_dropped_in_a_child(self, station):
        """A forked child does not call the parent's callbacks: they may use a device that a child must not touch."""
        asked = []
        station.gauge("x", callback=lambda: asked.append(1))
        station.collect(interval_s=1)
        station.registry.after_fork()
        station.tick()

        assert asked == []


def make_threaded(publish, wants=lambda cls: True):
    return CounterRegistry(publish=publish, wants=wants)


def samplers():
    return [thread for thread in threading.enumerate() if thread.name == "trackside-sampler"]


class TestSampler:
    def test_no_thread_before_a_collector(self):
        """Counters and callbacks alone start no thread; the first collector does, and a second none."""
        of_others = samplers()
        registry = make_threaded(lambda event: None)
        registry.stat("x").record(1)
        registry.gauge("y", callback=lambda: 1)
        before = len(samplers())
        registry.collect(interval_s=100)
        registry.collect(interval_s=100)
        after = len(samplers())

        assert registry.close()
        assert [count - len(of_others) for count in (before, after, len(samplers()))] == [0, 1, 0]

    def test_ticks_by_itself(self):
        """With a thread, windows are published without a flush, idle ones included."""
        published = threading.Event()
        windows = []

        def publish(window):
            windows.append(window)
            if len(windows) == 3:
                published.set()

        registry = make_threaded(publish)
        registry.stat("x").record(1)
        registry.collect(interval_s=0.01)

        assert published.wait(10)
        registry.close()
        assert [window.count for window in windows[:3]] == [0, 0, 0]
        assert isinstance(windows[0], CounterWindow)

    def test_a_shorter_interval_later(self):
        """A collector with a shorter interval does not wait for the longer one of an earlier collector."""
        published = threading.Event()
        registry = make_threaded(lambda window: published.set())
        registry.stat("x")
        registry.collect(interval_s=1000)
        registry.collect(interval_s=0.01)

        assert published.wait(10)
        registry.close()

    def test_stop_while_being_started(self, monkeypatch):
        """A caller that stops the thread in the moment when another starts it waits for its end, like any caller."""
        is_born, may_start, may_run = threading.Event(), threading.Event(), threading.Event()
        sampler = Sampler(lambda: None)

        def asked_on_birth(real=threading.get_native_id):
            is_born.set()
            may_run.wait(10)
            return real()

        starter = threading.Thread(target=lambda: may_start.wait(10) and sampler.start())
        starter.start()
        monkeypatch.setattr(threading, "get_native_id", asked_on_birth)
        may_start.set()
        assert is_born.wait(10)

        assert not sampler.stop(0.01)
        may_run.set()
        starter.join(10)
        assert sampler.stop(10)

    def test_closed_before_it_starts(self):
        """A registry that is closed while a collector begins has no thread afterwards."""
        registry = make_threaded(lambda window: None)

        class Interposed:
            """A lock during whose second acquisition the registry is closed."""

            def __init__(self, lock):
                self.lock, self.entries = lock, 0

            def __enter__(self):
                self.entries += 1
                if self.entries == 2:
                    registry.close()
                self.lock.acquire()

            def __exit__(self, *_):
                self.lock.release()

        registry._lock = Interposed(registry._lock)
        registry.collect(interval_s=1000)

        assert registry._is_closed
        assert not registry._sampler.is_running

    def test_close_with_a_callback_that_never_returns(self):
        """A callback that blocks for ever delays close() until its timeout, and costs no window."""
        entered, release = threading.Event(), threading.Event()
        windows = []

        def block():
            entered.set()
            release.wait()

        registry = make_threaded(windows.append)
        registry.stat("x").record(1)
        registry.collect(interval_s=0.01)
        registry.gauge("blocking", callback=block)
        registry.stat("x").record(1)
        assert entered.wait(10)

        assert not registry.close(timeout_s=0.05)
        release.set()
        assert [window.total_count for window in windows if window.name == "x"][-1] == 2

    def test_close_with_a_handler_that_never_returns(self):
        """A handler that blocks the sampler in publishing does not keep close() from publishing the last windows."""
        entered, release = threading.Event(), threading.Event()
        windows = []

        def publish(window):
            if threading.current_thread().name == "trackside-sampler":
                entered.set()
                release.wait()
            else:
                windows.append(window)

        registry = make_threaded(publish)
        registry.collect(interval_s=0.01)
        stat = registry.stat("x")
        assert entered.wait(10)
        stat.record(1)

        assert not registry.close(timeout_s=0.05)
        release.set()
        assert [window.total_count for window in windows] == [1]

    def test_close_from_a_handler(self):
        """A handler on the sampler's own thread may close the registry."""
        closed = threading.Event()
        results = []

        def publish(_window):
            if not results:
                results.append(None)
                results[0] = registry.close()
                closed.set()

        registry = make_threaded(publish)
        registry.stat("x")
        registry.collect(interval_s=0.01)

        assert closed.wait(10)
        assert results == [True]

    def test_goes_on_after_a_failure(self, monkeypatch):
        """After any failure in one round, the next one comes."""
        monkeypatch.setattr(_registry, "_RETRY_S", 0.001)
        rounds = threading.Semaphore(0)
        failures = [RuntimeError("once"), SystemExit(3)]

        def beat():
            rounds.release()
            if failures:
                raise failures.pop()
            return 0.001

        sampler = Sampler(beat)
        sampler.start()

        assert all(rounds.acquire(timeout=10) for _ in range(4))
        assert sampler.stop(10)

    def test_in_a_forked_child(self):
        """A child has no thread until it is resumed."""
        registry = make_threaded(lambda window: None)
        registry.collect(interval_s=1000)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            registry.after_fork()
            before = registry._sampler.is_running
            registry.resume()
            os.write(write, f"{before} {registry._sampler.is_running} {registry.close()}".encode())
            os._exit(0)
        os.waitpid(child, 0)

        assert os.read(read, 100) == b"False True True"
        assert registry.close()


class TestKinds:
    def test_in_the_window(self, station):
        """A window names its kind of instrument, and has the values that make sense for it."""
        station.counter("a").add(2)
        station.stat("b").record(-3)
        station.gauge("c").set(-4)
        station.collect(interval_s=1)
        station.counter("a").add(2)
        station.stat("b").record(-3)
        station.gauge("c").set(-4)
        station.tick()

        assert [(window.name, window.kind, window.values) for window in station.published] == [
            ("a", "counter", {"count": 1, "sum": 2}),
            ("b", "stat", {"count": 1, "sum": -3, "mean": -3}),
            ("c", "gauge", {"value": -4}),
        ]

    def test_in_the_snapshot(self, station):
        """A snapshot names its kind of instrument."""
        station.counter("a")
        station.stat("b")
        station.gauge("c")
        assert [snapshot.kind for snapshot in station.registry.snapshots()] == ["counter", "stat", "gauge"]

    @pytest.mark.parametrize("first", ["counter", "stat", "gauge"])
    @pytest.mark.parametrize("second", ["counter", "stat", "gauge"])
    def test_one_name(self, station, caplog, first, second):
        """A name belongs to one kind; another kind ends no training, is recorded beside it, and one line says so."""
        made = getattr(station, first)("x")
        others = [getattr(station, second)("x") for _ in range(3)]
        if first == second:
            assert others == [made] * 3
        else:
            assert len(set(others)) == 1
            assert (others[0].kind, others[0].name) == (second, f"x.{second}")
            (line,) = (record.getMessage() for record in caplog.records)
            assert line.startswith(f"name: got 'x'; it is a {first} already")
            assert line.endswith(f"it is recorded as 'x.{second}'")

    def test_one_name_strictly(self):
        """On a strict bus another kind under the same name is an error."""
        registry = CounterRegistry(publish=print, wants=lambda _: True, threaded=False, strict=True)
        registry.counter("x")
        with pytest.raises(ConfigError, match="name: got 'x'; it is a counter already"):
            registry.gauge("x")

    def test_one_long_name(self, station):
        """A name that is as long as may be is cut for it."""
        station.counter("x" * 256)
        assert station.gauge("x" * 256).name == "x" * 250 + ".gauge"

    def test_beyond_the_limit(self, station, monkeypatch):
        """Beyond the limit each kind has one instrument of its own for all further names."""
        monkeypatch.setattr(registry_module, "MAX_INSTRUMENTS", 0)
        made = [station.counter("a"), station.stat("b"), station.gauge("c")]
        assert [(one.kind, one.name) for one in made] == [
            ("counter", "trackside.counters.beyond"),
            ("stat", "trackside.stats.beyond"),
            ("gauge", "trackside.gauges.beyond"),
        ]

    @pytest.mark.parametrize("before", [[], [1.5], [1.5, None]])
    @pytest.mark.parametrize("amount", [-1, -0.5, float("-inf")])
    def test_a_counter_only_grows(self, station, before, amount):
        """
        A negative amount is an invalid sample of a counter, whatever amounts are added beside it, and lowers no sum.
        """
        counter = station.counter("x")
        for value in [*before, amount, 3]:
            counter.add(value)
        assert counter.sum == sum(value for value in before if value) + 3
        assert counter.snapshot().invalid == 1 + (None in before)

    def test_strict(self, strict_station):
        """A strict bus raises for a negative amount where it is added."""
        with pytest.raises(ValueError, match="a counter only grows"):
            strict_station.counter("x").add(-1)

    def test_zero(self, station):
        """Zero is an amount, and so is negative zero."""
        counter = station.counter("x")
        counter.add(0)
        counter.add(-0.0)
        assert (counter.count, counter.snapshot().invalid) == (2, 0)
