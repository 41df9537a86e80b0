"""Heartbeats, and the readings of the clocks."""

from __future__ import annotations

import logging
import threading

import pytest

from ticking import Ticked
from trackside.events import ClockAnchored, Heartbeat, RunsOn, ambient, clock
from trackside.handlers import Capture
from trackside.job import _heartbeat
from trackside.job._heartbeat import HeartbeatThread

SECOND = 10**9
DEADLINE_S = 30.0


class Clocks:
    """A monotonic clock, a wall clock and one that runs while the machine sleeps, all of which a test sets."""

    def __init__(self):
        self.mono_ns = 100 * SECOND
        self.wall_ns = 1_700_000_000 * SECOND
        self.boot_ns = 250 * SECOND
        self.uncertainty_ns = 40

    def pass_s(self, seconds, *, asleep_s=0):
        """Let the process run for *seconds*, after the machine slept."""
        self.mono_ns += round(seconds * SECOND)
        self.wall_ns += round((seconds + asleep_s) * SECOND)
        self.boot_ns += round((seconds + asleep_s) * SECOND)

    def read_anchor(self):
        """Read the monotonic and the wall clock together."""
        return clock.Anchor(self.mono_ns, self.wall_ns, self.uncertainty_ns)


@pytest.fixture
def clocks():
    """Give clocks, on which the process is anchored."""
    given = Clocks()
    with clock.installed(lambda: given.mono_ns, lambda: given.wall_ns):
        yield given


@pytest.fixture
def captured(bus):
    handler = Capture()
    with bus.subscribe(handler, to=(Heartbeat, ClockAnchored)):
        yield handler


@pytest.fixture
def heartbeats(bus, clocks, monkeypatch):
    monkeypatch.setattr(clock, "read_anchor", clocks.read_anchor)
    monkeypatch.setattr(_heartbeat, "_suspended_clock_ns", lambda: clocks.boot_ns)
    return HeartbeatThread(bus)


class TestAnchor:
    def test_reading(self, heartbeats, captured, clocks):
        """An event carries both readings, and how far they may be apart."""
        heartbeats.anchor()
        anchored = captured.of(ClockAnchored)[0]

        assert (anchored.mono_ns, anchored.wall_ns) == (100 * SECOND, 1_700_000_000 * SECOND)
        assert anchored.uncertainty_ns == 40

    def test_first_offset(self, heartbeats, captured):
        """The first reading is the one to which the process was anchored: no offset."""
        heartbeats.anchor()

        assert captured.of(ClockAnchored)[0].offset_ns == 0

    @pytest.mark.parametrize("jump_s", [-3600, 3600, 0.002])
    def test_wall_clock_set(self, heartbeats, captured, clocks, jump_s):
        """After the wall clock was set, the offset is the size of the jump; the times of events go on as before."""
        heartbeats.anchor()
        clocks.pass_s(10)
        clocks.wall_ns += round(jump_s * SECOND)
        heartbeats.anchor()
        first, second = captured.of(ClockAnchored)

        assert second.offset_ns == round(jump_s * SECOND)
        assert second.at_ns - first.at_ns == 10 * SECOND

    def test_drift(self, heartbeats, captured, clocks):
        """A wall clock that runs faster by 200 parts in a million is 12 ms ahead after a minute."""
        heartbeats.anchor()
        clocks.pass_s(60)
        clocks.wall_ns += 60 * SECOND * 200 // 1_000_000
        heartbeats.anchor()

        assert captured.of(ClockAnchored)[1].offset_ns == 12_000_000

    def test_first_reading_knows_of_no_sleep(self, heartbeats, captured):
        """Sleep of the machine before the process began is not recorded: it is no gap."""
        heartbeats.anchor()

        assert captured.of(ClockAnchored)[0].suspended_ns == 0

    def test_sleep(self, heartbeats, captured, clocks):
        """Sleep of an hour is recorded, once; the monotonic clock stood still and the wall clock went on."""
        heartbeats.anchor()
        clocks.pass_s(60, asleep_s=3600)
        heartbeats.anchor()
        clocks.pass_s(60)
        heartbeats.anchor()

        assert [anchored.suspended_ns for anchored in captured.of(ClockAnchored)] == [0, 3600 * SECOND, 0]
        assert [anchored.offset_ns for anchored in captured.of(ClockAnchored)] == [0, 3600 * SECOND, 3600 * SECOND]

    def test_jitter_is_no_sleep(self, heartbeats, captured, clocks):
        """Less than a tenth of a second between two clocks is due to the reading, not to sleep."""
        heartbeats.anchor()
        clocks.pass_s(60, asleep_s=0.099)
        heartbeats.anchor()

        assert captured.of(ClockAnchored)[1].suspended_ns == 0

    def test_belongs_to_no_span(self, heartbeats, captured):
        """A reading belongs to no span and no step, whatever is open in the thread."""
        token = ambient.set((7, 3))
        heartbeats.anchor()
        heartbeats.beat()
        ambient.reset(token)

        assert [(seen.span_id, seen.step) for seen in captured] == [(0, -1), (0, -1)]

    def test_real_clocks(self, bus, captured):
        """With the machine's own clocks the offset is small, and no sleep is seen."""
        heartbeats = HeartbeatThread(bus)
        heartbeats.anchor()
        heartbeats.anchor()
        second = captured.of(ClockAnchored)[1]

        assert abs(second.offset_ns) < 60 * SECOND
        assert second.suspended_ns == 0


class TestBeat:
    def test_sequence(self, heartbeats, captured):
        """Heartbeats are numbered from 0."""
        for _ in range(3):
            heartbeats.beat()

        assert [beat.sequence for beat in captured.of(Heartbeat)] == [0, 1, 2]

    def test_counts(self, bus, heartbeats, captured):
        """A heartbeat carries the bus's counts: numbered, waiting, dropped, failed or not recordable."""
        queued = Capture()
        with bus.subscribe(queued, to=Ticked, runs_on=RunsOn.WORKER), bus.subscribe(_explode, to=Ticked):
            for _ in range(3):
                bus.log(Ticked())
            bus.log(Ticked(step=object()))
            bus.flush()
            heartbeats.beat()

        # Numbered were SourceStarted and three that ticked; the handler that raises was called for all four.
        assert captured.of(Heartbeat)[0].counts == {
            "published": 4,
            "in_queue": 0,
            "dropped": 0,
            "failed": 4,
            "invalid": 1,
            "suppressed": 0,
        }

    def test_open_spans(self, bus, clocks, captured):
        """A heartbeat carries the innermost open span of each thread."""
        spans = {"MainThread": [7, "training_loop", 123]}
        HeartbeatThread(bus, read_open_spans=lambda: spans).beat()

        assert captured.of(Heartbeat)[0].open_spans == spans

    def test_nobody_listens(self, bus, clocks):
        """While no handler wants heartbeats none is built, and none is counted."""
        heartbeats = HeartbeatThread(bus, read_open_spans=_explode)
        heartbeats.beat()
        captured = Capture()
        with bus.subscribe(captured, to=Heartbeat):
            HeartbeatThread(bus).beat()

        assert [beat.sequence for beat in captured] == [0]


class TestThread:
    def test_beats_and_anchors(self, bus):
        """Once started it anchors first, then beats again and again."""
        seen, enough = [], threading.Event()

        def see(given):
            seen.append(type(given))
            if seen.count(Heartbeat) == 3:
                enough.set()

        bus.subscribe(see, to=(Heartbeat, ClockAnchored))
        heartbeats = HeartbeatThread(bus, interval_s=0.001)
        heartbeats.start()
        was_enough = enough.wait(DEADLINE_S)
        heartbeats.stop(DEADLINE_S)

        assert was_enough
        assert seen[0] is ClockAnchored
        assert seen.count(ClockAnchored) == 1

    def test_last_word(self, bus, captured):
        """Once stopped, the thread sends one more heartbeat, with the last counts, and none after that."""
        heartbeats = HeartbeatThread(bus, interval_s=1000)
        heartbeats.start()
        heartbeats.stop(DEADLINE_S)
        beats = len(captured.of(Heartbeat))

        assert beats in {1, 2}  # the thread may not have come to its first
        assert [thread.name for thread in threading.enumerate() if thread.name == "trackside-heartbeat"] == []

    @pytest.mark.parametrize("raises", ["handler", "check"])
    def test_survives(self, bus, captured, caplog, raises):
        """Neither a handler nor a check that raises stops the heartbeat thread."""
        caplog.set_level(logging.CRITICAL, "trackside")
        if raises == "handler":
            bus.subscribe(_explode, to=Heartbeat)
        heartbeats = HeartbeatThread(bus, interval_s=0.001, on_beat=_explode if raises == "check" else int)
        heartbeats.start()
        deadline = threading.Event()
        while len(captured.of(Heartbeat)) < 10 and not deadline.wait(0.001):
            pass
        heartbeats.stop(DEADLINE_S)

        assert len(captured.of(Heartbeat)) >= 10


def _explode(*_):
    raise RuntimeError("no")
