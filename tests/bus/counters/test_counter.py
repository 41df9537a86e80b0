"""The counter: exact under threads and signals, bounded, and never a reason to stop training."""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import sys
import threading

import pytest

from trackside.bus.counters import Counter, _counter
from trackside.bus.counters._counter import FOLD_AT, FULL_AT
from trackside.events import clock


def filled(*values, **options):
    counter = Counter("x", **options)
    for value in values:
        counter.add(value)
    return counter


class TestAdd:
    def test_count_and_sum(self):
        """Three values have a count of 3 and their sum."""
        counter = filled(1, 2.5, 4)

        assert (counter.count, counter.sum) == (3, 7.5)

    def test_new(self):
        """A new counter is at zero and has no last value."""
        snapshot = filled().snapshot()

        assert (snapshot.count, snapshot.sum, snapshot.last, snapshot.minimum) == (0, 0, None, None)

    def test_beyond_the_buffer(self):
        """Nothing is lost where the buffer is folded: 5,000 values have count 5,000 and sum 12,497,500."""
        counter = filled(*range(5000))

        assert (counter.count, counter.sum) == (5000, 12_497_500)

    def test_memory_is_bounded(self):
        """With nobody to collect, no more than 1,024 samples wait."""
        counter = Counter("x")
        for value in range(10 * FOLD_AT):
            counter.add(value)
            assert len(counter._buffer) <= FOLD_AT

    def test_bound_is_the_one_documented(self):
        """The buffer is folded at FOLD_AT, which `add` has as a plain number."""
        counter = filled(*range(FOLD_AT))

        assert (len(counter._buffer), FOLD_AT in Counter.add.__code__.co_consts) == (FOLD_AT, True)
        counter.add(1)
        assert len(counter._buffer) == 1

    def test_ints_are_exact(self):
        """Bytes of a long job are counted to the last one."""
        assert filled(2**62, 2**62, 1).sum == 2**63 + 1

    def test_thousandths_do_not_drift(self):
        """A million times 0.001 is 1,000 but for the last bits of one chunk."""
        counter = Counter("x")
        for _ in range(1_000_000):
            counter.add(0.001)

        assert counter.sum == pytest.approx(1000, rel=1e-13)

    def test_infinity_is_a_value(self):
        """An overflowed loss is counted as what it is."""
        snapshot = filled(1.0, math.inf, aggregations=None).snapshot()

        assert (snapshot.count, snapshot.sum, snapshot.invalid) == (2, math.inf, 0)


class TestInvalid:
    def test_costs_one_sample(self):
        """NaN, None and a text are counted as invalid, and the others as ever."""
        snapshot = filled(1, math.nan, 2.0, None, "3", 4).snapshot()

        assert (snapshot.count, snapshot.sum, snapshot.invalid) == (3, 7, 3)

    def test_only_invalid(self):
        """A counter that never had a number has no last value."""
        snapshot = filled(math.nan).snapshot()

        assert (snapshot.count, snapshot.last, snapshot.invalid) == (0, None, 1)

    def test_said_once_a_minute(self, caplog):
        """Invalid samples are reported at once, then once a minute with their number."""
        now = [0]
        with clock.installed(lambda: now[0]), caplog.at_level(logging.WARNING, "trackside"):
            counter = filled(math.nan)
            counter.fold()
            for _ in range(3):
                counter.add(None)
                counter.fold()
            now[0] = 61 * 10**9
            counter.add("x")
            counter.fold()

        assert [record.getMessage() for record in caplog.records] == [
            "counter x left out 1 invalid sample(s): NaN is not a sample",
            "counter x left out 4 invalid sample(s): a str is not one number",
        ]

    def test_strict_raises_where_it_is_added(self, strict_station):
        """In strict mode the caller learns at once, and nothing is counted."""
        counter = strict_station.counter("x")
        counter.add(1)
        for value, error in ((math.nan, ValueError), ("3", TypeError), (None, TypeError), (10**400, OverflowError)):
            with pytest.raises(error):
                counter.add(value)

        assert (counter.count, counter.snapshot().invalid) == (1, 0)


class TestExtremes:
    def test_cumulative(self):
        """Where they were asked for, minimum and maximum are over all values."""
        snapshot = filled(3, -1, 2, aggregations=_all("min", "max")).snapshot()

        assert (snapshot.minimum, snapshot.maximum, snapshot.last) == (-1, 3, 2)

    def test_not_asked_for(self):
        """Where nobody asked, they are None and not something else."""
        snapshot = filled(3, -1).snapshot()

        assert (snapshot.minimum, snapshot.maximum) == (None, None)

    def test_asked_for_too_late(self, station):
        """Asked for after the first value, they would not be those of all values, and stay None."""
        counter = station.add("x", 3)
        counter.fold()
        station.counter("x", aggregations=["min"])
        counter.add(1)

        assert counter.snapshot().minimum is None

    def test_stay_when_the_collector_is_closed(self, station):
        """The report at the end still knows the extremes that a collector had asked for."""
        with station.collect(interval_s=1, aggregations=["max"]):
            station.add("x", 3, 8, 5)
        station.add("x", 11)

        assert station.counter("x").snapshot().maximum == 11


def _all(*names):
    from trackside.bus.counters._aggregation import in_order

    return in_order(names)


class TestThreads:
    @pytest.mark.parametrize(("threads", "each"), [(4, 100_000), (16, 20_000)])
    def test_exact(self, threads, each, in_threads):
        """No update of any thread is lost, however often they change places."""
        counter = Counter("x")

        def work(index):
            for value in range(each):
                counter.add(value)

        in_threads(threads, work)

        assert (counter.count, counter.sum) == (threads * each, threads * each * (each - 1) // 2)

    def test_exact_while_others_read(self, in_threads):
        """Readers see counts that only grow, and cost the writers nothing."""
        counter = Counter("x")
        backwards = []

        def work(index):
            if index < 4:
                for _ in range(30_000):
                    counter.add(1)
            else:
                seen = 0
                for _ in range(300):
                    snapshot = counter.snapshot()
                    if snapshot.count < seen or snapshot.sum != snapshot.count:
                        backwards.append(snapshot)
                    seen = snapshot.count

        in_threads(6, work)

        assert (counter.count, counter.sum, backwards) == (120_000, 120_000, [])


class TestSignals:
    def test_handler_that_adds(self):
        """A signal handler adds to the counter that it interrupted, again and again: no deadlock, no lost value."""
        counter = Counter("x", aggregations=_all("min", "max", "p99"))
        fired = added = 0

        def handle(_number, _frame):
            nonlocal fired
            fired += 1
            for _ in range(3 * FOLD_AT if fired % 50 == 0 else 3):
                counter.add(1)

        before = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        try:
            while fired < 200:
                counter.add(1)
                added += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

        assert counter.count == added + fired * 3 + (fired // 50) * (3 * FOLD_AT - 3)

    def test_reading_inside_a_fold(self, monkeypatch):
        """Code that runs in the middle of a fold may add and read; it reads what was folded before."""
        counter = Counter("x")
        seen = []

        class Reader:
            def __float__(self):
                counter.add(1)
                seen.append((counter.count, counter.sum, counter.snapshot().count))
                return 5.0

        counter.add(Reader())
        counter.fold()

        assert seen == [(0, 0, 0)]
        assert (counter.count, counter.sum) == (2, 6)

    def test_finalizers(self):
        """A finalizer that runs within add() may add to the same counter."""
        counter = Counter("x")

        class Dying:
            def __del__(self):
                counter.add(1)

        gc.disable()
        try:
            for _ in range(3000):
                dying = Dying()
                dying.itself = dying
                del dying
                counter.add(1)
        finally:
            gc.enable()
            gc.collect()

        assert counter.count == 6000


class Stuck:
    """A number that takes for ever to read."""

    def __init__(self):
        self.entered = threading.Event()
        self.release = threading.Event()

    def __float__(self):
        self.entered.set()
        self.release.wait()
        return 1.0


class TestStuckFold:
    @pytest.fixture
    def stuck(self, monkeypatch):
        """Give a sample whose reading ends when the test does."""
        monkeypatch.setattr(_counter, "PATIENCE_S", 0.01)
        stuck = Stuck()
        yield stuck
        stuck.release.set()

    def test_others_go_on(self, stuck):
        """While a fold hangs on another thread, adding does not."""
        counter = filled(stuck)
        folding = threading.Thread(target=counter.fold)
        folding.start()
        stuck.entered.wait()
        for _ in range(10 * FOLD_AT):
            counter.add(1)
        stuck.release.set()
        folding.join()

        assert (counter.count, counter.snapshot().refused) == (10 * FOLD_AT + 1, 0)

    def test_memory_is_bounded_and_the_rest_counted(self, stuck):
        """At most 65,536 samples wait for a fold that hangs; those refused are counted, and later ones are not."""
        counter = filled(stuck)
        folding = threading.Thread(target=counter.fold)
        folding.start()
        stuck.entered.wait()
        for _ in range(FULL_AT + 500):
            counter.add(1)
        waiting = len(counter._buffer)
        stuck.release.set()
        folding.join()
        counter.add(1)
        snapshot = counter.snapshot()

        assert (waiting, snapshot.refused, snapshot.count) == (FULL_AT, 500, FULL_AT + 2)

    def test_reading_does_not_hang(self, stuck):
        """Reading waits a second at most, then tells what was folded before."""
        counter = filled(1)
        counter.fold()
        counter.add(stuck)
        folding = threading.Thread(target=counter.fold)
        folding.start()
        stuck.entered.wait()

        assert (counter.count, counter.sum, counter.snapshot().count) == (1, 1, 1)
        stuck.release.set()
        folding.join()


class TestFork:
    def test_child_starts_at_zero(self, station):
        """After a fork the child's counters are at zero, the parent's go on."""
        counter = station.add("x", *range(2000))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            station.registry.after_fork()
            before = counter.count
            counter.add(7)
            os.write(write, f"{before} {counter.count} {counter.sum}".encode())
            os._exit(0)
        os.waitpid(child, 0)

        assert os.read(read, 100) == b"0 1 7"
        assert counter.count == 2000

    @pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
    def test_while_another_thread_folds(self, station):
        """A fork in the middle of another thread's fold leaves the child a counter that works."""
        stuck = Stuck()
        counter = station.add("x", stuck)
        folding = threading.Thread(target=counter.fold)
        folding.start()
        stuck.entered.wait()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            station.registry.after_fork()
            for _ in range(3 * FOLD_AT):
                counter.add(1)
            os.write(write, str(counter.count).encode())
            os._exit(0)
        stuck.release.set()
        folding.join()
        os.waitpid(child, 0)

        assert os.read(read, 100) == str(3 * FOLD_AT).encode()


class TestSize:
    def test_of_a_quiet_counter(self):
        """A counter that waits costs less than 2 KiB, so that a thousand of them cost nothing."""
        counter = Counter("x")
        parts = [counter, *(getattr(counter, slot) for slot in Counter.__slots__)]

        assert sum(map(sys.getsizeof, parts)) < 2048
