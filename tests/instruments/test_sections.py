from __future__ import annotations

import asyncio
import contextlib
import os
import threading

import pytest

from trackside.bus import Bus, default_bus
from trackside.events import ConfigError, IterationEnded, SectionWindow
from trackside.handlers import Capture
from trackside.instruments import section_windows as module
from trackside.instruments import training_iteration
from trackside.instruments.section_windows import Sections


@pytest.fixture
def bus():
    with_it = Bus(strict=True)
    yield with_it
    with_it.close()


@pytest.fixture
def windows(bus):
    found = Capture()
    with bus.subscribe(found, to=SectionWindow):
        yield found.events


@pytest.fixture
def sections(bus, windows, ticking):
    made = Sections(bus)
    made.configure(window_steps=2)
    yield made
    made.close()


@pytest.fixture
def run(sections, ticking):
    """Run some steps; in each, a section takes the next of the given times."""

    def steps(*durations, first=0, name="s"):
        for step, duration in enumerate(durations, start=first):
            with sections.section(name):
                ticking.now_ns += duration
            sections.step_ended(step)

    return steps


def row(event, name="s"):
    """Return count, entries, minimum, maximum, median, mean and deviation of one section."""
    index = event.names.index(name)
    columns = (
        event.counts,
        event.entries,
        event.min_ns,
        event.max_ns,
        event.median_ns,
        event.mean_ns,
        event.std_ns,
    )
    return tuple(column[index] for column in columns)


class TestWindows:
    def test_statistics(self, run, windows):
        """A window carries the statistics of each section."""
        run(10, 30)
        assert [row(event) for event in windows] == [(2, 2, 10, 30, 20, 20, 10)]

    def test_numbers_and_steps(self, run, windows):
        """With windows in steps, a window is numbered by its first step, the same on all ranks."""
        run(1, 1, 1, 1, first=6)
        assert [(event.window, event.first_step, event.last_step, event.step) for event in windows] == [
            (3, 6, 7, 7),
            (4, 8, 9, 9),
        ]

    def test_starts_in_the_middle(self, run, windows):
        """The first window of a job that resumes in the middle of one is marked."""
        run(1, first=7)
        assert [(event.window, event.first_step, event.last_step) for event in windows] == [(3, 7, 7)]

    def test_jump(self, run, windows):
        """A step that belongs to another window closes the one before, as after a roll-back."""
        run(1, first=8)
        run(1, first=2)
        assert [(event.window, event.first_step, event.last_step) for event in windows] == [(4, 8, 8)]

    def test_bounds(self, run, windows, ticking):
        """A window begins where the one before ended."""
        run(10, 20, 30, 40)
        assert [event.at_ns - event.start_ns for event in windows] == [30, 70]

    def test_by_seconds(self, sections, run, windows):
        """With windows in seconds, a window ends with the first step in the next one."""
        sections.configure(window_s=1e-6)
        run(400, 400, 400, 400)
        # The clock begins at 11 s sharp; the third step ends 1,200 ns later.
        assert [(event.window, event.first_step, event.last_step) for event in windows] == [(11_000_000, 0, 1)]

    def test_empty(self, sections, windows):
        """A window in which no section was entered is published too: it shows that the rank is alive."""
        with sections.section("s"):
            pass
        for step in range(4):
            sections.step_ended(step)
        assert [event.names for event in windows] == [["s"], []]

    def test_close_window(self, run, sections, windows):
        """The last window can be published early."""
        run(10)
        sections.close_window()
        assert [(event.first_step, event.last_step) for event in windows] == [(0, 0)]

    def test_iterations(self, sections, windows, bus, ticking):
        """Windows close with training iterations, and with no others."""
        with sections.section("s"):
            ticking.now_ns += 5
        for kind, step in (("training", 0), ("validation", 1), ("training", 1)):
            assert windows == []
            bus.log(IterationEnded(kind=kind, step=step, duration_ns=1))
        assert [event.last_step for event in windows] == [1]

    def test_groups(self, sections, run, windows):
        """The rank's host and ranks are in its windows."""
        sections.configure(groups={"pipeline_stage": 3})
        run(1, 1)
        assert windows[0].groups == {"pipeline_stage": "3"}

    def test_handler_that_uses_sections(self, bus, sections, run):
        """The handler that receives a window may enter sections."""
        seen = []

        def receive(event):
            with sections.section("new"):
                seen.append(event.window)

        with bus.subscribe(receive, to=SectionWindow):
            run(1, 1)
        assert seen == [0]


class TestEntering:
    def test_nested(self, sections, windows, ticking):
        """Sections may be nested."""
        with sections.section("outer"):
            ticking.now_ns += 1
            with sections.section("inner"):
                ticking.now_ns += 10
        sections.step_ended(1)
        assert (row(windows[0], "outer")[2], row(windows[0], "inner")[2]) == (11, 10)

    def test_same_object_within_itself(self, sections, windows, ticking):
        """One object may be entered again inside its own block, at any depth."""
        one = sections.section("s")
        with one:
            ticking.now_ns += 1
            with one:
                ticking.now_ns += 10
                with one:
                    ticking.now_ns += 100
            ticking.now_ns += 1000
        sections.step_ended(1)
        assert row(windows[0])[:6] == (3, 3, 100, 1111, 110, pytest.approx(1321 / 3))

    def test_exception(self, sections, windows, ticking):
        """A block that raises is an entry without a time."""
        with contextlib.suppress(KeyError), sections.section("s"):
            ticking.now_ns += 5
            raise KeyError
        with sections.section("s"):
            ticking.now_ns += 7
        sections.step_ended(1)
        assert row(windows[0])[:3] == (1, 2, 7)

    def test_exception_passes(self, sections):
        """An exception raised inside reaches the caller."""
        one = sections.section("s")
        error = KeyError("x")
        with pytest.raises(KeyError) as found, one:
            raise error
        assert found.value is error

    def test_decorator(self, sections, windows, ticking):
        """As a decorator it times each call, of recursive functions too."""

        @sections.section("s")
        def count_down(number):
            ticking.now_ns += 1
            return number and count_down(number - 1)

        assert count_down(2) == 0
        sections.step_ended(1)
        assert row(windows[0])[:4] == (3, 3, 1, 3)

    def test_coroutine(self, sections, windows, ticking):
        """A coroutine function is timed while it runs."""

        @sections.section("s")
        async def work():
            await asyncio.sleep(0)
            ticking.now_ns += 9

        asyncio.run(work())
        sections.step_ended(1)
        assert row(windows[0])[2] == 9

    def test_generator(self, sections):
        """A generator function is refused: calling it does not run its body."""
        with pytest.raises(ConfigError, match="with block"):

            @sections.section("s")
            def numbers():
                yield 1

    def test_threads(self, sections, windows, ticking):
        """Several threads time one section at the same time."""
        barrier = threading.Barrier(3)

        @sections.section("s")
        def work():
            barrier.wait()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sections.step_ended(1)
        assert row(windows[0])[0] == 3


class TestNames:
    def test_location(self, sections, windows):
        """An unnamed section is named after the file and line of its caller."""
        with sections.section():
            pass
        sections.step_ended(1)
        (name,) = windows[0].names
        file, _, line = name.partition(":")
        assert (file, line.isdigit()) == ("test_sections.py", True)

    def test_once_per_call_site(self, sections, windows):
        """An unnamed section in a loop is one section; another line makes another."""
        for _ in range(3):
            with sections.section():
                pass
        with sections.section():
            pass
        sections.step_ended(1)
        assert windows[0].counts == [3, 1]

    def test_too_many(self, sections, windows):
        """Names beyond the limit are not timed, and are counted."""
        for number in range(module.MAX_SECTIONS + 2):
            for _ in range(2):
                with sections.section(f"s{number}"):
                    pass
        sections.step_ended(1)
        assert (len(windows[0].names), windows[0].dropped) == (module.MAX_SECTIONS, 2)

    def test_long(self, sections, windows):
        """A long name is cut."""
        with sections.section("x" * 1000):
            pass
        sections.step_ended(1)
        assert windows[0].names == ["x" * module.MAX_NAME_LENGTH]


class TestProfilingInterval:
    def test_every_second(self, sections, run, windows):
        """Every second entry is timed, the first one included, and all are counted."""
        sections.configure(window_steps=4, profiling_interval=2)
        run(10, 1, 30, 1)
        assert row(windows[0])[:4] == (2, 4, 10, 30)

    def test_goes_on(self, sections, run, windows):
        """The count of entries runs on from window to window."""
        sections.configure(window_steps=3, profiling_interval=2)
        run(10, 1, 30, 1, 50, 1)
        assert [row(event)[:4] for event in windows] == [(2, 3, 10, 30), (1, 3, 50, 50)]

    def test_none(self, sections, run, windows):
        """An interval of 0 times nothing."""
        sections.configure(profiling_interval=0)
        run(10, 10)
        assert windows[0].names == []

    def test_while_running(self, sections, run, windows):
        """It can be changed between windows."""
        run(10, 10)
        sections.configure(profiling_interval=2)
        run(10, 10, first=2)
        assert [row(event)[:2] for event in windows] == [(2, 2), (1, 2)]

    def test_within_itself(self, sections, ticking, windows):
        """Skipped entries nest like timed ones."""
        sections.configure(profiling_interval=2)
        one = sections.section("s")
        with one:
            ticking.now_ns += 1
            with one:
                ticking.now_ns += 10
                with one:
                    ticking.now_ns += 100
        sections.step_ended(1)
        assert row(windows[0])[:4] == (2, 3, 100, 111)


class TestWaiting:
    def test_is_said(self, sections, windows):
        """A section of waiting is marked as such."""
        with sections.section("work"):
            pass
        with sections.waiting("all_reduce"):
            pass
        sections.step_ended(1)
        assert (windows[0].names, windows[0].waits) == (["work", "all_reduce"], ["all_reduce"])


class TestNobodyListens:
    def test_nothing_is_timed(self, bus, ticking):
        """While no handler wants windows, no time is kept."""
        sections = Sections(bus)
        with sections.section("s"):
            pass
        assert sections._times["s"].times == []

    def test_from_the_next_step(self, bus, ticking):
        """A handler that subscribes later gets the times from the next step on."""
        sections = Sections(bus)
        sections.configure(window_steps=2)
        found = Capture()
        for step in range(4):
            with sections.section("s"):
                ticking.now_ns += 5
            if step == 1:
                bus.subscribe(found, to=SectionWindow)
            sections.step_ended(step)
        assert [row(event)[0] for event in found.of(SectionWindow) if event.names] == [2]


class TestConfigure:
    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"window_steps": 0}, "window_steps"),
            ({"window_s": 0}, "window_s"),
            ({"window_s": float("nan")}, "window_s"),
            ({"window_s": 1.0, "window_steps": 1}, "window_s"),
            ({"profiling_interval": -1}, "profiling_interval"),
        ],
    )
    def test_refused(self, sections, given, field):
        """A value out of its range is refused by name."""
        with pytest.raises(ConfigError, match=field):
            sections.configure(**given)


class TestDefault:
    @pytest.fixture(autouse=True)
    def fresh(self):
        """Restore the process's sections after the test."""
        yield
        module._sections.close()
        module.configure_sections(window_steps=100)

    def test_training_iterations(self, captured):
        """The process's sections follow its training iterations."""
        module.configure_sections(window_steps=3)
        for step in range(3):
            with training_iteration(step), module.section("forward"):
                pass
        (event,) = captured.of(SectionWindow)
        assert (event.names, event.counts, event.first_step, event.last_step) == (["forward"], [3], 0, 2)

    def test_closed(self):
        """After their removal, they leave nothing behind on the bus."""
        module.section("forward")
        module._sections.close()
        assert not default_bus.wants(IterationEnded)

    @pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="there is no fork here")
    def test_fork(self, captured):
        """A forked child begins without its parent's times, and goes on timing decorated functions."""
        module.configure_sections(window_steps=1)

        @module.section("forward")
        def forward():
            pass

        forward()
        module._sections.after_fork()
        module.step_ended(0)
        forward()
        module.step_ended(1)
        assert [event.counts for event in captured.of(SectionWindow)] == [[], [1]]
