"""The compiled methods of sections do what the Python ones do that they stand for."""

from __future__ import annotations

import random
import sys
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from implementations import needs_core
from trackside.bus import Bus
from trackside.events import SectionWindow
from trackside.instruments._section import CHUNK, Section, sum_times
from trackside.instruments.section_windows import Sections

pytestmark = needs_core


@pytest.fixture
def sections():
    """Give sections whose windows somebody wants."""
    bus = Bus()
    with bus.subscribe(lambda _window: None, to=SectionWindow):
        made = Sections(bus)
        yield made
        made.close()
    bus.close()


def enter(section):
    """Enter *section* as the interpreter does: what is called with a tuple of arguments is left to Python."""
    return section.__enter__()


def leave(section, error):
    """Leave *section* so."""
    return section.__exit__(type(error) if error else None, error, None)


def leave_in_python(section, error):
    """Leave *section* by the Python method."""
    return Section.__exit__.__wrapped__(section, type(error) if error else None, error, None)


def outcome(method, *arguments):
    """Return what a call returned, the section itself left out, or raised."""
    try:
        return method(*arguments) is not None
    except Exception as error:
        return type(error), str(error).replace("Section.", "")


def state(section):
    """Return what the next call depends on: how much was timed, how deep it was entered, and whether time runs."""
    times = section._times
    return len(times.times), times.count, times.failed, len(section._outer or ()), section._start_ns > 0


@pytest.mark.parametrize("seed", range(30))
def test_does_what_python_does(sections, seed):
    """Any sequence of entering and leaving, with errors and with entries left out, leads to the same state."""
    chosen = random.Random(seed)
    for name in ("compiled", "python"):
        sections.section(name)
    compiled, python = sections.section("compiled"), Sections.section.__wrapped__(sections, "python")
    for _ in range(CHUNK * 3):
        act = chosen.random()
        if act < 0.55:
            assert outcome(enter, compiled) == outcome(Section.__enter__.__wrapped__, python)
        elif act < 0.98:
            error = ValueError() if chosen.random() < 0.1 else None
            assert outcome(leave, compiled, error) == outcome(leave_in_python, python, error)
            if chosen.random() < 0.5:
                while compiled._start_ns:
                    compiled.__exit__(None, None, None)
                    Section.__exit__.__wrapped__(python, None, None, None)
        elif act < 0.99:
            assert outcome(compiled.__exit__, 1) == outcome(Section.__exit__.__wrapped__, python, 1)
        else:
            compiled._times.every = python._times.every = chosen.choice((0, 1, 1, 1, 2))
        assert state(compiled) == state(python)


def test_times_are_the_clocks(sections):
    """Each time lies between none and what passed around it; a thousand of them do not add up to more."""
    section = sections.section("known")
    before_ns = time.monotonic_ns()
    for _ in range(CHUNK - 1):
        with sections.section("known"):
            pass
    passed_ns = time.monotonic_ns() - before_ns
    times = section._times.times
    assert (len(times), min(times) >= 0, 0 < sum(times) <= passed_ns) == (CHUNK - 1, True, True)


def test_hold_on_to_nothing(sections):
    """Sections that are gone, closed or open, refer to nothing any more: not to their times."""
    times = sections.section("kept")._times
    holders = sys.getrefcount(times)
    opened = [sections.section("kept") for _ in range(5000)]
    for section in opened:
        section.__enter__()
    assert sys.getrefcount(times) == holders + 5000
    del section, opened
    for _ in range(10 * CHUNK):
        with sections.section("kept"):
            pass
    assert (sys.getrefcount(times), times.count) == (holders, 10 * CHUNK)


@given(st.lists(st.integers(-1, 1 << 43) | st.sampled_from([0, 1, (1 << 42) - 1, 1 << 42, 1 << 70]), min_size=1))
@example([(1 << 42) - 1] * CHUNK)
@example([1 << 62, 5])
def test_sums(times):
    """The sums and the extremes are those that Python's numbers without a limit give."""
    assert sum_times(times) == sum_times.__wrapped__(times)
    assert sum_times(times)[1] == sum(time**2 for time in times)
