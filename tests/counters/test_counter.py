"""The stat: exact under threads and signals, bounded, and it never raises in training."""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import sys
import threading

import pytest

from implementations import pure
from trackside._free_threading import FREE_THREADED
from trackside.counters import Counter, Instrument, Stat, _instruments
from trackside.counters._instruments import FOLD_AT, FULL_AT
from trackside.events import clock


def filled(*values, **options):
    stat = Stat("x", **options)
    for value in values:
        stat.record(value)
    return stat


class TestAdd:
    def test_count_and_sum(self):
        """Three values have a count of 3 and their sum."""
        stat = filled(1, 2.5, 4)

        assert (stat.count, stat.sum) == (3, 7.5)

    def test_new(self):
        """A new stat is at zero and has no last value."""
        snapshot = filled().snapshot()

        assert (snapshot.count, snapshot.sum, snapshot.last, snapshot.minimum) == (0, 0, None, None)

    def test_beyond_the_buffer(self):
        """No sample is lost where the buffer is folded: 5,000 values have count 5,000 and sum 12,497,500."""
        stat = filled(*range(5000))

        assert (stat.count, stat.sum) == (5000, 12_497_500)

    def test_memory_is_bounded(self):
        """Without a collector, no more than 1,024 samples wait."""
        stat = Stat("x")
        for value in range(10 * FOLD_AT):
            stat.record(value)
            assert stat.waiting <= FOLD_AT

    def test_bound_is_the_one_documented(self):
        """The buffer is folded at FOLD_AT, which `add` has as a plain number."""
        stat = filled(*range(FOLD_AT))
        in_python = pure("trackside.counters._instruments").Stat.record

        assert (stat.waiting, FOLD_AT in in_python.__code__.co_consts) == (FOLD_AT, True)
        stat.record(1)
        assert stat.waiting == 1

    def test_ints_are_exact(self):
        """Bytes of a long job are counted to the last one."""
        assert filled(2**62, 2**62, 1).sum == 2**63 + 1

    def test_thousandths_do_not_drift(self):
        """A million times 0.001 is 1,000 but for the last bits of one chunk."""
        stat = Stat("x")
        for _ in range(1_000_000):
            stat.record(0.001)

        assert stat.sum == pytest.approx(1000, rel=1e-13)

    def test_infinity_is_a_value(self):
        """An infinite loss is counted as infinite."""
        snapshot = filled(1.0, math.inf, aggregations=None).snapshot()

        assert (snapshot.count, snapshot.sum, snapshot.invalid) == (2, math.inf, 0)


class TestInvalid:
    def test_costs_one_sample(self):
        """NaN, None and a text are counted as invalid, and the others as ever."""
        snapshot = filled(1, math.nan, 2.0, None, "3", 4).snapshot()

        assert (snapshot.count, snapshot.sum, snapshot.invalid) == (3, 7, 3)

    def test_only_invalid(self):
        """A stat that never had a number has no last value."""
        snapshot = filled(math.nan).snapshot()

        assert (snapshot.count, snapshot.last, snapshot.invalid) == (0, None, 1)

    def test_said_once_a_minute(self, caplog):
        """Invalid samples are reported at once, then once a minute with their number."""
        now = [0]
        with clock.installed(lambda: now[0]), caplog.at_level(logging.WARNING, "trackside"):
            stat = filled(math.nan)
            stat.fold()
            for _ in range(3):
                stat.record(None)
                stat.fold()
            now[0] = 61 * 10**9
            stat.record("x")
            stat.fold()

        assert [record.getMessage() for record in caplog.records] == [
            "stat x left out 1 invalid sample(s) so far: NaN is not a sample",
            "stat x left out 5 invalid sample(s) so far: a str is not one number (3 more since the last report)",
        ]

    def test_strict_raises_where_it_is_added(self, strict_station):
        """In strict mode an invalid sample raises, and nothing is counted."""
        stat = strict_station.stat("x")
        stat.record(1)
        for value, error in ((math.nan, ValueError), ("3", TypeError), (None, TypeError), (10**400, OverflowError)):
            with pytest.raises(error):
                stat.record(value)

        assert (stat.count, stat.snapshot().invalid) == (1, 0)


class TestExtremes:
    def test_cumulative(self):
        """If they were declared, minimum and maximum are over all values."""
        snapshot = filled(3, -1, 2, aggregations=_all("min", "max")).snapshot()

        assert (snapshot.minimum, snapshot.maximum, snapshot.last) == (-1, 3, 2)

    def test_not_asked_for(self):
        """If they were not declared, they are None."""
        snapshot = filled(3, -1).snapshot()

        assert (snapshot.minimum, snapshot.maximum) == (None, None)

    def test_asked_for_too_late(self, station):
        """Declared after the first value, they would not be those of all values, and stay None."""
        stat = station.add("x", 3)
        stat.fold()
        station.stat("x", aggregations=["min"])
        stat.record(1)

        assert stat.snapshot().minimum is None

    def test_stay_when_the_collector_is_closed(self, station):
        """The report at the end still has the extremes that a collector had asked for."""
        with station.collect(interval_s=1, aggregations=["max"]):
            station.add("x", 3, 8, 5)
        station.add("x", 11)

        assert station.stat("x").snapshot().maximum == 11


def _all(*names):
    from trackside.counters._aggregation import in_order

    return in_order(names)


class TestThreads:
    @pytest.mark.parametrize(("threads", "each"), [(4, 100_000), (16, 20_000)])
    def test_exact(self, threads, each, in_threads):
        """No update of any thread is lost, however often threads switch."""
        stat = Stat("x")

        def work(index):
            for value in range(each):
                stat.record(value)

        in_threads(threads, work)

        assert (stat.count, stat.sum) == (threads * each, threads * each * (each - 1) // 2)

    def test_exact_while_others_read(self, in_threads):
        """Readers see counts that only grow, and do not delay the writers."""
        stat = Stat("x")
        backwards = []

        def work(index):
            if index < 4:
                for _ in range(30_000):
                    stat.record(1)
            else:
                seen = 0
                for _ in range(300):
                    snapshot = stat.snapshot()
                    if snapshot.count < seen or snapshot.sum != snapshot.count:
                        backwards.append(snapshot)
                    seen = snapshot.count

        in_threads(6, work)

        assert (stat.count, stat.sum, backwards) == (120_000, 120_000, [])


class TestSignals:
    def test_handler_that_adds(self):
        """A signal handler adds to the stat that it interrupted, again and again: no deadlock, no lost value."""
        stat = Stat("x", aggregations=_all("min", "max", "p99"))
        fired = added = 0

        def handle(_number, _frame):
            nonlocal fired
            signal.setitimer(signal.ITIMER_REAL, 0)  # a slow interpreter would never leave the handler
            fired += 1
            for _ in range(3 * FOLD_AT if fired % 50 == 0 else 3):
                stat.record(1)
            signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.1)  # again: Python 3.11 may overlook one until the next

        before = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.1)
        try:
            while fired < 200:
                stat.record(1)
                added += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

        assert stat.count == added + fired * 3 + (fired // 50) * (3 * FOLD_AT - 3)

    def test_reading_inside_a_fold(self, monkeypatch):
        """Code that runs in the middle of a fold may add and read; it reads the totals before the fold."""
        stat = Stat("x")
        seen = []

        class Reader:
            def __float__(self):
                stat.record(1)
                seen.append((stat.count, stat.sum, stat.snapshot().count))
                return 5.0

        stat.record(Reader())
        stat.fold()

        assert seen == [(0, 0, 0)]
        assert (stat.count, stat.sum) == (2, 6)

    def test_finalizers(self):
        """A finalizer that runs within add() may add to the same stat."""
        stat = Stat("x")

        class Dying:
            def __del__(self):
                stat.record(1)

        gc.disable()
        try:
            for _ in range(3000):
                dying = Dying()
                dying.itself = dying
                del dying
                stat.record(1)
        finally:
            gc.enable()
            gc.collect()

        assert stat.count == 6000


class Stuck:
    """A number whose reading takes for ever."""

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
        monkeypatch.setattr(_instruments, "LOCK_TIMEOUT_S", 0.01)
        stuck = Stuck()
        yield stuck
        stuck.release.set()

    def test_others_go_on(self, stuck):
        """While a fold hangs on another thread, adding does not."""
        stat = filled(stuck)
        folding = threading.Thread(target=stat.fold)
        folding.start()
        stuck.entered.wait()
        for _ in range(10 * FOLD_AT):
            stat.record(1)
        stuck.release.set()
        folding.join()

        assert (stat.count, stat.snapshot().refused) == (10 * FOLD_AT + 1, 0)

    def test_memory_is_bounded_and_the_rest_counted(self, stuck):
        """At most 65,536 samples wait for a fold that hangs; those refused are counted, and later ones are not."""
        stat = filled(stuck)
        folding = threading.Thread(target=stat.fold)
        folding.start()
        stuck.entered.wait()
        for _ in range(FULL_AT + 500):
            stat.record(1)
        waiting = stat.waiting
        stuck.release.set()
        folding.join()
        stat.record(1)
        snapshot = stat.snapshot()

        assert (waiting, snapshot.refused, snapshot.count) == (FULL_AT, 500, FULL_AT + 2)

    @pytest.mark.parametrize("lanes", [1, 127])
    def test_memory_of_threads(self, lanes, stuck, in_threads, monkeypatch):
        """As many wait at most when two threads add, also in one lane; those refused are counted, and none is lost."""
        monkeypatch.setattr(_instruments, "LANES", lanes)
        counter = Counter("x")
        counter.add(stuck)
        folding = threading.Thread(target=counter.fold)
        folding.start()
        stuck.entered.wait()
        in_threads(2, lambda _: [counter.add(1) for _ in range(FULL_AT)])
        waiting = counter.waiting
        stuck.release.set()
        folding.join()
        snapshot = counter.snapshot()

        assert FOLD_AT < waiting <= FULL_AT + 1  # two that ask at the same moment may both be let in
        assert snapshot.count == 1 + waiting
        assert snapshot.refused == 2 * FULL_AT - waiting

    @pytest.mark.skipif(not FREE_THREADED, reason="there is an interpreter lock")
    def test_asks_rarely(self, stuck, monkeypatch):
        """A thread that adds while another one folds looks for room at 8 samples in 1,024, not at each."""
        counter = Counter("x")
        counter.add(stuck)
        folding = threading.Thread(target=counter.fold)
        folding.start()
        stuck.entered.wait()
        asked = []
        make_room = Counter._make_room
        monkeypatch.setattr(Counter, "_make_room", lambda *args: asked.append(1) or make_room(*args))
        for _ in range(5 * FOLD_AT):
            counter.add(1)
        stuck.release.set()
        folding.join()

        assert 4 * 8 <= len(asked) <= 5 * 8  # the one that is being read may still be among those that wait
        assert counter.count == 1 + 5 * FOLD_AT

    def test_reading_does_not_hang(self, stuck):
        """Reading waits a second at most, then returns the totals before the fold."""
        stat = filled(1)
        stat.fold()
        stat.record(stuck)
        folding = threading.Thread(target=stat.fold)
        folding.start()
        stuck.entered.wait()

        assert (stat.count, stat.sum, stat.snapshot().count) == (1, 1, 1)
        stuck.release.set()
        folding.join()


class TestFork:
    def test_child_starts_at_zero(self, station):
        """After a fork the child's counters are at zero, the parent's go on."""
        stat = station.add("x", *range(2000))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            station.registry.after_fork()
            before = stat.count
            stat.record(7)
            os.write(write, f"{before} {stat.count} {stat.sum}".encode())
            os._exit(0)
        os.waitpid(child, 0)

        assert os.read(read, 100) == b"0 1 7"
        assert stat.count == 2000

    def test_while_another_thread_folds(self, station):
        """A fork in the middle of another thread's fold leaves the child a stat that works."""
        stuck = Stuck()
        stat = station.add("x", stuck)
        folding = threading.Thread(target=stat.fold)
        folding.start()
        stuck.entered.wait()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            station.registry.after_fork()
            for _ in range(3 * FOLD_AT):
                stat.record(1)
            os.write(write, str(stat.count).encode())
            os._exit(0)
        stuck.release.set()
        folding.join()
        os.waitpid(child, 0)

        assert os.read(read, 100) == str(3 * FOLD_AT).encode()


class TestSize:
    def test_of_a_quiet_counter(self):
        """An idle stat takes less than 2 KiB, so that a thousand of them are affordable."""
        stat = Stat("x")
        parts = [stat, *(getattr(stat, slot) for slot in Instrument.__slots__)]

        assert sum(map(sys.getsizeof, parts)) < 2048
