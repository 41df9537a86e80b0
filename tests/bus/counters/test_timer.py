"""Timing blocks, functions and coroutines."""

from __future__ import annotations

import asyncio
import threading

import pytest

from trackside.bus.counters import Aggregation, Counter
from trackside.events import ConfigError, clock

MS = 10**6


@pytest.fixture
def now():
    """Give a clock, as a list of one reading in ns, that moves when the test writes to it."""
    reading = [0]
    with clock.installed(lambda: reading[0]):
        yield reading


class TestBlock:
    @pytest.mark.parametrize(
        ("unit", "expected"), [("", 0.25), ("s", 0.25), ("ms", 250), ("us", 250_000), ("µs", 250_000)]
    )
    def test_in_the_counters_unit(self, now, unit, expected):
        """A block of 250 ms adds that in the counter's unit; in seconds where there is none."""
        counter = Counter("x", unit=unit)
        with counter.time():
            now[0] += 250 * MS

        assert (counter.count, counter.sum) == (1, expected)

    def test_ns_are_ints(self, now):
        """In ns nothing is rounded."""
        counter = Counter("x", unit="ns")
        with counter.time():
            now[0] += 2**60 + 1

        assert counter.sum == 2**60 + 1

    def test_wrong_unit(self):
        """A counter of bytes takes no times, and says so where it is asked to."""
        with pytest.raises(ConfigError, match=r"unit: got 'bytes'; counter 'x' cannot take times"):
            Counter("x", unit="bytes").time()

    def test_that_raises(self, now):
        """A block that raised adds nothing, and the error goes on its way."""
        counter = Counter("x")
        with pytest.raises(ValueError, match="boom"), counter.time():
            raise ValueError("boom")

        assert counter.count == 0

    def test_that_raises_and_counts(self, now):
        """Where failed blocks were asked for too, they are added, and the error goes on its way."""
        counter = Counter("x", unit="ms")

        def fail():
            now[0] += 3 * MS
            raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"), counter.time(failed=True):
            fail()

        assert counter.sum == 3

    def test_entered_again_inside(self, now):
        """A timer entered inside its own block adds both: 1 ms within 3 ms."""
        counter = Counter("x", unit="ms")
        timer = counter.time()
        with timer:
            now[0] += MS
            with timer:
                now[0] += MS
            now[0] += MS

        assert (counter.count, counter.sum) == (2, 4)


class TestFunction:
    def test_each_call(self, now):
        """A decorated function adds each call's time, and keeps name, arguments and result."""
        counter = Counter("x", unit="ms")

        @counter.time()
        def work(ms, *, plus):
            now[0] += ms * MS
            return ms + plus

        assert (work(2, plus=1), work(3, plus=1)) == (3, 4)
        assert (counter.count, counter.sum, work.__name__) == (2, 5, "work")

    def test_that_raises(self, now):
        """A call that raised is added only where that was asked for, and the error goes on its way."""
        counter = Counter("x", unit="ms")

        def fail():
            now[0] += 3 * MS
            raise ValueError("boom")

        for timer in (counter.time(), counter.time(failed=True)):
            with pytest.raises(ValueError, match="boom"):
                timer(fail)()

        assert (counter.count, counter.sum) == (1, 3)

    def test_recursion(self, now):
        """A function that calls itself adds each call with all that is in it: 3 + 2 + 1 ms."""
        counter = Counter("x", unit="ms")

        @counter.time()
        def down(depth):
            now[0] += MS
            if depth > 1:
                down(depth - 1)

        down(3)

        assert (counter.count, counter.sum) == (3, 6)

    def test_in_threads(self, now):
        """One decorated function serves several threads: one is in it from 0 to 2 ms, the other from 1 to 4."""
        counter = Counter("x", unit="ms", aggregations=(Aggregation.MIN, Aggregation.MAX))
        leave = [threading.Event(), threading.Event()]
        entered = [threading.Event(), threading.Event()]

        @counter.time()
        def work(index):
            entered[index].set()
            leave[index].wait()

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for index, thread in enumerate(threads):
            now[0] = index * MS
            thread.start()
            entered[index].wait()
        for index, thread in enumerate(threads):
            now[0] = (2 + 2 * index) * MS
            leave[index].set()
            thread.join()
        snapshot = counter.snapshot()

        assert (snapshot.count, snapshot.minimum, snapshot.maximum) == (2, 2, 3)

    def test_coroutine(self, now):
        """A coroutine function adds the time until it is done, its waits included."""
        counter = Counter("x", unit="ms")

        @counter.time()
        async def work():
            await asyncio.sleep(0)
            now[0] += 5 * MS
            await asyncio.sleep(0)
            return 7

        assert asyncio.run(work()) == 7
        assert counter.sum == 5

    def test_coroutines_interleaved(self, now):
        """Coroutines that take turns are timed each for itself: from 0 to 2 ms, and from 1 to 4."""
        counter = Counter("x", unit="ms", aggregations=(Aggregation.MIN, Aggregation.MAX))

        @counter.time()
        async def work(turns):
            for _ in range(turns):
                now[0] += MS
                await asyncio.sleep(0)

        async def both():
            await asyncio.gather(work(1), work(3))

        asyncio.run(both())
        snapshot = counter.snapshot()

        assert (snapshot.count, snapshot.minimum, snapshot.maximum) == (2, 2, 3)

    def test_generator(self):
        """To time a generator function would time nothing, and is refused."""

        def generate():
            yield 1

        with pytest.raises(ConfigError, match="with block"):
            Counter("x").time()(generate)
