"""Exceptions of the program's own signal handlers inside the calls of instruments and collectors."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from interrupting import Interruption, interrupter
from trackside.counters import CounterRegistry

pytestmark = [
    pytest.mark.hang_guard(40),
    pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 runs signal handlers between any two steps"),
]
TIMES = 300


@pytest.fixture
def windows():
    return []


@pytest.fixture
def registry(windows):
    return CounterRegistry(publish=windows.append, wants=lambda _: True, threaded=False)


class TestInstruments:
    @pytest.mark.parametrize(("kind", "verb"), [("counter", "add"), ("stat", "record"), ("gauge", "set")])
    def test_recording(self, registry, kind, verb):
        """Each exception inside add(), record() or set() comes out, and no sample of another call is lost."""
        instrument = getattr(registry, kind)("x")
        record = getattr(instrument, verb)
        with interrupter() as handler:
            outcome = handler.interrupt(lambda: record(1), TIMES)
        assert outcome.came == outcome.raised == TIMES
        assert outcome.done <= instrument.count <= outcome.calls
        assert instrument.sum == instrument.count

    @pytest.mark.parametrize("read", ["count", "snapshot", "declare"])
    def test_reading(self, registry, read):
        """Each exception inside what reads or declares comes out, and every sample is counted once."""
        stat = registry.stat("x")
        call = {
            "count": lambda: stat.count,
            "snapshot": stat.snapshot,
            "declare": lambda: registry.stat("x", unit="s", aggregations=["max", "p99"]),
        }[read]

        def record_and_read():
            stat.record(2.0)
            call()

        with interrupter() as handler:
            outcome = handler.interrupt(record_and_read, TIMES)
        assert outcome.came == outcome.raised == TIMES
        assert outcome.done <= stat.count <= outcome.calls
        assert stat.sum == 2 * stat.count

    def test_other_threads_can_read(self, registry):
        """A fold that an exception interrupted leaves nothing locked: another thread folds at once."""
        stat = registry.stat("x")
        with interrupter() as handler:
            handler.interrupt(lambda: (stat.record(1), stat.count), TIMES)
        folded = []
        thread = threading.Thread(target=lambda: folded.append(stat.fold()))
        thread.start()
        thread.join(20)
        assert folded == [True]


class TestWindows:
    @pytest.mark.parametrize("options", [{"count": 7}, {"interval_s": 1000.0}], ids=["samples", "time"])
    def test_sums(self, registry, windows, options):
        """The windows of an interrupted instrument add up to its total: no sample is in two, or in none."""
        raw = []
        counter = registry.counter("x", aggregations=["sum", "max", "stddev", "p99"])
        registry.collect(**options, raw=lambda _name, samples: raw.extend(samples))

        def record_and_fold():
            counter.add(3)
            counter.fold()

        with interrupter() as handler:
            outcome = handler.interrupt(record_and_fold, TIMES)
        assert registry.close(20)
        assert outcome.came == outcome.raised == TIMES
        assert sum(window.count for window in windows) == counter.count == len(raw)
        assert outcome.done <= counter.count <= outcome.calls
        assert windows[-1].total_count == counter.count
        assert windows[-1].total_sum == 3 * counter.count

    def test_of_a_flush(self, windows):
        """An exception that a signal handler raises while a window is published comes out of flush()."""

        def publish(_window):
            signal_handler(0, None)

        def signal_handler(_number, _frame):
            raise Interruption

        before = signal.signal(signal.SIGUSR1, signal_handler)
        try:
            registry = CounterRegistry(publish=publish, wants=lambda _: True, threaded=False)
            counter = registry.counter("x")
            registry.collect(count=1)
            counter.add(1)
            with pytest.raises(Interruption):
                registry.flush(5)
        finally:
            signal.signal(signal.SIGUSR1, before)

    def test_close_again(self, registry, windows):
        """A second close() does the rest of one that an exception interrupted."""
        counter = registry.counter("x")
        registry.collect(interval_s=1000.0)
        counter.add(5)
        finish = type(next(iter(registry._collectors))).finish
        calls = []

        def interrupted(self, *args, **options):
            calls.append(1)
            if len(calls) == 1:
                raise Interruption
            return finish(self, *args, **options)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(next(iter(registry._collectors))), "finish", interrupted)
            with pytest.raises(Interruption):
                registry.close(5)
            assert registry.close(5)
        assert [window.total_sum for window in windows] == [5]
