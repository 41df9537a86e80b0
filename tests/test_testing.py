"""The tools for tests of others, and the fixture that pytest finds by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trackside.events import ITERATION, Event, IterationEnded, Source, event
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.testing import SOURCE, Capture, FakeClock, isolated_bus, recorded
from trackside.wire import FrameView


@event("test.testing.skipped", priority=ITERATION)
class Skipped(Event):
    reason: str = ""


class TestFakeClock:
    def test_stands_still(self):
        """Once installed, it is the clock of events, and it moves only when the test moves it."""
        with FakeClock().installed() as clock:
            first, second = Skipped(), Skipped()
            clock.advance(2.5)
            third = Skipped()
        assert (second.at_ns - first.at_ns, third.at_ns - first.at_ns) == (0, 2_500_000_000)

    def test_time_of_events(self):
        """Once installed, its reading is the time of an event, as it is."""
        with FakeClock(now_ns=5_000).installed():
            assert Skipped().at_ns == 5_000

    def test_given_back(self):
        """Afterwards events have the real time again."""
        with FakeClock().installed():
            fake = Skipped()
        assert Skipped().at_ns != fake.at_ns

    def test_reading(self):
        """It is a callable without arguments that returns ns."""
        clock = FakeClock(now_ns=7)
        assert clock() == 7
        clock.advance(1e-9)
        assert clock() == 8


class TestIsolatedBus:
    def test_of_its_own(self):
        """Events logged on it reach its own handlers, and it is closed afterwards."""
        captured = Capture()
        with isolated_bus() as bus:
            bus.subscribe(captured, to=Skipped)
            bus.log(Skipped(reason="nan"))
        bus.log(Skipped(reason="late"))
        assert [event.reason for event in captured.of(Skipped)] == ["nan"]

    def test_strict(self):
        """A handler that raises fails the test, unless the bus is asked not to be strict."""
        with isolated_bus() as bus:
            bus.subscribe(lambda _event: 1 / 0, to=Skipped)
            with pytest.raises(ZeroDivisionError):
                bus.log(Skipped())
        with isolated_bus(strict=False) as bus:
            bus.subscribe(lambda _event: 1 / 0, to=Skipped)
            bus.log(Skipped())


class TestRecorded:
    def test_default(self):
        """It has the source and the number of a recorded event."""
        event = recorded(Skipped())
        assert (event.source, event.seq) == (SOURCE, 0)

    def test_given(self):
        """Both can be given."""
        source = Source(id="a" * 16)
        event = recorded(Skipped(), source=source, seq=5)
        assert (event.source, event.seq) == (source, 5)

    def test_for_a_model(self):
        """A model reads such events."""
        model = GoodputAccumulator()
        model.consume(FrameView(SOURCE, [recorded(IterationEnded(step=n, duration_ns=5), seq=n) for n in range(3)]))
        assert model.result().last_step == 2


class TestPlugin:
    def test_fixture(self, tmp_path):
        """Pytest finds the fixture, which is a bus of the test's own."""
        (tmp_path / "test_it.py").write_text(
            "def test_it(trackside_bus):\n"
            "    got = []\n"
            "    trackside_bus.subscribe(got.append)\n"
            "    assert not trackside_bus.is_idle\n"
        )
        child = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (child.returncode, "1 passed" in child.stdout) == (0, True)
