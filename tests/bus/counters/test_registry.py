"""The registry: one counter for each name, found again, observed and sampled."""

from __future__ import annotations

import logging
import os
import sys
import threading

import pytest

from trackside.bus.counters import Aggregation, CounterRegistry, Observation, _sampler
from trackside.bus.counters import _registry as registry_module
from trackside.bus.counters._sampler import Sampler
from trackside.events import ConfigError, CounterWindow


class TestCounter:
    def test_same_for_a_name(self, station):
        """A name is one counter, whoever asks."""
        assert station.counter("x") is station.counter("x")

    def test_declaration(self, station):
        """A counter knows its unit, what it is for and what windows tell of it."""
        counter = station.counter("x", unit="s", help="Time to load a batch.", aggregations=["p99", "mean"])

        assert (counter.name, counter.unit, counter.help) == ("x", "s", "Time to load a batch.")
        assert counter.aggregations == (Aggregation.MEAN, Aggregation.P99)

    def test_said_later(self, station):
        """What the first caller left open, a later one may say."""
        counter = station.counter("x")
        station.counter("x", unit="s", help="h", aggregations=["max"])

        assert (counter.unit, counter.help, counter.aggregations) == ("s", "h", (Aggregation.MAX,))

    @pytest.mark.parametrize(
        ("field", "given"), [("unit", "ms"), ("help", "Another."), ("aggregations", [Aggregation.MIN])]
    )
    def test_said_otherwise(self, station, field, given):
        """Who says something else than before learns it at once, with both."""
        station.counter("x", unit="s", help="One.", aggregations=["max"])

        with pytest.raises(ConfigError, match="counter 'x' has") as raised:
            station.counter("x", **{field: given})

        assert raised.value.field == field

    def test_said_again(self, station):
        """Who says the same again gets the counter."""
        counter = station.counter("x", unit="s", aggregations=["max", "min"])

        assert station.counter("x", unit="s", aggregations=("min", "max")) is counter

    @pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", None, 3, b"x", ["x"]])
    def test_wrong_name(self, station, name):
        """A name that is empty, endless or not a printable text is refused."""
        with pytest.raises(ConfigError, match="1 to 256 printable characters"):
            station.counter(name)

    def test_wrong_unit(self, station):
        """A unit is a text."""
        with pytest.raises(ConfigError, match="unit: got 3; give a text"):
            station.counter("x", unit=3)

    def test_made_in_threads(self, station, in_threads):
        """16 threads that ask for the same names at once get the same counters: each of 50 counts 16."""

        def work(index):
            for number in range(50):
                station.counter(f"c{number}").add(1)

        in_threads(16, work)

        assert [counter.count for counter in station.registry.counters()] == [16] * 50

    def test_a_name_for_each_step(self, station, monkeypatch, caplog):
        """Names without end do not fill the memory: beyond the limit they share one counter, and it is said once."""
        monkeypatch.setattr(registry_module, "MAX_COUNTERS", 3)
        with caplog.at_level(logging.WARNING, "trackside"):
            for step in range(10):
                station.counter(f"step.{step}").add(1)
        counts = {counter.name: counter.count for counter in station.registry.counters()}

        assert counts == {"step.0": 1, "step.1": 1, "step.2": 1, "trackside.counters.beyond": 7}
        assert [record.getMessage() for record in caplog.records] == [
            "there are 3 counters; 'step.3' and all further ones are counted together"
        ]


class TestCounters:
    def test_listed_by_name(self, station):
        """All counters are listed, by name."""
        for name in ("train.tokens", "eval.loss", "train.loss"):
            station.counter(name)

        assert [counter.name for counter in station.registry.counters()] == ["eval.loss", "train.loss", "train.tokens"]

    def test_filtered(self, station):
        """A pattern finds those it matches."""
        for name in ("train.tokens", "eval.loss", "train.loss"):
            station.counter(name)

        assert [counter.name for counter in station.registry.counters("train.*")] == ["train.loss", "train.tokens"]

    def test_snapshots(self, station):
        """A report gets what each has counted."""
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
        """The callback is asked once in each cycle of a collector, and its value is the window's."""
        values = iter([10, 20, 30])
        station.observe("gpu.memory", lambda: next(values), unit="bytes", help="Allocated.")
        station.collect(interval_s=1)
        station.tick(0.5)
        station.tick(0.5)
        station.tick(1)

        assert station.values("gpu.memory") == [{"value": 10}, {"value": 20}]
        assert station.windows("gpu.memory")[0].unit == "bytes"

    def test_once_for_collectors_of_one_cycle(self, station):
        """Two collectors whose windows end together share one reading."""
        asked = []
        station.observe("x", lambda: asked.append(1) or 5)
        station.collect(interval_s=1)
        station.collect(interval_s=1)
        station.tick()

        assert (len(asked), station.values()) == (1, [{"value": 5}, {"value": 5}])

    def test_not_without_a_collector(self, station):
        """With nobody to collect, nobody is asked."""
        asked = []
        station.observe("x", lambda: asked.append(1) or 5)
        station.collect(interval_s=1, match="y")
        station.tick()

        assert asked == []

    def test_no_value_now(self, station):
        """A callback that returns None has no value now: the window says so."""
        station.observe("x", lambda: None)
        station.collect(interval_s=1)
        station.tick()

        assert (station.counts(), station.values()) == ([0], [{}])

    def test_that_raises(self, station, caplog):
        """A callback that raises is counted and reported, and the next one is asked."""
        observation = station.observe("a", lambda: 1 / 0)
        station.observe("b", lambda: 2)
        station.collect(interval_s=1)
        with caplog.at_level(logging.WARNING, "trackside"):
            station.tick()
            station.tick()

        assert (station.counts("a"), station.counts("b")) == ([0, 0], [1, 1])
        assert (observation.failed, observation.last_error) == (2, "ZeroDivisionError: division by zero")
        assert len(caplog.records) == 1
        assert "observe('a')" in caplog.text

    def test_that_exits(self, station):
        """A callback cannot end the thread it runs on."""
        observation = station.observe("a", lambda: sys.exit(1))
        station.collect(interval_s=1)
        station.tick()

        assert observation.failed == 1

    def test_that_returns_no_number(self, station):
        """What is not a number is an invalid sample."""
        station.observe("x", lambda: "much")
        station.collect(interval_s=1)
        station.tick()

        assert station.counter("x").snapshot().invalid == 1

    def test_closed(self, station):
        """A closed observation is not asked again, and its name is free for another."""
        first = station.observe("x", lambda: 1)
        station.collect(interval_s=1)
        with first:
            station.tick()
        station.observe("x", lambda: 2)
        station.tick()
        first.close()
        station.tick()

        assert station.values() == [{"value": 1}, {"value": 2}, {"value": 2}]

    def test_twice(self, station):
        """Two callbacks for one name are refused."""
        station.observe("x", lambda: 1)

        with pytest.raises(ConfigError, match="has a callback already"):
            station.observe("x", lambda: 2)

    def test_not_callable(self, station):
        """What cannot be called is refused."""
        with pytest.raises(ConfigError, match="callback: got 3"):
            station.observe("x", 3)

    def test_for_a_counter_declared_before(self, station):
        """A callback may feed a counter that says itself what is told of it."""
        station.counter("x", aggregations=["max"])
        station.observe("x", lambda: 7)
        station.collect(interval_s=1)
        station.tick()

        assert station.values() == [{"max": 7}]

    def test_dropped_in_a_child(self, station):
        """A forked child does not ask the parent's callbacks: they may speak to a device that it must not touch."""
        asked = []
        station.observe("x", lambda: asked.append(1))
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
        """Counters and observations alone start nothing; the first collector does, and a second nothing more."""
        registry = make_threaded(lambda event: None)
        registry.counter("x").add(1)
        registry.observe("y", lambda: 1)
        before = len(samplers())
        registry.collect(interval_s=100)
        registry.collect(interval_s=100)
        after = len(samplers())

        assert registry.close()
        assert (before, after, len(samplers())) == (0, 1, 0)

    def test_ticks_by_itself(self):
        """With a thread, windows come without anybody asking, idle ones included."""
        published = threading.Event()
        windows = []

        def publish(window):
            windows.append(window)
            if len(windows) == 3:
                published.set()

        registry = make_threaded(publish)
        registry.counter("x").add(1)
        registry.collect(interval_s=0.01)

        assert published.wait(10)
        registry.close()
        assert [window.count for window in windows[:3]] == [0, 0, 0]
        assert isinstance(windows[0], CounterWindow)

    def test_a_shorter_interval_later(self):
        """A collector with a shorter interval does not wait for the longer one of an earlier collector."""
        published = threading.Event()
        registry = make_threaded(lambda window: published.set())
        registry.counter("x")
        registry.collect(interval_s=1000)
        registry.collect(interval_s=0.01)

        assert published.wait(10)
        registry.close()

    def test_stop_while_being_started(self, monkeypatch):
        """Whoever stops the thread in the moment when another starts it waits for its end, like anybody."""
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
        """A registry that is closed while somebody begins to collect has no thread afterwards."""
        registry = make_threaded(lambda window: None)

        class Interposed:
            """Lets the registry be closed when its lock is taken for the second time."""

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
        """A callback that blocks for ever costs close() its time and no window."""
        entered, release = threading.Event(), threading.Event()
        windows = []

        def block():
            entered.set()
            release.wait()

        registry = make_threaded(windows.append)
        registry.counter("x").add(1)
        registry.collect(interval_s=0.01)
        registry.observe("blocking", block)
        registry.counter("x").add(1)
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
        counter = registry.counter("x")
        assert entered.wait(10)
        counter.add(1)

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
        registry.counter("x")
        registry.collect(interval_s=0.01)

        assert closed.wait(10)
        assert results == [True]

    def test_goes_on_after_a_failure(self, monkeypatch):
        """Whatever goes wrong in one round, the next one comes."""
        monkeypatch.setattr(_sampler, "_PAUSE_S", 0.001)
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

    @pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
    def test_in_a_forked_child(self):
        """A child has no thread until somebody resumes it."""
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


class TestTypes:
    def test_observation(self, station):
        """To observe gives something to close, with its counter."""
        observation = station.observe("x", lambda: 1)

        assert isinstance(observation, Observation)
        assert observation.counter is station.counter("x")
