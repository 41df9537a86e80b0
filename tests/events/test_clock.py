"""Wall time that never runs backwards."""

from __future__ import annotations

import random

import pytest

from trackside.events import IterationEnded, SpanEventAdded, clock

HOUR_NS = 3_600_000_000_000
NOON_NS = 1_800_000_000_000_000_000


class Machine:
    """A machine whose clocks a test sets: true time, and the error of the wall clock."""

    def __init__(self):
        self.elapsed_ns = 0
        self.wall_error_ns = 0

    def monotonic(self):
        """Read the monotonic clock."""
        return 555 + self.elapsed_ns

    def wall(self):
        """Read the wall clock."""
        return NOON_NS + self.elapsed_ns + self.wall_error_ns


@pytest.fixture
def machine():
    """Give a machine on whose clocks the process runs."""
    machine = Machine()
    with clock.installed(machine.monotonic, machine.wall):
        yield machine


def tick():
    return SpanEventAdded(name="tick").at_ns


class TestTime:
    def test_anchored(self, machine):
        """Time starts at the wall clock's reading."""
        assert tick() == NOON_NS

    def test_advances(self, machine):
        """It goes on as the monotonic clock does."""
        machine.elapsed_ns += 7
        assert (tick(), clock.now_ns()) == (NOON_NS + 7, NOON_NS + 7)

    @pytest.mark.parametrize("jump_ns", [HOUR_NS, -HOUR_NS, 1_000_000_000, -1_000_000_000])
    def test_jump(self, machine, jump_ns):
        """A wall clock that jumps changes neither order nor durations."""
        times = [tick()]
        for _ in range(3):
            machine.elapsed_ns += 1000
            machine.wall_error_ns += jump_ns
            times.append(tick())
        assert times == [NOON_NS, NOON_NS + 1000, NOON_NS + 2000, NOON_NS + 3000]

    def test_random_jumps(self, machine, rng):
        """The same holds however often and far it jumps."""
        before = tick()
        for _ in range(1000):
            step_ns = rng.randrange(1, 10**9)
            machine.elapsed_ns += step_ns
            machine.wall_error_ns += rng.randrange(-HOUR_NS, HOUR_NS)
            now = tick()
            assert now - before == step_ns
            before = now

    def test_drift(self, machine):
        """A wall clock 200 ppm fast does not lengthen a second."""
        before = tick()
        machine.elapsed_ns += 10**9
        machine.wall_error_ns += 200_000
        assert tick() - before == 10**9

    def test_real(self):
        """On the machine's own clocks time never runs backwards."""
        times = [IterationEnded(duration_ns=1).at_ns for _ in range(10_000)]
        assert times == sorted(times)


class TestInstalled:
    def test_undone(self):
        """Afterwards the process has its own clock and anchor again."""
        before = clock.process_anchor, clock.offset_ns, clock.monotonic_ns
        with clock.installed(lambda: 0, lambda: 0):
            assert tick() == 0
        assert (clock.process_anchor, clock.offset_ns, clock.monotonic_ns) == before
        assert tick() > NOON_NS / 2

    def test_undone_after_an_error(self):
        """The same holds if the block fails."""
        before = clock.process_anchor
        with pytest.raises(ZeroDivisionError), clock.installed(lambda: 0, lambda: 0):
            raise ZeroDivisionError
        assert clock.process_anchor is before
        assert tick() > NOON_NS / 2

    def test_nested(self):
        """Clocks can be installed within one another."""
        with clock.installed(lambda: 0, lambda: 1):
            with clock.installed(lambda: 0, lambda: 2):
                assert tick() == 2
            assert tick() == 1

    def test_events_follow(self):
        """A follower that keeps a copy of the clock is called at each change."""
        recorded = []
        clock.follow(lambda monotonic, offset_ns: recorded.append(offset_ns))
        try:
            with clock.installed(lambda: 3, lambda: 10):
                pass
        finally:
            clock._followers.pop()
        assert recorded == [7, clock.offset_ns]


class TestReadAnchor:
    def test_tightest(self):
        """Of several readings the one that took least counts, and half of its duration is its uncertainty."""
        monotonic = iter([0, 100, 200, 210, 300, 390]).__next__
        wall = iter([1_000, 1_205, 1_345]).__next__
        assert clock.read_anchor(monotonic, wall, tries=3) == clock.Anchor(205, 1_205, 5)

    def test_first_of_equals(self):
        """Of equally tight readings the first counts."""
        monotonic = iter([0, 10, 20, 30]).__next__
        wall = iter([1, 2]).__next__
        assert clock.read_anchor(monotonic, wall, tries=2) == clock.Anchor(5, 1, 5)

    def test_uncertainty(self, seed):
        """The true wall time at the anchor is never further off than the uncertainty says."""
        rng = random.Random(seed)
        now = 0

        def follow():
            nonlocal now
            now += rng.randrange(1, 1000)
            return now

        for _ in range(100):
            anchor = clock.read_anchor(follow, lambda: follow() + NOON_NS)
            assert abs(anchor.wall_ns - NOON_NS - anchor.mono_ns) <= anchor.uncertainty_ns + 1
