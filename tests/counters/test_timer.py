"""Timing blocks, functions and coroutines."""

from __future__ import annotations

import asyncio
import threading

import pytest

from trackside.counters import Aggregation, Stat
from trackside.events import ConfigError

MS = 10**6


class TestBlock:
    @pytest.mark.parametrize(
        ("unit", "expected"), [("", 0.25), ("s", 0.25), ("ms", 250), ("us", 250_000), ("µs", 250_000)]
    )
    def test_in_the_counters_unit(self, fake_clock, unit, expected):
        """A block of 250 ms adds that in the stat's unit, or in seconds if it has none."""
        stat = Stat("x", unit=unit)
        with stat.time():
            fake_clock.now_ns += 250 * MS

        assert (stat.count, stat.sum) == (1, expected)

    def test_ns_are_ints(self, fake_clock):
        """In ns nothing is rounded."""
        stat = Stat("x", unit="ns")
        with stat.time():
            fake_clock.now_ns += 2**60 + 1

        assert stat.sum == 2**60 + 1

    def test_wrong_unit(self):
        """A stat of bytes refuses times when the timer is made."""
        with pytest.raises(ConfigError, match=r"unit: got 'bytes'; stat 'x' cannot record durations"):
            Stat("x", unit="bytes").time()

    def test_that_raises(self, fake_clock):
        """A block that raised adds nothing, and the error reaches the caller."""
        stat = Stat("x")
        with pytest.raises(ValueError, match="boom"), stat.time():
            raise ValueError("boom")

        assert stat.count == 0

    def test_that_raises_and_counts(self, fake_clock):
        """If failed blocks were asked for too, they are added, and the error reaches the caller."""
        stat = Stat("x", unit="ms")

        def fail():
            fake_clock.now_ns += 3 * MS
            raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"), stat.time(failed=True):
            fail()

        assert stat.sum == 3

    def test_entered_again_inside(self, fake_clock):
        """A timer entered inside its own block adds both: 1 ms within 3 ms."""
        stat = Stat("x", unit="ms")
        timer = stat.time()
        with timer:
            fake_clock.now_ns += MS
            with timer:
                fake_clock.now_ns += MS
            fake_clock.now_ns += MS

        assert (stat.count, stat.sum) == (2, 4)


class TestFunction:
    def test_each_call(self, fake_clock):
        """A decorated function adds each call's time, and keeps name, arguments and result."""
        stat = Stat("x", unit="ms")

        @stat.time()
        def work(ms, *, plus):
            fake_clock.now_ns += ms * MS
            return ms + plus

        assert (work(2, plus=1), work(3, plus=1)) == (3, 4)
        assert (stat.count, stat.sum, work.__name__) == (2, 5, "work")

    def test_that_raises(self, fake_clock):
        """A call that raised is added only if that was asked for, and the error reaches the caller."""
        stat = Stat("x", unit="ms")

        def fail():
            fake_clock.now_ns += 3 * MS
            raise ValueError("boom")

        for timer in (stat.time(), stat.time(failed=True)):
            with pytest.raises(ValueError, match="boom"):
                timer(fail)()

        assert (stat.count, stat.sum) == (1, 3)

    def test_recursion(self, fake_clock):
        """A function that calls itself adds each call with all calls inside it: 3 + 2 + 1 ms."""
        stat = Stat("x", unit="ms")

        @stat.time()
        def down(depth):
            fake_clock.now_ns += MS
            if depth > 1:
                down(depth - 1)

        down(3)

        assert (stat.count, stat.sum) == (3, 6)

    def test_in_threads(self, fake_clock):
        """One decorated function serves several threads: one is in it from 0 to 2 ms, the other from 1 to 4."""
        stat = Stat("x", unit="ms", aggregations=(Aggregation.MIN, Aggregation.MAX))
        leave = [threading.Event(), threading.Event()]
        entered = [threading.Event(), threading.Event()]

        @stat.time()
        def work(index):
            entered[index].set()
            leave[index].wait()

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for index, thread in enumerate(threads):
            fake_clock.now_ns = index * MS
            thread.start()
            entered[index].wait()
        for index, thread in enumerate(threads):
            fake_clock.now_ns = (2 + 2 * index) * MS
            leave[index].set()
            thread.join()
        snapshot = stat.snapshot()

        assert (snapshot.count, snapshot.minimum, snapshot.maximum) == (2, 2, 3)

    def test_coroutine(self, fake_clock):
        """A coroutine function adds the time until it is done, its waits included."""
        stat = Stat("x", unit="ms")

        @stat.time()
        async def work():
            await asyncio.sleep(0)
            fake_clock.now_ns += 5 * MS
            await asyncio.sleep(0)
            return 7

        assert asyncio.run(work()) == 7
        assert stat.sum == 5

    def test_coroutines_interleaved(self, fake_clock):
        """Coroutines that run alternately are timed independently: from 0 to 2 ms, and from 1 to 4."""
        stat = Stat("x", unit="ms", aggregations=(Aggregation.MIN, Aggregation.MAX))

        @stat.time()
        async def work(times):
            for _ in range(times):
                fake_clock.now_ns += MS
                await asyncio.sleep(0)

        async def both():
            await asyncio.gather(work(1), work(3))

        asyncio.run(both())
        snapshot = stat.snapshot()

        assert (snapshot.count, snapshot.minimum, snapshot.maximum) == (2, 2, 3)

    def test_generator(self):
        """A timer refuses generator functions, whose calls take no time."""

        def generate():
            yield 1

        with pytest.raises(ConfigError, match="with block"):
            Stat("x").time()(generate)
